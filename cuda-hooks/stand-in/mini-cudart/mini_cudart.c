/* A small CUDA runtime for the tests: `.cu` programs run by it on the stand-in driver. Never shipped.
 *
 * Linked into the programs of tests/programs/cuda, whether nvcc has compiled them (`-cudart none`) or their host part
 * alone is compiled, with PTX that is committed. It reaches the driver as the static cudart of CUDA 13.0 was seen to
 * (traced): at the first call of the runtime dlopen("libcuda.so.1"), dlsym("cuGetProcAddress_v2"), and then all
 * functions by that, the first of them the empty name. The real one is NVIDIA's, and checks that the driver is, too.
 *
 * Holds: the primary context of device 0 is current in every thread that calls; a module is loaded at the first use of
 * one of its kernels or variables. Errors of the driver are errors of the runtime: their numbers are the same
 * (driver_types.h says so of those that are returned here).
 * Fails by: cudaErrorInsufficientDriver where there is no driver, 801 where it lacks the function.
 */
#define _GNU_SOURCE
#include "mini_cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUlib_st *CUlibrary;
typedef struct CUfunc_st *CUfunction;

/* Name, the version that chooses its form, arguments: cudaTypedefs.h of CUDA 13.0. */
#define DRIVER(X)                                                                                                     \
    X(cuDriverGetVersion, 2020, (int *))                                                                              \
    X(cuGetExportTable, 3000, (const void **, const void *))                                                          \
    X(cuInit, 2000, (unsigned))                                                                                       \
    X(cuGetErrorName, 6000, (CUresult, const char **))                                                                \
    X(cuGetErrorString, 6000, (CUresult, const char **))                                                              \
    X(cuDeviceGetCount, 2000, (int *))                                                                                \
    X(cuDeviceGet, 2000, (CUdevice *, int))                                                                           \
    X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))                                                        \
    X(cuCtxGetCurrent, 4000, (CUcontext *))                                                                           \
    X(cuCtxSetCurrent, 4000, (CUcontext))                                                                             \
    X(cuCtxSynchronize, 2000, (void))                                                                                 \
    X(cuMemAlloc, 3020, (CUdeviceptr *, size_t))                                                                      \
    X(cuMemFree, 3020, (CUdeviceptr))                                                                                 \
    X(cuMemAllocAsync, 11020, (CUdeviceptr *, size_t, cudaStream_t))                                                  \
    X(cuMemFreeAsync, 11020, (CUdeviceptr, cudaStream_t))                                                             \
    X(cuMemHostAlloc, 2020, (void **, size_t, unsigned))                                                              \
    X(cuMemFreeHost, 2000, (void *))                                                                                  \
    X(cuMemHostGetDevicePointer, 3020, (CUdeviceptr *, void *, unsigned))                                             \
    X(cuMemGetInfo, 3020, (size_t *, size_t *))                                                                       \
    X(cuMemcpyHtoD, 3020, (CUdeviceptr, const void *, size_t))                                                        \
    X(cuMemcpyDtoH, 3020, (void *, CUdeviceptr, size_t))                                                              \
    X(cuMemcpyDtoD, 3020, (CUdeviceptr, CUdeviceptr, size_t))                                                         \
    X(cuMemcpyHtoDAsync, 3020, (CUdeviceptr, const void *, size_t, cudaStream_t))                                     \
    X(cuMemcpyDtoHAsync, 3020, (void *, CUdeviceptr, size_t, cudaStream_t))                                           \
    X(cuMemcpyDtoDAsync, 3020, (CUdeviceptr, CUdeviceptr, size_t, cudaStream_t))                                      \
    X(cuMemsetD8, 3020, (CUdeviceptr, unsigned char, size_t))                                                         \
    X(cuMemsetD8Async, 3020, (CUdeviceptr, unsigned char, size_t, cudaStream_t))                                      \
    X(cuStreamCreate, 2000, (cudaStream_t *, unsigned))                                                               \
    X(cuStreamDestroy, 4000, (cudaStream_t))                                                                          \
    X(cuStreamSynchronize, 2000, (cudaStream_t))                                                                      \
    X(cuStreamQuery, 2000, (cudaStream_t))                                                                            \
    X(cuStreamWaitEvent, 3020, (cudaStream_t, cudaEvent_t, unsigned))                                                 \
    X(cuEventCreate, 2000, (cudaEvent_t *, unsigned))                                                                 \
    X(cuEventDestroy, 4000, (cudaEvent_t))                                                                            \
    X(cuEventRecord, 2000, (cudaEvent_t, cudaStream_t))                                                               \
    X(cuEventSynchronize, 2000, (cudaEvent_t))                                                                        \
    X(cuEventQuery, 2000, (cudaEvent_t))                                                                              \
    X(cuEventElapsedTime, 2000, (float *, cudaEvent_t, cudaEvent_t))                                                  \
    X(cuLaunchKernel, 4000,                                                                                           \
        (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cudaStream_t, void **,     \
            void **))                                                                                                 \
    X(cuLaunchHostFunc, 10000, (cudaStream_t, cudaHostFn_t, void *))                                                  \
    X(cuLibraryLoadData, 12000, (CUlibrary *, const void *, void *, void **, unsigned, void *, void **, unsigned))    \
    X(cuLibraryUnload, 12000, (CUlibrary))                                                                            \
    X(cuLibraryGetKernel, 12000, (cudaKernel_t *, CUlibrary, const char *))                                           \
    X(cuLibraryGetGlobal, 12000, (CUdeviceptr *, size_t *, CUlibrary, const char *))                                  \
    X(cuStreamBeginCapture, 10010, (cudaStream_t, int))                                                               \
    X(cuStreamEndCapture, 10000, (cudaStream_t, cudaGraph_t *))                                                       \
    X(cuGraphInstantiate, 12000, (cudaGraphExec_t *, cudaGraph_t, unsigned long long))                                \
    X(cuGraphLaunch, 10000, (cudaGraphExec_t, cudaStream_t))                                                          \
    X(cuGraphExecDestroy, 10000, (cudaGraphExec_t))                                                                   \
    X(cuGraphDestroy, 10000, (cudaGraph_t))

