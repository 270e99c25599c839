/* Threads that the program makes by clone(2) itself, without the C library: no thread-local memory of their own, an id
 * that the kernel clears at their end. Two live on, one lives from round to round. `clones [ROUNDS]` */
#include "rounds.h"
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>

#define STACK 65536
static volatile int ids[3];
static volatile uint64_t counts[3];
static volatile int stop[3];
static char stacks[3][STACK] __attribute__((aligned(4096)));

/* In such a thread the C library must not be called: errno would be that of the maker. */
static int life(void *argument)
{
    long self = (long)(intptr_t)argument;
    struct timespec pause = {0, 3000000};
    while (!stop[self]) {
        if (raw_call(SYS_gettid, 0, 0) != ids[self]) counts[self] = (uint64_t)1 << 40;
        if (raw_call(SYS_nanosleep, (long)&pause, 0) != 0) counts[self] = (uint64_t)1 << 41;
        counts[self]++;
    }
    raw_call(SYS_exit, 0, 0);
    return 0;
}

static void start(long self)
{
    const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM
        | CLONE_CHILD_CLEARTID | CLONE_PARENT_SETTID;
    stop[self] = 0;
    int id = clone(life, stacks[self] + STACK, flags, (void *)(intptr_t)self, &ids[self], NULL, &ids[self]);
    CHECK(id > 0);
}

static void end(long self)
{
    stop[self] = 1;
    for (int id = ids[self]; id != 0; id = ids[self]) {
        long result = syscall(SYS_futex, &ids[self], FUTEX_WAIT, id, NULL, NULL, 0);
        CHECK(result == 0 || errno == EAGAIN);
    }
}

static uint64_t before[2];
static void one_round(long round)
{
    if (round > 0) end(2);
    start(2);
    for (int i = 0; i < 2; i++) {
        CHECK(counts[i] < (uint64_t)1 << 40 && (round == 0 || counts[i] > before[i]));
        before[i] = counts[i];
    }
}

int main(int argc, char **argv)
{
    start(0);
    start(1);
    sleep_ms(20);
    return run_rounds("clones", number_argument(argc, argv, 1, 45), one_round);
}
