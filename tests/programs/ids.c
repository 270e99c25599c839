/* Ids of the process and its threads, asked of the kernel directly and through everything that names them: they stay.
 * `ids [ROUNDS]` */
#include "rounds.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

#define THREADS 4
static long process;
static pthread_mutex_t checked, recursive;
static long cached[THREADS + 1];

static void check(int self)
{
    char link[64] = "", expected[64];
    CHECK(getpid() == process && raw_call(SYS_getpid, 0, 0) == process && syscall(SYS_getpid) == process);
    CHECK(gettid() == cached[self] && raw_call(SYS_gettid, 0, 0) == cached[self]);
    CHECK(syscall(SYS_tgkill, process, cached[self], 0) == 0 && kill((pid_t)process, 0) == 0);
    CHECK(pthread_kill(pthread_self(), 0) == 0);
    snprintf(expected, sizeof expected, "%ld", process);
    CHECK(readlink("/proc/self", link, sizeof link - 1) > 0 && strcmp(link, expected) == 0);
    memset(link, 0, sizeof link);
    snprintf(expected, sizeof expected, "%ld/task/%ld", process, cached[self]);
    CHECK(readlink("/proc/thread-self", link, sizeof link - 1) > 0 && strcmp(link, expected) == 0);
    clockid_t clock;
    struct timespec t;
    CHECK_ZERO(pthread_getcpuclockid(pthread_self(), &clock));
    CHECK(clock_gettime(clock, &t) == 0);
}

static void *thread(void *argument)
{
    int self = (int)(intptr_t)argument;
    cached[self] = gettid();
    if (self == 1) CHECK_ZERO(pthread_mutex_lock(&checked) | pthread_mutex_lock(&recursive));
    for (;; sleep_ms(15)) {
        check(self);
        if (self != 1) continue;
        /* both know their owner by its id */
        CHECK(pthread_mutex_lock(&checked) == EDEADLK);
        CHECK_ZERO(pthread_mutex_lock(&recursive) | pthread_mutex_unlock(&recursive));
    }
    return NULL;
}

static void one_round(long round)
{
    check(0);
    CHECK(pthread_mutex_unlock(&checked) == EPERM);
    CHECK(pthread_mutex_trylock(&recursive) == EBUSY);
    for (int i = 1; round > 0 && i <= THREADS; i++) CHECK(syscall(SYS_tgkill, process, cached[i], 0) == 0);
}

int main(int argc, char **argv)
{
    pthread_mutexattr_t attributes;
    pthread_t threads[THREADS];
    process = getpid();
    cached[0] = gettid();
    CHECK_ZERO(pthread_mutexattr_init(&attributes));
    CHECK_ZERO(pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK)
        | pthread_mutex_init(&checked, &attributes));
    CHECK_ZERO(pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE)
        | pthread_mutex_init(&recursive, &attributes));
    for (int i = 0; i < THREADS; i++) CHECK_ZERO(pthread_create(&threads[i], NULL, thread, (void *)(intptr_t)(i + 1)));
    sleep_ms(20);
    return run_rounds("ids", number_argument(argc, argv, 1, 45), one_round);
}
