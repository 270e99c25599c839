/* Signals between processes: to one, to a group, queued with values, from the children to their parent; some wait,
 * blocked, from one round to the next. Nobody gets one too many. `tree_signals [ROUNDS]` */
#include "tree.h"

#define CHILDREN 3
#define QUEUED 4

static volatile sig_atomic_t single, grouped, values, wrong;
static pid_t parent;

static void count(int number, siginfo_t *info, void *context)
{
    (void)context;
    wrong += info->si_pid != parent || info->si_uid != getuid();
    if (number == SIGUSR1 && info->si_code == SI_USER) single++;
    else if (number == SIGUSR2 && info->si_code == SI_USER) grouped++;
    else if (number == SIGRTMIN + 3 && info->si_code == SI_QUEUE) values += info->si_value.sival_int;
    else wrong++;
}

/* Those that were queued a round ago, in their order. */
static void take_blocked(uint64_t round)
{
    sigset_t set = set_of(SIGRTMIN + 4);
    struct timespec at_once = {0, 0};
    siginfo_t info;
    for (int i = 0; i < QUEUED; i++) {
        CHECK(sigtimedwait(&set, &info, &at_once) == SIGRTMIN + 4);
        CHECK(info.si_code == SI_QUEUE && info.si_pid == parent && info.si_value.sival_int == (int)round * QUEUED + i);
    }
    CHECK(sigtimedwait(&set, &info, &at_once) == -1 && errno == EAGAIN);
}

static void listen_to_signals(int in, int out, uint64_t number)
{
    uint64_t round;
    parent = getppid();
    handle(SIGUSR1, count, SA_RESTART);
    handle(SIGUSR2, count, SA_RESTART);
    handle(SIGRTMIN + 3, count, SA_RESTART);
    block(SIGRTMIN + 4);
    CHECK(setpgid(0, number == 0 ? 0 : children[0].pid) == 0);
    tell(out, number);
    while (hear_or_end(in, &round)) {
        int rounds = (int)round + 1;
        CHECK(wrong == 0 && single == rounds && grouped == rounds);
        CHECK(values == rounds * QUEUED * ((int)number + 1));
        take_blocked(round);
        CHECK(sigqueue(parent, SIGRTMIN + 5, (union sigval){.sival_int = (int)(round * 10 + number)}) == 0);
        tell(out, round);
    }
    CHECK(wrong == 0);
}

static void queue(pid_t pid, int number, int value)
{
    CHECK(sigqueue(pid, number, (union sigval){.sival_int = value}) == 0);
}

static void send_all(uint64_t round, pid_t group)
{
    for (int i = 0; i < CHILDREN; i++) {
        for (int n = 0; n < QUEUED; n++) queue(children[i].pid, SIGRTMIN + 4, (int)round * QUEUED + n);
        for (int n = 0; n < QUEUED; n++) queue(children[i].pid, SIGRTMIN + 3, i + 1);
        CHECK(kill(children[i].pid, SIGUSR1) == 0);
    }
    CHECK(killpg(group, SIGUSR2) == 0);
}

/* The children's answers by signal: all three, in the order in which they were asked. */
static void take_answers(uint64_t round)
{
    sigset_t set = set_of(SIGRTMIN + 5);
    siginfo_t info;
    for (int i = 0; i < CHILDREN; i++) {
        CHECK(sigwaitinfo(&set, &info) == SIGRTMIN + 5);
        CHECK(info.si_code == SI_QUEUE && info.si_pid == children[i].pid
            && info.si_value.sival_int == (int)round * 10 + i);
    }
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    block(SIGRTMIN + 5);
    for (uint64_t i = 0; i < CHILDREN; i++) {
        fork_child(listen_to_signals, i);
        CHECK(hear(children[i].from) == i);
    }
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        send_all(round, children[0].pid);
        sleep_ms(ROUND_MS);
        for (int i = 0; i < CHILDREN; i++) {
            tell(children[i].to, round);
            CHECK(hear(children[i].from) == round);
        }
        sleep_ms(ROUND_MS / 5); /* their answers are pending meanwhile */
        take_answers(round);
        step("signals round %lu", (unsigned long)round);
    }
    finish_all(0);
    return pass();
}
