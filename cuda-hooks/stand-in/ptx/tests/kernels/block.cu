// nvcc -O2 -arch=compute_80
// Threads that work together: barriers, shuffles, votes, shared memory, both static and dynamic.
extern "C" __global__ void reduce(const float *in, float *out, int n) {
    __shared__ float part[32];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, o);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
        for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
        if (threadIdx.x == 0) out[blockIdx.x] = sum;
    }
}

// A keyed 128-bit digest of each 64 KiB chunk, one block of 256 threads per chunk.
__device__ __forceinline__ unsigned long long mix(unsigned long long a, unsigned long long b) {
    return (a * b) ^ __umul64hi(a, b);
}
extern "C" __global__ void hash64k(const ulonglong2 *data, ulonglong2 *out, unsigned long long key) {
    __shared__ unsigned long long part[8][2];
    const ulonglong2 *chunk = data + (size_t)blockIdx.x * 4096;
    unsigned long long h0 = key, h1 = ~key;
    for (unsigned i = threadIdx.x; i < 4096; i += 256) {
        ulonglong2 v = chunk[i];
        unsigned long long salt = (i + 1) * 0x9E3779B97F4A7C15ull;
        h0 += mix(v.x ^ salt, v.y ^ key ^ 0xD6E8FEB86659FD93ull);
        h1 ^= mix(v.y + salt, v.x ^ ~key);
    }
    for (int o = 16; o; o >>= 1) {
        h0 += __shfl_down_sync(0xffffffffu, h0, o);
        h1 ^= __shfl_down_sync(0xffffffffu, h1, o);
    }
    if ((threadIdx.x & 31) == 0) { part[threadIdx.x >> 5][0] = h0; part[threadIdx.x >> 5][1] = h1; }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 8; w++) { h0 += part[w][0]; h1 ^= part[w][1]; }
        out[blockIdx.x] = make_ulonglong2(mix(h0, 0xA0761D6478BD642Full), mix(h1, 0xE7037ED1A0B428DBull));
    }
}

extern __shared__ int scratch[];
extern "C" __global__ void reverse(int *data) {
    scratch[threadIdx.x] = data[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    data[blockIdx.x * blockDim.x + threadIdx.x] = scratch[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void votes(const int *in, unsigned *out) {
    int i = threadIdx.x, v = in[i];
    unsigned odd = __ballot_sync(0xffffffffu, v & 1);
    int all = __all_sync(0xffffffffu, v > 0), any = __any_sync(0xffffffffu, v == 3);
    unsigned same = __match_any_sync(0xffffffffu, v);
    int total = __reduce_add_sync(0xffffffffu, v), top = __reduce_max_sync(0xffffffffu, v);
    int odds = __syncthreads_count(v & 1);
    out[i] = odd ^ same ^ (all << 1) ^ any ^ (odds << 8) ^ (total << 16) ^ (top << 24);
}

extern "C" __global__ void stuck(int *p) { // a barrier by name that half of the threads never reach
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
    p[threadIdx.x] = 1;
}

extern "C" __global__ void raced(int *p) { int v = *p; __nanosleep(10); *p = v + 1; }

extern "C" __global__ void locked(int *lock, int *value) {
    while (atomicCAS(lock, 0, 1)) { }
    __threadfence();
    *(volatile int *)value += 1;
    __threadfence();
    atomicExch(lock, 0);
}
