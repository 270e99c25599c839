/* Files of all kinds of use, under leases and under inotify, with their folder and this program's own file: nobody but
 * the program opens or reads them, so there is no event and no lease is broken. `unnoticed KIND [ROUNDS]`; `blind`: one
 * is open for writing only, in its middle. */
#include "rounds.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>

static int watcher, lent_to_read, lent_to_write;

static void broken(int signal)
{
    (void)signal;
    static const char text[] = "a lease was broken\n";
    CHECK(write(1, text, sizeof text - 1) > 0);
    _exit(3);
}

/* A file with so many bytes, opened with these flags. */
static int file(const char *name, size_t len, int flags)
{
    char path[64], byte = 'x';
    snprintf(path, sizeof path, "unnoticed/%s", name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    for (size_t i = 0; i < len; i++) CHECK(write(fd, &byte, 1) == 1);
    CHECK(close(fd) == 0);
    CHECK((fd = open(path, flags)) >= 0);
    return fd;
}

static void map(const char *name, int prot, int flags)
{
    int fd = file(name, 9000, O_RDWR);
    CHECK(mmap(NULL, 12288, prot, flags, fd, 0) != MAP_FAILED && close(fd) == 0);
}

static void prepare(void)
{
    CHECK(mkdir("unnoticed", 0700) == 0);
    signal(SIGIO, broken);
    file("changed", 9000, O_RDWR);
    file("read", 300, O_RDONLY);
    file("appended", 300, O_WRONLY | O_APPEND);
    map("shared", PROT_READ | PROT_WRITE, MAP_SHARED);
    map("shown", PROT_READ, MAP_SHARED);
    map("own", PROT_READ | PROT_WRITE, MAP_PRIVATE);
    file("removed", 5000, O_RDWR);
    CHECK(unlink("unnoticed/removed") == 0);
    lent_to_read = file("lent-to-read", 5000, O_RDONLY);
    lent_to_write = file("lent-to-write", 5000, O_RDWR);
    CHECK(fcntl(lent_to_read, F_SETLEASE, F_RDLCK) == 0);
    CHECK(fcntl(lent_to_write, F_SETLEASE, F_WRLCK) == 0);
    CHECK(fcntl(file("lent-blindly", 0, O_WRONLY), F_SETLEASE, F_WRLCK) == 0);
}

static void watch(void)
{
    static const char *names[] = {"changed", "read", "appended", "shared", "shown", "own", "lent-to-read",
                                  "lent-to-write", "lent-blindly"};
    CHECK((watcher = inotify_init1(IN_NONBLOCK)) >= 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[64];
        snprintf(path, sizeof path, "unnoticed/%s", names[i]);
        CHECK(inotify_add_watch(watcher, path, IN_ALL_EVENTS) > 0);
    }
    CHECK(inotify_add_watch(watcher, "unnoticed", IN_ALL_EVENTS) > 0);
}

static void prepare_files(void)
{
    prepare();
    watch();
}

/* For a watcher from outside: what is open for writing only has to be opened. */
static void prepare_outside(void)
{
    prepare();
    CHECK(rename("unnoticed/appended", "appended") == 0);
    watcher = -1;
}

static void prepare_blind(void)
{
    prepare();
    CHECK(lseek(file("blind", 300, O_WRONLY), 10, SEEK_SET) == 10);
    watch();
    CHECK(inotify_add_watch(watcher, "unnoticed/blind", IN_OPEN) > 0);
}

static void nothing(long round)
{
    (void)round;
    char buffer[4096] __attribute__((aligned(8)));
    ssize_t got = watcher < 0 ? -1 : read(watcher, buffer, sizeof buffer);
    struct inotify_event *event = (struct inotify_event *)buffer;
    if (got > 0) printf("event %#x of %d %s\n", event->mask, event->wd, event->len > 0 ? event->name : "");
    CHECK(got == -1);
    CHECK(fcntl(lent_to_read, F_GETLEASE) == F_RDLCK && fcntl(lent_to_write, F_GETLEASE) == F_WRLCK);
}

static const struct kind kinds[] = {
    {"files", prepare_files, nothing},
    {"outside", prepare_outside, nothing},
    {"blind", prepare_blind, nothing},
};

int main(int argc, char **argv)
{
    return RUN_KIND(kinds);
}
