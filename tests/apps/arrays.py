# numpy: arrays of MIB in all, all of them changed in every turn, one checksum line per turn.
import hashlib, sys
import numpy

mib = int(sys.argv[1]) if len(sys.argv) > 1 else 500
turns = int(sys.argv[2]) if len(sys.argv) > 2 else 12
rows = mib * 1024 * 1024 // 4 // 8
rng = numpy.random.default_rng(20240101)
arrays = [rng.standard_normal(rows) for _ in range(4)]
matrix = rng.standard_normal((300, 300))
print("arrays:", sum(a.nbytes for a in arrays) >> 20, "MiB", flush=True)
for turn in range(turns):
    for i, a in enumerate(arrays):
        a *= 0.999
        a += numpy.roll(a[:1000], turn)[0] * 1e-3
        a[turn :: 1024] = i + turn
    matrix = matrix @ matrix
    matrix /= numpy.abs(matrix).max()
    sums = " ".join(float(a.sum()).hex() for a in arrays)
    part = hashlib.sha256(arrays[turn % 4][:: 512].tobytes()).hexdigest()[:16]
    print(turn, sums, float(matrix.sum()).hex(), part, flush=True)
print("PASS", flush=True)
