/* All sixteen limits, soft and hard; others in every round. `limits [ROUNDS]` */
#include "rounds.h"
#include <sys/resource.h>

static struct rlimit before[16];

static rlim_t soft(int which, long round)
{
    static const rlim_t least[16] = {[RLIMIT_STACK] = 1 << 20, [RLIMIT_NOFILE] = 128, [RLIMIT_AS] = (rlim_t)1 << 40,
                                     [RLIMIT_DATA] = (rlim_t)1 << 34, [RLIMIT_FSIZE] = (rlim_t)1 << 30,
                                     [RLIMIT_CPU] = 1000, [RLIMIT_NPROC] = 2000, [RLIMIT_RSS] = 1 << 30,
                                     [RLIMIT_SIGPENDING] = 500};
    rlim_t wanted = least[which] + (rlim_t)(round * 7 + which) * 8;
    return before[which].rlim_max != RLIM_INFINITY && wanted > before[which].rlim_max ? before[which].rlim_max : wanted;
}

static void one_round(long round)
{
    for (int which = 0; which < 16; which++) {
        struct rlimit now;
        CHECK(getrlimit((__rlimit_resource_t)which, &now) == 0 && now.rlim_max == before[which].rlim_max);
        if (round > 0) CHECK(now.rlim_cur == soft(which, round - 1));
        now.rlim_cur = soft(which, round);
        CHECK(setrlimit((__rlimit_resource_t)which, &now) == 0);
    }
    struct rlimit core = {soft(RLIMIT_CORE, round), (rlim_t)(1 << 20) - (rlim_t)round};
    CHECK(setrlimit(RLIMIT_CORE, &core) == 0);
    before[RLIMIT_CORE] = core;
}

int main(int argc, char **argv)
{
    for (int which = 0; which < 16; which++) CHECK(getrlimit((__rlimit_resource_t)which, &before[which]) == 0);
    return run_rounds("limits", number_argument(argc, argv, 1, 45), one_round);
}
