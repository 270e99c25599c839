/* Inside handlers: `handling KIND [ROUNDS]`
 * KIND: nested (three deep, each on the stack of the one before, left by return), left (by siglongjmp, with the mask),
 * autodisarm (SS_AUTODISARM: the alternate stack is off while the handler runs), faults (of the processor, with their
 * addresses), inside (all of the program runs in one), all (of all signals) */
#include "rounds.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif

static void on(int number, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    sigemptyset(&action.sa_mask);
    CHECK(sigaction(number, &action, NULL) == 0);
}

static volatile sig_atomic_t depth, deepest;
static void nested(int number, siginfo_t *info, void *context)
{
    (void)context;
    volatile uint64_t local = mix((uint64_t)number);
    if (++depth > deepest) deepest = depth;
    if (depth < 3) CHECK(raise(number == SIGUSR1 ? SIGUSR2 : SIGHUP) == 0);
    else spin_ms(25);
    depth--;
    CHECK(local == mix((uint64_t)number) && info->si_signo == number && info->si_pid == getpid());
}

static void nested_prepare(void)
{
    on(SIGUSR1, nested, 0);
    on(SIGUSR2, nested, 0);
    on(SIGHUP, nested, 0);
}

static void nested_round(long round)
{
    (void)round;
    deepest = 0;
    CHECK(raise(SIGUSR1) == 0 && deepest == 3 && depth == 0);
}

static sigjmp_buf back;
static void leaves(int number, siginfo_t *info, void *context)
{
    (void)info, (void)context;
    spin_ms(20);
    siglongjmp(back, number);
}

static void left_prepare(void) { on(SIGUSR1, leaves, 0); }

static void left_round(long round)
{
    sigset_t mask, now;
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN + (int)(round % 20));
    CHECK(sigprocmask(SIG_SETMASK, &mask, NULL) == 0);
    int value = sigsetjmp(back, 1);
    if (value == 0) {
        CHECK(raise(SIGUSR1) == 0);
        CHECK(!"it has left");
    }
    CHECK(value == SIGUSR1 && sigprocmask(SIG_SETMASK, NULL, &now) == 0);
    for (int number = 1; number < 65; number++) CHECK(sigismember(&now, number) == sigismember(&mask, number));
}

static char alternate[65536];
static volatile sig_atomic_t was_off;
static void disarmed(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    stack_t now;
    char here;
    spin_ms(20);
    was_off = sigaltstack(NULL, &now) == 0 && (now.ss_flags & SS_DISABLE) && &here >= alternate
        && &here < alternate + sizeof alternate;
}

static void autodisarm_prepare(void)
{
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate, .ss_flags = (int)SS_AUTODISARM};
    CHECK(sigaltstack(&stack, NULL) == 0);
    on(SIGUSR1, disarmed, SA_ONSTACK);
}

static void autodisarm_round(long round)
{
    stack_t now;
    (void)round;
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == alternate && now.ss_flags == (int)SS_AUTODISARM);
    was_off = 0;
    CHECK(raise(SIGUSR1) == 0 && was_off == 1);
}

static void *volatile fault_at;
static volatile int fault_code;
static void fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    fault_at = info->si_addr;
    fault_code = info->si_code;
    siglongjmp(back, number);
}

static char *forbidden;
static void faults_prepare(void)
{
    on(SIGSEGV, fault, 0);
    on(SIGFPE, fault, 0);
    on(SIGILL, fault, 0);
    on(SIGBUS, fault, 0);
    int fd = memfd_create("short", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
    forbidden = mmap(NULL, 3 * 4096, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(forbidden != MAP_FAILED && mprotect(forbidden, 4096, PROT_NONE) == 0);
}

static void faults_round(long round)
{
    int number = sigsetjmp(back, 1);
    if (number == 0) {
        switch (round % 4) {
        case 0: *(volatile char *)(forbidden + round); break;
        case 1: __asm__ volatile("xor %%ecx, %%ecx\n div %%ecx" : : : "eax", "ecx", "edx", "cc"); break;
        case 2: __asm__ volatile("ud2"); break;
        default: *(volatile char *)(forbidden + 2 * 4096);
        }
        CHECK(!"nothing happened");
    }
    static const int numbers[] = {SIGSEGV, SIGFPE, SIGILL, SIGBUS};
    static const int codes[] = {SEGV_ACCERR, FPE_INTDIV, ILL_ILLOPN, BUS_ADRERR};
    CHECK(number == numbers[round % 4] && fault_code == codes[round % 4]);
    if (round % 4 == 0) CHECK(fault_at == forbidden + round);
    if (round % 4 == 3) CHECK(fault_at == forbidden + 2 * 4096);
}

static long inside_rounds;
static int inside_result = 2;
static void nothing(long round) { (void)round; }
static void inside(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    inside_result = run_rounds("inside", inside_rounds, nothing);
}

/* What was in a register when the signal came is in its frame alone, until the handler is left. */
static int run_inside(long rounds)
{
    uint64_t in = mix(1), out;
    long result = SYS_kill;
    on(SIGUSR1, inside, 0);
    inside_rounds = rounds;
    __asm__ volatile("movq %[in], %%xmm15\n syscall\n movq %%xmm15, %[out]\n"
                     : "+a"(result), [out] "=r"(out)
                     : [in] "r"(in), "D"((long)getpid()), "S"((long)SIGUSR1)
                     : "rcx", "r11", "memory", "xmm15");
    CHECK(result == 0 && out == in);
    return inside_result;
}

/* A handler for every signal there can be one for, none of which may run but when it was asked for; and calls that any
 * of them would interrupt. */
static volatile sig_atomic_t arrived[65];
static int feed[2];
static void count(int number, siginfo_t *info, void *context)
{
    (void)info, (void)context;
    arrived[number]++;
}

static void *feeder(void *unused)
{
    for (;;) {
        sleep_ms(30);
        CHECK(write(feed[1], "x", 1) == 1);
    }
    return unused;
}

static int is_own(int number)
{
    return number != SIGKILL && number != SIGSTOP && (number < 32 || number >= SIGRTMIN);
}

static void all_prepare(void)
{
    pthread_t thread;
    for (int number = 1; number < 65; number++) {
        if (is_own(number)) on(number, count, 0);
    }
    CHECK(pipe(feed) == 0);
    CHECK_ZERO(pthread_create(&thread, NULL, feeder, NULL));
}

static void all_round(long round)
{
    int wanted = 1 + (int)(round % 64);
    char byte;
    CHECK(read(feed[0], &byte, 1) == 1);
    if (is_own(wanted)) CHECK_ZERO(pthread_kill(pthread_self(), wanted));
    for (int number = 1; number < 65; number++) {
        CHECK(arrived[number] == (number == wanted && is_own(number)));
        arrived[number] = 0;
    }
    CHECK(read(feed[0], &byte, 1) == 1);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "inside") == 0) return run_inside(number_argument(argc, argv, 2, 45));
    static const struct kind kinds[] = {{"nested", nested_prepare, nested_round},
                                        {"left", left_prepare, left_round},
                                        {"autodisarm", autodisarm_prepare, autodisarm_round},
                                        {"faults", faults_prepare, faults_round},
                                        {"all", all_prepare, all_round}};
    return RUN_KIND(kinds);
}
