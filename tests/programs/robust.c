/* Robust and priority-inheriting mutexes: a thread that ends as the owner leaves EOWNERDEAD to the next one, also when
 * it took the mutex before a restart. `robust [ROUNDS]` */
#include "common.h"
#include <pthread.h>

static pthread_mutex_t robust, inheriting;
static pthread_barrier_t taken;

static void *owner(void *argument)
{
    (void)argument;
    CHECK_ZERO(pthread_mutex_lock(&robust));
    CHECK_ZERO(pthread_mutex_lock(&inheriting));
    pthread_barrier_wait(&taken);
    spin_ms(20);
    sleep_ms(30); /* a checkpoint falls here */
    CHECK_ZERO(pthread_mutex_unlock(&inheriting));
    return NULL; /* without unlocking the robust one */
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 45);
    pthread_mutexattr_t attributes;
    CHECK_ZERO(pthread_mutexattr_init(&attributes));
    CHECK_ZERO(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
    CHECK_ZERO(pthread_mutex_init(&robust, &attributes));
    CHECK_ZERO(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_STALLED));
    CHECK_ZERO(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT));
    CHECK_ZERO(pthread_mutex_init(&inheriting, &attributes));
    CHECK_ZERO(pthread_barrier_init(&taken, NULL, 2));
    for (long round = 0; round < rounds; round++) {
        pthread_t thread;
        step("robust round %ld", round);
        CHECK_ZERO(pthread_create(&thread, NULL, owner, NULL));
        pthread_barrier_wait(&taken);
        CHECK_ZERO(pthread_mutex_lock(&inheriting)); /* waits in the kernel for the owner's tid */
        CHECK_ZERO(pthread_mutex_unlock(&inheriting));
        CHECK(pthread_mutex_lock(&robust) == EOWNERDEAD);
        CHECK_ZERO(pthread_mutex_consistent(&robust));
        CHECK_ZERO(pthread_mutex_unlock(&robust));
        CHECK_ZERO(pthread_join(thread, NULL));
    }
    return pass();
}
