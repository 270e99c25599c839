# Temporaries of numpy: each step makes arrays of so many MiB anew, in memory that was given back, and all in huge pages
# where there are some. It prints a line when it has begun, and runs until it is ended.
# temporaries.py MIB
import sys
import numpy

count = int(sys.argv[1]) * (1 << 20) // 8
one = numpy.arange(count, dtype=numpy.float64)
print("running", flush=True)
while True:
    other = one * 1.0001 + numpy.sin(one) - one / 3.0
    one = other + 1.0
