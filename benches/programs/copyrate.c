/* Rates of this machine's memory, for measurements of redundancy. Run by benches/protect.py.
 *
 * `copyrate MIB`: megabytes of memory that one thread copies in a second (memcpy), best of five, and that it adds to
 * others by XOR. Prints `copy MBS xor MBS`. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **words)
{
    size_t len = (count > 1 ? strtoul(words[1], NULL, 10) : 256) << 20, word;
    uint64_t *from = malloc(len), *to = malloc(len);
    double copy = 1e9, add = 1e9;
    if (!from || !to) return 1;
    for (word = 0; word < len / 8; word++) from[word] = word * 0x9e3779b97f4a7c15, to[word] = word;
    for (int round = 0; round < 5; round++) {
        double begun = now();
        memcpy(to, from, len);
        double copied = now();
        for (word = 0; word < len / 8; word++) to[word] ^= from[word];
        double added = now();
        if (copied - begun < copy) copy = copied - begun;
        if (added - copied < add) add = added - copied;
        from[round] ^= to[len / 16];
    }
    printf("copy %.0f xor %.0f\n", len / copy / 1e6, len / add / 1e6);
    return 0;
}
