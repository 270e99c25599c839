/* A program, or a child of it, in a mount namespace of its own: `mounted KIND ROUNDS`
 * KIND: copy (the job's mounts and more), root (as root of a user namespace), pivot (another root), child (copy, in a
 * child) */
#include "apart.h"
#include <dirent.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define WORDS 1024

static int log_file, folder_file, closed_file;
static long *shared, *private;
static char home[4096];

/* A folder of the job's that is there and empty. */
static void folder(const char *name) { CHECK(mkdir(name, 0755) == 0 || errno == EEXIST); }

static void write_new(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0640);
    CHECK(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) && close(file) == 0);
}

static int holds(const char *path, const char *text)
{
    char found[64] = "";
    int file = open(path, O_RDONLY);
    if (file < 0) return 0;
    ssize_t len = read(file, found, sizeof found - 1);
    CHECK(close(file) == 0);
    return len == (ssize_t)strlen(text) && strcmp(found, text) == 0;
}

/* The working folder is on a file system that is nowhere else, and so are open and mapped files. */
static void fill(void)
{
    struct stat found;
    folder("below");
    write_new("below/first", "first");
    CHECK(link("below/first", "second") == 0 && symlink("below/first", "link") == 0 && mkfifo("fifo", 0600) == 0);
    CHECK(chmod("below", 01750) == 0);
    log_file = open("log", O_RDWR | O_CREAT | O_APPEND, 0600);
    folder_file = open("below", O_RDONLY | O_DIRECTORY);
    int words = open("words", O_RDWR | O_CREAT, 0600);
    CHECK(log_file >= 0 && folder_file >= 0 && words >= 0 && ftruncate(words, WORDS * sizeof(long)) == 0);
    shared = mmap(NULL, WORDS * sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, words, 0);
    private = mmap(NULL, WORDS * sizeof(long), PROT_READ | PROT_WRITE, MAP_PRIVATE, words, 0);
    CHECK(shared != MAP_FAILED && private != MAP_FAILED && close(words) == 0);
    closed_file = open("gone", O_RDWR | O_CREAT, 0600);
    CHECK(closed_file >= 0 && write(closed_file, "gone", 4) == 4 && unlink("gone") == 0);
    CHECK(fstat(log_file, &found) == 0 && S_ISREG(found.st_mode));
}

/* The job's mounts, a file system on a folder, a part of it that cannot be written to, and a file over another. */
static void mounts(void)
{
    CHECK(getcwd(home, sizeof home) != NULL);
    folder("mounted.own"), folder("mounted.part");
    write_new("mounted.over", "under"), write_new("mounted.file", "over");
    CHECK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    CHECK(mount("own", "mounted.own", "tmpfs", MS_NOSUID | MS_NODEV, "size=8m,mode=0751") == 0);
    CHECK(chdir("mounted.own") == 0);
    fill();
    CHECK(mount("below", "../mounted.part", NULL, MS_BIND, NULL) == 0);
    CHECK(mount(NULL, "../mounted.part", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) == 0);
    CHECK(mount("../mounted.file", "../mounted.over", NULL, MS_BIND, NULL) == 0);
}

static void copy(void)
{
    leave_for(CLONE_NEWNS, 0, 0);
    mounts();
}

static void as_root(void)
{
    leave_for(CLONE_NEWNS | CLONE_NEWUSER, 0, 0);
    mounts();
}

static void look(long round)
{
    struct stat here, own;
    char name[64], now[4096], path[4096 + 64];
    snprintf(path, sizeof path, "%s/mounted.own", home);
    CHECK(getcwd(now, sizeof now) != NULL && strcmp(now, path) == 0);
    CHECK(stat(".", &here) == 0 && stat(path, &own) == 0 && here.st_ino == own.st_ino && here.st_dev == own.st_dev);
    CHECK((here.st_mode & 07777) == 0751);
    /* All that is open is of that file system, and one with what has the names. */
    CHECK(fstat(log_file, &own) == 0 && own.st_dev == here.st_dev);
    CHECK(write(log_file, "line\n", 5) == 5 && stat("log", &own) == 0 && own.st_size == 5 * (round + 1));
    CHECK(stat("below/first", &own) == 0 && own.st_nlink == 2 && (own.st_mode & 07777) == 0640);
    CHECK(fstatat(folder_file, "first", &here, 0) == 0 && here.st_ino == own.st_ino && here.st_dev == own.st_dev);
    CHECK(fstatat(folder_file, "../second", &here, 0) == 0 && here.st_ino == own.st_ino);
    CHECK(holds("link", "first") && stat("fifo", &here) == 0 && S_ISFIFO(here.st_mode));
    CHECK(stat("below", &here) == 0 && (here.st_mode & 07777) == 01750);
    CHECK(holds("../mounted.part/first", "first") && holds("../mounted.over", "over"));
    CHECK(open("../mounted.part/new", O_WRONLY | O_CREAT, 0600) == -1 && errno == EROFS);
    for (long i = 0; i < WORDS; i++) {
        CHECK(shared[i] == (round == 0 ? 0 : i + round - 1) && private[i] == (round == 0 ? 0 : i - round + 1));
        shared[i] = i + round, private[i] = i - round;
    }
    int words = open("words", O_RDONLY);
    CHECK(words >= 0 && pread(words, now, sizeof(long), sizeof(long)) == sizeof(long) && close(words) == 0);
    CHECK(memcmp(now, &shared[1], sizeof(long)) == 0);
    CHECK(pread(closed_file, now, 4, 0) == 4 && memcmp(now, "gone", 4) == 0);
    snprintf(name, sizeof name, "round.%ld", round);
    write_new(name, "round");
    snprintf(name, sizeof name, "round.%ld", round - 1);
    CHECK(round == 0 || (holds(name, "round") && unlink(name) == 0));
}

