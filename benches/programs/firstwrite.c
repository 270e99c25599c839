/* What the first write to a page costs: plain, by mprotect and SIGSEGV, tracked, and while an image is being flushed.
 * Run by benches/pager.py with `--order address` and a slow `--rate`, so that it is known which pages are stored
 * already.
 *
 * `firstwrite REGION_MIB SAMPLE_MIB ROUNDS FLUSH_MS`; FLUSH_MS: how long a flush of the region takes.
 *
 * Every write is timed alone by the time stamp counter. Prints `KIND ROUND MEDIAN_NS MEAN_NS`, and for the two kinds
 * that need a flush under way `SINCE_NS`, the time from the cut to the last of its writes. Kinds:
 *   plain          no protection; the cost of reading the counter is in all others too
 *   mprotect       one SIGSEGV and one mprotect per page
 *   mprotect-copy  the same, and the handler copies the page first (AI-Ckpt's mechanism)
 *   tracked        after a checkpoint that is committed
 *   tracked-random the same, in random order
 *   unreleased     a flush is under way and has not come to this page
 *   released       a flush is under way and has stored this page */
#include "common.h"
#include "holdfast.h"

#include <signal.h>
#include <sys/mman.h>
#include <x86intrin.h>

#define PAGE 4096

static unsigned char *copies;
static size_t copied, copy_room;
static double ns_per_cycle;

static uint64_t cycles(void)
{
    unsigned processor;
    return __rdtscp(&processor);
}

static void calibrate(void)
{
    int64_t from = now_ns();
    uint64_t begin = cycles();
    spin_ms(50);
    ns_per_cycle = (double)(now_ns() - from) / (double)(cycles() - begin);
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    unsigned char *page = (unsigned char *)((uintptr_t)info->si_addr & ~(uintptr_t)(PAGE - 1));
    if (copy_room != 0) memcpy(copies + copied++ % copy_room * PAGE, page, PAGE);
    if (mprotect(page, PAGE, PROT_READ | PROT_WRITE) != 0) _exit(3);
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Writes to each of `pages` pages and prints how long one write took; `since`: moment of the cut, or 0. */
static void measure(const char *kind, long round, unsigned char *from, size_t pages, int random, int64_t since)
{
    static uint32_t *took, *order;
    static size_t room;
    if (room < pages) {
        took = realloc(took, pages * sizeof *took);
        order = realloc(order, pages * sizeof *order);
        CHECK(took != NULL && order != NULL);
        room = pages;
    }
    for (size_t i = 0; i < pages; i++) order[i] = (uint32_t)i, took[i] = 1;
    for (size_t i = pages - 1; random && i > 0; i--) {
        size_t j = mix(i + (size_t)round) % (i + 1);
        uint32_t other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
    double sum = 0;
    for (size_t i = 0; i < pages; i++) {
        volatile uint64_t *word = (volatile uint64_t *)(from + (size_t)order[i] * PAGE);
        uint64_t begin = cycles();
        *word = begin;
        uint64_t end = cycles();
        took[i] = (uint32_t)(end - begin);
        sum += (double)(end - begin);
    }
    int64_t after = since == 0 ? 0 : now_ns() - since;
    qsort(took, pages, sizeof *took, compare);
    printf("%s %ld %.1f %.1f %lld\n", kind, round, took[pages / 2] * ns_per_cycle, sum * ns_per_cycle / (double)pages,
           (long long)after);
    fflush(stdout);
}

static void by_mprotect(long round, unsigned char *other, size_t pages)
{
    /* libholdfast may have a handler of its own; ours is in force only here */
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, before;
    CHECK(sigaction(SIGSEGV, &action, &before) == 0);
    for (int copying = 0; copying < 2; copying++) {
        copy_room = copying ? 256 : 0;
        CHECK(mprotect(other, pages * PAGE, PROT_READ) == 0);
        measure(copying ? "mprotect-copy" : "mprotect", round, other, pages, 0, 0);
        CHECK(mprotect(other, pages * PAGE, PROT_READ | PROT_WRITE) == 0);
    }
    CHECK(sigaction(SIGSEGV, &before, NULL) == 0);
}

static void touch_all(unsigned char *region, size_t bytes, uint64_t value)
{
    for (size_t at = 0; at < bytes; at += PAGE) *(uint64_t *)(region + at + 8) = value;
}

static unsigned char *noise(size_t bytes)
{
    unsigned char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK(madvise(memory, bytes, MADV_NOHUGEPAGE) == 0);
    for (size_t at = 0; at < bytes; at += 8) *(uint64_t *)(memory + at) = mix(at);
    return memory;
}

int main(int argc, char **argv)
{
    size_t bytes = (size_t)number_argument(argc, argv, 1, 256) << 20;
    size_t sample = ((size_t)number_argument(argc, argv, 2, 16) << 20) / PAGE;
    long rounds = number_argument(argc, argv, 3, 5), flush_ms = number_argument(argc, argv, 4, 4650);
    CHECK(HOLDFAST_LOADED && bytes / PAGE >= 8 * sample);
    calibrate();
    copies = noise(256 * PAGE);
    unsigned char *other = noise(sample * PAGE), *region = noise(bytes);
    printf("ready\n");
    fflush(stdout);
    for (long round = 1; round <= rounds; round++) {
        /* written once since the last checkpoint: nothing of the tracking is in the next two */
        touch_all(region, sample * PAGE, (uint64_t)round);
        touch_all(other, sample * PAGE, (uint64_t)round);
        measure("plain", round, region, sample, 0, 0);
        by_mprotect(round, other, sample);
        for (int random = 0; random < 2; random++) {
            CHECK(holdfast_checkpoint() == 0);
            measure(random ? "tracked-random" : "tracked", round, region, sample, random, 0);
        }
        touch_all(region, bytes, (uint64_t)round);
        CHECK(holdfast_checkpoint_start() == 0);
        int64_t cut = now_ns();
        measure("unreleased", round, region + bytes - sample * PAGE, sample, 0, cut);
        sleep_ms(flush_ms * 6 / 10);
        measure("released", round, region + bytes / 8, sample, 0, cut);
        CHECK(holdfast_checkpoint() == 0);
    }
    return 0;
}
