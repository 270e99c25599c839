"""NVIDIA's cuda-bindings and NVRTC: a struct as argument, a pool, a variable of the module. bindings.py [STEPS]"""
import ctypes
import hashlib
import sys
import time

import numpy
from cuda.bindings import driver, nvrtc

SOURCE = rb"""
struct Work { unsigned *values; unsigned count; float unused; };
__device__ unsigned hits;
extern "C" __global__ void advance(Work work, const unsigned *order, unsigned salt)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= work.count) return;
    unsigned value = work.values[order[i]] * 1664525u + 1013904223u + salt;
    work.values[order[i]] = value ^ value >> 13;
    if ((value & 255u) == 0) atomicAdd(&hits, 1u);
}
"""
COUNT = 4096


class Work(ctypes.Structure):
    _fields_ = [("values", ctypes.c_uint64), ("count", ctypes.c_uint32), ("unused", ctypes.c_float)]


def done(answer):
    """What a call has given; an error ends the program."""
    error, *values = answer
    if int(error) != 0:
        sys.exit(f"{error!r}")
    return values[0] if len(values) == 1 else values


done(driver.cuInit(0))
context = done(driver.cuDevicePrimaryCtxRetain(done(driver.cuDeviceGet(0))))
done(driver.cuCtxSetCurrent(context))
program = done(nvrtc.nvrtcCreateProgram(SOURCE, b"advance.cu", 0, [], []))
done(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_75"]))
ptx = b" " * done(nvrtc.nvrtcGetPTXSize(program))
done(nvrtc.nvrtcGetPTX(program, ptx))
module = done(driver.cuModuleLoadData(ptx))
kernel = done(driver.cuModuleGetFunction(module, b"advance"))
hits, _ = done(driver.cuModuleGetGlobal(module, b"hits"))
stream = done(driver.cuStreamCreate(0))
values, order = done(driver.cuMemAlloc(COUNT * 4)), done(driver.cuMemAlloc(COUNT * 4))
pooled = done(driver.cuMemAllocAsync(COUNT * 4, stream))
host, count = numpy.arange(COUNT, dtype=numpy.uint32), numpy.zeros(1, numpy.uint32)
done(driver.cuMemcpyHtoD(values, host.ctypes.data, COUNT * 4))
permutation = numpy.random.RandomState(1).permutation(COUNT).astype(numpy.uint32)
done(driver.cuMemcpyHtoD(order, permutation.ctypes.data, COUNT * 4))
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100):
    arguments = (Work(int(values), COUNT, 1.0), ctypes.c_uint64(int(order)), ctypes.c_uint32(step))
    places = (ctypes.c_void_p * 3)(*(ctypes.addressof(one) for one in arguments))
    done(driver.cuLaunchKernel(kernel, COUNT // 256, 1, 1, 256, 1, 1, 0, stream, ctypes.addressof(places), 0))
    done(driver.cuMemcpyDtoDAsync(pooled, values, COUNT * 4, stream))
    done(driver.cuStreamSynchronize(stream))
    done(driver.cuMemcpyDtoH(host.ctypes.data, pooled, COUNT * 4))
    done(driver.cuMemcpyDtoH(count.ctypes.data, hits, 4))
    print(f"{step:5} {hashlib.sha256(host.tobytes()).hexdigest()[:16]} {int(count[0])}", flush=True)
    time.sleep(0.02)
