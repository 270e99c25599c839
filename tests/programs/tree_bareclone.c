/* Children made by the system call clone(2) itself, of which the C library's fork handlers, and libholdfast with them,
 * know nothing; one has a child of its own by fork, and the last one is made by the C library's clone(), with a stack
 * of its own. `tree_bareclone [ROUNDS]` */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static pid_t bare_clone(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

#define FORK bare_clone
#include "tree.h"

#define CHILDREN 4
#define STACK 65536

static void live(int in, int out, uint64_t number)
{
    pid_t self = getpid(), parent = getppid(), grandchild = 0;
    uint64_t round, sum = 0;
    if (number == 1) {
        grandchild = fork();
        CHECK(grandchild >= 0);
        if (grandchild == 0)
            for (;;) pause();
    }
    tell(out, (uint64_t)self);
    while (hear_or_end(in, &round)) {
        CHECK(getpid() == self && getppid() == parent);
        sum += mix(round + number);
        tell(out, sum);
    }
    if (grandchild > 0) {
        int status;
        CHECK(kill(grandchild, SIGKILL) == 0 && waitpid(grandchild, &status, 0) == grandchild);
    }
}

static int begin(void *ends)
{
    int *pipes = ends;
    for (int i = 0; i < children_made; i++) CHECK(close(children[i].to) == 0 && close(children[i].from) == 0);
    CHECK(close(pipes[1]) == 0 && close(pipes[2]) == 0);
    live(pipes[0], pipes[3], CHILDREN - 1);
    return 0;
}

static struct child *clone_child(void)
{
    int pipes[4];
    char *stack = malloc(STACK);
    CHECK(stack != NULL && pipe2(pipes, O_CLOEXEC) == 0 && pipe2(pipes + 2, O_CLOEXEC) == 0);
    pid_t pid = clone(begin, stack + STACK, SIGCHLD, pipes);
    CHECK(pid > 0 && close(pipes[0]) == 0 && close(pipes[3]) == 0);
    children[children_made] = (struct child){pid, pipes[1], pipes[2]};
    return &children[children_made++];
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    uint64_t sums[CHILDREN] = {0};
    for (uint64_t i = 0; i < CHILDREN; i++) {
        struct child *child = i < CHILDREN - 1 ? fork_child(live, i) : clone_child();
        CHECK(hear(child->from) == (uint64_t)child->pid);
    }
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        sleep_ms(ROUND_MS);
        for (uint64_t i = 0; i < CHILDREN; i++) {
            sums[i] += mix(round + i);
            tell(children[i].to, round);
            CHECK(hear(children[i].from) == sums[i]);
        }
        step("bareclone round %lu", (unsigned long)round);
    }
    for (int i = 0; i < CHILDREN; i++) {
        CHECK(close(children[i].to) == 0);
        ended(children[i].pid, 0);
    }
    return pass();
}
