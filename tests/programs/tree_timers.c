/* Timers that every process has for itself: an interval timer, one of timer_create(2), a timeout in a wait.
 * `tree_timers [ROUNDS]` */
#include "tree.h"
#include <poll.h>
#include <sys/time.h>

#define CHILDREN 3

static void count_on(int in, int out, uint64_t number)
{
    long period_us = 4000 + 1500 * (long)number;
    struct itimerval every = {{0, period_us}, {0, period_us}};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 1,
        .sigev_value.sival_int = (int)number};
    struct itimerspec once = {{0, 0}, {0, 5000000}};
    sigset_t alarms = set_of(SIGALRM), single = set_of(SIGRTMIN + 1);
    timer_t timer;
    uint64_t round;
    block(SIGALRM);
    block(SIGRTMIN + 1);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    while (hear_or_end(in, &round)) {
        siginfo_t info;
        CHECK(timer_settime(timer, 0, &once, NULL) == 0);
        CHECK(sigwaitinfo(&single, &info) == SIGRTMIN + 1);
        CHECK(info.si_code == SI_TIMER && info.si_value.sival_int == (int)number && info.si_overrun == 0);
        for (int i = 0; i < 2; i++) CHECK(sigwaitinfo(&alarms, &info) == SIGALRM && info.si_code == SI_KERNEL);
        CHECK(getitimer(ITIMER_REAL, &every) == 0 && every.it_interval.tv_usec == period_us);
        struct pollfd p = {in, POLLIN, 0};
        CHECK(poll(&p, 1, 5) == 0);
        tell(out, round);
    }
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    for (uint64_t i = 1; i <= CHILDREN; i++) fork_child(count_on, i);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        for (int i = 0; i < CHILDREN; i++) tell(children[i].to, round);
        for (int i = 0; i < CHILDREN; i++) CHECK(hear(children[i].from) == round);
        step("timers round %lu", (unsigned long)round);
    }
    finish_all(0);
    return pass();
}
