/* 64 MiB in use on the main stack: raises the limit, executes itself again, recurses, stays there, and unwinds with
 * checks. `mainstack [MIB] [ROUNDS]` */
#include "common.h"
#include <sys/resource.h>

#define FRAME 16384

static long rounds;

static __attribute__((noinline)) uint64_t descend(long depth)
{
    uint64_t room[FRAME / 8];
    for (size_t i = 0; i < FRAME / 8; i++) room[i] = mix((uint64_t)depth << 20 | i);
    uint64_t below = 0;
    if (depth == 0) {
        for (long round = 0; round < rounds; round++) {
            step("at the bottom, round %ld", round);
            sleep_ms(25);
            spin_ms(25);
        }
    } else {
        below = descend(depth - 1);
    }
    for (size_t i = 0; i < FRAME / 8; i++) CHECK(room[i] == mix((uint64_t)depth << 20 | i));
    return below + room[depth % (FRAME / 8)];
}

int main(int argc, char **argv)
{
    long mib = number_argument(argc, argv, 1, 64);
    rounds = number_argument(argc, argv, 2, 50);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_STACK, &limit) == 0);
    rlim_t wanted = (rlim_t)(mib + 8) << 20;
    if (limit.rlim_cur != wanted) {
        limit.rlim_cur = wanted;
        CHECK(setrlimit(RLIMIT_STACK, &limit) == 0);
        char *again[] = {argv[0], argc > 1 ? argv[1] : "64", argc > 2 ? argv[2] : "50", NULL};
        execv("/proc/self/exe", again);
        CHECK(!"execv");
    }
    step("sum %016llx", (unsigned long long)descend((mib << 20) / (FRAME + 64)));
    CHECK(getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur == wanted);
    return pass();
}