#define FIELD(name, version, arguments) CUresult(*name) arguments;
static struct {
    DRIVER(FIELD)
} driver;

static CUcontext primary;
static cudaError_t initialised;
static __thread cudaError_t last_error;

/* The version of the runtime, and the flags of cuGetProcAddress: the legacy default stream. */
enum { VERSION = 13000, LEGACY = 1 };

/* In the place of a function that the driver does not have (cudaErrorNotSupported); whatever its arguments. */
static CUresult absent(void)
{
    return 801;
}

static cudaError_t noted(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}

/* As libcudart does: by a function of an undocumented table, which no hook of the public one sees. A driver that does
 * not give the table to a library of this kind is asked in public. */
static CUresult retain_primary(CUdevice device)
{
    static const unsigned char id[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                         0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
    const struct {
        size_t bytes;
        void *other;
        CUresult (*retain)(CUcontext *, CUdevice);
    } *table = NULL;
    if (getenv("MINI_CUDART_PUBLIC") == NULL && driver.cuGetExportTable((const void **)&table, id) == cudaSuccess &&
        table->bytes == sizeof(*table)) {
        return table->retain(&primary, device);
    }
    return driver.cuDevicePrimaryCtxRetain(&primary, device);
}

static void find_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*get)(const char *, void **, int, unsigned long long, int *) = NULL;
    if (library != NULL) *(void **)&get = dlsym(library, "cuGetProcAddress_v2");
    initialised = cudaErrorInsufficientDriver;
    if (get == NULL) return;
    void *ignored = NULL;
    int status = 0;
    get("", &ignored, 0, 0, &status);
    get("cuGetProcAddress", &ignored, 12000, 0, &status);
    struct {
        const char *name;
        int version;
        void *to;
    } wanted[] = {
#define WANTED(name, version, arguments) {#name, version, &driver.name},
        DRIVER(WANTED)
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        CUresult (*none)(void) = absent;
        void *found = NULL;
        if (get(wanted[i].name, &found, wanted[i].version, LEGACY, &status) != 0 || found == NULL) {
            memcpy(wanted[i].to, &none, sizeof(none));
        } else {
            memcpy(wanted[i].to, &found, sizeof(found));
        }
    }
    CUdevice device;
    initialised = driver.cuInit(0);
    if (initialised == cudaSuccess) initialised = driver.cuDeviceGet(&device, 0);
    if (initialised == cudaSuccess) initialised = retain_primary(device);
}

