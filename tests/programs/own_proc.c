/* What a process has open of itself in /proc, and works in: `own_proc KIND [ROUNDS]`
 * KIND: thread (files of its first thread), folder (it works in /proc/self), task (in the folder of its first thread),
 * child (a child does all of that) */
#include "rounds.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static int status_file, folder, maps;

/* The id at the beginning of a file of /proc. */
static int id_in(int fd)
{
    char text[32] = "";
    CHECK(fd >= 0 && pread(fd, text, sizeof text - 1, 0) > 0);
    return atoi(text);
}

static void thread_prepare(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d", (int)gettid());
    CHECK((folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
    strcat(path, "/stat");
    CHECK((status_file = open(path, O_RDONLY | O_CLOEXEC)) >= 0);
    CHECK((maps = open("/proc/thread-self/maps", O_RDONLY | O_CLOEXEC)) >= 0);
}

static void thread_round(long round)
{
    char text[64];
    (void)round;
    CHECK(id_in(status_file) == getpid() && pread(maps, text, sizeof text, 0) > 0);
    int fd = openat(folder, "stat", O_RDONLY | O_CLOEXEC);
    CHECK(id_in(fd) == getpid() && close(fd) == 0);
}

static void folder_prepare(void) { CHECK(chdir("/proc/self") == 0); }
static void folder_round(long round)
{
    (void)round;
    int fd = open("stat", O_RDONLY | O_CLOEXEC);
    CHECK(id_in(fd) == getpid() && close(fd) == 0);
}

static void task_prepare(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d", (int)gettid());
    CHECK(chdir(path) == 0);
}

static int question[2], answer[2];
static void child_prepare(void)
{
    CHECK(pipe2(question, O_CLOEXEC) == 0 && pipe2(answer, O_CLOEXEC) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return;
    char byte;
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    thread_prepare();
    folder_prepare();
    while (read(question[0], &byte, 1) == 1) {
        thread_round(0);
        folder_round(0);
        CHECK(write(answer[1], &byte, 1) == 1);
    }
    _exit(0);
}

static void child_round(long round)
{
    char byte = (char)round, back = 0;
    CHECK(write(question[1], &byte, 1) == 1 && read(answer[0], &back, 1) == 1 && back == byte);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"thread", thread_prepare, thread_round},
                                        {"folder", folder_prepare, folder_round},
                                        {"task", task_prepare, folder_round},
                                        {"child", child_prepare, child_round}};
    return RUN_KIND(kinds);
}
