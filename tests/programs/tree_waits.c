/* Waiting for a child in the kernel, in every way that there is: `tree_waits HOW [ROUNDS]`
 * HOW: wait, waitpid, wait4, waitid, group, thread, nowait, pidfd, poll (of a pidfd), all (of several), vfork */
#include "tree.h"
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

static int in_group; /* children are in groups of their own */

static pid_t start(int code)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid != 0) return pid;
    if (in_group) CHECK(setpgid(0, 0) == 0);
    sleep_ms(ROUND_MS);
    _exit(code);
}

static int pidfd_of(pid_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    CHECK(fd >= 0);
    return fd;
}

static void is_exit(int status, int code)
{
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code);
}

static void by_waitid(idtype_t type, pid_t id, pid_t pid, int code, int flags)
{
    siginfo_t info = {0};
    CHECK(waitid(type, (id_t)id, &info, WEXITED | flags) == 0);
    CHECK(info.si_pid == pid && info.si_code == CLD_EXITED && info.si_status == code);
}

static void wait_any(int code)
{
    int status;
    pid_t pid = start(code);
    CHECK(wait(&status) == pid);
    is_exit(status, code);
}

static void wait_pid(int code)
{
    ended(start(code), code);
}

static void wait_four(int code)
{
    int status;
    struct rusage usage;
    pid_t pid = start(code);
    CHECK(wait4(pid, &status, 0, &usage) == pid);
    is_exit(status, code);
}

static void wait_id(int code)
{
    pid_t pid = start(code);
    by_waitid(P_PID, pid, pid, code, 0);
}

static void wait_group(int code)
{
    int status;
    pid_t pid = start(code);
    move_to_group(pid, pid);
    CHECK(waitpid(-pid, &status, 0) == pid);
    is_exit(status, code);
}

static void *wait_in_thread(void *argument)
{
    ended(*(pid_t *)argument, 9);
    return NULL;
}

/* Another thread waits for a child of this one. */
static void wait_thread(int code)
{
    pthread_t thread;
    pid_t pid = start(9);
    (void)code;
    CHECK_ZERO(pthread_create(&thread, NULL, wait_in_thread, &pid));
    CHECK_ZERO(pthread_join(thread, NULL));
}

static void wait_without_end(int code)
{
    pid_t pid = start(code);
    by_waitid(P_PID, pid, pid, code, WNOWAIT);
    by_waitid(P_ALL, 0, pid, code, 0);
}

static void wait_pidfd(int code)
{
    pid_t pid = start(code);
    int fd = pidfd_of(pid);
    by_waitid(P_PIDFD, fd, pid, code, 0);
    CHECK(close(fd) == 0);
}

static void wait_poll(int code)
{
    pid_t pid = start(code);
    int fd = pidfd_of(pid);
    struct pollfd p = {fd, POLLIN, 0};
    CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLIN);
    ended(pid, code);
    CHECK(close(fd) == 0);
}

static void wait_all(int code)
{
    int status, sum = 0, right = 0;
    for (int i = 0; i < 4; i++, right += code + i) start(code + i + 1);
    while (wait(&status) > 0) {
        CHECK(WIFEXITED(status));
        sum += WEXITSTATUS(status);
    }
    CHECK(errno == ECHILD && sum == right);
}

/* The parent stands still until the child has ended. */
static void wait_vfork(int code)
{
    static volatile int word;
    struct timespec pause = timespec_of_ns(10000000);
    pid_t pid = vfork();
    if (pid == 0) {
        nanosleep(&pause, NULL);
        word++;
        _exit(code);
    }
    int seen = word;
    CHECK(pid > 0);
    ended(pid, code);
    CHECK(seen > 0 && seen == word);
    sleep_ms(ROUND_MS);
}

static const struct {
    const char *name;
    void (*wait)(int);
} ways[] = {
    {"wait", wait_any}, {"waitpid", wait_pid}, {"wait4", wait_four}, {"waitid", wait_id}, {"group", wait_group},
    {"thread", wait_thread}, {"nowait", wait_without_end}, {"pidfd", wait_pidfd}, {"poll", wait_poll},
    {"all", wait_all}, {"vfork", wait_vfork},
};

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 2, 100);
    size_t way = 0;
    in_group = argc > 1 && strcmp(argv[1], "group") == 0;
    while (way < sizeof ways / sizeof *ways && (argc < 2 || strcmp(ways[way].name, argv[1]) != 0)) way++;
    CHECK(way < sizeof ways / sizeof *ways);
    for (long round = 0; round < rounds; round++) {
        ways[way].wait((int)(round % 100));
        CHECK(wait(NULL) == -1 && errno == ECHILD);
        step("%s round %ld", ways[way].name, round);
    }
    return pass();
}
