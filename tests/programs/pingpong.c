/* Eight threads, or more, hand a token round by a mutex and condition variables; thread-local variables, jump buffers
 * and once-only initialisation live across checkpoints. `pingpong [TURNS [THREADS]]` */
#include "common.h"
#include <pthread.h>
#include <setjmp.h>

#define MOST 2000

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn[MOST];
static long token, turns, crew;
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
    CHECK_ZERO(pthread_cond_signal(&turn[(id + 1) % crew]));
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
    while (token < turns && token % crew != id) CHECK_ZERO(pthread_cond_wait(&turn[id], &mutex));
    if (token < turns) {
        CHECK(local_id == id && pthread_getspecific(key) == argument);
        take_turn(id);
        longjmp(back, 1);
    }
    CHECK_ZERO(pthread_cond_signal(&turn[(id + 1) % crew]));
    CHECK_ZERO(pthread_mutex_unlock(&mutex));
    CHECK(jumps == turns / crew);
    return (void *)(uintptr_t)local_sum;
}

int main(int argc, char **argv)
{
    static pthread_t threads[MOST];
    crew = number_argument(argc, argv, 2, 8);
    CHECK(crew > 0 && crew <= MOST);
    turns = number_argument(argc, argv, 1, 5000) / crew * crew;
    for (int i = 0; i < crew; i++) CHECK_ZERO(pthread_cond_init(&turn[i], NULL));
    for (uintptr_t i = 0; i < (uintptr_t)crew; i++) CHECK_ZERO(pthread_create(&threads[i], NULL, player, (void *)i));
    for (int i = 0; i < crew; i++) {
        void *sum;
        CHECK_ZERO(pthread_join(threads[i], &sum));
        step("thread %d: %016llx", i, (unsigned long long)(uintptr_t)sum);
    }
    CHECK(once_runs == 1);
    return pass();
}
