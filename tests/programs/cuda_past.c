/* A program whose work on a device is easily missed: `cuda_past KIND PREFIX`. Its memory has ones when it makes
 * PREFIX.1 and waits for PREFIX.2, and sevens when it makes PREFIX.3 and waits for PREFIX.4; then it looks.
 *
 * deep: the work in between is that of a library that is loaded with RTLD_DEEPBIND and looks the driver up by the C
 * library's own dlsym. unknown, given: it is a function of a driver that is newer than any table (the stand-in's), by
 * dlsym or cuGetProcAddress. unjoined: a capture ends in an error before (CUDA_ERROR_STREAM_CAPTURE_UNJOINED). */
#include "common.h"

#include <dlfcn.h>

enum { BYTES = 1 << 20, UNJOINED = 904 };

static void *library;

static void *function(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) printf("no %s\n", name);
    CHECK(found != NULL);
    return found;
}

#define CALL(name, types, ...) CHECK_ZERO(((int (*) types)function(#name))(__VA_ARGS__))

static void phase(const char *prefix, int made, int awaited)
{
    char path[400];
    snprintf(path, sizeof path, "%s.%d", prefix, made);
    FILE *file = fopen(path, "we");
    CHECK(file != NULL && fclose(file) == 0);
    snprintf(path, sizeof path, "%s.%d", prefix, awaited);
    struct timespec pause = timespec_of_ns(5000000);
    while (access(path, F_OK) != 0) nanosleep(&pause, NULL);
}

static void unjoined(uint64_t memory)
{
    void *one, *two, *event, *graph = NULL;
    CALL(cuStreamCreate, (void **, unsigned), &one, 1);
    CALL(cuStreamCreate, (void **, unsigned), &two, 1);
    CALL(cuEventCreate, (void **, unsigned), &event, 2);
    CALL(cuStreamBeginCapture_v2, (void *, int), one, 1);
    CALL(cuEventRecord, (void *, void *), event, one);
    CALL(cuStreamWaitEvent, (void *, void *, unsigned), two, event, 0);
    CALL(cuMemsetD8Async, (uint64_t, unsigned char, size_t, void *), memory, 9, BYTES, two);
    CHECK(((int (*)(void *, void **))function("cuStreamEndCapture"))(one, &graph) == UNJOINED);
}

static void deep(const char *program, uint64_t memory)
{
    char path[400];
    snprintf(path, sizeof path, "%s.so", program);
    void *found = dlopen(path, RTLD_NOW | RTLD_DEEPBIND);
    if (found == NULL) puts(dlerror());
    CHECK(found != NULL);
    int (*work)(uint64_t, unsigned char, size_t) = (int (*)(uint64_t, unsigned char, size_t))dlsym(found, "work");
    CHECK(work != NULL);
    CHECK_ZERO(work(memory, 7, BYTES));
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    const char *kind = argv[1], *prefix = argv[2];
    static unsigned char host[BYTES];
    uint64_t memory, sevens;
    void *context;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return 77;
    int is_given = strcmp(kind, "given") == 0, is_unknown = is_given || strcmp(kind, "unknown") == 0;
    int (*unknown)(uint64_t, uint64_t, size_t, void *) = NULL;
    CALL(cuInit, (unsigned), 0);
    CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0);
    CALL(cuCtxSetCurrent, (void *), context);
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &memory, BYTES);
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &sevens, BYTES);
    CALL(cuMemsetD8_v2, (uint64_t, unsigned char, size_t), memory, 1, BYTES);
    CALL(cuMemsetD8_v2, (uint64_t, unsigned char, size_t), sevens, 7, BYTES);
    CALL(cuCtxSynchronize, (void));
    if (strcmp(kind, "unjoined") == 0) unjoined(memory);
    if (is_given)
        CALL(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *), "cuStandInCopyAsync",
            (void **)&unknown, 13000, 0, NULL);
    else if (is_unknown)
        unknown = (int (*)(uint64_t, uint64_t, size_t, void *))function("cuStandInCopyAsync");
    step("ones");
    phase(prefix, 1, 2);
    if (is_unknown) {
        CHECK_ZERO(unknown(memory, sevens, BYTES, NULL));
        CALL(cuStreamSynchronize, (void *), NULL);
    } else if (strcmp(kind, "deep") == 0) {
        deep(argv[0], memory);
    } else {
        CALL(cuMemsetD8_v2, (uint64_t, unsigned char, size_t), memory, 7, BYTES);
    }
    step("sevens");
    phase(prefix, 3, 4);
    CALL(cuMemcpyDtoH_v2, (void *, uint64_t, size_t), host, memory, BYTES);
    for (int i = 0; i < BYTES; i++) CHECK(host[i] == 7);
    return pass();
}
