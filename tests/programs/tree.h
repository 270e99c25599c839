/* What the programs with several processes share: children that are told something and answer, by pipes.
 *
 * Only the first process prints lines, so that their order is known. A process that finds something wrong says so and
 * ends with status 1; its relatives then find their pipes closed or an exit code that they do not expect. No process
 * expects EINTR anywhere, nor a signal or a child's end that it did not cause.
 */
#ifndef HOLDFAST_TEST_TREE_H
#define HOLDFAST_TEST_TREE_H

#include "common.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>

#define MAX_CHILDREN 64
/* How long everybody is left alone in each round: most checkpoints come then. */
#define ROUND_MS 25

/* A child, and the ends of its pipes that its parent has. */
struct child {
    pid_t pid;
    int to, from;
};

/* All that this process has made. */
static struct child children[MAX_CHILDREN] UNUSED;
static int children_made UNUSED;

UNUSED static void tell(int fd, uint64_t value)
{
    CHECK(write(fd, &value, sizeof value) == sizeof value);
}

UNUSED static uint64_t hear(int fd)
{
    uint64_t value;
    CHECK(read(fd, &value, sizeof value) == sizeof value);
    return value;
}

/* 0: nobody will say anything any more. */
UNUSED static int hear_or_end(int fd, uint64_t *value)
{
    ssize_t got = read(fd, value, sizeof *value);
    CHECK(got == 0 || got == sizeof *value);
    return got != 0;
}

/* A child that runs `body` with its ends of the pipes; a body that returns ends with status 0. */
/* How a child is made. */
#ifndef FORK
#define FORK fork
#endif

UNUSED static struct child *fork_child(void (*body)(int in, int out, uint64_t number), uint64_t number)
{
    int down[2], up[2];
    CHECK(children_made < MAX_CHILDREN && pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
    pid_t pid = FORK();
    CHECK(pid >= 0);
    if (pid == 0) {
        /* the ends towards its elder siblings are not its business: they must find their pipes closed in time */
        for (int i = 0; i < children_made; i++) {
            if (children[i].to >= 0) CHECK(close(children[i].to) == 0);
            if (children[i].from >= 0) CHECK(close(children[i].from) == 0);
        }
        children_made = 0;
        CHECK(close(down[1]) == 0 && close(up[0]) == 0);
        body(down[0], up[1], number);
        _exit(0);
    }
    CHECK(close(down[0]) == 0 && close(up[1]) == 0);
    children[children_made] = (struct child){pid, down[1], up[0]};
    return &children[children_made++];
}

/* Waits for the end of a process, which must end with this exit code. */
UNUSED static void ended(pid_t pid, int code)
{
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code);
}

/* The same for one that a signal ends. */
UNUSED static void killed(pid_t pid, int number)
{
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == number);
}

UNUSED static void hang_up(struct child *child)
{
    CHECK(close(child->to) == 0 && close(child->from) == 0);
    child->to = child->from = -1;
}

/* Closes its pipes, whereupon it must end with this exit code. */
UNUSED static void finish(struct child *child, int code)
{
    hang_up(child);
    ended(child->pid, code);
}

UNUSED static void finish_all(int code)
{
    for (int i = 0; i < children_made; i++) finish(&children[i], code);
}

/* Moves a child, which does the same for itself, to a group: as shells do it, and whichever of the two comes first
 * counts. A child that was restored in between has executed a program, and its parent must not move it any more:
 * EACCES. */
UNUSED static void move_to_group(pid_t pid, pid_t group)
{
    while (setpgid(pid, group) != 0 && getpgid(pid) != group) {
        CHECK(errno == EACCES);
        sleep_ms(1);
    }
}

/* Memory that all processes made from now on share. */
UNUSED static void *shared_memory(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

UNUSED static void handle(int number, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = flags | SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    CHECK(sigaction(number, &action, NULL) == 0);
}

UNUSED static sigset_t set_of(int number)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    return set;
}

UNUSED static void block(int number)
{
    sigset_t set = set_of(number);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
}

UNUSED static void unblock(int number)
{
    sigset_t set = set_of(number);
    CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
}

#endif
