/* Memory that is advised away is zero, and memory that mremap moves keeps its content, also when a restart has mapped
 * it from the image. Blocks of mmap, malloc and calloc of 1 to 4 MiB, full of numbers that do not compress, of which
 * every round checks all, takes pieces away and fills others. `advice [ROUNDS]` */
#include "common.h"
#include <sys/mman.h>
#include <sys/syscall.h>

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))
#define AREAS 6
#define MAX_PAGES 1200

/* What each page of an area must hold: 0 for zeros, else the seed of its numbers. */
static struct {
    uint64_t *at;
    size_t pages;
    uint64_t seed[MAX_PAGES];
} areas[AREAS];
static uint64_t seeds = 1, dice = 77;

static uint64_t throw(uint64_t below)
{
    return mix(++dice) % below;
}

static void fill(int area, size_t from, size_t to)
{
    for (size_t page = from; page < to; page++) {
        uint64_t seed = areas[area].seed[page] = ++seeds;
        for (size_t i = 0; i < WORDS; i++) areas[area].at[page * WORDS + i] = mix(seed * WORDS + i);
    }
}

static void check(int area)
{
    for (size_t page = 0; page < areas[area].pages; page++) {
        const uint64_t *at = areas[area].at + page * WORDS;
        uint64_t seed = areas[area].seed[page];
        for (size_t i = 0; i < WORDS; i++) CHECK(at[i] == (seed == 0 ? 0 : mix(seed * WORDS + i)));
    }
}

static void forget(int area, size_t from, size_t to)
{
    for (size_t page = from; page < to; page++) areas[area].seed[page] = 0;
}

/* Pages that MADV_FREE was said of hold what they held or zeros: they are written again at once. */
static void advise(int area)
{
    size_t from = throw(areas[area].pages), to = from + 1 + throw(areas[area].pages - from);
    char *at = (char *)(areas[area].at + from * WORDS);
    size_t len = (to - from) * PAGE;
    switch (throw(4)) {
    case 0:
        CHECK(madvise(at, len, MADV_FREE) == 0);
        fill(area, from, to);
        break;
    case 1:
        CHECK(syscall(SYS_madvise, at, len, MADV_DONTNEED) == 0);
        forget(area, from, to);
        break;
    case 2:
        CHECK(mprotect(at, len, PROT_READ) == 0 && madvise(at, len, MADV_DONTNEED) == 0);
        forget(area, from, to);
        check(area);
        CHECK(mprotect(at, len, PROT_READ | PROT_WRITE) == 0);
        break;
    default:
        CHECK(madvise(at, len, MADV_DONTNEED) == 0);
        forget(area, from, to);
    }
}

/* An area is one mapping when a wall keeps it from its neighbours, and stays one for mremap as long as its pages have
 * the same protection. */
static void resize(int area)
{
    size_t pages = 300 + throw(MAX_PAGES - 300), old = areas[area].pages;
    void *to = mremap(areas[area].at, old * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    CHECK(to != MAP_FAILED);
    areas[area].at = to;
    areas[area].pages = pages;
    if (pages > old) forget(area, old, pages);
}

static void move(int area)
{
    size_t len = areas[area].pages * PAGE;
    void *place = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    CHECK(mremap(areas[area].at, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    areas[area].at = place;
}

/* Large blocks, freed and asked for again: calloc must give zeros whatever the allocator advised away. */
static void allocate(int area)
{
    free(areas[area].at);
    size_t pages = areas[area].pages = 300 + throw(MAX_PAGES - 300);
    CHECK((areas[area].at = calloc(pages, PAGE)) != NULL);
    forget(area, 0, pages);
}

static void open_all(void)
{
    for (int area = 0; area < AREAS; area++) {
        areas[area].pages = 300 + throw(MAX_PAGES - 300);
        if (area < 3) {
            void *at = mmap(NULL, areas[area].pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(at != MAP_FAILED);
            areas[area].at = at;
        } else {
            CHECK((areas[area].at = calloc(areas[area].pages, PAGE)) != NULL);
        }
        fill(area, 0, areas[area].pages);
    }
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 60);
    open_all();
    for (long round = 0; round < rounds; round++) {
        uint64_t sum = 0;
        for (int area = 0; area < AREAS; area++) {
            check(area);
            sum = sum * 31 + areas[area].pages;
        }
        step("round %ld: %lx", round, (unsigned long)sum);
        sleep_ms(30);
        int mapped = (int)throw(3), block = 3 + (int)throw(3);
        advise(mapped);
        check(mapped);
        throw(3) == 0 ? move(mapped) : resize(mapped);
        check(mapped);
        allocate(block);
        check(block);
        fill(block, 0, areas[block].pages);
        size_t from = throw(areas[mapped].pages);
        fill(mapped, from, areas[mapped].pages);
    }
    return pass();
}
