/* The signal at the death of the parent (PR_SET_PDEATHSIG): it does not come as long as the parent lives, whatever
 * happens to it, and it comes when the parent ends. `tree_deathsig [ROUNDS]` */
#include "tree.h"
#include <sys/prctl.h>

static volatile sig_atomic_t handled;

static void count(int number, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    handled += number == SIGUSR1;
}

static void depend(int in, int out, uint64_t number)
{
    uint64_t round;
    int asked = 0;
    pid_t parent = getppid();
    sigset_t none;
    sigemptyset(&none);
    (void)number;
    handle(SIGUSR1, count, SA_RESTART);
    CHECK(prctl(PR_SET_PDEATHSIG, SIGUSR1) == 0 && getppid() == parent);
    tell(out, (uint64_t)getpid());
    while (hear_or_end(in, &round)) {
        CHECK(handled == 0 && getppid() == parent && prctl(PR_GET_PDEATHSIG, &asked) == 0 && asked == SIGUSR1);
        block(SIGUSR1);
        tell(out, round);
        if (round == 999999) break;
        unblock(SIGUSR1);
    }
    while (handled == 0) CHECK(sigsuspend(&none) == -1 && errno == EINTR);
    CHECK(handled == 1 && getppid() != parent);
    tell(out, 1);
    _exit(0);
}

/* The child's pipes end at the first process; the parent stays until it is told to go. */
static void be_parent(int in, int out, uint64_t number)
{
    int own[2];
    uint64_t word;
    CHECK(pipe2(own, O_CLOEXEC) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(close(own[1]) == 0);
        depend(own[0], out, number);
    }
    CHECK(close(own[0]) == 0 && close(out) == 0);
    while (hear_or_end(in, &word)) tell(own[1], word);
    _exit(4);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    struct child *parent = fork_child(be_parent, 0);
    CHECK(hear(parent->from) > 1);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        sleep_ms(ROUND_MS);
        tell(parent->to, round);
        CHECK(hear(parent->from) == round);
        step("deathsig round %lu", (unsigned long)round);
    }
    tell(parent->to, 999999);
    CHECK(hear(parent->from) == 999999);
    CHECK(close(parent->to) == 0);
    ended(parent->pid, 4);
    CHECK(hear(parent->from) == 1);
    return pass();
}
