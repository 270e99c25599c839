/* Eight threads hand a token round by a mutex and condition variables; thread-local variables, jump buffers and
 * once-only initialisation live across checkpoints. `pingpong [TURNS]` */
#include "common.h"
#include <pthread.h>
#include <setjmp.h>

#define THREADS 8

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn[THREADS];
static long token, turns;
static __thread uint64_t local_sum;
static __thread int local_id;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int once_runs;
static pthread_key_t key;

static void run_once(void)
{
    once_runs++;
    CHECK_ZERO(pthread_key_create(&key, NULL));
}

static void take_turn(int id)
{
    if (token % 250 == 0) step("token %ld at thread %d", token, id);
    local_sum += mix((uint64_t)token);
    token++;
    spin_ms(token % 4 == 0 ? 2 : 0);
    CHECK_ZERO(pthread_cond_signal(&turn[(id + 1) % THREADS]));
}

static void *player(void *argument)
{
    volatile int id = (int)(uintptr_t)argument;
    jmp_buf back;
    volatile long jumps = 0;
    local_id = id;
    CHECK_ZERO(pthread_once(&once, run_once));
    CHECK_ZERO(pthread_setspecific(key, argument));
    CHECK_ZERO(pthread_mutex_lock(&mutex));
    /* the jump buffer is filled once, before any checkpoint, and used all the time */
    if (setjmp(back) != 0) jumps++;
    while (token < turns && token % THREADS != id) CHECK_ZERO(pthread_cond_wait(&turn[id], &mutex));
    if (token < turns) {
        CHECK(local_id == id && pthread_getspecific(key) == argument);
        take_turn(id);
        longjmp(back, 1);
    }
    CHECK_ZERO(pthread_cond_signal(&turn[(id + 1) % THREADS]));
    CHECK_ZERO(pthread_mutex_unlock(&mutex));
    CHECK(jumps == turns / THREADS);
    return (void *)(uintptr_t)local_sum;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    turns = number_argument(argc, argv, 1, 5000) / THREADS * THREADS;
    for (int i = 0; i < THREADS; i++) CHECK_ZERO(pthread_cond_init(&turn[i], NULL));
    for (uintptr_t i = 0; i < THREADS; i++) CHECK_ZERO(pthread_create(&threads[i], NULL, player, (void *)i));
    for (int i = 0; i < THREADS; i++) {
        void *sum;
        CHECK_ZERO(pthread_join(threads[i], &sum));
        step("thread %d: %016llx", i, (unsigned long long)(uintptr_t)sum);
    }
    CHECK(once_runs == 1);
    return pass();
}
