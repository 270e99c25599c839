/* Threads and fork(2): three threads, each of which makes children and waits for them; one child lives on and has
 * threads of its own. `tree_threads [ROUNDS]` */
#include "tree.h"
#include <pthread.h>

#define THREADS 3

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;
static int prepared, in_parent, in_child;
static long rounds;

static void before_fork(void) { CHECK_ZERO(pthread_mutex_lock(&mutex)); prepared++; }
static void after_in_parent(void) { in_parent++; CHECK_ZERO(pthread_mutex_unlock(&mutex)); }
static void after_in_child(void) { in_child++; CHECK_ZERO(pthread_mutex_unlock(&mutex)); }

static void *helper(void *argument)
{
    sleep_ms(5);
    return (void *)((uintptr_t)argument * 3);
}

/* A short-lived child: the thread that made it is its only one, and it makes two more. */
static void be_child(uintptr_t code)
{
    pthread_t threads[2];
    void *results[2];
    char *memory = malloc(100000); /* the allocator is usable, whoever held its locks */
    CHECK(memory != NULL && in_child == 1);
    for (uintptr_t i = 0; i < 2; i++) CHECK_ZERO(pthread_create(&threads[i], NULL, helper, (void *)(code + i)));
    for (int i = 0; i < 2; i++) CHECK_ZERO(pthread_join(threads[i], &results[i]));
    CHECK((uintptr_t)results[0] + (uintptr_t)results[1] == (2 * code + 1) * 3);
    free(memory);
    _exit((int)code);
}

static void *fork_on(void *argument)
{
    uintptr_t number = (uintptr_t)argument;
    for (long round = 0; round < rounds; round++) {
        pthread_barrier_wait(&barrier);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) be_child(number * 50 + (uintptr_t)round % 50);
        ended(pid, (int)(number * 50 + (uintptr_t)round % 50));
    }
    return NULL;
}

static void *count_on(void *argument)
{
    uint64_t *counter = argument;
    for (;; sleep_ms(1)) __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* The child that lives on: its threads count all the time. */
static void live(int in, int out, uint64_t number)
{
    static uint64_t counters[THREADS];
    pthread_t thread;
    uint64_t round;
    for (uint64_t i = 0; i < number; i++) CHECK_ZERO(pthread_create(&thread, NULL, count_on, &counters[i]));
    while (hear_or_end(in, &round)) {
        for (uint64_t i = 0; i < number; i++) {
            uint64_t before = __atomic_load_n(&counters[i], __ATOMIC_SEQ_CST);
            while (__atomic_load_n(&counters[i], __ATOMIC_SEQ_CST) == before) sleep_ms(1);
        }
        tell(out, round);
    }
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    rounds = number_argument(argc, argv, 1, 100);
    struct child *lasting = fork_child(live, THREADS);
    CHECK_ZERO(pthread_atfork(before_fork, after_in_parent, after_in_child));
    CHECK_ZERO(pthread_barrier_init(&barrier, NULL, THREADS + 1));
    for (uintptr_t i = 0; i < THREADS; i++) CHECK_ZERO(pthread_create(&threads[i], NULL, fork_on, (void *)i));
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        tell(lasting->to, round);
        CHECK(hear(lasting->from) == round);
        pthread_barrier_wait(&barrier);
        sleep_ms(ROUND_MS / 2);
        step("threads round %lu", (unsigned long)round);
    }
    for (int i = 0; i < THREADS; i++) CHECK_ZERO(pthread_join(threads[i], NULL));
    CHECK(prepared == THREADS * rounds && in_parent == prepared);
    finish(lasting, 0);
    return pass();
}
