// nvcc -O2 -arch=compute_75 -lineinfo
// Plain kernels: saxpy, stores through pointers that lie in device memory, lists, atomics, structs, globals.
struct Work { const float *x; float *y; float a; int n; short scale[3]; };

__device__ unsigned long long counter;
__device__ float table[4] = {1.0f, 2.5f, -3.0f, 0.125f};
__constant__ int offsets[3] = {7, -7, 100};

extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void saxpy_struct(Work w) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < w.n) w.y[i] = w.a * w.x[i] + (float)w.scale[i % 3];
}

extern "C" __global__ void through_table(float **rows, int n, int m) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) for (int j = 0; j < m; j++) rows[i][j] = table[(i + j) & 3] + offsets[j % 3];
}

struct Node { Node *next; unsigned value; unsigned seen; };
extern "C" __global__ void chase(Node *head, unsigned add) {
    for (Node *n = head; n; n = n->next) { n->value += add; n->seen++; }
}

extern "C" __global__ void count(unsigned *ints, float *sum, double *sum64, unsigned *most, int *least) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&ints[i & 7], (unsigned)i);
    atomicAdd(sum, 1.0f);
    atomicMax(most, (unsigned)i * 2654435761u);
    atomicMin(least, 5 - i);
    atomicXor(&ints[8], 1u << (i & 31));
    atomicInc(&ints[9], 99);
    atomicAdd(&counter, 3ull);
    unsigned long long *bits = (unsigned long long *)sum64, old = *bits, seen;
    do {
        seen = old;
        old = atomicCAS(bits, seen, __double_as_longlong(__longlong_as_double(seen) + 0.5));
    } while (seen != old);
}

extern "C" __global__ void read_counter(unsigned long long *to) { *to = counter; counter = 0; }

extern "C" __global__ void vectors(const float4 *in, float4 *out, const uchar4 *b, short2 *s) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    float4 v = in[i];
    out[i] = make_float4(v.w, v.z, v.y, v.x);
    uchar4 c = b[i];
    s[i] = make_short2((signed char)c.x * c.y, c.z - c.w);
}

extern "C" __global__ void wild(int *p, long at) { p[at] = 1; }
