/* inotify with numbers that were used up before, several files and folders, and all kinds of masks; descriptors of
 * processes. `watches [ROUNDS]` */
#include "common.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int watcher, second, folder_watch, file_watch, deep_watch, once_watch, self, ended, elsewhere;
/* The program has nothing else to do with it, and no handle leads an ordinary user there. */
#define FAR "/usr/share"

static int touch(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && close(fd) == 0);
    return fd;
}

static void expect(int fd, int wd, uint32_t mask, const char *name)
{
    char buffer[4096] __attribute__((aligned(8)));
    struct inotify_event *event = (struct inotify_event *)buffer;
    ssize_t got = read(fd, buffer, sizeof *event + 20);
    CHECK(got >= (ssize_t)sizeof *event && event->wd == wd && event->mask == mask);
    CHECK(event->len == 0 ? *name == 0 : strcmp(event->name, name) == 0);
}

static void nothing(int fd)
{
    struct pollfd p = {fd, POLLIN, 0};
    CHECK(poll(&p, 1, 0) == 0);
}

static void open_all(void)
{
    mkdir("watched", 0700);
    mkdir("watched/a", 0700);
    mkdir("watched/a/b", 0700);
    touch("watched/file");
    CHECK((watcher = inotify_init1(IN_CLOEXEC)) >= 0 && (second = inotify_init1(IN_NONBLOCK)) >= 0);
    for (int i = 1; i <= 40; i++) {
        CHECK(inotify_add_watch(watcher, "watched", IN_CREATE) == i && inotify_rm_watch(watcher, i) == 0);
        expect(watcher, i, IN_IGNORED, "");
    }
    CHECK((folder_watch = inotify_add_watch(watcher, "watched", IN_CREATE | IN_DELETE)) == 41);
    CHECK((file_watch = inotify_add_watch(watcher, "watched/file", IN_MODIFY | IN_CLOSE_WRITE)) == 42);
    CHECK((deep_watch = inotify_add_watch(second, "watched/a/b", IN_ALL_EVENTS | IN_EXCL_UNLINK)) == 1);
    CHECK((once_watch = inotify_add_watch(second, "watched/a", IN_DELETE_SELF | IN_ONESHOT)) == 2);
    CHECK((elsewhere = inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) >= 0);
    CHECK(inotify_add_watch(elsewhere, FAR, IN_DELETE) == 1);
    CHECK((self = (int)syscall(SYS_pidfd_open, getpid(), O_NONBLOCK)) >= 0);
    pid_t child = fork();
    if (child == 0) _exit(0);
    CHECK(child > 0 && (ended = (int)syscall(SYS_pidfd_open, child, 0)) >= 0 && waitpid(child, NULL, 0) == child);
}

/* A name that no file has: an earlier life may have been killed before it removed its own, and its round comes
 * again. */
static const char *fresh_name(char *path, const char *folder)
{
    snprintf(path, 64, "%s/n%012lx", folder, (unsigned long)now_ns() & 0xffffffffffff);
    return path + strlen(folder) + 1;
}

/* Removes a file, unless an earlier life has, right after its image. */
static void removed(const char *path, int fd, int wd, const char *name)
{
    if (unlink(path) == 0) expect(fd, wd, IN_DELETE, name);
    else CHECK(errno == ENOENT);
}

static void check_watches(void)
{
    char path[64];
    nothing(watcher);
    nothing(second);
    const char *name = fresh_name(path, "watched");
    touch(path);
    expect(watcher, folder_watch, IN_CREATE, name);
    removed(path, watcher, folder_watch, name);
    int fd = open("watched/file", O_WRONLY | O_TRUNC);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1);
    expect(watcher, file_watch, IN_MODIFY, "");
    CHECK(close(fd) == 0);
    expect(watcher, file_watch, IN_CLOSE_WRITE, "");
    name = fresh_name(path, "watched/a/b");
    touch(path);
    expect(second, deep_watch, IN_CREATE, name);
    expect(second, deep_watch, IN_OPEN, name);
    expect(second, deep_watch, IN_CLOSE_WRITE, name);
    removed(path, second, deep_watch, name);
    char byte;
    CHECK(read(second, &byte, 1) == -1);
}

static void check_processes(void)
{
    CHECK(inotify_add_watch(elsewhere, FAR, IN_DELETE) == 1); /* the same one */
    CHECK(syscall(SYS_pidfd_send_signal, self, 0, NULL, 0) == 0);
    CHECK(syscall(SYS_pidfd_send_signal, ended, 0, NULL, 0) == -1 && errno == ESRCH);
    CHECK((fcntl(self, F_GETFL) & O_NONBLOCK) != 0 && (fcntl(ended, F_GETFL) & O_NONBLOCK) == 0);
    struct pollfd p[2] = {{self, POLLIN, 0}, {ended, POLLIN, 0}};
    CHECK(poll(p, 2, 0) == 1 && p[0].revents == 0);
    int again = (int)syscall(SYS_pidfd_getfd, self, watcher, 0);
    CHECK(again >= 0 && close(again) == 0);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 60);
    open_all();
    for (long round = 0; round < rounds; round++) {
        step("watches round %ld", round);
        check_watches();
        check_processes();
        sleep_ms(40);
    }
    return pass();
}
