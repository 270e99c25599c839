/* Standard streams across restarts: `streams`. One line to 1 and 2; when the file `go` is there another to each, and
 * the file `written`; when `read` is there what is in 0 to its end, into the file `input`, and the end. A stream
 * that is closed must lead nowhere afterwards either. */
#include "common.h"
#include <fcntl.h>
#include <sys/stat.h>

static void wait_for(const char *path)
{
    while (access(path, F_OK) != 0) sleep_ms(2);
}

static void mark(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd > 2 && close(fd) == 0);
}

static void say(int fd, const char *what, const int *closed)
{
    char line[64];
    int length = snprintf(line, sizeof line, "%s-%d\n", what, fd);
    if (closed[fd])
        CHECK(write(fd, line, (size_t)length) == -1 && errno == EBADF);
    else
        CHECK(write(fd, line, (size_t)length) == length);
}

int main(void)
{
    int closed[3];
    for (int fd = 0; fd < 3; fd++) {
        closed[fd] = fcntl(fd, F_GETFD) == -1;
        /* What is opened later must not get the number; nothing can be written to it. */
        if (closed[fd]) CHECK(open("/dev/null", O_RDONLY | O_CLOEXEC) == fd);
    }
    for (int fd = 1; fd < 3; fd++) say(fd, "before", closed);
    mark("begun");
    wait_for("go");
    for (int fd = 1; fd < 3; fd++) say(fd, "after", closed);
    mark("written");
    wait_for("read");
    char input[256];
    ssize_t length, all = 0;
    while ((length = read(0, input + all, sizeof input - (size_t)all)) > 0) all += length;
    CHECK(length == 0);
    int fd = open("input", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd > 2 && write(fd, input, (size_t)all) == all && close(fd) == 0);
    return 0;
}
