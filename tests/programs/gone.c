/* What lies in a folder that is there in one round and gone in the next: it is made anew with what was in it.
 * `gone KIND [ROUNDS]`
 * KIND: listener, dgram, accepted, fifo, cwd, dirfd, sharedmap, readonly (a child maps it for reading), reading,
 * writing, appended (more than an image has of it), unreadable, before (the folder of a socket had gone before) */
#include "rounds.h"
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

/* Others in each round: what a restart undoes may have left those of the next. */
static char outer[PATH_MAX + 32], inner[PATH_MAX + 48], thing[PATH_MAX + 64];

static int fd = -1, peer = -1, held = -1;
static char *memory;
static char start[PATH_MAX];

static mode_t mode_of(long round) { return round % 2 ? 0751 : 01770; }

static void name_all(long round)
{
    snprintf(outer, sizeof outer, "%s/gone.%ld", start, round);
    snprintf(inner, sizeof inner, "%s/inner", outer);
    snprintf(thing, sizeof thing, "%s/thing", inner);
}

/* An image may be of any moment: nothing is the program's before it has it open. */
static void make_folders(long round)
{
    name_all(round);
    do {
        CHECK(mkdir(outer, 0700) == 0 || errno == EEXIST);
        CHECK(mkdir(inner, 0700) == 0 || errno == EEXIST || errno == ENOENT);
        held = open(inner, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } while (held < 0 && errno == ENOENT);
    CHECK(held >= 0 && chmod(outer, 0711) == 0 && fchmod(held, mode_of(round)) == 0);
}

static void let_folders_be(void)
{
    if (held != -1) CHECK(close(held) == 0);
    held = -1;
}

/* What a restart undoes may have left one. */
static int create(int flags, mode_t mode)
{
    int file;
    while ((file = open(thing, flags | O_CREAT | O_EXCL | O_CLOEXEC, mode)) < 0 && errno == EEXIST) unlink(thing);
    CHECK(file >= 0);
    return file;
}

static void check_folders(long round)
{
    struct stat found;
    CHECK(stat(outer, &found) == 0 && (found.st_mode & 07777) == 0711 && found.st_uid == geteuid());
    CHECK(stat(inner, &found) == 0 && (found.st_mode & 07777) == mode_of(round));
}

static void remove_all(void)
{
    let_folders_be();
    CHECK(unlink(thing) == 0 || errno == ENOENT);
    /* Nothing of the program may be in them any more. */
    CHECK(rmdir(inner) == 0 || errno == ENOENT);
    CHECK(rmdir(outer) == 0 || errno == ENOENT);
}

static const struct sockaddr_un *name(void)
{
    static struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", thing + strlen(start) + 1);
    return &address;
}

static int made(int type, int (*act)(int, const struct sockaddr *, socklen_t))
{
    int made = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    CHECK(made >= 0);
    while (act(made, (const struct sockaddr *)name(), sizeof *name()) != 0) {
        CHECK(errno == EADDRINUSE && unlink(thing) == 0);
    }
    return made;
}

static void exchange(int from, int to)
{
    char byte = 'x';
    CHECK(write(from, &byte, 1) == 1 && read(to, &byte, 1) == 1 && byte == 'x');
}

static void listener_make(void)
{
    fd = made(SOCK_STREAM, bind);
    CHECK(listen(fd, 3) == 0 && chmod(thing, 0640) == 0);
}

static void listener_check(void)
{
    struct stat found;
    CHECK(stat(thing, &found) == 0 && S_ISSOCK(found.st_mode) && (found.st_mode & 07777) == 0640);
    int client = made(SOCK_STREAM, connect), server = accept(fd, NULL, NULL);
    CHECK(server >= 0);
    exchange(client, server);
    CHECK(close(client) == 0 && close(server) == 0);
}

static void dgram_make(void) { fd = made(SOCK_DGRAM, bind); }

static void dgram_check(void)
{
    int client = made(SOCK_DGRAM, connect);
    exchange(client, fd);
    CHECK(close(client) == 0);
}

static void accepted_make(void)
{
    int listener = made(SOCK_STREAM, bind);
    CHECK(listen(listener, 3) == 0);
    peer = made(SOCK_STREAM, connect);
    CHECK((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0 && close(listener) == 0);
}

static void accepted_check(void)
{
    exchange(peer, fd);
    exchange(fd, peer);
    CHECK(close(peer) == 0);
}

static void fifo_make(void)
{
    while (mkfifo(thing, 0600) != 0) CHECK(errno == EEXIST && unlink(thing) == 0);
    CHECK((fd = open(thing, O_RDWR | O_CLOEXEC)) >= 0 && write(fd, "y", 1) == 1 && fchmod(fd, 0620) == 0);
}

static void fifo_check(void)
{
    char byte;
    struct stat found;
    CHECK(read(fd, &byte, 1) == 1 && byte == 'y');
    CHECK(stat(thing, &found) == 0 && S_ISFIFO(found.st_mode) && (found.st_mode & 07777) == 0620);
}

static void cwd_make(void) { CHECK(chdir(inner) == 0); }

static void cwd_check(void)
{
    char here[PATH_MAX];
    CHECK(getcwd(here, sizeof here) != NULL && strcmp(here, inner) == 0);
    int file = open("thing", O_CREAT | O_WRONLY, 0600);
    CHECK(file >= 0 && close(file) == 0 && chdir(start) == 0);
}

static void dirfd_make(void) { CHECK((fd = open(inner, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0); }

static void dirfd_check(void)
{
    int file = openat(fd, "thing", O_CREAT | O_WRONLY, 0600);
    CHECK(file >= 0 && access(thing, F_OK) == 0 && close(file) == 0);
}

static void check_text(const char *expected)
{
    char text[7] = "";
    int file = open(thing, O_RDONLY);
    CHECK(file >= 0 && read(file, text, 6) == 6 && strcmp(text, expected) == 0 && close(file) == 0);
}

static void sharedmap_make(void)
{
    int file = create(O_RDWR, 0640);
    CHECK(ftruncate(file, 4096) == 0);
    CHECK((memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) != MAP_FAILED);
    CHECK(close(file) == 0);
    strcpy(memory, "shared");
}

static void sharedmap_check(void)
{
    check_text("shared");
    CHECK(strcmp(memory, "shared") == 0 && munmap(memory, 4096) == 0);
}

/* The child says what it sees, for each byte that it gets. */
static void show(int end)
{
    char byte;
    CHECK(munmap(memory, 8192) == 0);
    int file = open(thing, O_RDONLY | O_CLOEXEC);
    const char *shown = mmap(NULL, 8192, PROT_READ, MAP_SHARED, file, 0);
    CHECK(file >= 0 && shown != MAP_FAILED && close(file) == 0);
    while (read(end, &byte, 1) == 1) CHECK(write(end, shown + 4096, 1) == 1);
    _exit(0);
}

static char asked(void)
{
    char byte = 'x';
    CHECK(write(peer, &byte, 1) == 1 && read(peer, &byte, 1) == 1);
    return byte;
}

static void readonly_make(void)
{
    int file = create(O_RDWR, 0640), ends[2];
    CHECK(ftruncate(file, 8192) == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    CHECK((memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) != MAP_FAILED);
    CHECK(close(file) == 0);
    memory[4096] = 'a';
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(close(ends[0]) == 0);
        show(ends[1]);
    }
    CHECK(close(ends[1]) == 0);
    peer = ends[0];
    CHECK(asked() == 'a');
    memory[4096] = 'b';
}

static void readonly_check(void)
{
    int status;
    CHECK(asked() == 'b');
    memory[4096] = 'c';
    CHECK(asked() == 'c');
    CHECK(close(peer) == 0 && wait(&status) > 0 && status == 0 && munmap(memory, 8192) == 0);
}

static void reading_make(void)
{
    int file = create(O_WRONLY, 0600);
    char text[4] = "";
    CHECK(write(file, "abcdef", 6) == 6 && fchmod(file, 0640) == 0);
    CHECK((fd = open(thing, O_RDONLY | O_CLOEXEC)) >= 0 && read(fd, text, 3) == 3 && strcmp(text, "abc") == 0);
    CHECK(close(file) == 0);
}

static void reading_check(void)
{
    char text[4] = "";
    struct stat found;
    CHECK(read(fd, text, 3) == 3 && strcmp(text, "def") == 0);
    CHECK(stat(thing, &found) == 0 && (found.st_mode & 07777) == 0640);
    check_text("abcdef");
}

static void writing_make(void)
{
    CHECK(write(fd = create(O_WRONLY, 0640), "abc", 3) == 3);
}

static void writing_check(void)
{
    CHECK(write(fd, "def", 3) == 3);
    check_text("abcdef");
}

/* More than is kept in an image for the case that the file is gone. */
#define LARGE 300000

static void appended_make(void)
{
    static char much[LARGE];
    memset(much, 'a', sizeof much);
    fd = create(O_WRONLY | O_APPEND, 0640);
    CHECK(write(fd, much, sizeof much) == sizeof much);
}

static void appended_check(void)
{
    struct stat found;
    char text[4] = "";
    CHECK(write(fd, "def", 3) == 3 && stat(thing, &found) == 0 && (found.st_mode & 07777) == 0640);
    CHECK(found.st_size == LARGE + 3 || found.st_size == 3);
    int file = open(thing, O_RDONLY);
    CHECK(file >= 0 && pread(file, text, 3, found.st_size - 3) == 3 && strcmp(text, "def") == 0 && close(file) == 0);
}

static void unreadable_make(void)
{
    CHECK(write(fd = create(O_RDWR, 0440), "abc", 3) == 3);
}

static void unreadable_check(void)
{
    struct stat found;
    char text[7] = "";
    CHECK(write(fd, "def", 3) == 3 && pread(fd, text, 6, 0) == 6 && strcmp(text, "abcdef") == 0);
    CHECK(stat(thing, &found) == 0 && (found.st_mode & 07777) == 0440);
}

static void before_make(void)
{
    listener_make();
    remove_all();
}

static void before_check(void)
{
    struct sockaddr_un own;
    socklen_t len = sizeof own;
    CHECK(getsockname(fd, (struct sockaddr *)&own, &len) == 0 && strcmp(own.sun_path, name()->sun_path) == 0);
    CHECK(access(outer, F_OK) == -1 && errno == ENOENT);
}

static void turn(long round, void (*make)(void), void (*check)(void))
{
    if (round == 0) CHECK(getcwd(start, sizeof start) != NULL);
    umask(0);
    if (round > 0) {
        name_all(round - 1);
        if (check != before_check) check_folders(round - 1);
        check();
        if (check != before_check) remove_all();
        if (fd != -1) CHECK(close(fd) == 0);
        fd = -1;
    }
    make_folders(round);
    make();
    let_folders_be();
}

#define KIND(what) \
    static void what##_round(long round) { turn(round, what##_make, what##_check); }

KIND(listener)
KIND(dgram)
KIND(accepted)
KIND(fifo)
KIND(cwd)
KIND(dirfd)
KIND(sharedmap)
KIND(readonly)
KIND(reading)
KIND(writing)
KIND(appended)
KIND(unreadable)
KIND(before)

int main(int argc, char **argv)
{
    const struct kind kinds[] = {
        {"listener", NULL, listener_round}, {"dgram", NULL, dgram_round},
        {"accepted", NULL, accepted_round}, {"fifo", NULL, fifo_round},
        {"cwd", NULL, cwd_round},           {"dirfd", NULL, dirfd_round},
        {"sharedmap", NULL, sharedmap_round}, {"readonly", NULL, readonly_round},
        {"reading", NULL, reading_round},   {"writing", NULL, writing_round},
        {"appended", NULL, appended_round}, {"unreadable", NULL, unreadable_round},
        {"before", NULL, before_round},
    };
    return RUN_KIND(kinds);
}
