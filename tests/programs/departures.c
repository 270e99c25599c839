/* Threads that end in every way: joined later, detached, cancelled with handlers to run, by pthread_exit; and a thread
 * that sleeps in pthread_join across rounds. `departures [ROUNDS]` */
#include "rounds.h"
#include <pthread.h>
#include <semaphore.h>

static sem_t go, gone, joined;
static long cleaned;

static void clean(void *argument)
{
    (void)argument;
    __atomic_fetch_add(&cleaned, 1, __ATOMIC_SEQ_CST);
}

static void *sleeper(void *argument)
{
    pthread_cleanup_push(clean, NULL);
    for (;;) pause();
    pthread_cleanup_pop(0);
    return argument;
}

static void *value(void *argument) { pthread_exit(argument); }

static void *detached(void *argument)
{
    CHECK(sem_wait(&go) == 0);
    CHECK(sem_post(&gone) == 0);
    return argument;
}

static void *joiner(void *argument)
{
    void *result = NULL;
    pthread_t other = *(pthread_t *)argument;
    CHECK_ZERO(pthread_join(other, &result));
    CHECK(result == PTHREAD_CANCELED && sem_post(&joined) == 0);
    return NULL;
}

static pthread_t asleep, waiting, zombie;
static void start(long round)
{
    pthread_attr_t attributes;
    pthread_t other;
    CHECK_ZERO(pthread_create(&asleep, NULL, sleeper, NULL));
    CHECK_ZERO(pthread_create(&waiting, NULL, joiner, &asleep));
    CHECK_ZERO(pthread_create(&zombie, NULL, value, (void *)(intptr_t)(round + 1000)));
    CHECK_ZERO(pthread_attr_init(&attributes));
    CHECK_ZERO(pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED));
    CHECK_ZERO(pthread_create(&other, &attributes, detached, NULL));
}

static void one_round(long round)
{
    if (round > 0) {
        void *result;
        CHECK_ZERO(pthread_cancel(asleep));
        CHECK(sem_wait(&joined) == 0);
        CHECK_ZERO(pthread_join(waiting, NULL));
        CHECK(cleaned == round);
        CHECK_ZERO(pthread_join(zombie, &result));
        CHECK((intptr_t)result == round - 1 + 1000);
        CHECK(sem_post(&go) == 0 && sem_wait(&gone) == 0);
    }
    start(round);
}

int main(int argc, char **argv)
{
    CHECK(sem_init(&go, 0, 0) == 0 && sem_init(&gone, 0, 0) == 0 && sem_init(&joined, 0, 0) == 0);
    return run_rounds("departures", number_argument(argc, argv, 1, 45), one_round);
}
