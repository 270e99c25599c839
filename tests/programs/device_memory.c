/* Memory of a CUDA device, allocated and freed at random by several threads, with content that is checked before it is
 * freed; before that, what the driver says of pointers and of wrong calls. `device_memory STEPS [full]`: with `full`
 * the device's memory is used up first. What is printed is the same whoever serves cuMemAlloc. Names, numbers and
 * types are those of cuda.h of CUDA 13.0. */
#include "common.h"
#include <dlfcn.h>
#include <pthread.h>

typedef unsigned long long address;

#define DRIVER(X)                                                            \
    X(cuInit, (unsigned))                                                    \
    X(cuDevicePrimaryCtxRetain, (void **, int))                              \
    X(cuDevicePrimaryCtxReset_v2, (int))                                     \
    X(cuCtxSetCurrent, (void *))                                             \
    X(cuCtxCreate_v2, (void **, unsigned, int))                              \
    X(cuCtxDestroy_v2, (void *))                                             \
    X(cuCtxSynchronize, (void))                                              \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                 \
    X(cuMemAlloc_v2, (address *, size_t))                                    \
    X(cuMemAllocPitch_v2, (address *, size_t *, size_t, size_t, unsigned))   \
    X(cuMemFree_v2, (address))                                               \
    X(cuMemFreeAsync, (address, void *))                                     \
    X(cuMemGetAddressRange_v2, (address *, size_t *, address))               \
    X(cuPointerGetAttribute, (void *, int, address))                         \
    X(cuPointerGetAttributes, (unsigned, int *, void **, address))           \
    X(cuPointerSetAttribute, (const void *, int, address))                   \
    X(cuMemRetainAllocationHandle, (address *, address))                     \
    X(cuMemUnmap, (address, size_t))                                         \
    X(cuMemAddressFree, (address, size_t))                                   \
    X(cuMemsetD32_v2, (address, unsigned, size_t))                           \
    X(cuMemsetD32Async, (address, unsigned, size_t, void *))                 \
    X(cuMemcpyDtoH_v2, (void *, address, size_t))                            \
    X(cuMemcpyHtoD_v2, (address, const void *, size_t))                      \
    X(cuStreamCreate, (void **, unsigned))                                   \
    X(cuStreamBeginCapture_v2, (void *, int))                                \
    X(cuStreamEndCapture, (void *, void **))                                 \
    X(cuThreadExchangeStreamCaptureMode, (int *))

#define FIELD(name, arguments) static int(*name) arguments;
DRIVER(FIELD)

enum { THREADS = 3, SLOTS = 24, OPERATIONS = 30, WORDS = 1 << 19 };

struct allocation {
    address at;
    size_t words;
    unsigned value;
};

struct worker {
    pthread_t thread;
    void *context;
    uint64_t state;
    uint64_t sum;
    unsigned *found;
    struct allocation slots[SLOTS];
};

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* All words are as they were written. */
static void check(struct worker *it, const struct allocation *one)
{
    CHECK_ZERO(cuMemcpyDtoH_v2(it->found, one->at, one->words * 4));
    for (size_t i = 0; i < one->words; i++) CHECK(it->found[i] == (i == 0 ? ~one->value : one->value));
    it->sum = (it->sum ^ one->value) * 0x100000001b3u + one->words;
}

static void *work(void *argument)
{
    struct worker *it = argument;
    CHECK_ZERO(cuCtxSetCurrent(it->context));
    for (int i = 0; i < OPERATIONS; i++) {
        struct allocation *one = &it->slots[next(&it->state) % SLOTS];
        if (one->at != 0) {
            check(it, one);
            /* Whether that is for memory of cuMemAlloc, too, is not the same everywhere. */
            int ordered = next(&it->state) % 4 == 0 ? cuMemFreeAsync(one->at, NULL) : 1;
            if (ordered != 0) CHECK_ZERO(cuMemFree_v2(one->at));
            one->at = 0;
            continue;
        }
        uint64_t size = next(&it->state);
        one->words = 1 + size % (size >> 60 == 0 ? WORDS : 1 << (2 + (size >> 40) % 12));
        one->value = (unsigned)next(&it->state);
        CHECK_ZERO(cuMemAlloc_v2(&one->at, one->words * 4));
        unsigned first = ~one->value;
        CHECK_ZERO(cuMemsetD32_v2(one->at, one->value, one->words));
        CHECK_ZERO(cuMemcpyHtoD_v2(one->at, &first, 4));
    }
    return NULL;
}

