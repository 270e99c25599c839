/* Robust mutexes in shared memory: a process that ends as the owner leaves EOWNERDEAD to the next one, be it of this
 * round, or one that has been the owner since the beginning. `tree_robust [ROUNDS]` */
#include "tree.h"
#include <pthread.h>

static struct table {
    pthread_mutex_t brief, lasting;
} *table;

static void own_briefly(int in, int out, uint64_t number)
{
    CHECK_ZERO(pthread_mutex_lock(&table->brief));
    tell(out, number);
    sleep_ms(ROUND_MS);
    (void)in;
    if (number % 2 == 0) kill(getpid(), SIGKILL);
}

static void own_for_long(int in, int out, uint64_t number)
{
    CHECK_ZERO(pthread_mutex_lock(&table->lasting));
    tell(out, number);
    CHECK(!hear_or_end(in, &number));
}

static void owner_died(pthread_mutex_t *mutex)
{
    CHECK(pthread_mutex_lock(mutex) == EOWNERDEAD); /* waits for it */
    CHECK_ZERO(pthread_mutex_consistent(mutex));
    CHECK_ZERO(pthread_mutex_unlock(mutex));
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    pthread_mutexattr_t attributes;
    table = shared_memory(sizeof *table);
    CHECK_ZERO(pthread_mutexattr_init(&attributes));
    CHECK_ZERO(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED));
    CHECK_ZERO(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
    CHECK_ZERO(pthread_mutex_init(&table->brief, &attributes));
    CHECK_ZERO(pthread_mutex_init(&table->lasting, &attributes));
    struct child *lasting = fork_child(own_for_long, 0);
    CHECK(hear(lasting->from) == 0);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        struct child *brief = fork_child(own_briefly, round);
        CHECK(hear(brief->from) == round);
        CHECK(pthread_mutex_trylock(&table->lasting) == EBUSY);
        owner_died(&table->brief);
        hang_up(brief);
        if (round % 2 == 0)
            killed(brief->pid, SIGKILL);
        else
            ended(brief->pid, 0);
        children_made--;
        step("robust round %lu", (unsigned long)round);
    }
    finish(lasting, 0);
    owner_died(&table->lasting);
    return pass();
}
