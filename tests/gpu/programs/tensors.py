"""tinygrad: PTX of its own, loaded through the driver API. tensors.py [STEPS]"""
import os
import sys
import time

os.environ.setdefault("DEV", "CUDA:PTX")
from tinygrad import Tensor  # noqa: E402

Tensor.manual_seed(7)
state = Tensor.rand(64, 64).realize()
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100):
    state = ((state @ state.T) / 64 + state * 0.01).tanh().realize()
    print(f"{step:5} {float(state.sum().item()).hex()}", flush=True)
    time.sleep(0.02)
