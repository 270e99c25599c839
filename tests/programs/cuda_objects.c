/* A program that has something on a CUDA device that stands in the way of a checkpoint, until it may let go of it:
 * `cuda_objects KIND`. It says `has it`, waits for a file `go` in its folder, says `has it not`, waits for `end`.
 * Through the driver's API as the static runtime reaches it: dlopen, cuGetProcAddress.
 *
 * managed, capture, multicast: what no driver checkpoints. unseen: a multicast object, made when there is a file
 * `begin`, by a function that nobody has seen it ask for. waits: a thread in cuStreamSynchronize, for a function of the
 * host that waits for `go`. works: the same, and nobody waits for the stream. */
#include "common.h"
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>

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

/* A function that a library exports, without asking the loader for it: its table of names follows that of symbols, as
 * linkers lay them out. */
static void *unseen(void *library, const char *name)
{
    struct link_map *map;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    CHECK_ZERO(dlinfo(library, RTLD_DI_LINKMAP, &map));
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) names = (const char *)entry->d_un.d_ptr;
    }
    CHECK(symbols != NULL && (const char *)symbols < names);
    for (const ElfW(Sym) *one = symbols; (const char *)one < names; one++) {
        if (one->st_value != 0 && strcmp(names + one->st_name, name) == 0) return (char *)map->l_addr + one->st_value;
    }
    return NULL;
}

static void slow(void *unused)
{
    (void)unused;
    wait_for("go");
}

static void *synchronizes(void *stream)
{
    CALL("cuStreamSynchronize", 2000, (void *), stream);
    return NULL;
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *stream, *graph;
    int waits = strcmp(kind, "waits") == 0, works = strcmp(kind, "works") == 0;
    struct multicast wanted = {.devices = 1, .size = 2 << 20, .handle_types = 1};
    pthread_t thread;
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
        CALL("cuMulticastCreate", 12010, (unsigned long long *, const struct multicast *), &object, &wanted);
    }
    if (strcmp(kind, "unseen") == 0) {
        puts("begins");
        fflush(stdout);
        wait_for("begin");
        int (*create)(unsigned long long *, const struct multicast *);
        *(void **)&create = unseen(library, "cuMulticastCreate");
        CHECK(create != NULL);
        CHECK_ZERO(create(&object, &wanted));
    }
    if (waits || works) CALL("cuLaunchHostFunc", 10000, (void *, void (*)(void *), void *), stream, slow, NULL);
    if (waits) CHECK_ZERO(pthread_create(&thread, NULL, synchronizes, stream));
    puts("has it");
    fflush(stdout);
    wait_for("go");
    if (strcmp(kind, "managed") == 0) CALL("cuMemFree", 3020, (uint64_t), memory);
    if (strcmp(kind, "capture") == 0) CALL("cuStreamEndCapture", 10000, (void *, void **), stream, &graph);
    if (object != 0) CALL("cuMemRelease", 10020, (unsigned long long), object);
    if (waits) CHECK_ZERO(pthread_join(thread, NULL));
    if (works) CALL("cuStreamSynchronize", 2000, (void *), stream);
    puts("has it not");
    fflush(stdout);
    wait_for("end");
    return pass();
}
