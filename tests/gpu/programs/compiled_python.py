"""A kernel that Numba's compiler makes from Python, by NVVM, launched by cuda-bindings. compiled_python.py [STEPS]"""
import ctypes
import hashlib
import sys
import time

import numpy
from cuda.bindings import driver
from numba import cuda, types

COUNT = 4096


def advance(values, step):
    i = cuda.grid(1)
    if i < values.size:
        values[i] = values[i] * 3 + (i ^ step)


def done(answer):
    """What a call has given; an error ends the program."""
    error, *values = answer
    if int(error) != 0:
        sys.exit(f"{error!r}")
    return values[0] if len(values) == 1 else values


ptx, _ = cuda.compile_ptx(advance, types.void(types.uint64[::1], types.int64), cc=(7, 5))
name = next(line.split()[2].rstrip("(") for line in ptx.splitlines() if line.startswith(".visible .entry"))
done(driver.cuInit(0))
done(driver.cuCtxSetCurrent(done(driver.cuDevicePrimaryCtxRetain(done(driver.cuDeviceGet(0))))))
kernel = done(driver.cuModuleGetFunction(done(driver.cuModuleLoadData(ptx.encode() + b"\0")), name.encode()))
host = numpy.arange(COUNT, dtype=numpy.uint64)
values = done(driver.cuMemAlloc(host.nbytes))
done(driver.cuMemcpyHtoD(values, host.ctypes.data, host.nbytes))
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100):
    # As Numba passes an array: meminfo, parent, number and size of elements, data, shape, strides.
    words = [ctypes.c_uint64(word) for word in (0, 0, COUNT, 8, int(values), COUNT, 8, step)]
    places = (ctypes.c_void_p * len(words))(*(ctypes.addressof(word) for word in words))
    done(driver.cuLaunchKernel(kernel, COUNT // 256, 1, 1, 256, 1, 1, 0, 0, ctypes.addressof(places), 0))
    done(driver.cuMemcpyDtoH(host.ctypes.data, values, host.nbytes))
    print(f"{step:5} {hashlib.sha256(host.tobytes()).hexdigest()[:16]}", flush=True)
    time.sleep(0.02)
