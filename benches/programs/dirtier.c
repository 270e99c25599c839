/* A heap that is dirtied by command, for measurements of the stop. Run by benches/pager.py and others there.
 *
 * `dirtier MIB 4k|huge|plain [DEVICE_MIB]`. It fills the heap with noise, and so much memory of the first CUDA device,
 * prints `ready`, and then obeys lines on standard input:
 *   none             nothing
 *   spread PERMILLE  writes to that share of all pages, at equal distances
 *   scatter PERMILLE the same, but each time to other pages; and to that share of the chunks of 64 KiB on the device
 *   tenth            writes to every page of one tenth of the heap
 *   all              writes to every page
 *   keep             goes on writing to that tenth, page after page, until one of the commands above comes
 *   ask              asks for a checkpoint itself and waits for its commit
 *   cut              the same, and waits for the cut alone
 *   gap              prints `gap US`: the longest time between two wake-ups of a 1 ms ticker since the last `gap`
 *   end              ends
 *   sum              prints `sum HEX` of all words of the heap, and of those on the device
 *   some             prints `some HEX` of all words of a hundredth of the heap: pieces of 1 MiB, here and there
 * Every other command but `gap`, `sum` and `some` is answered by `done`. A write changes one word of the page. `plain`:
 * no advice about huge pages. */
#include "common.h"
#include "holdfast.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define PAGE 4096

static _Atomic int64_t longest_ns;

static void *tick(void *nothing)
{
    struct timespec pause = timespec_of_ns(1000000);
    for (int64_t last = now_ns();;) {
        nanosleep(&pause, NULL);
        int64_t now = now_ns(), gap = now - last;
        last = now;
        if (gap > atomic_load(&longest_ns)) atomic_store(&longest_ns, gap);
    }
    return nothing;
}

static void dirty(unsigned char *from, size_t pages, size_t step)
{
    static uint64_t value;
    value++;
    for (size_t page = 0; page < pages; page += step) *(uint64_t *)(from + page * PAGE) = mix(value + page);
}

static uint64_t sum_of(const unsigned char *heap, size_t pages)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < pages * PAGE; at += 8) sum = (sum << 1 | sum >> 63) ^ *(const uint64_t *)(heap + at);
    return sum;
}

/* Memory on the device, its length, and a piece of it on the host. */
static uint64_t device;
static size_t device_bytes;
static unsigned char piece[1 << 20];
static int (*to_device)(uint64_t, const void *, size_t);
static int (*to_host)(void *, uint64_t, size_t);

static void *function(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = library == NULL ? NULL : dlsym(library, name);
    CHECK(found != NULL);
    return found;
}

/* cuda.h has the versions: cuMemAlloc is cuMemAlloc_v2, and so on. */
static void have_device(size_t bytes)
{
    int number = 0;
    void *context = NULL;
    int (*init)(unsigned) = function("cuInit"), (*get)(int *, int) = function("cuDeviceGet");
    int (*create)(void **, unsigned, int) = function("cuCtxCreate_v2");
    int (*allocate)(uint64_t *, size_t) = function("cuMemAlloc_v2");
    to_device = function("cuMemcpyHtoD_v2"), to_host = function("cuMemcpyDtoH_v2");
    CHECK_ZERO(init(0) || get(&number, 0) || create(&context, 0, number) || allocate(&device, bytes));
    for (size_t at = 0; at < bytes; at += sizeof piece) {
        for (size_t i = 0; i < sizeof piece; i += 8) *(uint64_t *)(piece + i) = mix(~(at + i));
        CHECK_ZERO(to_device(device + at, piece, sizeof piece));
    }
    device_bytes = bytes;
}

static void dirty_device(size_t first, size_t step)
{
    static uint64_t value;
    value++;
    for (size_t at = first << 16; at < device_bytes; at += step << 16) {
        uint64_t word = mix(value * 7 + at);
        CHECK_ZERO(to_device(device + at, &word, sizeof word));
    }
}

static uint64_t sum_of_device(void)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < device_bytes; at += sizeof piece) {
        CHECK_ZERO(to_host(piece, device + at, sizeof piece));
        sum = sum * 3 + sum_of(piece, sizeof piece / PAGE);
    }
    return sum;
}

static uint64_t sum_of_some(const unsigned char *heap, size_t pages)
{
    const size_t some = 256;
    uint64_t sum = 0;
    for (size_t i = 0; i < pages / some / 100 + 1; i++)
        sum = sum * 3 + sum_of(heap + mix(i) % (pages / some) * some * PAGE, some);
    return sum;
}

static int is_command_waiting(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    return poll(&input, 1, 0) != 0;
}

/* Does what a line says; 0: it was the last. */
static int obey(const char *line, unsigned char *heap, size_t pages)
{
    static int keeping;
    static size_t scattered;
    char word[16] = "";
    unsigned long permille = 0;
    int words = sscanf(line, "%15s %lu", word, &permille);
    unsigned char *tenth = heap + pages / 10 * 4 * PAGE;
    if (strcmp(word, "gap") == 0) {
        printf("gap %lld\n", (long long)atomic_exchange(&longest_ns, 0) / 1000);
    } else if (strcmp(word, "sum") == 0) {
        printf("sum %016llx\n", (unsigned long long)(sum_of(heap, pages) ^ sum_of_device()));
    } else if (strcmp(word, "some") == 0) {
        printf("some %016llx\n", (unsigned long long)sum_of_some(heap, pages));
    } else {
        if (strcmp(word, "ask") == 0)
            CHECK(HOLDFAST_LOADED && holdfast_checkpoint() == 0);
        else if (strcmp(word, "cut") == 0)
            CHECK(HOLDFAST_LOADED && holdfast_checkpoint_start() == 0);
        else
            keeping = strcmp(word, "keep") == 0;
        if (strcmp(word, "spread") == 0 && words == 2 && permille > 0) dirty(heap, pages, 1000 / permille);
        if (strcmp(word, "scatter") == 0 && words == 2 && permille > 0) {
            size_t first = scattered++ % (1000 / permille);
            dirty(heap + first * PAGE, pages - first, 1000 / permille);
            dirty_device(first, 1000 / permille);
        }
        if (strcmp(word, "tenth") == 0 || keeping) dirty(tenth, pages / 10, 1);
        if (strcmp(word, "all") == 0) dirty(heap, pages, 1);
        puts("done");
    }
    fflush(stdout);
    while (keeping && !is_command_waiting()) dirty(tenth, pages / 10, 1);
    return strcmp(word, "end") != 0;
}

int main(int argc, char **argv)
{
    size_t bytes = (size_t)number_argument(argc, argv, 1, 4096) << 20;
    const char *kind = argc > 2 ? argv[2] : "4k";
    size_t align = 2u << 20;
    unsigned char *area = mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1, 0);
    CHECK(area != MAP_FAILED);
    unsigned char *heap = area + (align - (uintptr_t)area % align) % align;
    if (strcmp(kind, "plain") != 0)
        CHECK(madvise(heap, bytes, strcmp(kind, "huge") == 0 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0);
    for (size_t at = 0; at < bytes; at += 8) *(uint64_t *)(heap + at) = mix(at);
    if (argc > 3) have_device((size_t)number_argument(argc, argv, 3, 0) << 20);
    pthread_t ticker;
    CHECK_ZERO(pthread_create(&ticker, NULL, tick, NULL));
    setvbuf(stdin, NULL, _IONBF, 0); /* poll sees all that was not obeyed yet */
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL && obey(line, heap, bytes / PAGE)) {
    }
    return 0;
}
