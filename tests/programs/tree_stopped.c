/* Children stopped by SIGSTOP and continued by SIGCONT, as wait(2) tells it. `tree_stopped HOW [ROUNDS]`
 *   turns    stopped and continued in every round
 *   lasting  stopped at the beginning, continued at the end; its stop is told once
 *   unseen   the same, and nobody has asked for it before the end
 *   paused   the same, but for SIGTSTP
 *   early    the same, stopped as soon as fork(2) has made it
 *   group    three in a group, stopped by a signal to the group */
#include "tree.h"

static volatile sig_atomic_t counted;
static volatile uint64_t *ticks; /* of each child, in shared memory */

static void count(int number, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    counted += number == SIGCHLD;
}

/* A group of its own, or that of the first one: with a parent outside, so that SIGTSTP stops it. */
static void tick(int in, int out, uint64_t number)
{
    CHECK(setpgid(0, number == 0 ? 0 : children[0].pid) == 0);
    tell(out, number);
    CHECK(fcntl(in, F_SETFL, O_NONBLOCK) == 0);
    for (uint64_t word; read(in, &word, sizeof word) == -1; usleep(1000)) ticks[number]++;
}

static void stop(int number)
{
    int status = 0;
    pid_t pid = children[number].pid;
    CHECK(kill(pid, SIGSTOP) == 0 && waitpid(pid, &status, WUNTRACED) == pid);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
}

static void go_on(int number)
{
    int status = 0;
    pid_t pid = children[number].pid;
    CHECK(kill(pid, SIGCONT) == 0 && waitpid(pid, &status, WCONTINUED) == pid);
    CHECK(WIFCONTINUED(status));
}

/* A stop or a go-on that was told once is not told again, and stopped processes do nothing. */
static void rest(int from, int to)
{
    uint64_t before[8];
    for (int i = from; i < to; i++) before[i] = ticks[i];
    sleep_ms(ROUND_MS);
    for (int i = from; i < to; i++) CHECK(ticks[i] == before[i]);
    for (int i = from; i < to; i++) CHECK(waitpid(children[i].pid, NULL, WUNTRACED | WCONTINUED | WNOHANG) == 0);
}

/* The signal, which is blocked, may come a little later than wait(2) tells of its cause. */
static void counts_to(int number)
{
    sigset_t mask;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0 && sigdelset(&mask, SIGCHLD) == 0);
    while (counted < number) CHECK(sigsuspend(&mask) == -1 && errno == EINTR);
    CHECK(counted == number);
}

static void in_turns(long round)
{
    int before = counted;
    block(SIGCHLD);
    stop(0);
    counts_to(before + 1);
    unblock(SIGCHLD);
    rest(0, 1);
    block(SIGCHLD);
    go_on(0);
    counts_to(before + 2);
    unblock(SIGCHLD);
    uint64_t now = ticks[0];
    while (ticks[0] == now) sleep_ms(1);
    step("stopped and continued in round %ld", round);
}

static void for_long(long rounds, int seen, int by)
{
    siginfo_t info = {0};
    block(SIGCHLD);
    CHECK(kill(children[0].pid, by) == 0);
    CHECK(waitid(P_PID, (id_t)children[0].pid, &info, WSTOPPED | (seen ? 0 : WNOWAIT)) == 0);
    counts_to(1);
    unblock(SIGCHLD);
    for (long round = 0; round < rounds; round++) {
        CHECK(counted == 1);
        if (seen) {
            rest(0, 1);
        } else {
            sleep_ms(ROUND_MS);
            memset(&info, 0, sizeof info);
            CHECK(waitid(P_PID, (id_t)children[0].pid, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0);
            CHECK(info.si_pid == children[0].pid && info.si_code == CLD_STOPPED && info.si_status == by);
        }
        step("stopped for long, round %ld", round);
    }
    block(SIGCHLD);
    if (!seen) { /* it is told now, and SIGSTOP does nothing more */
        int status;
        CHECK(kill(children[0].pid, SIGSTOP) == 0 && waitpid(children[0].pid, &status, WUNTRACED) == children[0].pid);
        CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == by);
    }
    go_on(0);
}

static void in_group(long rounds)
{
    block(SIGCHLD); /* three of them may come as one */
    for (long round = 0; round < rounds; round++) {
        int status;
        CHECK(kill(-children[0].pid, SIGTSTP) == 0);
        for (int i = 0; i < 3; i++) {
            CHECK(waitpid(children[i].pid, &status, WUNTRACED) == children[i].pid);
            CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTSTP);
        }
        rest(0, 3);
        CHECK(kill(-children[0].pid, SIGCONT) == 0);
        for (int i = 0; i < 3; i++)
            CHECK(waitpid(children[i].pid, &status, WCONTINUED) == children[i].pid && WIFCONTINUED(status));
        step("group stopped and continued in round %ld", round);
    }
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "turns";
    long rounds = number_argument(argc, argv, 2, 100);
    ticks = shared_memory(sizeof *ticks * 8);
    handle(SIGCHLD, count, SA_RESTART);
    for (uint64_t i = 0; i < (strcmp(how, "group") == 0 ? 3u : 1u); i++) {
        fork_child(tick, i);
        if (strcmp(how, "early") != 0) CHECK(hear(children[i].from) == i);
    }
    if (strcmp(how, "turns") == 0)
        for (long round = 0; round < rounds; round++) in_turns(round);
    else if (strcmp(how, "group") == 0)
        in_group(rounds);
    else
        for_long(rounds, strcmp(how, "lasting") == 0 || strcmp(how, "early") == 0,
            strcmp(how, "paused") == 0 ? SIGTSTP : SIGSTOP);
    block(SIGCHLD);
    if (strcmp(how, "early") == 0) CHECK(hear(children[0].from) == 0);
    for (int i = 0; i < children_made; i++) finish(&children[i], 0);
    return pass();
}
