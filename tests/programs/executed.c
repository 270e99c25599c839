/* A program in a memfd that nothing has open for writing, executed all the time. `executed [ROUNDS]` */
#include "rounds.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int program;

static void one_round(long round)
{
    (void)round;
    for (int times = 0; times < 20; times++) {
        int status;
        pid_t child = vfork();
        CHECK(child >= 0);
        if (child == 0) {
            char *arguments[] = {"true", NULL}, *environment[] = {NULL};
            syscall(SYS_execveat, program, "", arguments, environment, AT_EMPTY_PATH);
            _exit(errno);
        }
        CHECK(waitpid(child, &status, 0) == child);
        if (status != 0) {
            printf("execveat: %s\n", strerror(WEXITSTATUS(status)));
            exit(1);
        }
    }
}

int main(int argc, char **argv)
{
    char buffer[1 << 16], path[64];
    int original = open("/bin/true", O_RDONLY | O_CLOEXEC), writer = memfd_create("true", MFD_CLOEXEC);
    CHECK(original >= 0 && writer >= 0);
    ssize_t len;
    while ((len = read(original, buffer, sizeof buffer)) > 0) CHECK(write(writer, buffer, (size_t)len) == len);
    snprintf(path, sizeof path, "/proc/self/fd/%d", writer);
    CHECK((program = open(path, O_RDONLY | O_CLOEXEC)) >= 0 && close(writer) == 0 && close(original) == 0);
    return run_rounds("executed", number_argument(argc, argv, 1, 45), one_round);
}
