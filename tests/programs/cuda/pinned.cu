// nvcc -O2 -arch=compute_75
/* Pinned memory of the host: copied from and to by turns, and one part that kernels write themselves. */
#include "cuda_program.h"

#ifdef __CUDACC__
KERNEL void transform(const unsigned *in, unsigned *out, unsigned *seen, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = in[i] ^ (in[(i + 1) % n] >> 3);
    if (i % 16 == 0) seen[i / 16] += out[i];
}
#else
STUB(transform, (const unsigned *in, unsigned *out, unsigned *seen, int n), in, out, seen, n)
MODULE(ADD_KERNEL(transform))
#endif

enum { N = 3000, BYTES = N * sizeof(unsigned), SEEN = (N + 15) / 16 };
static unsigned *in[2], *out[2], *device_in, *device_out, *seen, *device_seen;
static unsigned host_in[N], host_out[N], host_seen[SEEN];
static cudaStream_t stream;

static void begin(long step)
{
    unsigned *from = in[step % 2];
    for (int i = 0; i < N; i++) from[i] = host_in[i] = (unsigned)mix(step * N + i);
    CUDA(cudaMemcpyAsync(device_in, from, BYTES, cudaMemcpyHostToDevice, stream));
    LAUNCH(transform, (N + 255) / 256, 256, stream, (device_in, device_out, device_seen, N));
    CUDA(cudaMemcpyAsync(out[step % 2], device_out, BYTES, cudaMemcpyDeviceToHost, stream));
}

static uint64_t end(long step)
{
    CUDA(cudaStreamSynchronize(stream));
    for (int i = 0; i < N; i++) {
        host_out[i] = host_in[i] ^ (host_in[(i + 1) % N] >> 3);
        if (i % 16 == 0) host_seen[i / 16] += host_out[i];
    }
    CHECK(memcmp(in[step % 2], host_in, BYTES) == 0);
    CHECK(memcmp(out[step % 2], host_out, BYTES) == 0);
    CHECK(memcmp(seen, host_seen, sizeof(host_seen)) == 0);
    return compared("out", device_out, host_out, BYTES) ^ checksum(seen, sizeof(host_seen));
}

int main(int argc, char **argv)
{
    for (int i = 0; i < 2; i++) {
        CUDA(cudaMallocHost((void **)&in[i], BYTES));
        CUDA(cudaHostAlloc((void **)&out[i], BYTES, cudaHostAllocPortable));
    }
    CUDA(cudaHostAlloc((void **)&seen, sizeof(host_seen), cudaHostAllocMapped | cudaHostAllocPortable));
    memset(seen, 0, sizeof(host_seen));
    CUDA(cudaHostGetDevicePointer((void **)&device_seen, seen, 0));
    device_in = (unsigned *)on_device(NULL, BYTES);
    device_out = (unsigned *)on_device(NULL, BYTES);
    CUDA(cudaStreamCreate(&stream));
    return run_steps("pinned", argc, argv, begin, end);
}
