"""CuPy: elementwise kernels by NVRTC, cuBLAS, a pool of memory. arrays.py [STEPS]"""
import sys
import time

import cupy

generator = cupy.random.default_rng(7)
state = generator.random((512, 512), dtype=cupy.float32)
weights = generator.random((512, 512), dtype=cupy.float32) / 512
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 200):
    state = cupy.tanh(state @ weights + 0.1) + generator.random((512, 512), dtype=cupy.float32) * 0.01
    time.sleep(0.02)
    print(f"{step:5} {float(state[step % 512].sum()).hex()}", flush=True)
