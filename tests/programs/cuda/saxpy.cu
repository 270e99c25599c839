// nvcc -O2 -arch=compute_75
/* y = a * x + y, x changed between: kernels one behind the other on the default stream. */
#include "cuda_program.h"

#include <math.h>

#ifdef __CUDACC__
KERNEL void saxpy(int n, float a, const float *x, float *y)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaf(a, x[i], y[i]);
}

KERNEL void halve(int n, float *x)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = fmaf(x[i], 0.5f, (float)(i % 7));
}
#else
STUB(saxpy, (int n, float a, const float *x, float *y), n, a, x, y)
STUB(halve, (int n, float *x), n, x)
MODULE(ADD_KERNEL(saxpy) ADD_KERNEL(halve))
#endif

enum { N = 5000 };
static float *x, *y, host_x[N], host_y[N];

static float factor(long step)
{
    return step % 2 != 0 ? -0.25f : 0.375f;
}

static void begin(long step)
{
    LAUNCH(saxpy, (N + 255) / 256, 256, 0, (N, factor(step), x, y));
    LAUNCH(halve, (N + 127) / 128, 128, 0, (N, x));
}

static uint64_t end(long step)
{
    for (int i = 0; i < N; i++) {
        host_y[i] = fmaf(factor(step), host_x[i], host_y[i]);
        host_x[i] = fmaf(host_x[i], 0.5f, (float)(i % 7));
    }
    return compared("x", x, host_x, sizeof(host_x)) ^ compared("y", y, host_y, sizeof(host_y));
}

int main(int argc, char **argv)
{
    for (int i = 0; i < N; i++) {
        host_x[i] = (float)(mix(i) % 2001) / 16.0f - 60.0f;
        host_y[i] = (float)(mix(N + i) % 2001) / 32.0f;
    }
    x = (float *)on_device(host_x, sizeof(host_x));
    y = (float *)on_device(host_y, sizeof(host_y));
    return run_steps("saxpy", argc, argv, begin, end);
}
