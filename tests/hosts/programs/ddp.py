"""ddp.py STEPS: one rank of a training in PyTorch; prints losses and a sum of weights."""
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, steps = dist.get_rank(), int(sys.argv[1])
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
model = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.Generator().manual_seed(100 + rank)
for step in range(1, steps + 1):
    inputs = torch.randn(64, 64, generator=data)
    loss = ((model(inputs).squeeze() - inputs.sin().sum(1)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 20 == 0:
        weights = sum(parameter.double().sum().item() for parameter in model.parameters())
        print(f"step {step}: {loss.item()!r} {weights!r}", flush=True)
dist.destroy_process_group()
