"""JAX: what XLA compiles, its allocator that takes most of the device at the start. compiled.py [STEPS]"""
import os
import sys
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.02")
# Else kernels are chosen by measured times, and two runs may differ in the last bits.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


@jax.jit
def advance(state, key):
    return jnp.tanh(state @ state.T / 256 + jax.random.normal(key, state.shape) * 0.01)


key = jax.random.PRNGKey(7)
state = jax.random.normal(key, (256, 256))
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 200):
    key, part = jax.random.split(key)
    state = advance(state, part)
    time.sleep(0.02)
    print(f"{step:5} {float(state[step % 256].sum()).hex()}", flush=True)
