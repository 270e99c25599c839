/* The driver API as the probes need it, by dlopen and cuGetProcAddress: no header of CUDA's is needed to compile them.
 *
 * Names, numbers and argument types are those of the CUDA driver API 13.0 ("CUDA Driver API" manual: Memory
 * Management, Virtual Memory Management, CUDA Checkpointing). Every probe runs in a process of its own, prints rows
 * `| question | what | value |`, and says `refused` with the driver's number where the driver refuses: that is an
 * answer too. Status: 0; 77: no driver or no device here; anything else: the probe itself is wrong, or CUDA died. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))
enum { NOT_HERE = 77, MIB = 1 << 20 };

typedef uint64_t device_ptr;
typedef void *handle;

/* Structures of the virtual memory management. */
struct location {
    int type, id;
};
struct allocation {
    int type, handle_types;
    struct location location;
    void *windows;
    uint8_t compression, rdma;
    uint16_t usage;
    uint8_t reserved[4];
};
struct access {
    struct location location;
    int flags;
};

/* name in the library, version of the API that it has these arguments from, arguments */
#define FUNCTIONS(X) \
    X(cuInit, 2000, (unsigned)) \
    X(cuDriverGetVersion, 2020, (int *)) \
    X(cuDeviceGet, 2000, (int *, int)) \
    X(cuDeviceGetCount, 2000, (int *)) \
    X(cuDeviceGetName, 2000, (char *, int, int)) \
    X(cuDeviceTotalMem, 3020, (size_t *, int)) \
    X(cuDevicePrimaryCtxRetain, 7000, (handle *, int)) \
    X(cuCtxSetCurrent, 4000, (handle)) \
    X(cuCtxSynchronize, 2000, (void)) \
    X(cuMemAlloc, 3020, (device_ptr *, size_t)) \
    X(cuMemFree, 3020, (device_ptr)) \
    X(cuMemGetInfo, 3020, (size_t *, size_t *)) \
    X(cuMemHostAlloc, 2020, (void **, size_t, unsigned)) \
    X(cuMemcpyHtoDAsync, 3020, (device_ptr, const void *, size_t, handle)) \
    X(cuMemcpyDtoHAsync, 3020, (void *, device_ptr, size_t, handle)) \
    X(cuMemcpyDtoDAsync, 3020, (device_ptr, device_ptr, size_t, handle)) \
    X(cuMemcpyHtoD, 3020, (device_ptr, const void *, size_t)) \
    X(cuMemcpyDtoH, 3020, (void *, device_ptr, size_t)) \
    X(cuMemsetD32, 3020, (device_ptr, unsigned, size_t)) \
    X(cuStreamCreate, 2000, (handle *, unsigned)) \
    X(cuStreamSynchronize, 2000, (handle)) \
    X(cuModuleLoadData, 2000, (handle *, const void *)) \
    X(cuModuleGetFunction, 2000, (handle *, handle, const char *)) \
    X(cuLaunchKernel, 4000, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, \
        void **, void **)) \
    X(cuMemGetAllocationGranularity, 10020, (size_t *, const struct allocation *, int)) \
    X(cuMemAddressReserve, 10020, (device_ptr *, size_t, size_t, device_ptr, unsigned long long)) \
    X(cuMemAddressFree, 10020, (device_ptr, size_t)) \
    X(cuMemCreate, 10020, (unsigned long long *, size_t, const struct allocation *, unsigned long long)) \
    X(cuMemRelease, 10020, (unsigned long long)) \
    X(cuMemMap, 10020, (device_ptr, size_t, size_t, unsigned long long, unsigned long long)) \
    X(cuMemUnmap, 10020, (device_ptr, size_t)) \
    X(cuMemSetAccess, 10020, (device_ptr, size_t, const struct access *, size_t)) \
    X(cuMemExportToShareableHandle, 10020, (void *, unsigned long long, int, unsigned long long)) \
    X(cuMemImportFromShareableHandle, 10020, (unsigned long long *, void *, int)) \
    X(cuCheckpointProcessLock, 12080, (int, void *)) \
    X(cuCheckpointProcessCheckpoint, 12080, (int, void *)) \
    X(cuCheckpointProcessRestore, 12080, (int, void *)) \
    X(cuCheckpointProcessUnlock, 12080, (int, void *)) \
    X(cuCheckpointProcessGetState, 12080, (int, int *)) \
    X(cuCheckpointProcessGetRestoreThreadId, 12080, (int, int *))

#define DECLARE(name, version, arguments) UNUSED static int(*name) arguments;
FUNCTIONS(DECLARE)

