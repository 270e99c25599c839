/* A descriptor of a child (pidfd) that is kept: polled, waited for, signalled through. `tree_pidfd [ROUNDS]` */
#include "tree.h"
#include <poll.h>
#include <sys/syscall.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

static volatile sig_atomic_t handled;

static void count(int number, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    handled += number == SIGUSR1;
}

static void live(int in, int out, uint64_t number)
{
    uint64_t round;
    handle(SIGUSR1, count, SA_RESTART);
    tell(out, number);
    while (hear_or_end(in, &round)) tell(out, (uint64_t)handled);
    _exit(8);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    struct child *child = fork_child(live, 3);
    CHECK(hear(child->from) == 3);
    int fd = (int)syscall(SYS_pidfd_open, child->pid, 0);
    CHECK(fd >= 0);
    struct pollfd p = {fd, POLLIN, 0};
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        CHECK(poll(&p, 1, ROUND_MS) == 0);
        CHECK(syscall(SYS_pidfd_send_signal, fd, SIGUSR1, NULL, 0) == 0);
        tell(child->to, round);
        CHECK(hear(child->from) == round + 1);
        step("pidfd round %lu", (unsigned long)round);
    }
    hang_up(child);
    CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLIN);
    siginfo_t info = {0};
    CHECK(waitid(P_PIDFD, (id_t)fd, &info, WEXITED) == 0 && info.si_pid == child->pid && info.si_status == 8);
    return pass();
}
