// nvcc -O2 -arch=compute_75
/* Structs as arguments, with pointers in them, small members and padding. */
#include "cuda_program.h"

struct inner {
    char sign;
    short scale[3];
    double weight;
};
struct work {
    const int *from;
    unsigned char low;
    struct inner inner;
    long *to;
    int n;
};

#ifdef __CUDACC__
KERNEL void apply(struct work w, struct inner more, char last)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w.n) return;
    long scaled = (long)w.from[i] * w.inner.scale[i % 3] * w.inner.sign + w.low;
    w.to[i] += scaled + (long)(w.inner.weight * 4.0) + more.scale[2 - i % 3] * last + (long)more.weight;
}
#else
STUB(apply, (struct work w, struct inner more, char last), w, more, last)
MODULE(ADD_KERNEL(apply))
#endif

enum { N = 1500 };
static int *from, host_from[N];
static long *to, host_to[N];

static struct inner inner_of(long step)
{
    struct inner inner = {(char)(step % 2 != 0 ? -1 : 1), {3, (short)-step, 500}, (double)step * 0.25};
    return inner;
}

static struct work work_of(long step)
{
    struct work work = {from, (unsigned char)(200 + step), inner_of(step), to, N - (int)(step % 10)};
    return work;
}

static void begin(long step)
{
    LAUNCH(apply, (N + 99) / 100, 100, 0, (work_of(step), inner_of(step + 7), (char)(step % 100)));
}

static uint64_t end(long step)
{
    struct work w = work_of(step);
    struct inner more = inner_of(step + 7);
    char last = (char)(step % 100);
    for (int i = 0; i < w.n; i++) {
        long scaled = (long)host_from[i] * w.inner.scale[i % 3] * w.inner.sign + w.low;
        host_to[i] += scaled + (long)(w.inner.weight * 4.0) + more.scale[2 - i % 3] * last + (long)more.weight;
    }
    return compared("to", to, host_to, sizeof(host_to));
}

int main(int argc, char **argv)
{
    for (int i = 0; i < N; i++) host_from[i] = (int)(mix(i) % 20000) - 10000;
    from = (int *)on_device(host_from, sizeof(host_from));
    to = (long *)on_device(NULL, sizeof(host_to));
    return run_steps("structs", argc, argv, begin, end);
}
