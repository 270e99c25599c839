/* Blocked, pending and queued signals, handlers on alternate stacks: `signals [ROUNDS]`.
 *
 * Each round sends a fixed set of signals to itself while they are blocked, idles (this is where a checkpoint finds
 * them pending), lets them in, and compares the siginfo of each with what must come: order, si_code, value, sender.
 */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>

#define RT (SIGRTMIN + 5)
#define MOST 32
#define STACK_BYTES 65536

struct seen {
    int signal, code, value, pid, uid;
};

static struct seen log_of_round[MOST];
static volatile sig_atomic_t logged;
static char *alternate;
static volatile sig_atomic_t long_handler_ms, was_on_stack;

static void note(int signal, siginfo_t *info, void *context)
{
    (void)context;
    char here;
    if (&here < alternate || &here >= alternate + STACK_BYTES || logged >= MOST) _exit(3);
    struct seen *s = &log_of_round[logged++];
    *s = (struct seen){signal, info->si_code, 0, 0, 0};
    if (info->si_code == SI_QUEUE) s->value = info->si_value.sival_int;
    if (info->si_code != SI_KERNEL) {
        s->pid = info->si_pid;
        s->uid = (int)info->si_uid;
    }
    if (long_handler_ms != 0) {
        stack_t now;
        if (sigaltstack(NULL, &now) != 0) _exit(4);
        was_on_stack = (now.ss_flags & SS_ONSTACK) != 0 && now.ss_sp == alternate;
        spin_ms(long_handler_ms);
    }
}

static void set_up(sigset_t *blocked)
{
    static const int standard[] = {SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD, SIGURG};
    CHECK((alternate = malloc(STACK_BYTES)) != NULL);
    stack_t stack = {.ss_sp = alternate, .ss_size = STACK_BYTES};
    CHECK(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigfillset(&action.sa_mask);
    sigemptyset(blocked);
    for (size_t i = 0; i < sizeof standard / sizeof standard[0]; i++) {
        CHECK(sigaction(standard[i], &action, NULL) == 0);
        sigaddset(blocked, standard[i]);
    }
    for (int i = 0; i < 3; i++) {
        CHECK(sigaction(RT + i, &action, NULL) == 0);
        sigaddset(blocked, RT + i);
    }
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    CHECK(sigaction(SIGHUP, &ignore, NULL) == 0);
    CHECK_ZERO(pthread_sigmask(SIG_BLOCK, blocked, NULL));
}

static int queue_to_thread(int signal, int value)
{
    union sigval v = {.sival_int = value};
    return pthread_sigqueue(pthread_self(), signal, v);
}

static void send_all(int round)
{
    union sigval value = {.sival_int = 1000 * round};
    CHECK(kill(getpid(), SIGUSR1) == 0);
    CHECK(kill(getpid(), SIGUSR1) == 0); /* merges with the first */
    CHECK(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR2) == 0);
    for (int i = 0; i < 5; i++, value.sival_int++) CHECK(sigqueue(getpid(), RT, value) == 0);
    CHECK(kill(getpid(), RT) == 0);
    CHECK(sigqueue(getpid(), RT, value) == 0);
    for (int i = 0; i < 3; i++) CHECK_ZERO(queue_to_thread(RT + 1, 50 + i));
    struct itimerval timer = {{0, 0}, {0, 1000}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    CHECK(kill(getpid(), SIGHUP) == 0); /* ignored */
}

static void expect(int at, int signal, int code, int value)
{
    struct seen s = log_of_round[at];
    int kernel = code == SI_KERNEL;
    if (s.signal != signal || s.code != code || s.value != value || s.pid != (kernel ? 0 : getpid()) ||
        s.uid != (kernel ? 0 : (int)getuid())) {
        printf("signal %d of the round: %d code %d value %d from pid %d uid %d; expected %d code %d value %d\n", at,
               s.signal, s.code, s.value, s.pid, s.uid, signal, code, value);
        CHECK(!"the siginfo that was sent");
    }
}

static void let_in(int signal)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    CHECK_ZERO(pthread_sigmask(SIG_UNBLOCK, &one, NULL));
    CHECK_ZERO(pthread_sigmask(SIG_BLOCK, &one, NULL));
}

static void one_round(int round, const sigset_t *blocked)
{
    logged = 0;
    send_all(round);
    sleep_ms(20);
    spin_ms(30);
    sigset_t pending, mask;
    CHECK(sigpending(&pending) == 0);
    CHECK(sigismember(&pending, SIGUSR1) && sigismember(&pending, SIGUSR2) && sigismember(&pending, SIGALRM));
    CHECK(!sigismember(&pending, SIGHUP) && !sigismember(&pending, SIGCHLD) && !sigismember(&pending, SIGURG));
    CHECK_ZERO(pthread_sigmask(SIG_BLOCK, NULL, &mask));
    for (int s = 1; s < 64; s++) CHECK(sigismember(&mask, s) == sigismember(blocked, s));
    CHECK(logged == 0);
    let_in(SIGUSR1);
    let_in(SIGUSR2);
    let_in(SIGALRM);
    let_in(RT + 1);
    let_in(RT);
    expect(0, SIGUSR1, SI_USER, 0);
    expect(1, SIGUSR2, SI_TKILL, 0);
    expect(2, SIGALRM, SI_KERNEL, 0);
    for (int i = 0; i < 3; i++) expect(3 + i, RT + 1, SI_QUEUE, 50 + i);
    for (int i = 0; i < 5; i++) expect(6 + i, RT, SI_QUEUE, 1000 * round + i);
    expect(11, RT, SI_USER, 0);
    expect(12, RT, SI_QUEUE, 1000 * round + 5);
    CHECK(logged == 13);
}

/* A handler that a checkpoint finds at work on the alternate stack. */
static void long_handler_round(void)
{
    logged = 0;
    long_handler_ms = 25;
    CHECK(raise(RT + 2) == 0);
    let_in(RT + 2);
    CHECK(logged == 1 && was_on_stack == 1);
    long_handler_ms = 0;
    stack_t now;
    CHECK(sigaltstack(NULL, &now) == 0);
    CHECK(now.ss_flags == 0 && now.ss_sp == alternate && now.ss_size == STACK_BYTES);
}

/* A second thread with a mask of its own, in which nothing may arrive. */
static volatile int finished;
static void *bystander(void *argument)
{
    sigset_t all, now;
    (void)argument;
    sigfillset(&all);
    CHECK_ZERO(pthread_sigmask(SIG_SETMASK, &all, NULL));
    CHECK_ZERO(pthread_sigmask(SIG_SETMASK, NULL, &all));
    while (!finished) {
        sleep_ms(10);
        CHECK_ZERO(pthread_sigmask(SIG_SETMASK, NULL, &now));
        CHECK(memcmp(&all, &now, sizeof now) == 0);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 32);
    sigset_t blocked;
    pthread_t thread;
    set_up(&blocked);
    CHECK_ZERO(pthread_create(&thread, NULL, bystander, NULL));
    for (int round = 0; round < rounds; round++) {
        step("signals round %d", round);
        one_round(round, &blocked);
        long_handler_round();
    }
    finished = 1;
    CHECK_ZERO(pthread_join(thread, NULL));
    return pass();
}