/* All that the job sees but /mnt, below a root that is nowhere else. */
static void pivot(void)
{
    char target[300], at[300];
    leave_for(CLONE_NEWNS, 0, 0);
    CHECK(getcwd(home, sizeof home) != NULL);
    folder("mounted.own");
    CHECK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    CHECK(mount("root", "mounted.own", "tmpfs", MS_NOSUID, "mode=0755") == 0);
    CHECK(chdir("mounted.own") == 0);
    DIR *root = opendir("/");
    CHECK(root != NULL);
    for (struct dirent *one; (one = readdir(root)) != NULL;) {
        struct stat found;
        if (one->d_name[0] == '.' || strcmp(one->d_name, "mnt") == 0) continue;
        snprintf(at, sizeof at, "/%s", one->d_name);
        if (lstat(at, &found) != 0) continue;
        if (S_ISLNK(found.st_mode)) {
            ssize_t len = readlink(at, target, sizeof target - 1);
            CHECK(len > 0);
            target[len] = 0;
            CHECK(symlink(target, one->d_name) == 0);
        } else if (S_ISDIR(found.st_mode)) {
            folder(one->d_name);
            CHECK(mount(at, one->d_name, NULL, MS_BIND | MS_REC, NULL) == 0);
        }
    }
    CHECK(closedir(root) == 0);
    folder("mnt");
    CHECK(mount("/usr", "mnt", NULL, MS_BIND, NULL) == 0 || mount("/usr", "mnt", NULL, MS_BIND | MS_REC, NULL) == 0);
    CHECK(syscall(SYS_pivot_root, ".", ".") == 0 && umount2(".", MNT_DETACH) == 0 && chdir("/") == 0);
    write_new("/marker", "marker");
    CHECK(chmod("/marker", 0400) == 0);
    CHECK(chdir("/mnt/bin") == 0);
    folder_file = open("/mnt/lib", O_RDONLY | O_DIRECTORY);
    closed_file = open("/marker", O_RDONLY);
    snprintf(at, sizeof at, "%.200s/mounted.log", home);
    log_file = open(at, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
    CHECK(folder_file >= 0 && closed_file >= 0 && log_file >= 0);
}

static void look_around(long round)
{
    struct stat here, there;
    char now[4096];
    CHECK(getcwd(now, sizeof now) != NULL && strcmp(now, "/mnt/bin") == 0);
    CHECK(stat(".", &here) == 0 && stat("/usr/bin", &there) == 0 && here.st_ino == there.st_ino);
    CHECK(fstatat(folder_file, "../../marker", &here, 0) == 0 && fstat(closed_file, &there) == 0);
    CHECK(here.st_ino == there.st_ino && here.st_dev == there.st_dev && (here.st_mode & 07777) == 0400);
    CHECK(stat("/", &there) == 0 && there.st_dev == here.st_dev && holds("/marker", "marker"));
    snprintf(now, sizeof now, "%.200s/mounted.log", home);
    CHECK(write(log_file, "line\n", 5) == 5 && stat(now, &here) == 0 && here.st_size == 5 * (round + 1));
}

static void make_child(void)
{
    make_child_in(as_root, look);
}

static void child(long round)
{
    ask_child(round);
    CHECK(access("mounted.own/log", F_OK) != 0 && holds("mounted.over", "under"));
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {
        {"copy", copy, look}, {"root", as_root, look}, {"pivot", pivot, look_around}, {"child", make_child, child}};
    return RUN_KIND(kinds);
}
