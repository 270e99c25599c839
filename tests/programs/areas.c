/* Memory of all kinds, of which each round rewrites one page in ten, then takes a checkpoint: noise, text, pages that
 * become zero again, shared, with and without huge pages, read-only. `areas MIB ROUNDS PAUSE_MS`: MIB of each kind.
 * Before each round it checks all of it. It goes on after a restart. */
#include "common.h"
#include "holdfast.h"

#include <sys/mman.h>

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))
#define PARTS 10
#define HUGE_PAGE (2u << 20)

enum kind { NOISE, TEXT, ZERO, SHARED, HUGE, SMALL, READ_ONLY, KINDS };

static uint64_t *area[KINDS];
static long pages;

/* The round that wrote the page last, if `rounds` have been done; -1: none. */
static long writer(long page, long rounds)
{
    for (long round = rounds - 1; round >= 0 && round >= rounds - PARTS; round--)
        if (round % PARTS == page % PARTS) return round;
    return -1;
}

/* Word `i` of a page that `round` wrote. */
static uint64_t word(enum kind kind, long page, long round, size_t i)
{
    uint64_t seed = ((uint64_t)kind << 40) + (uint64_t)page * 100000 + (uint64_t)(round + 1);
    if (kind == ZERO && round % 2 != 0) return 0;
    return kind == TEXT || kind == ZERO ? seed : mix(seed * WORDS + i);
}

static void put(enum kind kind, long page, long round)
{
    volatile uint64_t *at = area[kind] + page * (long)WORDS;
    for (size_t i = 0; i < WORDS; i++) at[i] = word(kind, page, round, i);
}

static void protect(int prot)
{
    CHECK_ZERO(mprotect(area[READ_ONLY], (size_t)pages * PAGE, prot));
}

static void make(enum kind kind)
{
    int flags = MAP_ANONYMOUS | MAP_NORESERVE | (kind == SHARED ? MAP_SHARED : MAP_PRIVATE);
    size_t bytes = (size_t)pages * PAGE;
    char *at = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(at != MAP_FAILED);
    at += (HUGE_PAGE - (uintptr_t)at % HUGE_PAGE) % HUGE_PAGE;
    /* A kernel without huge pages refuses both. */
    if (kind == HUGE) (void)madvise(at, bytes, MADV_HUGEPAGE);
    if (kind == SMALL) (void)madvise(at, bytes, MADV_NOHUGEPAGE);
    area[kind] = (uint64_t *)(void *)at;
    for (long page = 0; page < pages; page++) put(kind, page, -1);
}

static void check(long rounds)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (long page = 0; page < pages; page++)
            for (size_t i = 0; i < WORDS; i++) {
                uint64_t found = area[kind][page * (long)WORDS + (long)i];
                if (found == word((enum kind)kind, page, writer(page, rounds), i)) continue;
                printf("FAIL after %ld rounds: kind %d, page %ld, word %zu: %016llx\n", rounds, kind, page, i,
                    (unsigned long long)found);
                fflush(stdout);
                _exit(1);
            }
}

int main(int argc, char **argv)
{
    pages = number_argument(argc, argv, 1, 4) * (1 << 20) / PAGE;
    long rounds = number_argument(argc, argv, 2, 20), pause = number_argument(argc, argv, 3, 20);
    CHECK(HOLDFAST_LOADED);
    for (int kind = 0; kind < KINDS; kind++) make((enum kind)kind);
    protect(PROT_READ);
    for (long round = 0;; round++) {
        CHECK(holdfast_checkpoint() >= 0);
        check(round);
        printf("round %ld, restarts %d\n", round, holdfast_restarted());
        fflush(stdout);
        if (round == rounds) break;
        protect(PROT_READ | PROT_WRITE);
        for (int kind = 0; kind < KINDS; kind++)
            for (long page = round % PARTS; page < pages; page += PARTS) put((enum kind)kind, page, round);
        protect(PROT_READ);
        sleep_ms(pause);
    }
    return pass();
}
