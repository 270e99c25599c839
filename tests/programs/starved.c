/* Asks the CUDA driver for more memory when there is a file `go` in its folder: as stream-ordered memory, then as
 * physical memory, and prints what came of both. `starved MIB`: it has so much of cuMemAlloc before. Names, numbers and
 * types are those of cuda.h of CUDA 13.0. */
#include "common.h"
#include <dlfcn.h>
#include <unistd.h>

typedef unsigned long long address;

/* CUmemAllocationProp: type, kinds of handles, location (type, number), a pointer for Windows, flags. */
struct properties {
    int words[4];
    uint64_t rest[2];
};

#define DRIVER(X)                                                         \
    X(cuInit, (unsigned))                                                 \
    X(cuDevicePrimaryCtxRetain, (void **, int))                           \
    X(cuCtxSetCurrent, (void *))                                          \
    X(cuMemAlloc_v2, (address *, size_t))                                 \
    X(cuMemAllocAsync, (address *, size_t, void *))                       \
    X(cuMemCreate, (address *, size_t, const struct properties *, uint64_t)) \
    X(cuMemsetD32_v2, (address, unsigned, size_t))                        \
    X(cuMemcpyDtoH_v2, (void *, address, size_t))

#define FIELD(name, arguments) static int(*name) arguments;
DRIVER(FIELD)

int main(int argc, char **argv)
{
    size_t bytes = (size_t)number_argument(argc, argv, 1, 4) << 20;
    void *context, *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return 77;
#define LOOK_UP(name, arguments) CHECK((*(void **)&name = dlsym(library, #name)) != NULL);
    DRIVER(LOOK_UP)
    CHECK_ZERO(cuInit(0));
    CHECK_ZERO(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK_ZERO(cuCtxSetCurrent(context));
    address own, more, handle;
    CHECK_ZERO(cuMemAlloc_v2(&own, bytes));
    uint64_t state = 1;
    for (size_t at = 0; at < bytes; at += 4096) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        CHECK_ZERO(cuMemsetD32_v2(own + at, (unsigned)(state >> 32), 1024));
    }
    step("has it");
    while (access("go", F_OK) != 0) sleep_ms(5);
    int in_stream = cuMemAllocAsync(&more, 1 << 20, NULL);
    struct properties properties = {.words = {1, 0, 1, 0}};
    int physical = cuMemCreate(&handle, 2 << 20, &properties, 0);
    unsigned word;
    CHECK_ZERO(cuMemcpyDtoH_v2(&word, own + bytes - 4, 4));
    CHECK(word == (unsigned)(state >> 32));
    step("cuMemAllocAsync %d, cuMemCreate %d", in_stream, physical);
    return pass();
}
