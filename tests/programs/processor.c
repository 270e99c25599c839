/* Which processor a thread is on, as restartable sequences tell it: the area that the kernel keeps up to date is
 * registered again, and every thread's is its own. `processor [ROUNDS]` */
#include "rounds.h"
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#define THREADS 3
static int first, last;
static pthread_barrier_t meeting;

static void pin(int processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
}

static void check(int expected)
{
    unsigned processor = 1u << 20;
    CHECK(syscall(SYS_getcpu, &processor, NULL, NULL) == 0 && processor == (unsigned)expected);
    CHECK(sched_getcpu() == expected);
}

static int own(long round, long self) { return (round + self) % 2 ? first : last; }

static void *thread(void *argument)
{
    long self = (long)(intptr_t)argument;
    for (long round = 0;; round++) {
        pthread_barrier_wait(&meeting);
        if (round > 0) check(own(round - 1, self));
        pin(own(round, self));
        check(own(round, self));
        pthread_barrier_wait(&meeting);
    }
    return NULL;
}

static void one_round(long round)
{
    pthread_barrier_wait(&meeting);
    if (round > 0) check(own(round - 1, 0));
    pin(own(round, 0));
    check(own(round, 0));
    pthread_barrier_wait(&meeting);
}

int main(int argc, char **argv)
{
    cpu_set_t set;
    pthread_t threads[THREADS];
    CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    for (first = 0; !CPU_ISSET(first, &set); first++) {
    }
    for (last = CPU_SETSIZE - 1; !CPU_ISSET(last, &set); last--) {
    }
    CHECK_ZERO(pthread_barrier_init(&meeting, NULL, THREADS + 1));
    for (long i = 0; i < THREADS; i++) CHECK_ZERO(pthread_create(&threads[i], NULL, thread, (void *)(intptr_t)(i + 1)));
    return run_rounds("processor", number_argument(argc, argv, 1, 45), one_round);
}
