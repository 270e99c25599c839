// nvcc -O2 -arch=compute_75
/* Variables of a module: read and written by kernels and the host, constant ones, one that holds a pointer. */
#include "cuda_program.h"

enum { N = 256 };

#ifdef __CUDACC__
__device__ unsigned long long total;
__device__ unsigned table[N] = {1, 2, 3};
__device__ unsigned *where;
__constant__ unsigned factors[8];

KERNEL void advance(unsigned add)
{
    unsigned i = threadIdx.x;
    table[i] = table[i] * factors[i & 7] + add;
    where[i] ^= table[i];
    atomicAdd(&total, (unsigned long long)table[i]);
}
#else
VARIABLE(total, 8)
VARIABLE(table, 4 * N)
VARIABLE(where, 8)
VARIABLE(factors, 32)
STUB(advance, (unsigned add), add)
MODULE(ADD_KERNEL(advance) ADD_VARIABLE(total) ADD_VARIABLE(table) ADD_VARIABLE(where) ADD_VARIABLE(factors))
#endif

static unsigned *buffers[2], host[2][N], host_table[N] = {1, 2, 3}, host_factors[8];
static unsigned long long host_total;

static void begin(long step)
{
    unsigned *buffer = buffers[step % 2];
    for (unsigned i = 0; i < 8; i++) host_factors[i] = (unsigned)mix(step * 8 + i) | 1;
    CUDA(cudaMemcpyToSymbol(factors, host_factors, sizeof(host_factors), 0, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpyToSymbol(where, &buffer, sizeof(buffer), 0, cudaMemcpyHostToDevice));
    LAUNCH(advance, 1, N, 0, ((unsigned)step));
}

static uint64_t end(long step)
{
    unsigned long long found;
    void *at;
    for (int i = 0; i < N; i++) {
        host_table[i] = host_table[i] * host_factors[i & 7] + (unsigned)step;
        host[step % 2][i] ^= host_table[i];
        host_total += host_table[i];
    }
    CUDA(cudaMemcpyFromSymbol(&found, total, sizeof(found), 0, cudaMemcpyDeviceToHost));
    CHECK(found == host_total);
    CUDA(cudaGetSymbolAddress(&at, table));
    uint64_t sum = compared("table", at, host_table, sizeof(host_table)) ^ host_total;
    return mix(sum) ^ compared("buffer 0", buffers[0], host[0], sizeof(host[0]))
        ^ compared("buffer 1", buffers[1], host[1], sizeof(host[1]));
}

int main(int argc, char **argv)
{
    for (int i = 0; i < 2; i++) buffers[i] = (unsigned *)on_device(NULL, sizeof(host[i]));
    return run_steps("globals", argc, argv, begin, end);
}
