#!/usr/bin/env python3
"""Training of a small network with PyTorch, which knows nothing of Holdfast.

    holdfast run --name train --every 60 -- python3 train.py 2000 &
    holdfast checkpoint train
    kill -9 PID
    holdfast restart train

It prints the loss of every tenth step with all its bits. Everything that PyTorch can do in the same order each time it
does so here, so that a run which was stopped and restarted prints what an undisturbed one prints: weights, the state of
the optimizer, the generators of random numbers, and what the allocator has cached all come back.
"""

import os
import sys

# Before PyTorch is loaded: cuBLAS gives the same results each time only with a workspace of this kind (documentation of
# torch.use_deterministic_algorithms).
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    network = torch.nn.Sequential(
        torch.nn.Linear(64, 1024), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(1024, 1)
    ).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    # The function that is learned.
    wanted = torch.randn(64, 1, device=device)
    for step in range(1, steps + 1):
        inputs = torch.randn(256, 64, device=device)
        loss = torch.nn.functional.mse_loss(network(inputs), torch.sin(inputs @ wanted))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{step:6} {float(loss).hex()}", flush=True)


if __name__ == "__main__":
    main()
