/* A program that computes and writes memory, for measurements of what checkpoints take of its time. Run by
 * benches/protect.py.
 *
 * `worker MIB SECONDS [ROUNDS]`. Each round writes a word of every page of MIB of noise and computes in between;
 * without ROUNDS a first pass finds how many take SECONDS. Prints `ready`; after a line on standard input it does so
 * many rounds, prints `done SECONDS of ROUNDS rounds`, and waits for the end. */
#include "common.h"

#include <sys/mman.h>
#include <time.h>

#define PAGE 4096

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static unsigned char *heap;
static size_t pages;

static void turn(uint64_t number)
{
    for (size_t page = 0; page < pages; page++) {
        uint64_t *word = (uint64_t *)(heap + page * PAGE + 8 * (number % 512)), value = *word + number;
        for (int step = 0; step < 400; step++) value = mix(value);
        *word = value;
    }
}

int main(int count, char **words)
{
    if (count < 3) return 2;
    size_t len = strtoul(words[1], NULL, 10) << 20;
    double seconds = strtod(words[2], NULL);
    pages = len / PAGE;
    heap = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (heap == MAP_FAILED) return 1;
    for (size_t word = 0; word < len / 8; word++) ((uint64_t *)heap)[word] = mix(word);
    double begun = now();
    uint64_t rounds = 0;
    if (count > 3) {
        rounds = strtoull(words[3], NULL, 10);
    } else {
        while (now() - begun < 3) turn(rounds++);
        rounds = (uint64_t)((double)rounds / (now() - begun) * seconds);
    }
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 1;
    begun = now();
    for (uint64_t round = 0; round < rounds; round++) turn(round);
    printf("done %.4f of %llu rounds\n", now() - begun, (unsigned long long)rounds);
    fflush(stdout);
    while (getchar() != EOF) continue;
    return 0;
}
