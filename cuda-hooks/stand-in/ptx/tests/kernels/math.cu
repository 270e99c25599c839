// nvcc -O2 -arch=compute_80 -std=c++17
// Calls, tables of functions, switches, local memory, double and half precision, and the functions of one instruction.
#include <cuda_fp16.h>
__device__ __noinline__ int twice(int a, int b) { return 2 * a + b; }
__device__ __noinline__ int minus(int a, int b) { return a - b; }
__device__ __noinline__ int nested(int a, int b) { return twice(a, minus(b, a)) ^ 0x55; }
typedef int (*Op)(int, int);
__device__ Op ops[3] = {twice, minus, nested};

struct Pair { int a; double b; };
__device__ __noinline__ Pair swap(Pair p, int add) { Pair r = {(int)p.b + add, (double)p.a}; return r; }

extern "C" __global__ void calls(const int *in, int *out, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    Pair p = swap(Pair{in[i], i * 1.5}, 3);
    out[i] = ops[i % 3](in[i], i) + nested(i, in[i]) + p.a + (int)p.b;
}

extern "C" __global__ void stencil(const double *in, double *out, int w, int h, double c) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= w - 1 || y >= h - 1) return;
    double mid = in[y * w + x];
    double sum = in[y * w + x - 1] + in[y * w + x + 1] + in[(y - 1) * w + x] + in[(y + 1) * w + x];
    out[y * w + x] = sqrt(mid * mid + c * (sum - 4.0 * mid)) / (1.0 + fabs(sum));
}

extern "C" __global__ void choose(const int *in, int *out) {
    int v = in[threadIdx.x], r;
    switch (v) {
    case 0: r = v + 5; break;
    case 1: r = v * v * 31; break;
    case 2: r = __popc(v * 77777) - 3; break;
    case 3: r = __clz(v) << 3; break;
    case 4: r = __brev(v); break;
    case 5: r = v ^ in[0]; break;
    case 6: r = __ffs(v) + in[2]; break;
    case 7: r = v / (in[1] + 1); break;
    case 8: r = v % (in[3] + 2); break;
    default: r = -v;
    }
    out[threadIdx.x] = r;
}

extern "C" __global__ void sorted(int *data) { // local memory: an array that is indexed
    int a[16];
    for (int i = 0; i < 16; i++) a[i] = data[threadIdx.x * 16 + (i * 7 & 15)];
    for (int i = 1; i < 16; i++) {
        int v = a[i], j = i;
        for (; j > 0 && a[j - 1] > v; j--) a[j] = a[j - 1];
        a[j] = v;
    }
    for (int i = 0; i < 16; i++) data[threadIdx.x * 16 + i] = a[i];
}

extern "C" __global__ void ints(const unsigned *in, unsigned *out) {
    unsigned a = in[2 * threadIdx.x], b = in[2 * threadIdx.x + 1];
    unsigned long long l = ((unsigned long long)a << 32) | b;
    unsigned *o = out + 16 * threadIdx.x;
    o[0] = __umulhi(a, b);
    o[1] = (unsigned)__mulhi((int)a, (int)b);
    o[2] = __byte_perm(a, b, 0x5140 ^ (a & 7));
    o[3] = __funnelshift_l(a, b, a & 31);
    o[4] = __funnelshift_r(a, b, 7);
    o[5] = b ? a / b : 0;
    o[6] = b ? (unsigned)((int)a % (int)b) : 0;
    o[7] = (unsigned)(l / (a | 1ull));
    o[8] = (unsigned)((long long)l % (int)(b | 1));
    o[9] = __usad(a, b, 3);
    o[10] = (a & b) | (~a & 0xf0f0f0f0) | (b ^ 77);
    o[11] = (unsigned)__clzll(l) + __popcll(l);
    o[12] = (unsigned)(short)a + (unsigned)(signed char)b;
    o[13] = min((int)a, (int)b) ^ max(a, b);
    o[14] = (a >> 5) & 0x1ff;
    o[15] = (unsigned)((unsigned __int128)l * l >> 64);
}

extern "C" __global__ void floats(const float *in, float *out) {
    float a = in[2 * threadIdx.x], b = in[2 * threadIdx.x + 1];
    float *o = out + 16 * threadIdx.x;
    o[0] = __fadd_ru(a, b);
    o[1] = __fmul_rz(a, b);
    o[2] = __fdiv_rd(a, b);
    o[3] = __fsqrt_ru(fabsf(a));
    o[4] = __fmaf_rd(a, b, a);
    o[5] = fminf(a, b) + fmaxf(a, 1.0f);
    o[6] = rintf(a) + floorf(b) + ceilf(a) + truncf(b);
    o[7] = (float)__float2int_rd(a) + (float)__float2uint_rz(fabsf(b));
    o[8] = __saturatef(a);
    o[9] = __double2float_ru((double)a * 1.1);
    o[10] = __frcp_rn(a);
    o[11] = __sinf(a * 0.01f) + __cosf(b * 0.01f);
    o[12] = exp2f(fabsf(a) * 0.01f) + __log2f(fabsf(b) + 1.0f);
    o[13] = sinf(a);
    o[14] = (float)((double)fabsf(a) / 3.0);
    o[15] = copysignf(a, b);
}

extern "C" __global__ void halves(const __half2 *a, const __half2 *b, __half2 *out, float *wide) {
    int i = threadIdx.x;
    __half2 r = __hfma2(a[i], b[i], __hadd2(a[i], b[i]));
    out[i] = r;
    wide[i] = __half2float(__low2half(r)) + __half2float(__high2half(__hmul2(a[i], b[i])));
}
