/* Children that have ended and that nobody has waited for: by an exit code, by a signal; some stay for the whole run,
 * one is made and one waited for in every round. No SIGCHLD comes but those of the ends. `tree_zombies [ROUNDS]` */
#include "tree.h"
#include <sys/resource.h>

#define LASTING 5
#define QUEUE 3

static volatile sig_atomic_t counted, expected;
static pid_t lasting[LASTING], queue[QUEUE];

static void count(int number, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    counted += number == SIGCHLD;
}

/* How the n-th zombie ended. */
static int code_of(uint64_t n)
{
    static const int signals[] = {SIGKILL, SIGTERM, SIGABRT, SIGUSR2};
    return n % 2 == 0 ? (int)(n * 7 % 256) : -signals[n / 2 % 4];
}

/* A child that ends as a zombie; returns after its SIGCHLD. */
static pid_t make(uint64_t n)
{
    sigset_t before, set = set_of(SIGCHLD);
    CHECK(sigprocmask(SIG_BLOCK, &set, &before) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int code = code_of(n);
        if (code >= 0) _exit(code);
        CHECK(kill(getpid(), -code) == 0);
        _exit(99);
    }
    expected++;
    while (counted < expected) CHECK(sigsuspend(&before) == -1 && errno == EINTR);
    CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    return pid;
}

/* It is there, and has what it should say. */
static void look(pid_t pid, uint64_t n, int flags)
{
    siginfo_t info = {0};
    int code = code_of(n);
    CHECK(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | flags) == 0);
    CHECK(info.si_pid == pid && info.si_signo == SIGCHLD && info.si_uid == getuid());
    CHECK(info.si_code == (code >= 0 ? CLD_EXITED : CLD_KILLED) && info.si_status == abs(code));
}

int main(int argc, char **argv)
{
    uint64_t rounds = (uint64_t)number_argument(argc, argv, 1, 100);
    struct rlimit no_core = {0, 0};
    CHECK(setrlimit(RLIMIT_CORE, &no_core) == 0);
    handle(SIGCHLD, count, SA_RESTART);
    for (uint64_t n = 0; n < LASTING; n++) lasting[n] = make(n);
    for (uint64_t n = 0; n < QUEUE; n++) queue[n] = make(100 + n);
    for (uint64_t round = 0; round < rounds; round++) {
        sleep_ms(ROUND_MS); /* a SIGCHLD would end it early */
        CHECK(counted == expected);
        for (uint64_t n = 0; n < LASTING; n++) look(lasting[n], n, WNOWAIT);
        look(queue[round % QUEUE], 100 + round, 0);
        CHECK(kill(queue[round % QUEUE], 0) == -1 && errno == ESRCH);
        queue[round % QUEUE] = make(100 + round + QUEUE);
        step("zombies round %lu, SIGCHLD %d", (unsigned long)round, (int)counted);
    }
    for (uint64_t n = 0; n < LASTING; n++) {
        int code = code_of(n);
        if (code >= 0) ended(lasting[n], code);
        else killed(lasting[n], -code);
    }
    for (uint64_t n = rounds; n < rounds + QUEUE; n++) look(queue[n % QUEUE], 100 + n, 0);
    CHECK(wait(NULL) == -1 && errno == ECHILD && counted == expected);
    return pass();
}