static const char *question = "?";

/* A row of the table. */
UNUSED static void row(const char *what, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("| %s | %s | ", question, what);
    vprintf(format, arguments);
    puts(" |");
    va_end(arguments);
    fflush(stdout);
}

UNUSED static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* What cannot fail on a machine with a device. */
#define MUST(call) \
    do { \
        int result_ = (call); \
        if (result_ != 0) { \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, result_); \
            exit(2); \
        } \
    } while (0)

/* Makes a call, prints how long it took or that it was refused; its result. */
#define TIMED(what, call) \
    ({ \
        double begun_ = now(); \
        int result_ = (call); \
        if (result_ == 0) \
            row(what, "%.2f ms", (now() - begun_) * 1e3); \
        else \
            row(what, "refused: error %d after %.2f ms", result_, (now() - begun_) * 1e3); \
        result_; \
    })

/* The driver, initialised, with the primary context of the first device. */
UNUSED static int start(const char *name)
{
    question = name;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) exit(NOT_HERE);
    int (*find)(const char *, void **, int, uint64_t, int *) =
        (int (*)(const char *, void **, int, uint64_t, int *))dlsym(library, "cuGetProcAddress_v2");
    if (find == NULL) exit(NOT_HERE);
    int version = 0;
    int (*get_version)(int *) = (int (*)(int *))dlsym(library, "cuDriverGetVersion");
    MUST(get_version(&version));
#define FIND(name, since, arguments) \
    if (find(#name, (void **)&name, since, 0, NULL) != 0) name = NULL;
    FUNCTIONS(FIND)
    int count = 0, device = 0;
    if (cuInit(0) != 0 || cuDeviceGetCount(&count) != 0 || count == 0) exit(NOT_HERE);
    handle context;
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    return version;
}

/* How many lines of maps, descriptors and threads of this process are the device's; all threads. */
UNUSED static void traces(const char *when)
{
    char path[300], link[300], line[1000];
    int mappings = 0, descriptors = 0, threads = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        mappings += strstr(line, "/dev/nvidia") != NULL || strstr(line, "nvidia0") != NULL;
    if (maps != NULL) fclose(maps);
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(path, link, sizeof link - 1);
        link[length > 0 ? length : 0] = 0;
        descriptors += strstr(link, "nvidia") != NULL;
    }
    if (folder != NULL) closedir(folder);
    folder = opendir("/proc/self/task");
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) threads += entry->d_name[0] != '.';
    if (folder != NULL) closedir(folder);
    snprintf(path, sizeof path, "device mappings, descriptors; threads: %s", when);
    row(path, "%d, %d; %d", mappings, descriptors, threads);
}

/* kB of private anonymous memory that this process has. */
UNUSED static long anonymous_kb(void)
{
    char line[300];
    long kb = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) sscanf(line, "Anonymous: %ld", &kb);
    if (file != NULL) fclose(file);
    return kb;
}

/* Lock and Checkpoint of this process; whether it is CHECKPOINTED. The structures are 64 zeroed bytes: their layouts
 * differ between versions (NVIDIA/cuda-python#2144, #2145). */
UNUSED static int checkpointed(void)
{
    unsigned lock[16] = {10000}, none[16] = {0};
    int state = -1;
    if (cuCheckpointProcessLock == NULL) {
        row("checkpoint API", "not in this driver");
        return 0;
    }
    if (TIMED("lock", cuCheckpointProcessLock(getpid(), lock)) != 0) return 0;
    if (TIMED("checkpoint", cuCheckpointProcessCheckpoint(getpid(), none)) != 0) {
        TIMED("unlock after that", cuCheckpointProcessUnlock(getpid(), none));
        return 0;
    }
    MUST(cuCheckpointProcessGetState(getpid(), &state));
    row("state", "%d (2 is CHECKPOINTED)", state);
    return state == 2;
}

UNUSED static void restored(void)
{
    unsigned none[16] = {0};
    MUST(TIMED("restore", cuCheckpointProcessRestore(getpid(), none)));
    MUST(TIMED("unlock", cuCheckpointProcessUnlock(getpid(), none)));
}

/* Memory of device 0 that can be mapped anywhere; `shared`: exported as a descriptor too. */
UNUSED static struct allocation on_device(int shared)
{
    return (struct allocation){.type = 1, .handle_types = shared, .location = {.type = 1, .id = 0}};
}

UNUSED static void allow(device_ptr at, size_t bytes)
{
    struct access access = {.location = {.type = 1, .id = 0}, .flags = 3};
    MUST(cuMemSetAccess(at, bytes, &access, 1));
}
