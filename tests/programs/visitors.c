/* Threads that allocate nothing, on stacks of the program's own that are unmapped when a thread has ended: who keeps
 * something in the memory of a thread must have given it up by then. `visitors [ROUNDS]`
 */
#include "rounds.h"
#include <pthread.h>
#include <sys/mman.h>

#define STACK (256 * 1024)
#define THREADS 8

static void *visit(void *argument)
{
    return argument;
}

static void *allocate(void *argument)
{
    void *block = malloc(100);
    CHECK(block != NULL);
    free(block);
    return argument;
}

static void visitors(long round)
{
    /* All before the first thread: none is where another one was. */
    void *stacks[THREADS];
    for (long i = 0; i < THREADS; i++) {
        stacks[i] = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
        CHECK(stacks[i] != MAP_FAILED);
    }
    for (long i = 0; i < THREADS; i++) {
        void *stack = stacks[i];
        pthread_attr_t attributes;
        CHECK_ZERO(pthread_attr_init(&attributes));
        CHECK_ZERO(pthread_attr_setstack(&attributes, stack, STACK));
        pthread_t thread;
        CHECK_ZERO(pthread_create(&thread, &attributes, i % 2 == 0 ? visit : allocate, (void *)round));
        void *answer;
        CHECK_ZERO(pthread_join(thread, &answer));
        CHECK(answer == (void *)round);
        CHECK_ZERO(munmap(stack, STACK));
        CHECK_ZERO(pthread_attr_destroy(&attributes));
    }
}

int main(int argc, char **argv)
{
    return run_rounds("visitors", number_argument(argc, argv, 1, 25), visitors);
}
