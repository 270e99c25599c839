/* Timers of timer_create: `clockworks KIND [ROUNDS]`
 * KIND: signal (periodic, queued with a value), thread (SIGEV_THREAD), one (SIGEV_THREAD_ID), silent (SIGEV_NONE),
 * computing (a clock of the time spent computing), absolute, numbers (their numbers, with gaps), overrun (expirations
 * while it is blocked) */
#include "rounds.h"
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
#define SIGNAL (SIGRTMIN + 4)
static timer_t timer;
static sigset_t own;
static sem_t fired;

static void make(clockid_t clock, struct sigevent event) { CHECK(timer_create(clock, &event, &timer) == 0); }

static void set(int flags, int64_t value, int64_t interval)
{
    struct itimerspec t = {timespec_of_ns(interval), timespec_of_ns(value)};
    CHECK(timer_settime(timer, flags, &t, NULL) == 0);
}

static struct sigevent by_signal(int value)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGNAL, .sigev_value = {.sival_int = value}};
    sigemptyset(&own);
    sigaddset(&own, SIGNAL);
    CHECK_ZERO(pthread_sigmask(SIG_BLOCK, &own, NULL));
    return event;
}

static void expect(int value)
{
    siginfo_t info;
    CHECK(sigwaitinfo(&own, &info) == SIGNAL && info.si_code == SI_TIMER && info.si_value.sival_int == value);
}

static void signal_prepare(void)
{
    make(CLOCK_MONOTONIC, by_signal(77));
    set(0, 10000000, 15000000);
}

static void signal_round(long round)
{
    struct itimerspec now;
    (void)round;
    expect(77);
    expect(77);
    CHECK(timer_gettime(timer, &now) == 0 && now.it_interval.tv_nsec == 15000000 && now.it_value.tv_nsec > 0);
}

static void in_thread(union sigval value)
{
    CHECK(value.sival_int == 88 && sem_post(&fired) == 0);
}

static void thread_prepare(void)
{
    CHECK(sem_init(&fired, 0, 0) == 0);
    make(CLOCK_MONOTONIC,
        (struct sigevent){.sigev_notify = SIGEV_THREAD, .sigev_value = {.sival_int = 88},
        .sigev_notify_function = in_thread});
    set(0, 20000000, 20000000);
}

static void thread_round(long round)
{
    (void)round;
    CHECK(sem_wait(&fired) == 0);
}

static volatile pid_t waiting_id;
static void *waits_for_it(void *argument)
{
    waiting_id = gettid();
    for (;;) {
        expect(99);
        CHECK(sem_post(&fired) == 0);
    }
    return argument;
}

static void one_prepare(void)
{
    pthread_t thread;
    struct sigevent event = by_signal(99);
    CHECK(sem_init(&fired, 0, 0) == 0);
    CHECK_ZERO(pthread_create(&thread, NULL, waits_for_it, NULL));
    while (waiting_id == 0) sleep_ms(1);
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_notify_thread_id = waiting_id;
    make(CLOCK_BOOTTIME, event);
    set(0, 20000000, 20000000);
}

static void silent_prepare(void)
{
    make(CLOCK_MONOTONIC, (struct sigevent){.sigev_notify = SIGEV_NONE});
    set(0, 100000000000000, 0);
}

static void silent_round(long round)
{
    static int64_t last = 100000000000001;
    struct itimerspec now;
    (void)round;
    CHECK(timer_gettime(timer, &now) == 0);
    int64_t left = (int64_t)now.it_value.tv_sec * 1000000000 + now.it_value.tv_nsec;
    CHECK(left < last && left > 90000000000000 && now.it_interval.tv_nsec == 0);
    last = left;
}

static void computing_prepare(void)
{
    make(CLOCK_PROCESS_CPUTIME_ID, by_signal(55));
    set(0, 5000000, 5000000);
}

static void computing_round(long round)
{
    siginfo_t info;
    struct timespec none = {0, 0};
    volatile uint64_t work = (uint64_t)round;
    int number;
    while ((number = sigtimedwait(&own, &info, &none)) == -1)
        for (int i = 0; i < 10000; i++) work = mix(work);
    CHECK(number == SIGNAL && info.si_value.sival_int == 55);
}

static void absolute_prepare(void) { make(CLOCK_REALTIME, by_signal(66)); }

static void absolute_round(long round)
{
    struct timespec now;
    (void)round;
    CHECK(clock_gettime(CLOCK_REALTIME, &now) == 0);
    int64_t end = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + 30000000;
    set(TIMER_ABSTIME, end, 0);
    expect(66);
    CHECK(clock_gettime(CLOCK_REALTIME, &now) == 0 && (int64_t)now.tv_sec * 1000000000 + now.tv_nsec >= end);
}

/* The kernel's own numbers: the C library hands them out for timers with signals. */
static int numbers[6];
static void create(int which)
{
    struct sigevent event = {.sigev_notify = SIGEV_NONE};
    CHECK(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &numbers[which]) == 0);
    struct itimerspec t = {{which + 1, 0}, {100000 + which, 0}};
    CHECK(syscall(SYS_timer_settime, numbers[which], 0, &t, NULL) == 0);
}

static void numbers_prepare(void)
{
    for (int i = 0; i < 6; i++) create(i);
}

static void numbers_round(long round)
{
    for (int i = 0; i < 6; i++) {
        struct itimerspec t;
        CHECK(syscall(SYS_timer_gettime, numbers[i], &t) == 0 && t.it_interval.tv_sec == i + 1
            && t.it_value.tv_sec > 90000);
    }
    int which = (int)(round * 5 % 6);
    CHECK(syscall(SYS_timer_delete, numbers[which]) == 0);
    create(which);
}

static void overrun_prepare(void)
{
    make(CLOCK_MONOTONIC, by_signal(44));
    set(0, 1000000, 1000000);
}

static void overrun_round(long round)
{
    if (round == 0) return;
    expect(44); /* one signal for all that has expired since */
    CHECK(timer_getoverrun(timer) >= 1);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"signal", signal_prepare, signal_round},
                                        {"thread", thread_prepare, thread_round},
                                        {"one", one_prepare, thread_round}, {"silent", silent_prepare, silent_round},
                                        {"computing", computing_prepare, computing_round},
                                        {"absolute", absolute_prepare, absolute_round},
                                        {"numbers", numbers_prepare, numbers_round},
                                        {"overrun", overrun_prepare, overrun_round}};
    return RUN_KIND(kinds);
}
