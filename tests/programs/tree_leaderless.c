/* Groups and sessions whose leader has ended: the members keep its id, and signals to the group reach them.
 * `tree_leaderless [ROUNDS]` */
#include "tree.h"

#define MEMBERS 3

static volatile sig_atomic_t handled;

static void count(int number, siginfo_t *info, void *context)
{
    (void)context;
    handled += number == SIGUSR1 && info->si_code == SI_USER;
}

/* Made by the leader, and left by it. */
static void member(int in, int out, uint64_t leader)
{
    uint64_t round;
    handle(SIGUSR1, count, SA_RESTART);
    tell(out, (uint64_t)getpid());
    while (hear_or_end(in, &round)) {
        CHECK(getpgrp() == (pid_t)leader && getsid(0) == (pid_t)leader && getppid() != (pid_t)leader);
        CHECK(handled == (int)round + 1);
        tell(out, round);
    }
    tell(out, 77);
}

/* The leader hands the ends of its children's pipes, made by the first process, to them. */
static pid_t make_group(struct child *members)
{
    int down[MEMBERS][2], up[MEMBERS][2];
    for (int i = 0; i < MEMBERS; i++) CHECK(pipe2(down[i], O_CLOEXEC) == 0 && pipe2(up[i], O_CLOEXEC) == 0);
    pid_t leader = fork();
    CHECK(leader >= 0);
    for (int i = 0; leader == 0 && i < MEMBERS; i++) {
        if (i == 0) CHECK(setsid() == getpid());
        pid_t self = getpid(), pid = fork();
        CHECK(pid >= 0);
        if (pid != 0) continue;
        for (int n = 0; n < MEMBERS; n++) {
            CHECK(close(down[n][1]) == 0 && close(up[n][0]) == 0);
            if (n != i) CHECK(close(down[n][0]) == 0 && close(up[n][1]) == 0);
        }
        while (getppid() == self) usleep(100);
        member(down[i][0], up[i][1], (uint64_t)self);
        _exit(0);
    }
    if (leader == 0) _exit(7);
    for (int i = 0; i < MEMBERS; i++) {
        CHECK(close(down[i][0]) == 0 && close(up[i][1]) == 0);
        members[i] = (struct child){0, down[i][1], up[i][0]};
    }
    ended(leader, 7);
    for (int i = 0; i < MEMBERS; i++) members[i].pid = (pid_t)hear(members[i].from);
    return leader;
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    struct child members[MEMBERS];
    pid_t leader = make_group(members);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        sleep_ms(ROUND_MS);
        CHECK(kill(leader, 0) == -1 && errno == ESRCH && kill(-leader, SIGUSR1) == 0);
        for (int i = 0; i < MEMBERS; i++) {
            CHECK(getpgid(members[i].pid) == leader && getsid(members[i].pid) == leader);
            tell(members[i].to, round);
            CHECK(hear(members[i].from) == round);
        }
        step("leaderless round %lu", (unsigned long)round);
    }
    for (int i = 0; i < MEMBERS; i++) {
        char byte;
        CHECK(close(members[i].to) == 0 && hear(members[i].from) == 77 && read(members[i].from, &byte, 1) == 0);
    }
    return pass();
}
