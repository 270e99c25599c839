/* A handler of SIGCHLD that sees every end of a child once, with what belongs to it; in every other round the signal is
 * blocked when the child ends, and waits. `tree_sigchld [ROUNDS]` */
#include "tree.h"

#define CHILDREN 3

static volatile sig_atomic_t counted, last_code, last_status, foreign;
static volatile pid_t last_pid;

static void count(int number, siginfo_t *info, void *context)
{
    (void)context;
    foreign += number != SIGCHLD || info->si_uid != getuid();
    last_pid = info->si_pid;
    last_code = info->si_code;
    last_status = info->si_status;
    counted++;
}

/* Lives until it is told how to end. */
static void live(int in, int out, uint64_t number)
{
    uint64_t code;
    (void)out;
    (void)number;
    CHECK(hear_or_end(in, &code));
    if (code >= 1000) kill(getpid(), (int)code - 1000);
    _exit((int)code);
}

/* The child's end with the signal blocked: nothing happens until it is let through. */
static void end_blocked(struct child *child, int status)
{
    int before = counted;
    siginfo_t info = {0};
    block(SIGCHLD);
    tell(child->to, (uint64_t)status);
    CHECK(waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOWAIT) == 0);
    sleep_ms(ROUND_MS / 2);
    sigset_t pending;
    CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGCHLD) == 1 && counted == before);
    unblock(SIGCHLD);
    CHECK(counted == before + 1);
}

static void end_at_once(struct child *child, int status)
{
    int before = counted;
    sigset_t mask, set = set_of(SIGCHLD);
    CHECK(sigprocmask(SIG_BLOCK, &set, &mask) == 0);
    tell(child->to, (uint64_t)status);
    while (counted == before) CHECK(sigsuspend(&mask) == -1 && errno == EINTR);
    CHECK(sigprocmask(SIG_SETMASK, &mask, NULL) == 0);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    handle(SIGCHLD, count, SA_RESTART);
    for (int i = 0; i < CHILDREN; i++) fork_child(live, 0);
    for (long round = 0; round < rounds; round++) {
        struct child *child = &children[round % CHILDREN];
        int status = round % 3 == 2 ? 1000 + SIGTERM : (int)(round % 100);
        if (round % 2 == 0) end_blocked(child, status);
        else end_at_once(child, status);
        CHECK(counted == round + 1 && foreign == 0 && last_pid == child->pid);
        CHECK(last_code == (status >= 1000 ? CLD_KILLED : CLD_EXITED) && last_status == status % 1000);
        hang_up(child);
        if (status >= 1000) killed(child->pid, status - 1000);
        else ended(child->pid, status);
        sleep_ms(ROUND_MS / 2); /* a SIGCHLD would end it early */
        int made = children_made;
        struct child *fresh = fork_child(live, 0);
        *child = *fresh;
        children_made = made;
        step("SIGCHLD %d in round %ld", (int)counted, round);
    }
    for (int i = 0; i < CHILDREN; i++) {
        CHECK(kill(children[i].pid, SIGKILL) == 0);
        killed(children[i].pid, SIGKILL);
    }
    CHECK(counted == rounds + CHILDREN);
    return pass();
}
