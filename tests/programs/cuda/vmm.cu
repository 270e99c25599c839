// nvcc -O2 -arch=compute_75
/* The driver without a runtime: single names by dlsym, a module by cuModuleLoadData, arguments in one buffer, and
 * memory that is reserved, mapped and unmapped piece by piece, as PyTorch's expandable segments do.
 *
 * Names, numbers and layouts are those of cuda.h of CUDA 13.0. nvcc makes the PTX of it and no program.
 */
#ifdef __CUDACC__

extern "C" __global__ void stamp(unsigned long long *memory, unsigned long long words, unsigned step)
{
    unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x, at = i * 512 + step % 512;
    if (at < words) memory[at] = memory[at] * 3 + i + step;
}

#else

#include "../common.h"

#include <dlfcn.h>

typedef unsigned long long device_pointer;
struct location {
    int type, id;
};
struct properties {
    int type, handle_types;
    struct location location;
    void *metadata;
    unsigned char flags[8];
};
struct access {
    struct location location;
    int flags;
};

#define DRIVER(X)                                                                                                \
    X(cuInit, (unsigned))                                                                                        \
    X(cuDeviceGet, (int *, int))                                                                                 \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                                  \
    X(cuCtxSetCurrent, (void *))                                                                                 \
    X(cuCtxSynchronize, (void))                                                                                  \
    X(cuModuleLoadData, (void **, const void *))                                                                 \
    X(cuModuleGetFunction, (void **, void *, const char *))                                                      \
    X(cuMemGetAllocationGranularity, (size_t *, const struct properties *, int))                                 \
    X(cuMemAddressReserve, (device_pointer *, size_t, size_t, device_pointer, unsigned long long))               \
    X(cuMemCreate, (unsigned long long *, size_t, const struct properties *, unsigned long long))                \
    X(cuMemMap, (device_pointer, size_t, size_t, unsigned long long, unsigned long long))                        \
    X(cuMemSetAccess, (device_pointer, size_t, const struct access *, size_t))                                   \
    X(cuMemUnmap, (device_pointer, size_t))                                                                      \
    X(cuMemRelease, (unsigned long long))                                                                        \
    X(cuMemsetD32_v2, (device_pointer, unsigned, size_t))                                                        \
    X(cuMemcpyDtoH_v2, (void *, device_pointer, size_t))                                                         \
    X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,     \
        void **, void **))

#define FIELD(name, arguments) static int(*name) arguments;
DRIVER(FIELD)

__asm__(".pushsection .rodata\n.balign 8\nthe_ptx: .incbin \"" PTX_FILE "\"\n.byte 0\n.popsection");
extern const char the_ptx[];

enum { PIECES = 4 };
static const struct properties properties = {.type = 1, .location = {1, 0}};
static unsigned long long pieces[PIECES], *host, *found;
static size_t granularity;
static device_pointer base;
static void *kernel;

/* Piece `n` is mapped, with what mapped memory begins with: nothing that is known. */
static void map(int n)
{
    struct access access = {{1, 0}, 3};
    device_pointer at = base + n * granularity;
    CHECK_ZERO(cuMemCreate(&pieces[n], granularity, &properties, 0));
    CHECK_ZERO(cuMemMap(at, granularity, 0, pieces[n], 0));
    CHECK_ZERO(cuMemSetAccess(at, granularity, &access, 1));
    CHECK_ZERO(cuMemsetD32_v2(at, 0x01010101u * (unsigned)(n + 1), granularity / 4));
    memset((char *)host + n * granularity, n + 1, granularity);
}

static void unmap(int n)
{
    CHECK_ZERO(cuMemUnmap(base + n * granularity, granularity));
    CHECK_ZERO(cuMemRelease(pieces[n]));
    pieces[n] = 0;
}

static void launch(int n, unsigned step)
{
    unsigned long long words = granularity / 8, threads = (words + 511) / 512;
    struct {
        device_pointer memory;
        unsigned long long words;
        unsigned step;
    } arguments = {base + n * granularity, words, step};
    size_t size = 20;
    void *extra[] = {(void *)1, &arguments, (void *)2, &size, NULL};
    CHECK_ZERO(cuLaunchKernel(kernel, (unsigned)(threads + 127) / 128, 1, 1, 128, 1, 1, 0, NULL, NULL, extra));
    unsigned long long *memory = host + n * words;
    for (unsigned long long i = 0; i * 512 + step % 512 < words; i++) {
        unsigned long long *at = &memory[i * 512 + step % 512];
        *at = *at * 3 + i + step;
    }
}

static void prepare(void)
{
    int device;
    void *context, *module;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        puts("there is no driver");
        exit(77);
    }
#define LOOK_UP(name, arguments) CHECK((*(void **)&name = dlsym(library, #name)) != NULL);
    DRIVER(LOOK_UP)
    CHECK_ZERO(cuInit(0));
    CHECK_ZERO(cuDeviceGet(&device, 0));
    CHECK_ZERO(cuDevicePrimaryCtxRetain(&context, device));
    CHECK_ZERO(cuCtxSetCurrent(context));
    CHECK_ZERO(cuModuleLoadData(&module, the_ptx));
    CHECK_ZERO(cuModuleGetFunction(&kernel, module, "stamp"));
    CHECK_ZERO(cuMemGetAllocationGranularity(&granularity, &properties, 0));
    CHECK_ZERO(cuMemAddressReserve(&base, PIECES * granularity, 0, 0, 0));
    host = malloc(PIECES * granularity);
    found = malloc(granularity);
    CHECK(host != NULL && found != NULL);
}

int main(int argc, char **argv)
{
    long steps = number_argument(argc, argv, 1, 50);
    prepare();
    for (long i = 0; i < steps; i++) {
        int turn = (int)(i % PIECES);
        uint64_t sum = 0;
        if (i % 7 == 3 && pieces[turn] != 0) unmap(turn);
        else if (pieces[turn] == 0) map(turn);
        for (int n = 0; n < PIECES; n++) {
            if (pieces[n] != 0) launch(n, (unsigned)i);
        }
        sleep_ms(15);
        CHECK_ZERO(cuCtxSynchronize());
        for (int n = 0; n < PIECES; n++) {
            if (pieces[n] == 0) continue;
            const unsigned long long *wanted = host + n * granularity / 8;
            CHECK_ZERO(cuMemcpyDtoH_v2(found, base + n * granularity, granularity));
            CHECK(memcmp(found, wanted, granularity) == 0);
            for (size_t w = 0; w < granularity / 8; w++) sum = (sum ^ found[w]) * 0x100000001b3u;
        }
        step("vmm %ld: %016llx", i, (unsigned long long)mix(sum));
        sleep_ms(15);
    }
    return pass();
}

#endif
