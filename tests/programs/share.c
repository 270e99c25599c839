/* A heap of which each round rewrites a tenth, then takes a checkpoint. `share MIB ROUNDS HOW [PAUSE_MS] [go-on|start]`
 *   HOW: scattered (every tenth page), block (neighbours), same (a tenth, with the bytes that it holds), none
 * Before each round it checks the whole heap. When it notices a restart it checks, says so and ends; with go-on it goes
 * on. With start it waits for the cuts alone, not for the commits. */
#include "common.h"
#include "holdfast.h"

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))
#define PARTS 10

static uint64_t *heap;
static long pages;
static const char *how;

/* The part of the heap that a page belongs to. */
static long part_of(long page)
{
    return strcmp(how, "block") == 0 ? page * PARTS / pages : page % PARTS;
}

/* The round that wrote the page last, if `rounds` have been done; -1: none. */
static long writer(long page, long rounds)
{
    if (strcmp(how, "none") == 0 || strcmp(how, "same") == 0) return -1;
    for (long round = rounds - 1; round >= 0 && round >= rounds - PARTS; round--)
        if (round % PARTS == part_of(page)) return round;
    return -1;
}

static void put(long page, long round)
{
    volatile uint64_t *at = heap + page * (long)WORDS;
    for (size_t i = 0; i < WORDS; i++) at[i] = mix(((uint64_t)page * 100000 + (uint64_t)(round + 1)) * WORDS + i);
}

static void check(long rounds)
{
    for (long page = 0; page < pages; page++) {
        uint64_t first = ((uint64_t)page * 100000 + (uint64_t)(writer(page, rounds) + 1)) * WORDS;
        const uint64_t *at = heap + page * (long)WORDS;
        for (size_t i = 0; i < WORDS; i++) {
            if (at[i] == mix(first + i)) continue;
            printf("FAIL after %ld rounds: page %ld, word %zu: %016llx\n", rounds, page, i, (unsigned long long)at[i]);
            fflush(stdout);
            _exit(1);
        }
    }
}

int main(int argc, char **argv)
{
    pages = number_argument(argc, argv, 1, 64) * (1 << 20) / PAGE;
    long rounds = number_argument(argc, argv, 2, 5), pause = number_argument(argc, argv, 4, 0);
    how = argc > 3 ? argv[3] : "scattered";
    int go_on = argc > 5 && strcmp(argv[5], "go-on") == 0, lives = 0;
    int (*checkpoint)(void) = argc > 5 && strcmp(argv[5], "start") == 0
        ? holdfast_checkpoint_start : holdfast_checkpoint;
    CHECK(HOLDFAST_LOADED && (heap = aligned_alloc(PAGE, (size_t)pages * PAGE)) != NULL);
    for (long page = 0; page < pages; page++) put(page, -1);
    for (long round = 0;; round++) {
        int result = checkpoint();
        CHECK(result >= 0);
        check(round);
        printf("round %ld, restarts %d\n", round, holdfast_restarted());
        fflush(stdout);
        if (holdfast_restarted() > lives && !go_on) return 0;
        lives = holdfast_restarted();
        if (round == rounds) break;
        for (long page = 0; page < pages; page++)
            if (strcmp(how, "none") != 0 && part_of(page) == round % PARTS)
                put(page, strcmp(how, "same") == 0 ? -1 : round);
        sleep_ms(pause);
    }
    return pass();
}
