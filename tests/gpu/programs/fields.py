"""Taichi: PTX by its own LLVM, memory by the driver API. fields.py [STEPS]"""
import sys
import time

import taichi

taichi.init(arch=taichi.cuda, random_seed=7, offline_cache=False, device_memory_GB=0.05)
COUNT = 1024
values = taichi.field(taichi.f32, shape=COUNT)


@taichi.kernel
def start():
    for i in values:
        values[i] = i * 0.5


@taichi.kernel
def advance(step: taichi.i32):
    for i in values:
        values[i] = values[i] * 0.999 + taichi.sin(taichi.cast(i + step, taichi.f32))


start()
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100):
    advance(step)
    print(f"{step:5} {values.to_numpy().tobytes()[:64].hex()}", flush=True)
    time.sleep(0.02)
