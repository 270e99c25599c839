/* What processes have in common since fork(2) and nobody writes is one memory: for a restart too. Four processes look
 * at all of it, and each changes a part for itself: by writing, by giving pages back, by moving some; one forks again.
 * `tree_common [ROUNDS] [MIB] [shared]`: with the last word, memory must be shared as the kernel counts it. */
#include "tree.h"

#define CHILDREN 3
#define WORDS 512
/* Pages that are moved or given back at once. */
#define BLOCK 96
/* Rounds in a row in which memory is not shared, at most: after a restart not everybody has looked yet. */
#define PATIENCE 6

/* What a page holds: what it was made with, what this process wrote, nothing. */
enum { AS_MADE, WRITTEN, GIVEN_BACK };

static uint64_t *area, *place, pages, who;
static uint8_t *state;

static uint64_t *page_at(uint64_t page)
{
    /* the second block may be elsewhere */
    return page / BLOCK == 1 ? place + (page - BLOCK) * WORDS : area + page * WORDS;
}

static void check(void)
{
    for (uint64_t page = 0; page < pages; page++) {
        uint64_t first = page_at(page)[0], last = page_at(page)[WORDS - 1];
        switch (state[page]) {
        case AS_MADE: CHECK(first == mix(page) && last == page + 1); break;
        case WRITTEN: CHECK(first == mix(page * 100 + who) && last == page + 1); break;
        default: CHECK(first == 0 && last == 0);
        }
    }
}

static void write_page(uint64_t page)
{
    uint64_t *words = page_at(page);
    words[0] = mix(page * 100 + who);
    words[WORDS - 1] = page + 1;
    state[page] = WRITTEN;
}

/* The second block, to somewhere else or back home. */
static void move_block(void)
{
    uint64_t *home = area + BLOCK * WORDS, *to = home;
    size_t size = BLOCK * WORDS * 8;
    if (place == home) {
        to = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(to != MAP_FAILED);
    }
    CHECK(mremap(place, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    if (place == home) CHECK(mmap(home, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == home);
    place = to;
}

static void change(uint64_t round)
{
    uint64_t page = (round * 4 + who) % (pages / 8) + 3 * BLOCK;
    write_page(page);
    if (round % 7 == who) {
        CHECK(madvise(area, BLOCK * WORDS * 8, MADV_DONTNEED) == 0);
        memset(state, GIVEN_BACK, BLOCK);
    } else if (round % 7 == who + 1) {
        for (uint64_t i = 0; i < BLOCK / 2; i++) write_page(i);
    }
    if (round % 5 == who) move_block();
    if (who == 2 && round % 8 == 0) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            check();
            _exit(0);
        }
        ended(pid, 0);
    }
}

static void own(int in, int out, uint64_t number)
{
    uint64_t round;
    who = number;
    while (hear_or_end(in, &round)) {
        check();
        tell(out, mix(round + who));
        change(round);
    }
}

/* Whether most of the area is shared with others, as the kernel counts it (Pss of proc_pid_smaps(5)). */
static int is_shared(void)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[1024];
    unsigned long start, end, kib, rss = 0, pss = 0;
    int inside = 0;
    CHECK(f != NULL);
    while (fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            inside = start < (unsigned long)(area + pages * WORDS) && end > (unsigned long)area;
        else if (inside && sscanf(line, "Rss: %lu", &kib) == 1)
            rss += kib;
        else if (inside && sscanf(line, "Pss: %lu", &kib) == 1)
            pss += kib;
    }
    CHECK(fclose(f) == 0);
    return rss > pages * 2 && pss * 10 < rss * 6;
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 80);
    int missing = 0;
    pages = (uint64_t)number_argument(argc, argv, 2, 16) * 256;
    area = mmap(NULL, pages * WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    state = calloc(pages, 1);
    CHECK(area != MAP_FAILED && state != NULL);
    for (uint64_t page = 0; page < pages; page++) {
        area[page * WORDS] = mix(page);
        for (uint64_t i = 1; i < WORDS; i++) area[page * WORDS + i] = page + 1;
    }
    place = area + BLOCK * WORDS;
    for (uint64_t i = 1; i <= CHILDREN; i++) fork_child(own, i);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        for (int i = 0; i < CHILDREN; i++) tell(children[i].to, round);
        check();
        for (uint64_t i = 0; i < CHILDREN; i++) CHECK(hear(children[i].from) == mix(round + i + 1));
        missing = argc < 4 || is_shared() ? 0 : missing + 1;
        CHECK(missing < PATIENCE);
        change(round);
        sleep_ms(ROUND_MS);
        step("common round %lu", (unsigned long)round);
    }
    finish_all(0);
    return pass();
}
