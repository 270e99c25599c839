/* One way in which memory changes between two checkpoints: `changes CASE` prepares, takes a checkpoint, changes, takes
 * another, and checks what it holds: at once, and when it comes back from a restart of either image. Between the two
 * checkpoints nothing else touches the memory, so a change that the tracker misses is a page of the first image in the
 * second.
 *
 * Lines `first`, `second` when an image exists, `restarted WHICH right` after a restart; ends with PASS. */
#include "holdfast.h"
#include "model.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define PAGES 600
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static uint64_t *at;
static size_t pages;
static struct known known[2 * PAGES + 1024];
static int file;
static const char *name;

static void put(size_t from, size_t to, uint64_t seed)
{
    for (size_t page = from; page < to; page++) {
        known[page] = (struct known){seed + page, 0};
        model_fill(at + page * WORDS, seed + page);
    }
}

static void expect(size_t from, size_t to, uint64_t seed)
{
    for (size_t page = from; page < to; page++) known[page] = (struct known){seed == 0 ? 0 : seed + page, 0};
}

static void check(void)
{
    model_check(name, at, known, pages);
}

static void *map(void *place, size_t count, int prot, int flags, int fd)
{
    void *memory = mmap(place, count * PAGE, prot, flags | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static const int RW = PROT_READ | PROT_WRITE;

static void plain(void)
{
    pages = PAGES;
    at = map(NULL, pages, RW, MAP_PRIVATE, -1);
    put(0, pages, 1000);
}

static void nothing(void) {}

static void stores(void)
{
    put(100, 120, 5000);
    at[300 * WORDS + 7] ^= 1;
    at[300 * WORDS + 7] ^= 1;
    known[400].patch = 9000 * WORDS + 3;
    at[400 * WORDS + 3] = mix(known[400].patch);
}

static void moved(void)
{
    void *place = map(NULL, pages, PROT_NONE, MAP_PRIVATE, -1);
    CHECK(mremap(at, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    at = place;
}

/* The old place is taken by other memory, which nobody writes. */
static void moved_and_replaced(void)
{
    uint64_t *old = at;
    moved();
    CHECK(map(old, pages, RW, MAP_PRIVATE | MAP_FIXED_NOREPLACE, -1) == old);
    memcpy(&known[pages], known, pages * sizeof *known);
    at = old;
    expect(0, pages, 0);
}

static void grown(void)
{
    at = mremap(at, pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED);
    expect(pages, 2 * pages, 0);
    pages *= 2;
    put(pages - 5, pages, 7000);
}

/* One mapping to where another one was: two areas of the same size next to each other. */
static void two(void)
{
    pages = PAGES;
    at = map(NULL, pages, RW, MAP_PRIVATE, -1);
    CHECK(mprotect(at + pages / 2 * WORDS, PAGE, PROT_READ) == 0); /* two mappings, and a page between them */
    CHECK(mprotect(at + pages / 2 * WORDS, PAGE, RW) == 0);
    put(0, pages, 1000);
}

static void moved_onto(void)
{
    size_t half = pages / 2 * PAGE;
    CHECK(munmap(at, half) == 0);
    CHECK(mremap((char *)at + half, half, half, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
    memmove(known, known + pages / 2, pages / 2 * sizeof *known);
    pages /= 2;
}

/* Memory that stays several mappings, because its parts had pages of their own before they were alike (mm/vma.c). */
static void torn(void)
{
    pages = PAGES;
    at = map(NULL, pages, RW, MAP_PRIVATE, -1);
    for (size_t page = 200; page < 400; page += 100) CHECK(mprotect(at + page * WORDS, 10 * PAGE, PROT_READ) == 0);
    for (size_t page = 0; page < pages; page++) {
        if (page % 100 >= 10) put(page, page + 1, 1000);
    }
    CHECK(mprotect(at, pages * PAGE, RW) == 0);
    put(0, pages, 1000);
}

/* What is mapped next to it later is the same mapping. */
static void joined_and_grown(void)
{
    CHECK(munmap(at + 400 * WORDS, 200 * PAGE) == 0);
    map(at + 400 * WORDS, 200, RW, MAP_PRIVATE | MAP_FIXED_NOREPLACE, -1);
    expect(400, 600, 0);
    grown();
}

/* Several mappings at a time; the gap between them stays one (mm/mremap.c, remap_move). */
static void moved_with_a_gap(void)
{
    CHECK(munmap(at + 450 * WORDS, 50 * PAGE) == 0);
    void *place = map(NULL, pages, PROT_NONE, MAP_PRIVATE, -1);
    CHECK(munmap((char *)place + 450 * PAGE, 50 * PAGE) == 0);
    CHECK(mremap(at, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    at = place;
    map(at + 450 * WORDS, 50, RW, MAP_PRIVATE | MAP_FIXED_NOREPLACE, -1);
    expect(450, 500, 0);
}

static void mapped_anew(void)
{
    CHECK(munmap(at + 100 * WORDS, 200 * PAGE) == 0);
    map(at + 100 * WORDS, 200, RW, MAP_PRIVATE | MAP_FIXED_NOREPLACE, -1);
    expect(100, 300, 0);
    put(150, 160, 3000);
}

static void unmapped(void)
{
    CHECK(munmap(at + pages / 2 * WORDS, pages / 2 * PAGE) == 0);
    pages /= 2;
}

static void dontneed(void)
{
    CHECK(madvise(at + 50 * WORDS, 300 * PAGE, MADV_DONTNEED) == 0);
    expect(50, 350, 0);
    put(60, 61, 4000);
}

static void all_dontneed(void)
{
    CHECK(madvise(at, pages * PAGE, MADV_DONTNEED) == 0);
    expect(0, pages, 0);
}

static void read_as_zero(void)
{
    all_dontneed();
    check(); /* zero pages are there now */
}

static void freed(void)
{
    CHECK(madvise(at, pages * PAGE, MADV_FREE) == 0);
    put(0, pages, 8000);
}

static void zeroed(void)
{
    memset(at + 10 * WORDS, 0, 500 * PAGE);
    expect(10, 510, 0);
}

static void begin_break(void)
{
    char *end = sbrk(0);
    pages = PAGES;
    size_t odd = (PAGE - (uintptr_t)end % PAGE) % PAGE;
    CHECK(sbrk((intptr_t)odd) == end);
    at = sbrk((intptr_t)(pages * PAGE));
    CHECK((char *)at == end + odd);
    put(0, pages, 1000);
}

static void grown_break(void)
{
    CHECK(sbrk((intptr_t)(300 * PAGE)) == (char *)at + pages * PAGE);
    put(pages, pages + 10, 2000);
    expect(pages + 10, pages + 300, 0);
    pages += 300;
}

/* Down and up again: what comes is zero. */
static void shrunk_break(void)
{
    CHECK(sbrk(-(intptr_t)(300 * PAGE)) == (char *)at + pages * PAGE);
    CHECK(sbrk((intptr_t)(300 * PAGE)) == (char *)at + (pages - 300) * PAGE);
    expect(pages - 300, pages, 0);
}

static void forked(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        memset(at, 7, pages * PAGE);
        _exit(0);
    }
    put(20, 40, 6000);
    CHECK(waitpid(child, NULL, 0) == child);
    put(30, 35, 6500);
}

static void shut(void)
{
    CHECK(mprotect(at, pages * PAGE, PROT_READ) == 0);
    CHECK(mprotect(at, pages * PAGE, RW) == 0);
    put(77, 78, 5000);
    CHECK(mprotect(at + 200 * WORDS, 100 * PAGE, PROT_READ) == 0);
}

/* What cannot be read at the cut comes back, too. */
static void hidden(void)
{
    put(210, 220, 5000);
    CHECK(mprotect(at + 200 * WORDS, 100 * PAGE, PROT_NONE) == 0);
}

static void begin_huge(void)
{
    pages = 1024;
    char *room = map(NULL, pages + 512, RW, MAP_PRIVATE, -1);
    at = (uint64_t *)(((uintptr_t)room + 512 * PAGE - 1) & ~(uintptr_t)(512 * PAGE - 1));
    CHECK(madvise(at, pages * PAGE, MADV_HUGEPAGE) == 0);
    put(0, pages, 1000);
}

static void written_huge(void)
{
    put(511, 513, 2000);
    (void)madvise(at, pages * PAGE, MADV_COLLAPSE);
    put(700, 701, 3000);
}

static void holed_huge(void)
{
    CHECK(madvise(at + 100 * WORDS, 200 * PAGE, MADV_DONTNEED) == 0);
    expect(100, 300, 0);
    (void)madvise(at, pages * PAGE, MADV_COLLAPSE);
}

static void begin_file(void)
{
    uint64_t page[WORDS];
    pages = PAGES;
    CHECK((file = open("changes.data", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) >= 0);
    for (size_t i = 0; i < pages; i++) {
        model_fill(page, OF_FILE + i);
        CHECK(write(file, page, PAGE) == PAGE);
    }
    at = map(NULL, pages, RW, MAP_PRIVATE, file);
    expect(0, pages, OF_FILE);
    put(100, 200, 1000);
}

static void file_dropped(void)
{
    CHECK(madvise(at + 150 * WORDS, 100 * PAGE, MADV_DONTNEED) == 0);
    expect(150, 250, OF_FILE);
    put(240, 245, 2000);
}

static void begin_shared(void)
{
    pages = PAGES;
    at = map(NULL, pages, RW, MAP_SHARED, -1);
    put(0, pages, 1000);
}

static void shared_removed(void)
{
    CHECK(madvise(at + 100 * WORDS, 100 * PAGE, MADV_REMOVE) == 0);
    expect(100, 200, 0);
    put(300, 310, 3000);
}

/* By the kernel: read(2), another process's way in. */
static void by_calls(void)
{
    int ends[2], self;
    uint64_t page[WORDS];
    CHECK(pipe2(ends, O_CLOEXEC) == 0 && (self = open("/proc/self/mem", O_RDWR | O_CLOEXEC)) >= 0);
    for (size_t i = 100; i < 140; i++) {
        model_fill(page, 9000 + i);
        if (i % 2 == 0) {
            CHECK(write(ends[1], page, PAGE) == PAGE && read(ends[0], at + i * WORDS, PAGE) == PAGE);
        } else {
            CHECK(pwrite(self, page, PAGE, (off_t)(uintptr_t)(at + i * WORDS)) == PAGE);
        }
    }
    expect(100, 140, 9000);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && close(self) == 0);
}

/* Deep in the stack between the two checkpoints, and up again. */
static int deep(int depth)
{
    volatile uint64_t block[WORDS];
    for (size_t i = 0; i < WORDS; i++) block[i] = mix((uint64_t)depth * WORDS + i);
    int bad = depth > 0 ? deep(depth - 1) : 0;
    if (depth == 0) CHECK(holdfast_checkpoint() >= 0);
    for (size_t i = 0; i < WORDS; i++) bad += block[i] != mix((uint64_t)depth * WORDS + i);
    return bad;
}

static const struct {
    const char *name;
    void (*begin)(void), (*change)(void);
} cases[] = {
    {"nothing", plain, nothing},          {"stores", plain, stores},
    {"moved", plain, moved},              {"moved_and_replaced", plain, moved_and_replaced},
    {"grown", plain, grown},              {"moved_onto", two, moved_onto},
    {"moved_torn", torn, moved},          {"moved_with_a_gap", torn, moved_with_a_gap},
    {"joined_and_grown", plain, joined_and_grown},
    {"mapped_anew", plain, mapped_anew},  {"unmapped", plain, unmapped},
    {"dontneed", plain, dontneed},        {"all_dontneed", plain, all_dontneed},
    {"read_as_zero", plain, read_as_zero}, {"freed", plain, freed},
    {"zeroed", plain, zeroed},            {"grown_break", begin_break, grown_break},
    {"shrunk_break", begin_break, shrunk_break}, {"forked", plain, forked},
    {"shut", plain, shut},                {"hidden", plain, hidden},
    {"written_huge", begin_huge, written_huge}, {"holed_huge", begin_huge, holed_huge},
    {"file_dropped", begin_file, file_dropped}, {"shared_removed", begin_shared, shared_removed},
    {"shared_hidden", begin_shared, hidden}, {"by_calls", plain, by_calls},
};

static int lives;

static void said(const char *which)
{
    int now = holdfast_restarted();
    if (now > lives) {
        printf("restarted %s right\n", which);
        fflush(stdout);
        _exit(0);
    }
    puts(which);
    fflush(stdout);
}

static void look(const char *which)
{
    (void)mprotect(at, pages * PAGE, RW);
    check();
    said(which);
}

int main(int argc, char **argv)
{
    name = argc > 1 ? argv[1] : "";
    CHECK(HOLDFAST_LOADED);
    if (strcmp(name, "names") == 0) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) puts(cases[i].name);
        return 0;
    }
    if (strcmp(name, "stack") == 0) {
        CHECK(holdfast_checkpoint() >= 0);
        said("first");
        int bad = deep(600);
        CHECK(bad == 0);
        said("second");
        return pass();
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(name, cases[i].name) != 0) continue;
        cases[i].begin();
        CHECK(holdfast_checkpoint() >= 0);
        look("first");
        cases[i].change();
        CHECK(holdfast_checkpoint() >= 0);
        look("second");
        return pass();
    }
    printf("FAIL no such case\n");
    return 1;
}
