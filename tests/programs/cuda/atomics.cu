// nvcc -O2 -arch=compute_75
/* Atomic operations of many threads on few words, of every kind whose result does not depend on their order. */
#include "cuda_program.h"

struct counters {
    unsigned bins[16];
    unsigned most, bits, toggled;
    int least;
    unsigned long long total;
    double sum;
};

#ifdef __CUDACC__
KERNEL void count(struct counters *c, unsigned start)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x + start;
    unsigned value = i * 2654435761u;
    atomicAdd(&c->bins[value >> 28], i);
    atomicMax(&c->most, value);
    atomicMin(&c->least, (int)(5 - i));
    atomicOr(&c->bits, 1u << (i & 31));
    atomicXor(&c->toggled, value);
    atomicAdd(&c->total, (unsigned long long)value);
    unsigned long long *bits = (unsigned long long *)&c->sum, old = *bits, seen;
    do {
        seen = old;
        old = atomicCAS(bits, seen, (unsigned long long)__double_as_longlong(__longlong_as_double(seen) + 0.5));
    } while (seen != old);
}
#else
STUB(count, (struct counters *c, unsigned start), c, start)
MODULE(ADD_KERNEL(count))
#endif

enum { BLOCKS = 7, THREADS = 64 };
static struct counters *device, host;

static void begin(long step)
{
    LAUNCH(count, BLOCKS, THREADS, 0, (device, (unsigned)step * 1000));
}

static uint64_t end(long step)
{
    for (unsigned n = 0; n < BLOCKS * THREADS; n++) {
        unsigned i = n + (unsigned)step * 1000, value = i * 2654435761u;
        host.bins[value >> 28] += i;
        if (value > host.most) host.most = value;
        if ((int)(5 - i) < host.least) host.least = (int)(5 - i);
        host.bits |= 1u << (i & 31);
        host.toggled ^= value;
        host.total += value;
        host.sum += 0.5;
    }
    return compared("counters", device, &host, sizeof(host));
}

int main(int argc, char **argv)
{
    device = (struct counters *)on_device(&host, sizeof(host));
    return run_steps("atomics", argc, argv, begin, end);
}