static size_t free_bytes(void)
{
    size_t left, all;
    CHECK_ZERO(cuMemGetInfo_v2(&left, &all));
    return left;
}

static uint64_t attribute(int number, address at)
{
    uint64_t value = 0;
    CHECK_ZERO(cuPointerGetAttribute(&value, number, at));
    return value;
}

/* What is said of pointers. */
static void ask(void *context)
{
    address small, other, large, base = 0;
    size_t size = 0, pitch = 0;
    CHECK_ZERO(cuMemAlloc_v2(&small, 1000));
    CHECK_ZERO(cuMemAlloc_v2(&other, 1000));
    CHECK_ZERO(cuMemAlloc_v2(&large, 3000001));
    for (int i = 0; i < 2; i++) {
        address at = i == 0 ? small : large;
        size_t bytes = i == 0 ? 1000 : 3000001;
        CHECK(attribute(1, at + 5) == (uint64_t)context && attribute(2, at) == 2 && attribute(3, at + 5) == at + 5);
        CHECK(attribute(8, at) == 0 && attribute(9, at) == 0 && attribute(14, at) == 0 && attribute(17, at) == 0);
        CHECK(attribute(11, at + 999) == at && attribute(12, at + 999) == bytes && attribute(13, at) == 1);
        CHECK_ZERO(cuMemGetAddressRange_v2(&base, &size, at + bytes - 1));
        CHECK(base == at && size == bytes);
        CHECK_ZERO(cuMemGetAddressRange_v2(NULL, &size, at));
        step("beyond: %d", cuMemGetAddressRange_v2(&base, &size, at + bytes));
        int set = 1, numbers[] = {1, 6, 12};
        uint64_t values[3] = {0, 0, 0};
        void *places[] = {&values[0], &values[1], &values[2]};
        CHECK_ZERO(cuPointerSetAttribute(&set, 6, at));
        CHECK_ZERO(cuPointerGetAttributes(3, numbers, places, at + 3));
        CHECK(values[0] == (uint64_t)context && values[2] == bytes);
        address handle;
        step("not reserved by the program: %d %d %d %d", cuMemRetainAllocationHandle(&handle, at),
             cuMemUnmap(at & -(address)(2 << 20), 2 << 20), cuMemAddressFree(at, 2 << 20), cuMemFree_v2(at + 256));
    }
    CHECK(attribute(7, small) != attribute(7, other) && attribute(7, small) != attribute(7, large));
    CHECK(attribute(7, small) == attribute(7, small + 999));
    CHECK_ZERO(cuMemFree_v2(small));
    CHECK_ZERO(cuMemFree_v2(large));
    step("freed twice: %d %d", cuMemFree_v2(small), cuMemFree_v2(large));
    step("of what is free: %d", cuMemGetAddressRange_v2(&base, &size, large));
    CHECK_ZERO(cuMemFree_v2(other));
    step("nothing: %d %d", cuMemAlloc_v2(&small, 0), cuMemAlloc_v2(NULL, 16));
    CHECK_ZERO(cuMemAllocPitch_v2(&large, &pitch, 1000, 3, 4));
    CHECK_ZERO(cuMemGetAddressRange_v2(&base, &size, large));
    step("rows of %zu, %zu bytes, %d", pitch, size, cuMemAllocPitch_v2(&small, &pitch, 10, 10, 5));
    CHECK_ZERO(cuMemFree_v2(large));
}

/* Memory ends with its context. */
static void end_context(void *own)
{
    void *context;
    address at;
    size_t before = free_bytes();
    CHECK_ZERO(cuCtxCreate_v2(&context, 0, 0));
    for (int i = 0; i < 50; i++) CHECK_ZERO(cuMemAlloc_v2(&at, i % 10 == 0 ? 4 << 20 : 100000));
    CHECK(before - free_bytes() >= 5 * (4 << 20));
    CHECK_ZERO(cuCtxDestroy_v2(context));
    CHECK_ZERO(cuCtxSetCurrent(own));
    CHECK(before <= free_bytes());
    step("freed with its context: %d", cuMemFree_v2(at));
}

