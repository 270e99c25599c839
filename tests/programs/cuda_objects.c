/* A program that has something on a CUDA device that no driver checkpoints, until it may let go of it: `cuda_objects
 * KIND`, managed, capture or multicast. It says `has it`, waits for a file `go` in its folder, says `has it not`, waits
 * for a file `end`. Through the driver's API as the static runtime reaches it: dlopen, cuGetProcAddress. */
#include "common.h"
#include <dlfcn.h>

struct multicast {
    unsigned devices;
    size_t size;
    unsigned long long handle_types, flags;
};

static int (*find)(const char *, void **, int, uint64_t, int *);

static void *function(const char *name, int version)
{
    void *found = NULL;
    CHECK_ZERO(find(name, &found, version, 0, NULL));
    CHECK(found != NULL);
    return found;
}

#define CALL(name, version, arguments, ...) CHECK_ZERO(((int (*) arguments)function(name, version))(__VA_ARGS__))

static void wait_for(const char *file)
{
    while (access(file, F_OK) != 0) sleep_ms(5);
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *stream, *graph;
    if (library == NULL) return 77;
    find = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(library, "cuGetProcAddress_v2");
    CHECK(find != NULL);
    uint64_t memory = 0;
    unsigned long long object = 0;
    CALL("cuInit", 2000, (unsigned), 0);
    CALL("cuDevicePrimaryCtxRetain", 7000, (void **, int), &context, 0);
    CALL("cuCtxSetCurrent", 4000, (void *), context);
    CALL("cuStreamCreate", 2000, (void **, unsigned), &stream, 1);
    if (strcmp(kind, "managed") == 0)
        CALL("cuMemAllocManaged", 6000, (uint64_t *, size_t, unsigned), &memory, 1 << 16, 1);
    if (strcmp(kind, "capture") == 0) CALL("cuStreamBeginCapture", 10010, (void *, int), stream, 2);
    if (strcmp(kind, "multicast") == 0) {
        struct multicast wanted = {.devices = 1, .size = 2 << 20, .handle_types = 1};
        CALL("cuMulticastCreate", 12010, (unsigned long long *, const struct multicast *), &object, &wanted);
    }
    puts("has it");
    fflush(stdout);
    wait_for("go");
    if (strcmp(kind, "managed") == 0) CALL("cuMemFree", 3020, (uint64_t), memory);
    if (strcmp(kind, "capture") == 0) CALL("cuStreamEndCapture", 10000, (void *, void **), stream, &graph);
    if (strcmp(kind, "multicast") == 0) CALL("cuMemRelease", 10020, (unsigned long long), object);
    puts("has it not");
    fflush(stdout);
    wait_for("end");
    return pass();
}
