// nvcc -O2 -arch=compute_75
/* PROGRAM [STEPS [MIB [CHUNKS [BITS]]]]: a large buffer, of whose chunks of 64 KiB each step writes one word in a few:
 * the device part of an increment has to be as small. BITS (64): random ones in each word at first; the fewer, the
 * smaller a codec makes it. */
#include "cuda_program.h"

#ifdef __CUDACC__
KERNEL void touch(unsigned long long *memory, unsigned chunks, unsigned count, unsigned long long step)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned long long chunk = (step * count + i) * 2654435761u % chunks;
    memory[chunk * 8192 + (step * 31 + i) % 8192] = step * 1000003 + i;
}
#else
STUB(touch, (unsigned long long *memory, unsigned chunks, unsigned count, unsigned long long step), memory, chunks,
    count, step)
MODULE(ADD_KERNEL(touch))
#endif

static unsigned long long *memory, *host;
static unsigned chunks, count;

static void begin(long step)
{
    LAUNCH(touch, (count + 31) / 32, 32, 0, (memory, chunks, count, (unsigned long long)step));
}

static uint64_t end(long step)
{
    for (unsigned i = 0; i < count; i++) {
        unsigned long long chunk = ((unsigned long long)step * count + i) * 2654435761u % chunks;
        host[chunk * 8192 + ((unsigned long long)step * 31 + i) % 8192] = (unsigned long long)step * 1000003 + i;
    }
    return compared("memory", memory, host, (size_t)chunks << 16);
}

int main(int argc, char **argv)
{
    chunks = (unsigned)number_argument(argc, argv, 2, 8) * 16;
    count = (unsigned)number_argument(argc, argv, 3, 3);
    unsigned bits = (unsigned)number_argument(argc, argv, 4, 64);
    CHECK(count <= chunks && bits >= 1 && bits <= 64);
    host = (unsigned long long *)malloc((size_t)chunks << 16);
    CHECK(host != NULL);
    for (size_t i = 0; i < (size_t)chunks * 8192; i++) host[i] = mix(i) >> (64 - bits);
    memory = (unsigned long long *)on_device(host, (size_t)chunks << 16);
    return run_steps("touches", argc, argv, begin, end);
}
