/* Another thread maps memory all the time, as malloc and dlopen do, wherever the kernel has room, and keeps it with a
 * mark, while the program uses a device: `cuda_holes [STEPS]`. No place that a driver leaves for a while may be taken,
 * and no memory of the program replaced. A third thread has a lock of the C library's half of the time, which the
 * driver may want, too. */
#include "common.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>

enum { MOST = 4000, MARK = 0x5a };

static int (*init)(unsigned), (*retain)(void **, int), (*set)(void *), (*allocate)(uint64_t *, size_t);
static int (*to_device)(uint64_t, const void *, size_t), (*from_device)(void *, uint64_t, size_t);

static void *function(void *library, const char *name)
{
    void *found = dlsym(library, name);
    CHECK(found != NULL);
    return found;
}

static void *maps(void *unused)
{
    static char *at[MOST];
    struct timespec pause = timespec_of_ns(1000000);
    (void)unused;
    for (int count = 0;;) {
        if (count < MOST) {
            size_t length = 4096ul << (count % 6);
            char *place = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(place != MAP_FAILED);
            memset(place, MARK, length);
            at[count++] = place;
        }
        for (int i = 0; i < count; i++) CHECK(at[i][0] == MARK);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static int nap(struct dl_phdr_info *info, size_t size, void *unused)
{
    struct timespec pause = timespec_of_ns(1000000);
    (void)info, (void)size, (void)unused;
    nanosleep(&pause, NULL);
    return 1;
}

static void *locks(void *unused)
{
    for (;;) {
        dl_iterate_phdr(nap, NULL);
        nap(NULL, 0, unused);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    long steps = argc > 1 ? atol(argv[1]) : 100;
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    if (library == NULL) return 77;
    init = function(library, "cuInit");
    retain = function(library, "cuDevicePrimaryCtxRetain");
    set = function(library, "cuCtxSetCurrent");
    allocate = function(library, "cuMemAlloc_v2");
    to_device = function(library, "cuMemcpyHtoD_v2");
    from_device = function(library, "cuMemcpyDtoH_v2");
    uint64_t memory;
    pthread_t thread;
    CHECK_ZERO(init(0));
    CHECK_ZERO(retain(&context, 0));
    CHECK_ZERO(set(context));
    CHECK_ZERO(allocate(&memory, 1 << 20));
    CHECK_ZERO(pthread_create(&thread, NULL, maps, NULL));
    CHECK_ZERO(pthread_create(&thread, NULL, locks, NULL));
    struct timespec pause = timespec_of_ns(20000000);
    for (int round = 0; round < steps || has_to_stay(); round++) {
        int written = round, found = -1;
        CHECK_ZERO(to_device(memory, &written, sizeof written));
        CHECK_ZERO(from_device(&found, memory, sizeof found));
        CHECK(found == round);
        step("round %d", round);
        nanosleep(&pause, NULL);
    }
    return pass();
}
