// nvcc -O2 -arch=compute_75
/* Several threads of the host, each with its own default stream (cudaStreamPerThread); they meet after every step. */
#include "cuda_program.h"

#include <pthread.h>

#ifdef __CUDACC__
KERNEL void grow(unsigned *data, int n, unsigned add)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = data[i] * 17 + add;
}
#else
STUB(grow, (unsigned *data, int n, unsigned add), data, n, add)
MODULE(ADD_KERNEL(grow))
#endif

enum { THREADS = 4, N = 600, BYTES = N * sizeof(unsigned) };
static unsigned *device[THREADS], host[THREADS][N];
static uint64_t sums[THREADS];
static long steps;
static pthread_barrier_t meeting;

static void *work(void *data)
{
    long own = (long)data;
    for (long step = 0; step < steps; step++) {
        for (unsigned turn = 0; turn < 3; turn++) {
            LAUNCH(grow, (N + 63) / 64, 64, cudaStreamPerThread, (device[own], N, (unsigned)(step + own) + turn));
            for (int i = 0; i < N; i++) host[own][i] = host[own][i] * 17 + (unsigned)(step + own) + turn;
        }
        CUDA(cudaGetLastError());
        sleep_ms(QUIET_MS);
        CUDA(cudaStreamSynchronize(cudaStreamPerThread));
        sums[own] = compared("data", device[own], host[own], BYTES);
        pthread_barrier_wait(&meeting);
        pthread_barrier_wait(&meeting);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    steps = number_argument(argc, argv, 1, 50);
    CHECK_ZERO(pthread_barrier_init(&meeting, NULL, THREADS + 1));
    for (int t = 0; t < THREADS; t++) device[t] = (unsigned *)on_device(NULL, BYTES);
    CUDA(cudaDeviceSynchronize());
    for (long t = 0; t < THREADS; t++) CHECK_ZERO(pthread_create(&threads[t], NULL, work, (void *)t));
    for (long i = 0; i < steps; i++) {
        uint64_t sum = 0;
        pthread_barrier_wait(&meeting);
        for (int t = 0; t < THREADS; t++) sum = mix(sum ^ sums[t]);
        step("threads %ld: %016llx", i, (unsigned long long)sum);
        sleep_ms(QUIET_MS);
        pthread_barrier_wait(&meeting);
    }
    for (int t = 0; t < THREADS; t++) CHECK_ZERO(pthread_join(threads[t], NULL));
    return pass();
}
