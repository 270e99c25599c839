/* Explicit huge pages (MAP_HUGETLB). `explicit KIND [ROUNDS]`
 *   private  filled, in part too, given back, read again without a write (zeros then, which the kernel gives the
 *            protection that was left), moved, made read-only; one is never touched
 *   shared   of two processes: what one writes the other reads, and answers
 *   kept     the same of System V, of which the last page is not whole
 *   removed  the same of what was removed (IPC_RMID) while it is attached */
#include "rounds.h"
#include "tree.h"
#include <sys/shm.h>

#define HUGE ((size_t)2 << 20)
#define COUNT 6
#define WORDS (HUGE / sizeof(uint64_t))
static uint64_t *blocks[COUNT];
static uint64_t seeds[COUNT]; /* of what is in each: 0 for zeros */

static uint64_t *map(size_t count, int how)
{
    void *at = mmap(NULL, count * HUGE, PROT_READ | PROT_WRITE, how | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (at == MAP_FAILED) not_here("MAP_HUGETLB");
    return at;
}

/* A word in 509; in the first half of a page none, of odd seeds. */
static uint64_t word(uint64_t seed, size_t at)
{
    if (seed == 0 || at % 509 != 0) return 0;
    return seed % 2 == 1 && at < WORDS / 2 ? 0 : mix(seed * WORDS + at);
}

static void fill(size_t block, uint64_t seed)
{
    CHECK(mprotect(blocks[block], HUGE, PROT_READ | PROT_WRITE) == 0);
    for (size_t at = 0; at < WORDS; at++) blocks[block][at] = word(seed, at);
    seeds[block] = seed;
}

static void check(size_t block)
{
    for (size_t at = 0; at < WORDS; at++) CHECK(blocks[block][at] == word(seeds[block], at));
}

static void give_back(size_t block)
{
    CHECK(madvise(blocks[block], HUGE, MADV_DONTNEED) == 0);
    seeds[block] = 0;
}

/* --- private --- */

static char *hidden, *constant;

static void prepare_private(void)
{
    /* Each by itself: Linux 6.18 loses the pages that it has set aside for a mapping of which a piece is moved away. */
    for (size_t block = 0; block < COUNT; block++) blocks[block] = map(1, MAP_PRIVATE);
    hidden = memset(map(1, MAP_PRIVATE), 'h', HUGE);
    constant = memset(map(1, MAP_PRIVATE), 'c', HUGE);
    CHECK(mprotect(hidden, HUGE, PROT_NONE) == 0 && mprotect(constant, HUGE, PROT_READ) == 0);
}

/* The last block is never touched, and the others are not always looked at: what was given back has no page then. */
static void round_private(long round)
{
    uint64_t seed = (uint64_t)round + 1;
    size_t block = (size_t)round % (COUNT - 1);
    if (round % 4 != 2)
        for (size_t each = 0; each < COUNT - 1; each++) check(each);
    CHECK(mprotect(hidden, HUGE, PROT_READ) == 0);
    for (size_t at = 0; at < HUGE; at += 4096) CHECK(hidden[at] == 'h' && constant[at] == 'c');
    CHECK(mprotect(hidden, HUGE, PROT_NONE) == 0);
    switch (round % 7) {
    case 0:
    case 1:
        fill(block, seed);
        break;
    case 2:
        give_back(block);
        break;
    case 3:
        give_back(block);
        check(block);
        break;
    case 4: { /* elsewhere, where there was nothing before */
        uint64_t *to = map(1, MAP_PRIVATE);
        CHECK(mremap(blocks[block], HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
        blocks[block] = to;
        break;
    }
    case 5: /* can be read only, until the next fill */
        fill(block, seed);
        CHECK(mprotect(blocks[block], HUGE, PROT_READ) == 0);
        break;
    default: /* new memory in the same place */
        CHECK(munmap(blocks[block], HUGE) == 0);
        blocks[block] = map(1, MAP_PRIVATE);
        fill(block, seed);
    }
}

/* --- shared --- */

static void answer(int in, int out, uint64_t number)
{
    for (uint64_t seed; hear_or_end(in, &seed); tell(out, number)) {
        size_t block = seed % 2;
        seeds[block] = seed;
        check(block);
        blocks[block][WORDS - 1] = mix(seed);
    }
}

static void prepare_shared(void)
{
    blocks[0] = map(2, MAP_SHARED);
    blocks[1] = blocks[0] + WORDS;
    fork_child(answer, 7);
}

static int segment;
static pid_t maker;

static void remove_segment(void)
{
    if (getpid() == maker) shmctl(segment, IPC_RMID, NULL);
}

static void prepare_kept(void)
{
    maker = getpid();
    segment = shmget(IPC_PRIVATE, HUGE + 5000, IPC_CREAT | SHM_HUGETLB | 0600);
    if (segment < 0) not_here("SHM_HUGETLB");
    CHECK(atexit(remove_segment) == 0);
    blocks[0] = shmat(segment, NULL, 0);
    CHECK(blocks[0] != (void *)-1);
    blocks[1] = blocks[0] + WORDS;
    fork_child(answer, 7);
}

static void prepare_removed(void)
{
    prepare_kept();
    remove_segment();
    maker = 0;
}

static void round_shared(long round)
{
    uint64_t seed = (uint64_t)round + 1;
    size_t block = seed % 2;
    fill(block, seed);
    tell(children[0].to, seed);
    CHECK(hear(children[0].from) == 7 && blocks[block][WORDS - 1] == mix(seed));
    if (round > 0) CHECK(blocks[1 - block][WORDS - 1] == mix(seed - 1));
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"private", prepare_private, round_private},
                                        {"shared", prepare_shared, round_shared},
                                        {"kept", prepare_kept, round_shared},
                                        {"removed", prepare_removed, round_shared}};
    return RUN_KIND(kinds);
}
