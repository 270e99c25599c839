// nvcc -O2 -arch=compute_75
/* Several streams, one of which does not wait for the default stream; events between them, copies into pinned memory,
 * functions of the host in their order. */
#include "cuda_program.h"

#ifdef __CUDACC__
KERNEL void stir(unsigned *own, const unsigned *other, int n, unsigned add)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) own[i] = own[i] * 5 + other[(i * 7 + 1) % n] + add;
}
#else
STUB(stir, (unsigned *own, const unsigned *other, int n, unsigned add), own, other, n, add)
MODULE(ADD_KERNEL(stir))
#endif

enum { STREAMS = 4, N = 700, BYTES = N * sizeof(unsigned) };
static cudaStream_t streams[STREAMS];
static cudaEvent_t done[STREAMS];
static unsigned *device[STREAMS], *pinned[STREAMS], host[STREAMS][N];
/* What the functions of the host have seen: written by threads of the driver, in the order of the events. */
static uint64_t heard;
static long calls;

static void hear(void *data)
{
    unsigned *from = *(unsigned **)data;
    heard = mix(heard ^ from[0] ^ ((uint64_t)from[N - 1] << 32));
    __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
}

/* Each stream takes from the one before it what that has just computed. */
static void begin(long step)
{
    for (int s = 0; s < STREAMS; s++) {
        int before = (s + STREAMS - 1) % STREAMS;
        CUDA(cudaStreamWaitEvent(streams[s], done[before], 0));
        LAUNCH(stir, (N + 63) / 64, 64, streams[s], (device[s], device[before], N, (unsigned)(step * STREAMS + s)));
        CUDA(cudaMemcpyAsync(pinned[s], device[s], BYTES, cudaMemcpyDeviceToHost, streams[s]));
        CUDA(cudaLaunchHostFunc(streams[s], hear, &pinned[s]));
        CUDA(cudaEventRecord(done[s], streams[s]));
    }
}

static uint64_t end(long step)
{
    static uint64_t wanted;
    uint64_t sum = 0;
    CUDA(cudaEventSynchronize(done[STREAMS - 1]));
    for (int s = 0; s < STREAMS; s++) {
        const unsigned *before = host[(s + STREAMS - 1) % STREAMS];
        for (int i = 0; i < N; i++) {
            host[s][i] = host[s][i] * 5 + before[(i * 7 + 1) % N] + (unsigned)(step * STREAMS + s);
        }
        wanted = mix(wanted ^ host[s][0] ^ ((uint64_t)host[s][N - 1] << 32));
        CHECK(memcmp(pinned[s], host[s], BYTES) == 0);
        sum = mix(sum ^ compared("buffer", device[s], host[s], BYTES));
    }
    CHECK(__atomic_load_n(&calls, __ATOMIC_SEQ_CST) == (step + 1) * STREAMS);
    CHECK(heard == wanted);
    return sum ^ heard;
}

int main(int argc, char **argv)
{
    for (int s = 0; s < STREAMS; s++) {
        for (int i = 0; i < N; i++) host[s][i] = (unsigned)mix(s * N + i);
        device[s] = (unsigned *)on_device(host[s], BYTES);
        CUDA(cudaMallocHost((void **)&pinned[s], BYTES));
        CUDA(cudaStreamCreateWithFlags(&streams[s], s == 2 ? cudaStreamNonBlocking : 0));
        CUDA(cudaEventCreateWithFlags(&done[s], cudaEventDisableTiming));
    }
    return run_steps("streams", argc, argv, begin, end);
}
