/* What the kernel has noted of each thread: the list of robust mutexes, and the word that it clears at the thread's
 * end, on which others wait. `registered [ROUNDS]` */
#include "rounds.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>

#define THREADS 3
static struct robust_list_head own[THREADS + 1];
static volatile int words[THREADS + 1];

/* A list of its own instead of the C library's. */
static void register_own(long self)
{
    own[self] = (struct robust_list_head){.list = {&own[self].list}, .futex_offset = 8};
    CHECK(syscall(SYS_set_robust_list, &own[self], sizeof own[self]) == 0);
}

static void check(long self)
{
    void *head = NULL;
    size_t size = 0;
    CHECK(syscall(SYS_get_robust_list, 0, &head, &size) == 0);
    CHECK(head == (void *)&own[self] && size == sizeof own[self]);
}

static void *stays(void *argument)
{
    long self = (long)(intptr_t)argument;
    for (register_own(self);; sleep_ms(15)) check(self);
    return NULL;
}

/* Tells the kernel another word to clear, and ends when it is told to. */
static volatile int leave;
static void *leaves(void *argument)
{
    words[0] = (int)syscall(SYS_set_tid_address, &words[0]);
    while (!leave) sleep_ms(2);
    syscall(SYS_exit, 0);
    return argument;
}

static void one_round(long round)
{
    check(0);
    if (round > 0) {
        leave = 1;
        for (int id = words[0]; id != 0; id = words[0]) {
            long result = syscall(SYS_futex, &words[0], FUTEX_WAIT, id, NULL, NULL, 0);
            CHECK(result == 0 || errno == EAGAIN);
        }
    }
    pthread_t thread;
    leave = 0;
    CHECK_ZERO(pthread_create(&thread, NULL, leaves, NULL));
    while (words[0] == 0) sleep_ms(1);
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    register_own(0);
    for (long i = 0; i < THREADS; i++) CHECK_ZERO(pthread_create(&threads[i], NULL, stays, (void *)(intptr_t)(i + 1)));
    return run_rounds("registered", number_argument(argc, argv, 1, 45), one_round);
}
