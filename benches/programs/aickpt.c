/* The benchmark of AI-Ckpt: a region, each page of which is written once per iteration, in one order; a checkpoint
 * every so many iterations, asked for by the program, which goes on as soon as it may. Run by benches/aickpt.py.
 *
 * `aickpt MIB ITERATIONS EVERY ascending|random|descending ITERATION_US`; EVERY 0: no checkpoints.
 *
 * Between two writes it computes for ITERATION_US / pages, counted anew after each write: a program that was delayed
 * does not catch up. Pages are noise, so they do not compress, and each write changes one word. An image is taken
 * before the region is filled, so that libraries and stacks are not part of what is measured, and one at the end.
 *
 * Prints `ready PAGES`, and at the end `checkpoint NUMBER NS CODE` (the time inside the call), `iteration NUMBER NS`,
 * `total NS` (all iterations and calls) and `sum X`. */
#include "common.h"
#include "holdfast.h"

#define PAGE 4096
#define MOST 4096

struct run {
    unsigned char *region;
    uint32_t *order;
    size_t pages;
    int64_t pace_ns;
};

static void fill_order(struct run *run, const char *pattern)
{
    for (size_t i = 0; i < run->pages; i++)
        run->order[i] = (uint32_t)(strcmp(pattern, "descending") == 0 ? run->pages - 1 - i : i);
    if (strcmp(pattern, "random") != 0) return;
    for (size_t i = run->pages - 1; i > 0; i--) {
        size_t j = mix(i) % (i + 1);
        uint32_t other = run->order[i];
        run->order[i] = run->order[j];
        run->order[j] = other;
    }
}

static void iterate(const struct run *run, long iteration)
{
    for (size_t i = 0; i < run->pages; i++) {
        uint32_t page = run->order[i];
        *(uint64_t *)(run->region + (size_t)page * PAGE) = mix((uint64_t)iteration << 32 | page);
        int64_t end = now_ns() + run->pace_ns;
        while (now_ns() < end) {
        }
    }
}

static void *protected_region(size_t bytes)
{
    return HOLDFAST_LOADED ? holdfast_malloc_protected("region", bytes) : aligned_alloc(PAGE, bytes);
}

int main(int argc, char **argv)
{
    static int64_t took[MOST], inside[MOST];
    static int code[MOST];
    CHECK(argc == 6);
    size_t bytes = (size_t)strtol(argv[1], NULL, 10) << 20;
    long iterations = strtol(argv[2], NULL, 10), every = strtol(argv[3], NULL, 10);
    struct run run = {.pages = bytes / PAGE};
    CHECK(bytes > 0 && iterations > 0 && iterations < MOST);
    run.pace_ns = strtol(argv[5], NULL, 10) * 1000 / (int64_t)run.pages;
    run.order = malloc(run.pages * sizeof *run.order);
    run.region = protected_region(bytes);
    CHECK(run.order != NULL && run.region != NULL);
    fill_order(&run, argv[4]);
    if (every != 0) CHECK(HOLDFAST_LOADED && holdfast_checkpoint() == 0);
    for (size_t at = 0; at < bytes; at += 8) *(uint64_t *)(run.region + at) = mix(at);
    printf("ready %zu\n", run.pages);
    fflush(stdout);
    int64_t begun = now_ns();
    for (long i = 1; i <= iterations; i++) {
        int64_t start = now_ns();
        iterate(&run, i);
        took[i] = now_ns() - start;
        if (every == 0 || i % every != 0) continue;
        start = now_ns();
        code[i] = holdfast_checkpoint_start();
        inside[i] = now_ns() - start;
    }
    int64_t total = now_ns() - begun;
    /* waits for the flush that may be under way, and tells how the last epoch ended */
    if (every != 0) CHECK(holdfast_checkpoint() == 0);
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes; at += 8) sum += *(uint64_t *)(run.region + at);
    for (long i = 1; i <= iterations; i++) {
        if (every != 0 && i % every == 0) printf("checkpoint %ld %lld %d\n", i, (long long)inside[i], code[i]);
        printf("iteration %ld %lld\n", i, (long long)took[i]);
    }
    printf("total %lld\nsum %016llx\n", (long long)total, (unsigned long long)sum);
    return 0;
}