/* The driver is there, and the thread has a context. */
static cudaError_t ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_driver);
    if (initialised != cudaSuccess) return initialised;
    CUcontext current = NULL;
    cudaError_t error = driver.cuCtxGetCurrent(&current);
    return error == cudaSuccess && current == NULL ? driver.cuCtxSetCurrent(primary) : error;
}

/* A call of the driver as a function of the runtime. */
#define FORWARD(call)                                           \
    do {                                                        \
        cudaError_t error_ = ready();                           \
        return noted(error_ == cudaSuccess ? (call) : error_);  \
    } while (0)

static CUdeviceptr device_pointer(const void *pointer)
{
    return (CUdeviceptr)pointer;
}

/* ---- errors and devices */

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    const char *name = NULL;
    if (initialised == cudaSuccess && driver.cuGetErrorName != NULL) driver.cuGetErrorName(error, &name);
    return name != NULL ? name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    const char *text = NULL;
    if (error == cudaErrorInsufficientDriver) return "CUDA driver version is insufficient for CUDA runtime version";
    if (initialised == cudaSuccess && driver.cuGetErrorString != NULL) driver.cuGetErrorString(error, &text);
    return text != NULL ? text : "unrecognized error code";
}

cudaError_t cudaDriverGetVersion(int *version)
{
    FORWARD(driver.cuDriverGetVersion(version));
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    FORWARD(driver.cuDeviceGetCount(count));
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return noted(device == 0 ? ready() : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSynchronize(void)
{
    FORWARD(driver.cuCtxSynchronize());
}

/* ---- memory */

cudaError_t cudaMalloc(void **pointer, size_t size)
{
    FORWARD(driver.cuMemAlloc((CUdeviceptr *)pointer, size));
}

cudaError_t cudaFree(void *pointer)
{
    FORWARD(pointer == NULL ? cudaSuccess : driver.cuMemFree(device_pointer(pointer)));
}

cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream)
{
    FORWARD(driver.cuMemAllocAsync((CUdeviceptr *)pointer, size, stream));
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    FORWARD(driver.cuMemFreeAsync(device_pointer(pointer), stream));
}

cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags)
{
    FORWARD(driver.cuMemHostAlloc(pointer, size, flags));
}

cudaError_t cudaMallocHost(void **pointer, size_t size)
{
    return cudaHostAlloc(pointer, size, cudaHostAllocPortable);
}

cudaError_t cudaFreeHost(void *pointer)
{
    FORWARD(pointer == NULL ? cudaSuccess : driver.cuMemFreeHost(pointer));
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    FORWARD(driver.cuMemHostGetDevicePointer((CUdeviceptr *)device, host, flags));
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    FORWARD(driver.cuMemGetInfo(available, total));
}

static cudaError_t copy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
    switch (kind) {
    case cudaMemcpyHostToHost: memcpy(to, from, size); return cudaSuccess;
    case cudaMemcpyHostToDevice: return driver.cuMemcpyHtoD(device_pointer(to), from, size);
    case cudaMemcpyDeviceToHost: return driver.cuMemcpyDtoH(to, device_pointer(from), size);
    case cudaMemcpyDeviceToDevice: return driver.cuMemcpyDtoD(device_pointer(to), device_pointer(from), size);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
    FORWARD(copy(to, from, size, kind));
}

