// nvcc -O2 -arch=compute_75
/* A graph with two branches, captured once and launched in every step: its arguments are frozen, so a counter in device
 * memory tells its kernels which step it is. */
#include "cuda_program.h"

#ifdef __CUDACC__
KERNEL void left(unsigned *data, int n, const unsigned *turn)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = data[i] * 9 + *turn;
}

KERNEL void right(unsigned *data, int n, const unsigned *turn)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] ^= (unsigned)i << (*turn % 16);
}

KERNEL void join(unsigned *sum, const unsigned *one, const unsigned *other, int n, unsigned *turn)
{
    int i = threadIdx.x;
    for (; i < n; i += blockDim.x) sum[i] += one[i] - other[n - 1 - i];
    __syncthreads();
    if (threadIdx.x == 0) ++*turn;
}
#else
STUB(left, (unsigned *data, int n, const unsigned *turn), data, n, turn)
STUB(right, (unsigned *data, int n, const unsigned *turn), data, n, turn)
STUB(join, (unsigned *sum, const unsigned *one, const unsigned *other, int n, unsigned *turn), sum, one, other, n, turn)
MODULE(ADD_KERNEL(left) ADD_KERNEL(right) ADD_KERNEL(join))
#endif

enum { N = 1000, BYTES = N * sizeof(unsigned) };
static unsigned *one, *other, *sum, *turn, *pinned, host_one[N], host_other[N], host_sum[N], host_turn;
static cudaStream_t stream, side;
static cudaGraphExec_t executable;

static void capture(void)
{
    cudaEvent_t fork_at, join_at;
    cudaGraph_t graph;
    CUDA(cudaEventCreateWithFlags(&fork_at, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&join_at, cudaEventDisableTiming));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaEventRecord(fork_at, stream));
    CUDA(cudaStreamWaitEvent(side, fork_at, 0));
    LAUNCH(left, (N + 127) / 128, 128, stream, (one, N, turn));
    LAUNCH(right, (N + 127) / 128, 128, side, (other, N, turn));
    CUDA(cudaEventRecord(join_at, side));
    CUDA(cudaStreamWaitEvent(stream, join_at, 0));
    LAUNCH(join, 1, 128, stream, (sum, one, other, N, turn));
    CUDA(cudaMemcpyAsync(pinned, sum, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaEventDestroy(fork_at));
    CUDA(cudaEventDestroy(join_at));
}

static void begin(long step)
{
    (void)step;
    CUDA(cudaGraphLaunch(executable, stream));
    CUDA(cudaGraphLaunch(executable, stream));
}

static uint64_t end(long step)
{
    (void)step;
    CUDA(cudaStreamSynchronize(stream));
    for (int launch = 0; launch < 2; launch++) {
        for (int i = 0; i < N; i++) {
            host_one[i] = host_one[i] * 9 + host_turn;
            host_other[i] ^= (unsigned)i << (host_turn % 16);
        }
        for (int i = 0; i < N; i++) host_sum[i] += host_one[i] - host_other[N - 1 - i];
        host_turn++;
    }
    CHECK(memcmp(pinned, host_sum, BYTES) == 0);
    compared("turn", turn, &host_turn, sizeof(host_turn));
    return compared("one", one, host_one, BYTES) ^ mix(compared("other", other, host_other, BYTES))
        ^ mix(~compared("sum", sum, host_sum, BYTES));
}

int main(int argc, char **argv)
{
    for (int i = 0; i < N; i++) host_one[i] = (unsigned)mix(i);
    one = (unsigned *)on_device(host_one, BYTES);
    other = (unsigned *)on_device(NULL, BYTES);
    sum = (unsigned *)on_device(NULL, BYTES);
    turn = (unsigned *)on_device(NULL, sizeof(unsigned));
    CUDA(cudaMallocHost((void **)&pinned, BYTES));
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaStreamCreate(&side));
    capture();
    return run_steps("graph", argc, argv, begin, end);
}
