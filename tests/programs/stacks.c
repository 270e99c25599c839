/* Stacks of threads: of chosen sizes, at a chosen address, with guards of chosen sizes that still catch an overflow.
 * `stacks [ROUNDS]` */
#include "rounds.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#define THREADS 5
static const size_t sizes[THREADS] = {64 << 10, 1 << 20, 16 << 20, 256 << 10, 128 << 10};
static const size_t guards[THREADS] = {4096, 65536, 4096, 1 << 20, 0};
static pthread_barrier_t meeting;
static __thread sigjmp_buf back;
static long rounds;

static void overflow(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

/* Only the guard can stop it: it is just below the stack. */
static void touch_guard(char *lowest, size_t guard)
{
    if (guard == 0) return;
    if (sigsetjmp(back, 1) == 0) {
        *(volatile char *)(lowest - 1) = 1;
        CHECK(!"an overflow was not caught");
    }
    if (sigsetjmp(back, 1) == 0) {
        *(volatile char *)(lowest - guard) = 1;
        CHECK(!"a far overflow was not caught");
    }
}

static uint64_t deep(int levels, uint64_t seed)
{
    volatile uint64_t words[64];
    for (int i = 0; i < 64; i++) words[i] = mix(seed + (uint64_t)i);
    if (levels > 0) CHECK(deep(levels - 1, seed + 1) == seed + 1);
    else {
        pthread_barrier_wait(&meeting);
        pthread_barrier_wait(&meeting);
    }
    for (int i = 0; i < 64; i++) CHECK(words[i] == mix(seed + (uint64_t)i));
    return seed;
}

static void *life(void *argument)
{
    long self = (long)(intptr_t)argument;
    static char alternate[THREADS][65536];
    stack_t stack = {.ss_sp = alternate[self], .ss_size = sizeof alternate[self]};
    CHECK(sigaltstack(&stack, NULL) == 0);
    for (long round = 0; round < rounds; round++) {
        pthread_attr_t own;
        void *lowest;
        size_t size, guard;
        CHECK_ZERO(pthread_getattr_np(pthread_self(), &own));
        CHECK_ZERO(pthread_attr_getstack(&own, &lowest, &size));
        CHECK_ZERO(pthread_attr_getguardsize(&own, &guard));
        CHECK((char *)&own > (char *)lowest && (char *)&own < (char *)lowest + size);
        CHECK(size <= sizes[self] && (self == 4 || guard == guards[self]));
        touch_guard(lowest, guards[self]);
        CHECK_ZERO(pthread_attr_destroy(&own));
        deep((int)(self == 0 ? 40 : 150), (uint64_t)(round * 1000 + self));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    rounds = number_argument(argc, argv, 1, 45);
    pthread_t threads[THREADS];
    struct sigaction action = {.sa_handler = overflow, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    CHECK_ZERO(pthread_barrier_init(&meeting, NULL, THREADS + 1));
    void *chosen = mmap(NULL, sizes[4], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    CHECK(chosen != MAP_FAILED);
    for (long i = 0; i < THREADS; i++) {
        pthread_attr_t attributes;
        CHECK_ZERO(pthread_attr_init(&attributes));
        if (i == 4) CHECK_ZERO(pthread_attr_setstack(&attributes, chosen, sizes[4]));
        else CHECK_ZERO(pthread_attr_setstacksize(&attributes, sizes[i])
            | pthread_attr_setguardsize(&attributes, guards[i]));
        CHECK_ZERO(pthread_create(&threads[i], &attributes, life, (void *)(intptr_t)i));
    }
    for (long round = 0; round < rounds; round++) {
        step("stacks round %ld", round);
        pthread_barrier_wait(&meeting);
        sleep_ms(QUIET_MS);
        pthread_barrier_wait(&meeting);
    }
    for (int i = 0; i < THREADS; i++) CHECK_ZERO(pthread_join(threads[i], NULL));
    return pass();
}
