/* Interval timers and alarm: `timers [TICKS]`. Counts ticks of the three interval timers, one after the other, checks
 * that the period stays, that a stopped timer stays stopped, and that an alarm comes once and not early. */
#include "common.h"
#include <signal.h>
#include <sys/time.h>

static volatile sig_atomic_t ticks;
static void tick(int signal)
{
    (void)signal;
    ticks++;
}

static void run_timer(int which, int signal, const char *name, long count, long period_us)
{
    struct itimerval timer = {{0, period_us}, {0, period_us}}, now;
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    CHECK(sigaction(signal, &action, NULL) == 0);
    ticks = 0;
    CHECK(setitimer(which, &timer, NULL) == 0);
    for (long i = 10; i <= count; i += 10) {
        volatile uint64_t work = 0;
        while (ticks < i) work += mix(work);
        step("%s: %ld ticks", name, i);
        /* 0: it has expired in this very call */
        do CHECK(getitimer(which, &now) == 0);
        while (now.it_value.tv_sec == 0 && now.it_value.tv_usec == 0);
        CHECK(now.it_interval.tv_sec == 0 && now.it_interval.tv_usec >= period_us
            && now.it_interval.tv_usec < period_us + 8000);
        CHECK(now.it_value.tv_sec == 0 && now.it_value.tv_usec > 0);
    }
    memset(&timer, 0, sizeof timer);
    CHECK(setitimer(which, &timer, NULL) == 0);
    sig_atomic_t last = ticks;
    spin_ms(60);
    CHECK(ticks == last);
    CHECK(getitimer(which, &now) == 0 && now.it_value.tv_usec == 0 && now.it_value.tv_sec == 0);
}

int main(int argc, char **argv)
{
    long count = number_argument(argc, argv, 1, 60);
    run_timer(ITIMER_REAL, SIGALRM, "real", count, 10000);
    run_timer(ITIMER_VIRTUAL, SIGVTALRM, "virtual", count, 10000);
    run_timer(ITIMER_PROF, SIGPROF, "prof", count, 10000);
    ticks = 0;
    int64_t start = now_ns();
    alarm(1);
    while (ticks == 0) {
        struct timespec t = {0, 5000000};
        while (nanosleep(&t, &t) != 0) CHECK(errno == EINTR && ticks == 1);
    }
    CHECK(now_ns() - start > 990000000);
    step("alarm");
    spin_ms(50);
    CHECK(ticks == 1 && alarm(0) == 0);
    return pass();
}
