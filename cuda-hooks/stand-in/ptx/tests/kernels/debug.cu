// nvcc -O0 -G -arch=compute_90
// As a debugger wants it: everything in local memory, calls, debug sections.
__device__ int add(int a, int b) { return a + b; }
extern "C" __global__ void fibonacci(unsigned long long *out, int n) {
    unsigned long long last[2] = {0, 1};
    for (int i = 0; i < n; i = add(i, 1)) {
        unsigned long long next = last[0] + last[1];
        last[0] = last[1];
        last[1] = next;
        if (threadIdx.x == i % 32) out[i] = next;
        __syncthreads();
    }
}
