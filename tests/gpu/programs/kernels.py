"""Numba: kernels compiled from Python, by the driver API alone. kernels.py [STEPS]"""
import sys
import time

import numpy
from numba import cuda


@cuda.jit
def advance(values, step):
    i = cuda.grid(1)
    if i < values.size:
        values[i] = values[i] * 3 + (i ^ step)


values = cuda.to_device(numpy.arange(1 << 20, dtype=numpy.uint64))
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 200):
    advance[(1 << 20) // 256, 256](values, step)
    time.sleep(0.02)
    print(f"{step:5} {int(values.copy_to_host().sum()):016x}", flush=True)
