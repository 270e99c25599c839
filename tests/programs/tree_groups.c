/* Process groups and sessions: every process checks in every round that its ids, and those of its relatives, are what
 * they were. `tree_groups [ROUNDS]`
 *
 *   first +- 0 leader of a session -+- 4 in its session, leader of a group
 *         +- 1 leader of a group    +- 5 in its session and group
 *         +- 2 in the group of 1
 *         +- 3 in the first one's group
 */
#include "tree.h"

struct ids {
    pid_t pid, parent, group, session;
};
static struct ids *all; /* in shared memory */

static struct ids found(void)
{
    return (struct ids){getpid(), getppid(), getpgrp(), getsid(0)};
}

static int same(struct ids a, struct ids b)
{
    return a.pid == b.pid && a.parent == b.parent && a.group == b.group && a.session == b.session;
}

static void arrange(uint64_t number)
{
    pid_t self = getpid();
    if (number == 0) CHECK(setsid() == self);
    if (number == 1 || number == 4) CHECK(setpgid(0, 0) == 0);
    if (number == 2) CHECK(setpgid(0, all[1].pid) == 0);
    all[number] = found();
    CHECK(all[number].group == (number == 2 ? all[1].pid : number == 3 ? getpgid(getppid()) : number == 5 ? all[0].pid
        : self));
    CHECK(all[number].session == (number == 0 ? self : number >= 4 ? all[0].pid : getsid(getppid())));
}

static void member(int in, int out, uint64_t number)
{
    uint64_t round;
    arrange(number);
    if (number == 0)
        for (uint64_t n = 4; n <= 5; n++) {
            fork_child(member, n);
            CHECK(hear(children[n - 4].from) == n);
        }
    tell(out, number);
    while (hear_or_end(in, &round)) {
        struct ids now = found();
        /* of the first one's group and session only the first one knows whether they are right */
        if (number == 3) now.group = all[3].group;
        if (number >= 1 && number <= 3) now.session = all[number].session;
        CHECK(same(now, all[number]));
        for (int i = 0; i < children_made; i++) {
            CHECK(getpgid(children[i].pid) == all[i + 4].group && getsid(children[i].pid) == all[0].pid);
            tell(children[i].to, round);
        }
        sleep_ms(ROUND_MS / 2);
        for (int i = 0; i < children_made; i++) CHECK(hear(children[i].from) == round);
        tell(out, round);
    }
    finish_all(0);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    all = shared_memory(sizeof *all * 6);
    for (uint64_t i = 0; i < 4; i++) {
        fork_child(member, i);
        CHECK(hear(children[i].from) == i);
    }
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        for (int i = 0; i < 4; i++) tell(children[i].to, round);
        sleep_ms(ROUND_MS);
        for (int i = 0; i < 4; i++) CHECK(hear(children[i].from) == round);
        CHECK(getpgid(children[3].pid) == getpgrp());
        for (int i = 0; i < 3; i++) CHECK(getpgid(children[i].pid) == all[i].group);
        CHECK(getsid(children[0].pid) == children[0].pid);
        for (int i = 1; i < 4; i++) CHECK(getsid(children[i].pid) == getsid(0));
        step("groups round %lu", (unsigned long)round);
    }
    finish_all(0);
    return pass();
}
