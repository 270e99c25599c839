/* What the CUDA programs of the tests share.
 *
 * Each is one source for three builds. nvcc compiles it as it is (`scripts/nvcc.sh ptx` for the PTX that is committed;
 * whole programs for machines with a GPU). Where there is no nvcc, cc compiles the host part as C, with the kernels'
 * stubs and the registration that nvcc would generate, around the committed PTX. Both run on mini-cudart
 * (cuda-hooks/stand-in/mini-cudart) or, from nvcc, on NVIDIA's runtime.
 *
 *     PROGRAM [STEPS]        so many, and more until it may end (HOLDFAST_TEST_STAY)
 *
 * A step is begun (work is launched), left alone for some time, and ended: device memory is compared with what the host
 * has computed, and a line with its checksum is printed. So host and device of different moments do not go unseen, nor
 * a chunk that was not stored.
 */
#ifndef HOLDFAST_CUDA_PROGRAM_H
#define HOLDFAST_CUDA_PROGRAM_H

#include "../common.h"

#ifdef __CUDACC__

#define KERNEL extern "C" __global__
#define LAUNCH(kernel, grid, block, stream, arguments) kernel<<<(grid), (block), 0, (stream)>>> arguments

#else

#include "mini_cudart.h"

/* The address of a kernel on the host: `STUB(saxpy, (int n, float a), n, a)`. */
#define STUB(name, parameters, ...)                            \
    static void name parameters                                \
    {                                                          \
        void *arguments[] = {ADDRESSES(__VA_ARGS__)};          \
        launch_pushed((const void *)name, arguments);          \
    }
#define ADDRESSES(...) ADDRESSES_(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1)(__VA_ARGS__)
#define ADDRESSES_(a, b, c, d, e, f, g, h, n, ...) ADDRESSES_OF_##n
#define ADDRESSES_OF_1(a) &a
#define ADDRESSES_OF_2(a, ...) &a, ADDRESSES_OF_1(__VA_ARGS__)
#define ADDRESSES_OF_3(a, ...) &a, ADDRESSES_OF_2(__VA_ARGS__)
#define ADDRESSES_OF_4(a, ...) &a, ADDRESSES_OF_3(__VA_ARGS__)
#define ADDRESSES_OF_5(a, ...) &a, ADDRESSES_OF_4(__VA_ARGS__)
#define ADDRESSES_OF_6(a, ...) &a, ADDRESSES_OF_5(__VA_ARGS__)
#define ADDRESSES_OF_7(a, ...) &a, ADDRESSES_OF_6(__VA_ARGS__)
#define ADDRESSES_OF_8(a, ...) &a, ADDRESSES_OF_7(__VA_ARGS__)

UNUSED static void launch_pushed(const void *stub, void **arguments)
{
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    cudaKernel_t kernel;
    if (__cudaGetKernel(&kernel, stub) != cudaSuccess) return;
    if (__cudaPopCallConfiguration(&grid, &block, &shared, &stream) != cudaSuccess) return;
    __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

UNUSED static dim3 flat(unsigned x)
{
    dim3 size = {x, 1, 1};
    return size;
}

#define LAUNCH(kernel, grid, block, stream, arguments)                             \
    do {                                                                           \
        if (__cudaPushCallConfiguration(flat(grid), flat(block), 0, stream) == 0)  \
            kernel arguments;                                                      \
    } while (0)

/* Of a variable on the device: `VARIABLE(counter, 8)`. */
#define VARIABLE(name, bytes) static char name[bytes];

/* What is in the PTX beside the source: `MODULE(ADD_KERNEL(saxpy) ADD_VARIABLE(counter))`. */
#define ADD_KERNEL(name) \
    __cudaRegisterFunction(handle, (const char *)name, (char *)#name, #name, -1, NULL, NULL, NULL, NULL, NULL);
#define ADD_VARIABLE(name) __cudaRegisterVar(handle, name, (char *)#name, #name, 0, sizeof(name), 0, 0);
#define MODULE(symbols)                                                                 \
    __asm__(".pushsection .rodata\n.balign 8\nthe_ptx: .incbin \"" PTX_FILE "\"\n.byte 0\n.popsection"); \
    extern const char the_ptx[];                                                        \
    __attribute__((constructor)) static void register_symbols(void)                     \
    {                                                                                   \
        static struct {                                                                 \
            int magic, version;                                                         \
            const void *code;                                                           \
            void *file;                                                                 \
        } wrapper = {0x466243b1, 1, the_ptx, NULL};                                     \
        void **handle = __cudaRegisterFatBinary(&wrapper);                              \
        symbols __cudaRegisterFatBinaryEnd(handle);                                     \
    }

#endif

/* Ends the program when a call of the runtime fails. */
#define CUDA(call)                                                                      \
    do {                                                                                \
        cudaError_t failed_ = (call);                                                   \
        if (failed_ != cudaSuccess) cuda_failed(__FILE__, __LINE__, #call, failed_);    \
    } while (0)

UNUSED static void cuda_failed(const char *file, int line, const char *what, cudaError_t error)
{
    printf("FAIL %s:%d: %s: %s (%d)\n", file, line, what, cudaGetErrorString(error), (int)error);
    fflush(stdout);
    _exit(1);
}

/* Memory on the device, with what is at `from` in it, or zeros. */
UNUSED static void *on_device(const void *from, size_t size)
{
    void *memory = NULL;
    CUDA(cudaMalloc(&memory, size));
    if (from != NULL) CUDA(cudaMemcpy(memory, from, size, cudaMemcpyHostToDevice));
    else CUDA(cudaMemset(memory, 0, size));
    return memory;
}

UNUSED static uint64_t checksum(const void *memory, size_t size)
{
    uint64_t sum = size;
    for (size_t i = 0; i < size; i++) sum = (sum ^ ((const unsigned char *)memory)[i]) * 0x100000001b3u;
    return mix(sum);
}

/* Compares memory on the device with what it has to be, and gives its checksum. */
UNUSED static uint64_t compared(const char *what, const void *device, const void *wanted, size_t size)
{
    unsigned char *found = (unsigned char *)malloc(size);
    CHECK(found != NULL);
    CUDA(cudaMemcpy(found, device, size, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < size; i++) {
        if (found[i] == ((const unsigned char *)wanted)[i]) continue;
        printf("FAIL %s: byte %zu of %zu is %02x, not %02x\n", what, i, size, found[i],
            ((const unsigned char *)wanted)[i]);
        fflush(stdout);
        _exit(1);
    }
    uint64_t sum = checksum(found, size);
    free(found);
    return sum;
}

/* How long each half of a step is. */
#define QUIET_MS 15

UNUSED static int run_steps(
    const char *name, int argc, char **argv, void (*begin)(long step), uint64_t (*end)(long step))
{
    long steps = number_argument(argc, argv, 1, 50);
    CUDA(cudaDeviceSynchronize());
    for (long i = 0; i < steps || has_to_stay(); i++) {
        begin(i);
        CUDA(cudaGetLastError());
        sleep_ms(QUIET_MS);
        step("%s %ld: %016llx", name, i, (unsigned long long)end(i));
        sleep_ms(QUIET_MS);
    }
    return pass();
}

#endif
