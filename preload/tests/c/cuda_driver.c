/* A driver library of a few functions, which print that they were called. Built as libcuda.so.1. */
#include <stdio.h>
#include <string.h>

#define SAID(...) (printf("driver: " __VA_ARGS__), fflush(stdout))

typedef unsigned long word;

unsigned cuInit(unsigned flags) { SAID("cuInit %u\n", flags); return 0; }
unsigned cuDriverGetVersion(int *version) { *version = 13000; return 0; }
unsigned cuCtxGetCurrent(void **context) { *context = 0; return 0; }
unsigned cuDeviceGetCount(int *count) { *count = 1; return 0; }
unsigned cuMemAlloc_v2(word *out, word bytes) { SAID("cuMemAlloc_v2 %lu\n", bytes); *out = 0x7f0000000000; return 0; }
unsigned cuMemFree_v2(word address) { SAID("cuMemFree_v2 %lx\n", address); return 0; }
unsigned cuStreamSynchronize(void *stream) { SAID("cuStreamSynchronize\n"); return 0; }
unsigned cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h,
                        void *stream, void **params, void **extra) {
    SAID("cuLaunchKernel %u %u\n", a, h);
    return (unsigned)(word)extra;
}
unsigned cuGetProcAddress_v2(const char *name, void **out, int version, word flags, int *status) {
    *out = !strcmp(name, "cuMemAlloc") ? (void *)cuMemAlloc_v2 : !strcmp(name, "cuInit") ? (void *)cuInit : 0;
    if (status)
        *status = *out ? 0 : 1;
    return *out ? 0 : 500;
}
