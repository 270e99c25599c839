/* Processes whose parent has ended: grandchildren that go on, and a daemon made by two forks. They are still reached by
 * pipes. `tree_orphans [ROUNDS]` */
#include "tree.h"

#define ORPHANS 3

static void live(int in, int out, uint64_t number)
{
    pid_t self = getpid(), session = getsid(0);
    uint64_t round;
    tell(out, (uint64_t)self);
    while (hear_or_end(in, &round)) {
        CHECK(getpid() == self);
        if (number == 0) CHECK(getsid(0) == session && session != self); /* the leader was its parent */
        tell(out, mix(round + number));
    }
    sleep_ms(ROUND_MS);
    tell(out, number);
}

/* Runs in a child, which leaves the pipes that it was given to a child of its own. */
static void leave(int in, int out, uint64_t number)
{
    if (number == 0) CHECK(setsid() == getpid()); /* as daemons do */
    pid_t self = getpid(), pid = fork();
    CHECK(pid >= 0);
    if (pid != 0) _exit(10 + (int)number);
    while (getppid() == self) usleep(100);
    live(in, out, number);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    for (uint64_t i = 0; i < ORPHANS; i++) {
        struct child *child = fork_child(leave, i);
        ended(child->pid, 10 + (int)i);
        child->pid = (pid_t)hear(child->from);
    }
    CHECK(wait(NULL) == -1 && errno == ECHILD);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        sleep_ms(ROUND_MS);
        for (uint64_t i = 0; i < ORPHANS; i++) {
            CHECK(kill(children[i].pid, 0) == 0);
            tell(children[i].to, round);
            CHECK(hear(children[i].from) == mix(round + i));
        }
        CHECK(wait(NULL) == -1 && errno == ECHILD);
        step("orphans round %lu", (unsigned long)round);
    }
    for (uint64_t i = 0; i < ORPHANS; i++) {
        uint64_t nothing;
        CHECK(close(children[i].to) == 0 && hear(children[i].from) == i && !hear_or_end(children[i].from, &nothing));
    }
    return pass();
}
