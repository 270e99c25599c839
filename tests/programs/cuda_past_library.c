/* The library of `cuda_past deep`: looks the driver up itself, as one that has the runtime linked into it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

int work(uint64_t to, unsigned char value, size_t bytes);

int work(uint64_t to, unsigned char value, size_t bytes)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*set)(uint64_t, unsigned char, size_t, void *) =
        (int (*)(uint64_t, unsigned char, size_t, void *))dlsym(library, "cuMemsetD8Async");
    int (*synchronize)(void) = (int (*)(void))dlsym(library, "cuCtxSynchronize");
    if (set == NULL || synchronize == NULL) return -1;
    int result = set(to, value, bytes, NULL);
    return result != 0 ? result : synchronize();
}
