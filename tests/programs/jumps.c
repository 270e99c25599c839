/* Places to go back to that were made in an earlier life: `jumps KIND [ROUNDS]`
 * KIND: setjmp, contexts (makecontext, swapcontext: two coroutines), atexit (functions to call at the end) */
#include "rounds.h"
#include <setjmp.h>
#include <ucontext.h>

static long expected;
static int at_end;

static jmp_buf start;
static volatile long jumped;

/* The buffer is made once and used in every round. */
static void setjmp_rounds(long rounds)
{
    volatile uint64_t local = mix(1);
    int value = setjmp(start);
    CHECK(value == jumped && local == mix((uint64_t)jumped + 1));
    if (jumped == rounds) return;
    step("setjmp round %ld", jumped);
    sleep_ms(QUIET_MS);
    jumped++;
    local = mix((uint64_t)jumped + 1);
    longjmp(start, (int)jumped);
}

static ucontext_t home, coroutines[2];
static void coroutine(int self)
{
    uint64_t local = (uint64_t)self;
    for (long round = 0;; round++) {
        CHECK(local == (uint64_t)(self + 3 * round));
        local += 3;
        expected += self + 1;
        CHECK(swapcontext(&coroutines[self], self == 0 ? &coroutines[1] : &home) == 0);
    }
}

static void contexts_prepare(void)
{
    for (int i = 0; i < 2; i++) {
        CHECK(getcontext(&coroutines[i]) == 0);
        coroutines[i].uc_stack.ss_sp = malloc(65536);
        coroutines[i].uc_stack.ss_size = 65536;
        makecontext(&coroutines[i], (void (*)(void))coroutine, 1, i);
    }
}

static void contexts_round(long round)
{
    CHECK(swapcontext(&home, &coroutines[0]) == 0);
    CHECK(expected == 3 * (round + 1));
}

static void last(void)
{
    CHECK(at_end == 45);
    puts("the end");
    fflush(stdout);
}
static void count(void) { at_end++; }

static void atexit_prepare(void) { CHECK(atexit(last) == 0); }
static void atexit_round(long round)
{
    (void)round;
    CHECK(atexit(count) == 0);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"contexts", contexts_prepare, contexts_round},
                                        {"atexit", atexit_prepare, atexit_round}};
    if (argc > 1 && strcmp(argv[1], "setjmp") == 0) {
        setjmp_rounds(number_argument(argc, argv, 2, 45));
        return pass();
    }
    return RUN_KIND(kinds);
}
