/* Transparent huge pages (MADV_HUGEPAGE): whole ones, ones of which a piece was given back, ones that were split by
 * another protection. `hugepages [ROUNDS]` */
#include "rounds.h"
#include <sys/mman.h>

#define HUGE ((size_t)2 << 20)
#define COUNT 8
static char *block;
static long filled[COUNT * 512]; /* round + 1 in which each page was written; 0: never, or given back */

static void fill(size_t page, long round)
{
    *(uint64_t *)(block + page * 4096) = mix(page + (uint64_t)round);
    filled[page] = round + 1;
}

static void one_round(long round)
{
    for (size_t page = 0; page < COUNT * 512; page++)
        CHECK(*(uint64_t *)(block + page * 4096) == (filled[page] ? mix(page + (uint64_t)filled[page] - 1) : 0));
    size_t huge = (size_t)round % COUNT * 512;
    for (size_t page = 0; page < 512; page++) fill(huge + page, round);
    if (round % 3 == 1) {
        CHECK(madvise(block + (huge + 100) * 4096, 50 * 4096, MADV_DONTNEED) == 0);
        for (size_t page = 100; page < 150; page++) filled[huge + page] = 0;
    }
    if (round % 3 == 2)
        CHECK(mprotect(block + (huge + 7) * 4096, 4096, PROT_READ) == 0
        && mprotect(block + (huge + 7) * 4096, 4096, PROT_READ | PROT_WRITE) == 0);
}

int main(int argc, char **argv)
{
    char *room = mmap(NULL, (COUNT + 1) * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    block = (char *)(((uintptr_t)room + HUGE - 1) / HUGE * HUGE);
    CHECK(madvise(block, COUNT * HUGE, MADV_HUGEPAGE) == 0);
    return run_rounds("hugepages", number_argument(argc, argv, 1, 45), one_round);
}
