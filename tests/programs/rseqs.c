/* Areas of restartable sequences that a program registers itself, of other lengths than the C library's, which it has
 * told to make none: one of the original 32 bytes, one of 64 at a multiple of that, and a thread that has none. The
 * kernel keeps them up to date, and knows them by address and length. `rseqs [ROUNDS]` */
#include "rounds.h"
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/syscall.h>

#define SIGNATURE 0x53053053
#define UNREGISTER 1

struct area {
    volatile uint32_t cpu_at_start, cpu;
    uint64_t sequence[7];
} __attribute__((aligned(64)));

static struct area areas[2];
static long lengths[2] = {32, 64};
static pthread_barrier_t meeting;

static long rseq(struct area *area, long length, long flags)
{
    long result;
    register long fourth __asm__("r10") = SIGNATURE;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_rseq), "D"(area), "S"(length), "d"(flags), "r"(fourth)
        : "rcx", "r11", "memory");
    return result;
}

static void check(long self)
{
    struct area other = {0};
    if (self == 2) {
        CHECK(rseq(&other, 32, UNREGISTER) == -EINVAL);
        return;
    }
    CHECK(rseq(&areas[self], lengths[self], 0) == -EBUSY);
    CHECK(rseq(&areas[self], lengths[1 - self], 0) == -EINVAL && rseq(&other, lengths[self], 0) == -EINVAL);
    uint32_t before, now, processor;
    do {
        before = areas[self].cpu;
        CHECK(syscall(SYS_getcpu, &processor, NULL, NULL) == 0);
        now = areas[self].cpu;
    } while (before != now);
    CHECK(now == processor);
}

static void *thread(void *argument)
{
    long self = (long)(intptr_t)argument;
    if (self < 2) CHECK(rseq(&areas[self], lengths[self], 0) == 0);
    for (;;) {
        pthread_barrier_wait(&meeting);
        check(self);
        pthread_barrier_wait(&meeting);
    }
    return NULL;
}

static void one_round(long round)
{
    (void)round;
    pthread_barrier_wait(&meeting);
    check(0);
    pthread_barrier_wait(&meeting);
}

int main(int argc, char **argv)
{
    const char *told = getenv("GLIBC_TUNABLES");
    if (told == NULL || strstr(told, "glibc.pthread.rseq=0") == NULL) {
        CHECK(setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1) == 0);
        execv("/proc/self/exe", argv);
        CHECK(0);
    }
    /* Before Linux 6.3 there is one length. */
    if (getauxval(27) == 0) lengths[1] = 32;
    pthread_t other;
    CHECK_ZERO(pthread_barrier_init(&meeting, NULL, 3));
    CHECK(rseq(&areas[0], lengths[0], 0) == 0);
    for (intptr_t self = 1; self < 3; self++) CHECK_ZERO(pthread_create(&other, NULL, thread, (void *)self));
    return run_rounds("rseqs", number_argument(argc, argv, 1, 45), one_round);
}
