"""PyCUDA: pools of device and pinned memory, events, prepared launches, a variable of the module. classic.py [STEPS]"""
import hashlib
import sys
import time

import numpy
import pycuda.autoinit  # noqa: F401
import pycuda.driver as cuda
from cuda.bindings import nvrtc
from pycuda.tools import DeviceMemoryPool, PageLockedMemoryPool

SOURCE = rb"""
__device__ unsigned turns;
extern "C" __global__ void turn(unsigned *values, const unsigned *order, unsigned count, unsigned salt)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned value = values[order[i]] * 22695477u + 1u + salt;
    values[order[i]] = value ^ value >> 11;
    if (i == 0) atomicAdd(&turns, 1u);
}
"""
COUNT = 4096


def ptx(source):
    """As a text: PyCUDA itself asks nvcc, for code of one device."""
    _, program = nvrtc.nvrtcCreateProgram(source, b"turn.cu", 0, [], [])
    if int(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_75"])[0]) != 0:
        sys.exit("the kernel was not compiled")
    text = b" " * nvrtc.nvrtcGetPTXSize(program)[1]
    nvrtc.nvrtcGetPTX(program, text)
    return text


module = cuda.module_from_buffer(ptx(SOURCE))
turn = module.get_function("turn")
turn.prepare("PPII")
turns, _ = module.get_global("turns")
stream, ended = cuda.Stream(), cuda.Event()
devices, pinned = DeviceMemoryPool(), PageLockedMemoryPool()
values, order = devices.allocate(COUNT * 4), cuda.to_device(
    numpy.random.RandomState(2).permutation(COUNT).astype(numpy.uint32))
host, count = pinned.allocate((COUNT,), numpy.uint32), numpy.zeros(1, numpy.uint32)
host[:] = numpy.arange(COUNT)
cuda.memcpy_htod(int(values), host)
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100):
    turn.prepared_async_call((COUNT // 256, 1), (256, 1, 1), stream, int(values), int(order), COUNT, step)
    cuda.memcpy_dtoh_async(host, int(values), stream)
    ended.record(stream)
    ended.synchronize()
    cuda.memcpy_dtoh(count, turns)
    print(f"{step:5} {hashlib.sha256(host.tobytes()).hexdigest()[:16]} {int(count[0])}", flush=True)
    time.sleep(0.02)
# Before the context ends with the interpreter: what a pool has it cannot give back then.
del host, values
pinned.stop_holding()
devices.stop_holding()
