/* Futexes and semaphores between processes: children wait in the kernel for a word of shared memory, for a named and
 * for an unnamed semaphore. `tree_futex [ROUNDS]` */
#include "tree.h"
#include <limits.h>
#include <linux/futex.h>
#include <semaphore.h>
#include <sys/syscall.h>

#define WAITERS 3

static struct table {
    uint32_t word, seen[WAITERS];
    sem_t go, done;
} *table;
static sem_t *named;

static void wait_for_word(int in, int out, uint64_t number)
{
    uint64_t round;
    while (hear_or_end(in, &round)) {
        while (__atomic_load_n(&table->word, __ATOMIC_SEQ_CST) == (uint32_t)round) {
            long result = syscall(SYS_futex, &table->word, FUTEX_WAIT, (uint32_t)round, NULL, NULL, 0);
            CHECK(result == 0 || errno == EAGAIN);
        }
        table->seen[number]++;
        tell(out, round);
    }
}

static void wait_for_semaphores(int in, int out, uint64_t number)
{
    uint64_t round;
    while (hear_or_end(in, &round)) {
        CHECK(sem_wait(&table->go) == 0);
        CHECK(sem_wait(named) == 0);
        CHECK(sem_post(&table->done) == 0);
        tell(out, round + number);
    }
}

static void one_round(uint64_t round)
{
    int value;
    for (int i = 0; i < WAITERS + 2; i++) tell(children[i].to, round);
    sleep_ms(ROUND_MS);
    __atomic_store_n(&table->word, (uint32_t)round + 1, __ATOMIC_SEQ_CST);
    CHECK(syscall(SYS_futex, &table->word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0) >= 0);
    CHECK(sem_getvalue(&table->done, &value) == 0 && value == 0);
    for (int i = 0; i < 2; i++) CHECK(sem_post(&table->go) == 0 && sem_post(named) == 0);
    for (int i = 0; i < 2; i++) CHECK(sem_wait(&table->done) == 0);
    for (int i = 0; i < WAITERS; i++) CHECK(hear(children[i].from) == round && table->seen[i] == round + 1);
    for (int i = 0; i < 2; i++) CHECK(hear(children[WAITERS + i].from) == round + (uint64_t)i);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    char name[40];
    snprintf(name, sizeof name, "/holdfast-futex-%d", (int)getpid());
    table = shared_memory(sizeof *table);
    CHECK(sem_init(&table->go, 1, 0) == 0 && sem_init(&table->done, 1, 0) == 0);
    CHECK((named = sem_open(name, O_CREAT | O_EXCL, 0600, 0)) != SEM_FAILED);
    for (uint64_t i = 0; i < WAITERS; i++) fork_child(wait_for_word, i);
    for (uint64_t i = 0; i < 2; i++) fork_child(wait_for_semaphores, i);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        one_round(round);
        step("futex round %lu", (unsigned long)round);
    }
    finish_all(0);
    CHECK(sem_unlink(name) == 0);
    return pass();
}