/* Within a capture calls are refused, or, in a thread that is relaxed, wait for nobody. */
static void capture(void)
{
    void *stream, *graph;
    address at = 0, late = 0;
    int relaxed = 2;
    CHECK_ZERO(cuMemAlloc_v2(&at, 5000));
    CHECK_ZERO(cuStreamCreate(&stream, 1));
    CHECK_ZERO(cuStreamBeginCapture_v2(stream, 0));
    int refused = cuMemAlloc_v2(&late, 100);
    step("captured: %d %d", refused, cuStreamEndCapture(stream, &graph));
    CHECK_ZERO(cuStreamBeginCapture_v2(stream, 0));
    refused = cuMemFree_v2(at);
    step("captured: %d %d", refused, cuStreamEndCapture(stream, &graph));
    CHECK_ZERO(cuThreadExchangeStreamCaptureMode(&relaxed));
    CHECK_ZERO(cuStreamBeginCapture_v2(stream, 2));
    CHECK_ZERO(cuMemAlloc_v2(&late, 100));
    CHECK_ZERO(cuMemFree_v2(at));
    step("captured: %d", cuMemFree_v2(at));
    CHECK_ZERO(cuStreamEndCapture(stream, &graph));
    CHECK_ZERO(cuThreadExchangeStreamCaptureMode(&relaxed));
    CHECK_ZERO(cuMemFree_v2(late));
}

/* Until nothing is left. What is freed can be had again. */
static void use_up(void)
{
    static address all[1 << 12];
    int count = 0, error = 0;
    for (size_t bytes = 8 << 20; bytes >= 4096; bytes /= 2) {
        while (count < 1 << 12 && (error = cuMemAlloc_v2(&all[count], bytes)) == 0) {
            CHECK_ZERO(cuMemsetD32_v2(all[count], (unsigned)count, 1024));
            count++;
        }
        CHECK(count == 1 << 12 || error == 2);
    }
    for (int i = 0; i < count; i++) {
        unsigned word;
        CHECK_ZERO(cuMemcpyDtoH_v2(&word, all[i] + 4092, 4));
        CHECK(word == (unsigned)i);
        CHECK_ZERO(cuMemFree_v2(all[i]));
    }
    CHECK_ZERO(cuMemAlloc_v2(&all[0], 8 << 20));
    CHECK_ZERO(cuMemFree_v2(all[0]));
    step("used up");
}

int main(int argc, char **argv)
{
    static struct worker workers[THREADS];
    long steps = number_argument(argc, argv, 1, 20);
    void *context, *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return 77;
#define LOOK_UP(name, arguments) CHECK((*(void **)&name = dlsym(library, #name)) != NULL);
    DRIVER(LOOK_UP)
    CHECK_ZERO(cuInit(0));
    CHECK_ZERO(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK_ZERO(cuCtxSetCurrent(context));
    ask(context);
    end_context(context);
    capture();
    if (argc > 2) use_up();
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.context = context, .state = 77 + (uint64_t)i, .found = malloc(WORDS * 4)};
        CHECK(workers[i].found != NULL);
    }
    for (long n = 0; n < steps; n++) {
        uint64_t sum = 0;
        for (int i = 0; i < THREADS; i++) CHECK_ZERO(pthread_create(&workers[i].thread, NULL, work, &workers[i]));
        for (int i = 0; i < THREADS; i++) {
            CHECK_ZERO(pthread_join(workers[i].thread, NULL));
            sum = sum * 31 + workers[i].sum;
        }
        step("device_memory %ld: %016llx", n, (unsigned long long)sum);
        sleep_ms(10);
    }
    for (int i = 0; i < THREADS * SLOTS; i++) {
        struct allocation *one = &workers[i / SLOTS].slots[i % SLOTS];
        if (one->at != 0) check(&workers[i / SLOTS], one);
    }
    CHECK_ZERO(cuDevicePrimaryCtxReset_v2(0));
    return pass();
}
