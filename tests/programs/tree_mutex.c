/* Five processes hand a token round by a mutex and condition variables in shared anonymous memory.
 * `tree_mutex [TURNS]` */
#include "tree.h"
#include <pthread.h>

#define PLAYERS 5

static struct table {
    pthread_mutex_t mutex;
    pthread_cond_t turn[PLAYERS];
    pthread_barrier_t end;
    long token, turns;
    uint64_t sum;
} *table;

static void take_turn(int id)
{
    if (id == 0) step("token %ld, sum %016lx", table->token, (unsigned long)table->sum);
    table->sum = mix(table->sum + (uint64_t)table->token);
    table->token++;
    sleep_ms(5); /* as the owner of the mutex */
    CHECK_ZERO(pthread_cond_signal(&table->turn[(id + 1) % PLAYERS]));
}

static void play(int id)
{
    CHECK_ZERO(pthread_mutex_lock(&table->mutex));
    for (;;) {
        while (table->token < table->turns && table->token % PLAYERS != id)
            CHECK_ZERO(pthread_cond_wait(&table->turn[id], &table->mutex));
        if (table->token >= table->turns) break;
        take_turn(id);
    }
    CHECK_ZERO(pthread_cond_signal(&table->turn[(id + 1) % PLAYERS]));
    CHECK_ZERO(pthread_mutex_unlock(&table->mutex));
    int result = pthread_barrier_wait(&table->end);
    CHECK(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
}

static void play_as_child(int in, int out, uint64_t number)
{
    play((int)number);
    (void)in;
    tell(out, number);
}

int main(int argc, char **argv)
{
    pthread_mutexattr_t mutex;
    pthread_condattr_t cond;
    pthread_barrierattr_t barrier;
    table = shared_memory(sizeof *table);
    table->turns = number_argument(argc, argv, 1, 450) / PLAYERS * PLAYERS;
    CHECK_ZERO(pthread_mutexattr_init(&mutex));
    CHECK_ZERO(pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED));
    CHECK_ZERO(pthread_condattr_init(&cond));
    CHECK_ZERO(pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED));
    CHECK_ZERO(pthread_barrierattr_init(&barrier));
    CHECK_ZERO(pthread_barrierattr_setpshared(&barrier, PTHREAD_PROCESS_SHARED));
    CHECK_ZERO(pthread_mutex_init(&table->mutex, &mutex));
    for (int i = 0; i < PLAYERS; i++) CHECK_ZERO(pthread_cond_init(&table->turn[i], &cond));
    CHECK_ZERO(pthread_barrier_init(&table->end, &barrier, PLAYERS));
    for (uint64_t i = 1; i < PLAYERS; i++) fork_child(play_as_child, i);
    play(0);
    for (int i = 0; i < PLAYERS - 1; i++) CHECK(hear(children[i].from) == (uint64_t)i + 1);
    finish_all(0);
    step("end: token %ld, sum %016lx", table->token, (unsigned long)table->sum);
    return pass();
}
