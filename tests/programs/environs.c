/* Floating-point environment: rounding, masked exceptions, sticky flags, per thread, in C's own words.
 * `environs [ROUNDS]` */
#include "rounds.h"
#include <fenv.h>
#include <pthread.h>

static const int modes[4] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
static const int flags[4] = {FE_INEXACT, FE_DIVBYZERO, FE_OVERFLOW | FE_INEXACT, FE_INVALID};

static void check(long n)
{
    CHECK(fegetround() == modes[n % 4] && fetestexcept(FE_ALL_EXCEPT) == flags[n % 4]);
}

static void set(long n)
{
    CHECK(fesetround(modes[n % 4]) == 0 && feclearexcept(FE_ALL_EXCEPT) == 0 && feraiseexcept(flags[n % 4]) == 0);
}

static void *thread(void *argument)
{
    long self = (long)(intptr_t)argument;
    for (set(self);; sleep_ms(9)) check(self);
    return NULL;
}

static void one_round(long round)
{
    if (round > 0) check(round - 1);
    set(round);
}

int main(int argc, char **argv)
{
    pthread_t threads[4];
    for (long i = 0; i < 4; i++) CHECK_ZERO(pthread_create(&threads[i], NULL, thread, (void *)(intptr_t)i));
    return run_rounds("environs", number_argument(argc, argv, 1, 50), one_round);
}
