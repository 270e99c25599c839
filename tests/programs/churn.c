/* Thousands of short threads beside 64 idle ones. `churn [THREADS]` */
#include "common.h"
#include <pthread.h>

#define IDLE 64

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t leave = PTHREAD_COND_INITIALIZER;
static int leaving;

static void *idle(void *argument)
{
    CHECK_ZERO(pthread_mutex_lock(&mutex));
    while (!leaving) CHECK_ZERO(pthread_cond_wait(&leave, &mutex));
    CHECK_ZERO(pthread_mutex_unlock(&mutex));
    return argument;
}

static void *brief(void *argument)
{
    uint64_t n = (uint64_t)(uintptr_t)argument;
    for (int i = 0; i < 2000; i++) n = mix(n);
    return (void *)(uintptr_t)n;
}

int main(int argc, char **argv)
{
    long count = number_argument(argc, argv, 1, 16000);
    pthread_t idlers[IDLE], batch[8];
    uint64_t sum = 0;
    void *result;
    for (uintptr_t i = 0; i < IDLE; i++) CHECK_ZERO(pthread_create(&idlers[i], NULL, idle, (void *)i));
    for (long n = 0; n < count; n += 8) {
        for (long i = 0; i < 8; i++) CHECK_ZERO(pthread_create(&batch[i], NULL, brief, (void *)(n + i)));
        for (long i = 0; i < 8; i++) {
            CHECK_ZERO(pthread_join(batch[i], &result));
            sum += (uint64_t)(uintptr_t)result;
        }
        if (n % 400 == 0) {
            step("%ld threads, sum %016llx", n, (unsigned long long)sum);
            sleep_ms(30);
        }
    }
    CHECK_ZERO(pthread_mutex_lock(&mutex));
    leaving = 1;
    CHECK_ZERO(pthread_cond_broadcast(&leave));
    CHECK_ZERO(pthread_mutex_unlock(&mutex));
    for (uintptr_t i = 0; i < IDLE; i++) {
        CHECK_ZERO(pthread_join(idlers[i], &result));
        CHECK((uintptr_t)result == i);
    }
    return pass();
}
