/* Descriptors of processes that have ended and were waited for: those of one process have one inode, those of others
 * others. `tree_ended [ROUNDS]` */
#include "rounds.h"
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PROCESSES 3
#define EACH 3
static int fds[PROCESSES][EACH];

static int of(pid_t process)
{
    int fd = (int)syscall(SYS_pidfd_open, process, 0);
    if (fd < 0) not_here("pidfd_open");
    return fd;
}

static ino_t inode(int fd)
{
    struct stat facts;
    CHECK(fstat(fd, &facts) == 0);
    return facts.st_ino;
}

static void make(int n)
{
    int ready[2], status;
    char byte;
    CHECK(pipe(ready) == 0);
    pid_t process = fork();
    CHECK(process >= 0);
    if (process == 0) _exit(close(ready[1]) != 0 || read(ready[0], &byte, 1) != 1);
    for (int i = 0; i < EACH; i++) fds[n][i] = of(process);
    CHECK(write(ready[1], "", 1) == 1 && close(ready[0]) == 0 && close(ready[1]) == 0);
    CHECK(waitpid(process, &status, 0) == process && status == 0);
}

static void one_round(long round)
{
    int again = (int)(round % PROCESSES);
    for (int n = 0; n < PROCESSES; n++)
        for (int i = 0; i < EACH; i++) {
            CHECK(inode(fds[n][i]) == inode(fds[n][0]));
            CHECK(syscall(SYS_pidfd_send_signal, fds[n][i], 0, NULL, 0) == -1 && errno == ESRCH);
            /* Kernels before 6.9 have one inode for all. */
            int self = of(getpid());
            int differ = inode(self) != inode(fds[0][0]);
            CHECK(close(self) == 0);
            for (int other = 0; other < n; other++) CHECK(!differ || inode(fds[n][i]) != inode(fds[other][0]));
        }
    for (int i = 0; i < EACH; i++) CHECK(close(fds[again][i]) == 0);
    make(again);
}

int main(int argc, char **argv)
{
    for (int n = 0; n < PROCESSES; n++) make(n);
    return run_rounds("tree_ended", number_argument(argc, argv, 1, 45), one_round);
}