static cudaError_t copy_async(
    void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUdeviceptr there = device_pointer(to), source = device_pointer(from);
    switch (kind) {
    case cudaMemcpyHostToDevice: return driver.cuMemcpyHtoDAsync(there, from, size, stream);
    case cudaMemcpyDeviceToHost: return driver.cuMemcpyDtoHAsync(to, source, size, stream);
    case cudaMemcpyDeviceToDevice: return driver.cuMemcpyDtoDAsync(there, source, size, stream);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    FORWARD(copy_async(to, from, size, kind, stream));
}

cudaError_t cudaMemset(void *to, int value, size_t size)
{
    FORWARD(driver.cuMemsetD8(device_pointer(to), (unsigned char)value, size));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream)
{
    FORWARD(driver.cuMemsetD8Async(device_pointer(to), (unsigned char)value, size, stream));
}

/* ---- streams, events, graphs */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    FORWARD(driver.cuStreamCreate(stream, flags));
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    FORWARD(driver.cuStreamDestroy(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    FORWARD(driver.cuStreamSynchronize(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    FORWARD(driver.cuStreamQuery(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    FORWARD(driver.cuStreamWaitEvent(stream, event, flags));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    FORWARD(driver.cuEventCreate(event, flags));
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    FORWARD(driver.cuEventDestroy(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    FORWARD(driver.cuEventRecord(event, stream));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    FORWARD(driver.cuEventSynchronize(event));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    FORWARD(driver.cuEventQuery(event));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    FORWARD(driver.cuEventElapsedTime(ms, start, end));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    FORWARD(driver.cuLaunchHostFunc(stream, function, data));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    FORWARD(driver.cuStreamBeginCapture(stream, (int)mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    FORWARD(driver.cuStreamEndCapture(stream, graph));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags)
{
    FORWARD(driver.cuGraphInstantiate(executable, graph, flags));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
    FORWARD(driver.cuGraphLaunch(executable, stream));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
    FORWARD(driver.cuGraphExecDestroy(executable));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    FORWARD(driver.cuGraphDestroy(graph));
}

/* ---- code: what nvcc's constructors register, loaded when it is used */

/* A kernel or a variable, by the address that the host part knows it by. */
struct symbol {
    const void *host;
    const char *name;
    struct module *module;
    int variable;
    cudaKernel_t kernel;
    CUdeviceptr address;
    size_t size;
    struct symbol *next;
};

struct module {
    const void *code;
    CUlibrary library;
};

/* fatbinary_section.h; version 1 */
struct wrapper {
    int magic, version;
    const void *code;
    void *file;
};

static struct symbol *symbols;
static pthread_mutex_t code_lock = PTHREAD_MUTEX_INITIALIZER;

void **__cudaRegisterFatBinary(void *wrapper)
{
    const struct wrapper *from = wrapper;
    struct module *module = calloc(1, sizeof(*module));
    if (module == NULL || from->magic != 0x466243b1 || from->version != 1) abort();
    module->code = from->code;
    return (void **)module;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

/* At the end of the program: the driver may have ended before, so its library is left to it. */
void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

char __cudaInitModule(void **handle)
{
    (void)handle;
    return 1;
}

static void add(void **handle, const void *host, const char *name, int variable)
{
    struct symbol *symbol = calloc(1, sizeof(*symbol));
    if (symbol == NULL) abort();
    symbol->host = host;
    symbol->name = name;
    symbol->module = (struct module *)handle;
    symbol->variable = variable;
    pthread_mutex_lock(&code_lock);
    symbol->next = symbols;
    symbols = symbol;
    pthread_mutex_unlock(&code_lock);
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int thread_limit,
    uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp_size)
{
    (void)device, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp_size;
    add(handle, host, name, 0);
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size,
    int constant, int global)
{
    (void)device, (void)external, (void)size, (void)constant, (void)global;
    add(handle, host, name, 1);
}

/* Loads a symbol's module and finds it there, under the lock. */
static cudaError_t load(struct symbol *symbol)
{
    struct module *module = symbol->module;
    cudaError_t error = cudaSuccess;
    if (module->library == NULL) {
        error = driver.cuLibraryLoadData(&module->library, module->code, NULL, NULL, 0, NULL, NULL, 0);
    }
    if (error != cudaSuccess) return error;
    if (!symbol->variable) return driver.cuLibraryGetKernel(&symbol->kernel, module->library, symbol->name);
    return driver.cuLibraryGetGlobal(&symbol->address, &symbol->size, module->library, symbol->name);
}

static cudaError_t find(struct symbol **found, const void *host, int variable)
{
    cudaError_t error = ready();
    if (error != cudaSuccess) return error;
    pthread_mutex_lock(&code_lock);
    struct symbol *symbol = symbols;
    while (symbol != NULL && (symbol->host != host || symbol->variable != variable)) symbol = symbol->next;
    if (symbol == NULL) error = variable ? cudaErrorInvalidSymbol : cudaErrorInvalidDeviceFunction;
    else if (symbol->kernel == NULL && symbol->address == 0) error = load(symbol);
    pthread_mutex_unlock(&code_lock);
    *found = symbol;
    return error;
}

static cudaError_t variable_at(CUdeviceptr *at, const void *host, size_t size, size_t offset)
{
    struct symbol *symbol;
    cudaError_t error = find(&symbol, host, 1);
    if (error != cudaSuccess) return error;
    if (offset > symbol->size || size > symbol->size - offset) return cudaErrorInvalidValue;
    *at = symbol->address + offset;
    return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol)
{
    return noted(variable_at((CUdeviceptr *)pointer, symbol, 0, 0));
}

cudaError_t cudaMemcpyToSymbol(
    const void *symbol, const void *from, size_t size, size_t offset, enum cudaMemcpyKind kind)
{
    CUdeviceptr to = 0;
    cudaError_t error = variable_at(&to, symbol, size, offset);
    return noted(error == cudaSuccess ? copy((void *)to, from, size, kind) : error);
}

cudaError_t cudaMemcpyFromSymbol(
    void *to, const void *symbol, size_t size, size_t offset, enum cudaMemcpyKind kind)
{
    CUdeviceptr from = 0;
    cudaError_t error = variable_at(&from, symbol, size, offset);
    return noted(error == cudaSuccess ? copy(to, (const void *)from, size, kind) : error);
}

/* ---- launches: `kernel<<<grid, block, shared, stream>>>(...)` pushes the configuration, calls the kernel's stub, and
 * that pops it */

struct configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};

enum { NESTED = 8 };
static __thread struct configuration pushed[NESTED];
static __thread int depth;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream)
{
    if (depth == NESTED) return 1;
    pushed[depth++] = (struct configuration){grid, block, shared, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (depth == 0) return noted(cudaErrorMissingConfiguration);
    const struct configuration *last = &pushed[--depth];
    *grid = last->grid;
    *block = last->block;
    *shared = last->shared;
    *(cudaStream_t *)stream = last->stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    struct symbol *symbol;
    cudaError_t error = find(&symbol, function, 0);
    if (error == cudaSuccess) *kernel = symbol->kernel;
    return noted(error);
}

/* The driver takes a CUkernel for a CUfunction (CUDA driver API, "Execution Control", cuLaunchKernel). */
cudaError_t __cudaLaunchKernel(
    cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    FORWARD(driver.cuLaunchKernel((CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
        (unsigned)shared, stream, arguments, NULL));
}

cudaError_t cudaLaunchKernel(
    const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    cudaKernel_t kernel;
    cudaError_t error = __cudaGetKernel(&kernel, function);
    return error == cudaSuccess ? __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream) : error;
}
