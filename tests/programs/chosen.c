/* Functions that the loader chose for this processor (ifunc), and what the processor says of itself.
 * `chosen [ROUNDS]` */
#include "rounds.h"
#include <cpuid.h>

static uint64_t with_wide(uint64_t n) { return mix(n) + 1; }
static uint64_t without(uint64_t n) { return mix(n) + 2; }

static uint64_t (*choose(void))(uint64_t)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") ? with_wide : without;
}
uint64_t function(uint64_t n) __attribute__((ifunc("choose")));

static unsigned first[4], second[4];
static void ask(unsigned *one, unsigned *two)
{
    CHECK(__get_cpuid_count(7, 0, &one[0], &one[1], &one[2], &one[3]) == 1);
    CHECK(__get_cpuid(1, &two[0], &two[1], &two[2], &two[3]) == 1);
    two[1] = 0; /* which processor this is */
}

static void one_round(long round)
{
    unsigned a[4], b[4];
    static char from[100000], to[100000];
    ask(a, b);
    CHECK(memcmp(a, first, sizeof a) == 0 && memcmp(b, second, sizeof b) == 0);
    CHECK(function((uint64_t)round) == mix((uint64_t)round) + (__builtin_cpu_supports("avx2") ? 1 : 2));
    memset(from, (int)round, sizeof from);
    memcpy(to + round, from, sizeof from - (size_t)round);
    CHECK(memcmp(to + round, from, sizeof from - (size_t)round) == 0 && strlen(memchr("abc", 'c', 3)) == 1);
}

int main(int argc, char **argv)
{
    ask(first, second);
    return run_rounds("chosen", number_argument(argc, argv, 1, 45), one_round);
}
