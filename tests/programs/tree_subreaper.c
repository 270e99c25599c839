/* A child subreaper adopts the grandchildren whose parent has ended, and waits for them. `tree_subreaper [ROUNDS]` */
#include "tree.h"
#include <sys/prctl.h>

static int is_subreaper(void)
{
    int value = -1;
    CHECK(prctl(PR_GET_CHILD_SUBREAPER, &value) == 0);
    return value;
}

static void live(int in, int out, uint64_t reaper)
{
    uint64_t round;
    tell(out, (uint64_t)getpid());
    while (hear_or_end(in, &round)) {
        CHECK(getppid() == (pid_t)reaper && !is_subreaper());
        tell(out, round);
    }
    _exit(33);
}

static void leave(int in, int out, uint64_t reaper)
{
    pid_t self = getpid(), pid = fork();
    CHECK(pid >= 0);
    if (pid != 0) _exit(5);
    while (getppid() == self) usleep(100);
    live(in, out, reaper);
}

static struct child *adopt(void)
{
    struct child *child = fork_child(leave, (uint64_t)getpid());
    ended(child->pid, 5);
    child->pid = (pid_t)hear(child->from);
    return child;
}

/* Two reapers: the first process, and a child of it whose grandchildren are not the first one's. */
static void reap(int in, int out, uint64_t number)
{
    uint64_t round;
    (void)number;
    if (in >= 0) children_made = 0;
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    struct child *own = adopt();
    while (hear_or_end(in, &round)) {
        CHECK(is_subreaper() == 1);
        tell(own->to, round);
        CHECK(hear(own->from) == round);
        tell(out, round);
    }
    finish(own, 33);
    CHECK(wait(NULL) == -1 && errno == ECHILD);
    _exit(6);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    struct child *other = fork_child(reap, 0), *lasting = adopt();
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        struct child *brief = adopt();
        sleep_ms(ROUND_MS);
        struct child *asked[] = {other, lasting, brief};
        CHECK(is_subreaper() == 1);
        for (int i = 0; i < 3; i++) {
            tell(asked[i]->to, round);
            CHECK(hear(asked[i]->from) == round);
        }
        finish(brief, 33);
        children_made--;
        CHECK(waitpid(-1, NULL, WNOHANG) == 0);
        step("subreaper round %lu", (unsigned long)round);
    }
    finish(lasting, 33);
    finish(other, 6);
    CHECK(wait(NULL) == -1 && errno == ECHILD);
    return pass();
}
