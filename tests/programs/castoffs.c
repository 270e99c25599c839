/* Orphans that nothing in their environment ties to their job, as every process of it has written over that: one made
 * by the bare system call clone(2), which no library notices, and a chain of short ones, each of which forks the next
 * and ends. An image that lacks one of them is wrong: it is waited for. `castoffs [ROUNDS]` */
#include "tree.h"
#include <poll.h>
#include <sys/syscall.h>

extern char **environ;

static volatile struct {
    uint64_t bare, chain, stop, ended;
} *common;

/* As setproctitle(3) does; the program itself goes on with a copy. */
static void write_over_environment(void)
{
    for (char **entry = environ; *entry != NULL; entry++) {
        char *old = *entry;
        CHECK((*entry = strdup(old)) != NULL);
        memset(old, 'x', strlen(old));
    }
}

/* Its other end is the first process's alone. */
static int lives[2];

/* Whether the first process is there: what is not its child is not killed with it. */
static int is_wanted(void)
{
    struct pollfd first = {lives[0], 0, 0};
    CHECK(poll(&first, 1, 0) >= 0);
    if (first.revents != 0) _exit(0);
    return !common->stop;
}

static void stay(void)
{
    while (is_wanted()) {
        common->bare++;
        usleep(2000);
    }
    __atomic_fetch_add(&common->ended, 1, __ATOMIC_SEQ_CST);
    _exit(0);
}

static void pass_on(void)
{
    while (is_wanted()) {
        usleep(20000);
        common->chain++;
        pid_t next = fork();
        CHECK(next >= 0);
        if (next > 0) _exit(0);
    }
    __atomic_fetch_add(&common->ended, 1, __ATOMIC_SEQ_CST);
    _exit(0);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 60);
    common = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(common != MAP_FAILED && pipe(lives) == 0);
    write_over_environment();
    pid_t between = fork();
    CHECK(between >= 0);
    if (between == 0) {
        CHECK(close(lives[1]) == 0);
        if (raw_call(SYS_clone, SIGCHLD, 0) == 0) stay();
        if (fork() == 0) pass_on();
        _exit(0);
    }
    ended(between, 0);
    for (long round = 0; round < rounds; round++) {
        uint64_t bare = common->bare, chain = common->chain;
        sleep_ms(ROUND_MS);
        while (common->bare == bare || common->chain == chain) usleep(1000);
        step("castoffs round %ld", round);
    }
    common->stop = 1;
    while (common->ended < 2) usleep(1000);
    return pass();
}
