/* Memory of threads: thread-local variables, initialised and zero, keys with destructors, errno; the stack's canary and
 * the guard of pointers stay what they were. `locals [ROUNDS]` */
#include "rounds.h"
#include <pthread.h>

#define THREADS 4
static __thread uint64_t counter = 5, zero[100];
static pthread_key_t keys[20];
static long destroyed;
static pthread_barrier_t meeting;

static uint64_t at_fs(int offset)
{
    uint64_t value;
    if (offset == 0x28) __asm__ volatile("mov %%fs:0x28, %0" : "=r"(value));
    else __asm__ volatile("mov %%fs:0x30, %0" : "=r"(value));
    return value;
}

static uint64_t canary, guard;

static void destroy(void *value)
{
    (void)value;
    __atomic_fetch_add(&destroyed, 1, __ATOMIC_SEQ_CST);
}

static void one_round(long round)
{
    CHECK(counter == 5 + (uint64_t)round && at_fs(0x28) == canary && at_fs(0x30) == guard);
    counter++;
    for (int i = 0; i < 100; i++) {
        CHECK(zero[i] == (uint64_t)round * (uint64_t)i);
        zero[i] += (uint64_t)i;
    }
    for (int i = 0; i < 20; i++) {
        CHECK((intptr_t)pthread_getspecific(keys[i]) == (round == 0 ? 0 : round * 20 + i));
        CHECK_ZERO(pthread_setspecific(keys[i], (void *)(intptr_t)((round + 1) * 20 + i)));
    }
}

static void *thread(void *argument)
{
    for (long round = 0; round < (long)(intptr_t)argument; round++) {
        one_round(round);
        errno = (int)round;
        pthread_barrier_wait(&meeting);
        pthread_barrier_wait(&meeting);
        CHECK(errno == (int)round);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 45);
    pthread_t threads[THREADS];
    canary = at_fs(0x28);
    guard = at_fs(0x30);
    for (int i = 0; i < 20; i++) CHECK_ZERO(pthread_key_create(&keys[i], destroy));
    CHECK_ZERO(pthread_barrier_init(&meeting, NULL, THREADS + 1));
    for (int i = 0; i < THREADS; i++) CHECK_ZERO(pthread_create(&threads[i], NULL, thread, (void *)(intptr_t)rounds));
    for (long round = 0; round < rounds; round++) {
        step("locals round %ld", round);
        one_round(round);
        pthread_barrier_wait(&meeting);
        sleep_ms(QUIET_MS);
        pthread_barrier_wait(&meeting);
    }
    for (int i = 0; i < THREADS; i++) CHECK_ZERO(pthread_join(threads[i], NULL));
    CHECK(destroyed == THREADS * 20);
    return pass();
}
