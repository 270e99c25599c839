/* How a file is open: `opened KIND [ROUNDS]`
 * KIND: path (O_PATH), flags (O_SYNC, O_NOATIME, O_NONBLOCK, O_ASYNC … changed by fcntl), owner (F_SETOWN, F_SETSIG:
 * who gets which signal), listing (a directory that is read in the middle), reading (a read-only file whose mode was
 * changed since), namespaces (those of the process itself, in /proc/self/ns), places (a symbolic link itself, a folder
 * that was removed), others (files of /proc about a child that runs and one that has ended), kernel (netlink) */
#include "rounds.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

static int one, two;

static void path_prepare(void)
{
    CHECK(mkdir("of-path", 0700) == 0 && close(open("of-path/file", O_CREAT | O_WRONLY, 0000)) == 0);
    CHECK((one = open("of-path", O_PATH | O_CLOEXEC)) >= 0 && (two = openat(one, "file", O_PATH)) >= 0);
}

static void path_round(long round)
{
    struct stat s;
    char byte;
    (void)round;
    CHECK(fstat(two, &s) == 0 && S_ISREG(s.st_mode) && fstatat(one, "file", &s, 0) == 0);
    CHECK(read(two, &byte, 1) == -1 && errno == EBADF);
    CHECK((fcntl(one, F_GETFL) & O_PATH) != 0 && (fcntl(two, F_GETFL) & O_PATH) != 0);
    CHECK(fcntl(one, F_GETFD) == FD_CLOEXEC && fcntl(two, F_GETFD) == 0);
}

static void flags_prepare(void)
{
    CHECK((one = open("of-flags", O_RDWR | O_CREAT | O_SYNC | O_NOATIME | O_CLOEXEC, 0600)) >= 0);
    CHECK((two = open("of-flags", O_RDWR | O_DSYNC | O_NOFOLLOW)) >= 0);
}

static int set_of_flags(long round) { return (round % 2 ? O_NONBLOCK : 0) | (round % 3 ? O_APPEND : 0); }
static void flags_round(long round)
{
    int now = fcntl(one, F_GETFL);
    CHECK((now & O_SYNC) == O_SYNC && (now & O_NOATIME) && (fcntl(two, F_GETFL) & O_SYNC) == O_DSYNC);
    if (round > 0) CHECK((now & (O_NONBLOCK | O_APPEND)) == set_of_flags(round - 1));
    CHECK(fcntl(one, F_SETFL, set_of_flags(round) | O_NOATIME) == 0);
}

static volatile sig_atomic_t told;
static void tell(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    if (info->si_fd == one) told++;
}

static void owner_prepare(void)
{
    int pair[2];
    struct sigaction action = {.sa_sigaction = tell, .sa_flags = SA_SIGINFO | SA_RESTART};
    CHECK(sigaction(SIGRTMIN + 5, &action, NULL) == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    one = pair[0];
    two = pair[1];
    CHECK(fcntl(one, F_SETOWN, getpid()) == 0 && fcntl(one, F_SETSIG, SIGRTMIN + 5) == 0);
    CHECK(fcntl(one, F_SETFL, O_ASYNC | O_NONBLOCK) == 0);
}

static void owner_round(long round)
{
    char byte;
    (void)round;
    CHECK(fcntl(one, F_GETOWN) == getpid() && fcntl(one, F_GETSIG) == SIGRTMIN + 5 && (fcntl(one, F_GETFL) & O_ASYNC));
    told = 0;
    CHECK(write(two, "x", 1) == 1);
    while (told == 0) usleep(1000);
    CHECK(read(one, &byte, 1) == 1);
}

#define ENTRIES 200
static DIR *folder;
static char seen[ENTRIES];
static void listing_prepare(void)
{
    CHECK(mkdir("of-listing", 0700) == 0 && (one = open("of-listing", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
    for (int i = 0; i < ENTRIES; i++) {
        char name[64]; /* long names: they do not come in one piece */
        snprintf(name, sizeof name, "entry-with-a-rather-long-name-so-that-it-takes-room-%d", i);
        CHECK(close(openat(one, name, O_WRONLY | O_CREAT, 0600)) == 0);
    }
    CHECK((folder = opendir("of-listing")) != NULL);
}

static void listing_round(long round)
{
    for (int i = 0; i < 5; i++) {
        struct dirent *entry = readdir(folder);
        if (entry == NULL) break;
        if (entry->d_name[0] == '.') continue;
        int number = atoi(strrchr(entry->d_name, '-') + 1);
        CHECK(number >= 0 && number < ENTRIES && !seen[number]);
        seen[number] = 1;
    }
    if (round == 44)
        for (int i = 0; i < ENTRIES; i++) CHECK(seen[i]);
}

static void reading_prepare(void)
{
    CHECK((two = open("of-reading", O_RDWR | O_CREAT, 0600)) >= 0 && write(two, "still there", 11) == 11
        && close(two) == 0);
    CHECK((one = open("of-reading", O_RDONLY | O_CLOEXEC)) >= 0 && chmod("of-reading", 0400) == 0);
}

static void reading_round(long round)
{
    char text[16] = "";
    CHECK(pread(one, text, sizeof text, 0) == 11 && strcmp(text, "still there") == 0);
    CHECK(lseek(one, 0, SEEK_CUR) == (round == 0 ? 0 : (round - 1) % 11)
        && lseek(one, round % 11, SEEK_SET) == round % 11);
}

/* Those that it is in; some restarts make a new one of some kinds. */
static const char *const namespaces[] = {"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"};
enum { NAMESPACES = sizeof namespaces / sizeof namespaces[0] };
static int entered[NAMESPACES];
static void namespace_path(char *path, size_t room, int at) {
    snprintf(path, room, "/proc/self/ns/%s", namespaces[at]);
}

static void namespaces_prepare(void)
{
    char path[64];
    for (int i = 0; i < NAMESPACES; i++) {
        namespace_path(path, sizeof path, i);
        CHECK((entered[i] = open(path, O_RDONLY | O_CLOEXEC)) >= 0);
    }
}

static void namespaces_round(long round)
{
    struct stat open_one, own;
    char path[64];
    (void)round;
    for (int i = 0; i < NAMESPACES; i++) {
        namespace_path(path, sizeof path, i);
        CHECK(fstat(entered[i], &open_one) == 0 && stat(path, &own) == 0);
        CHECK(open_one.st_ino == own.st_ino && open_one.st_dev == own.st_dev);
    }
}

static void places_prepare(void)
{
    CHECK(symlink("nowhere", "of-places.link") == 0 && mkdir("of-places", 0750) == 0);
    CHECK((one = open("of-places.link", O_PATH | O_NOFOLLOW | O_CLOEXEC)) >= 0);
    CHECK((two = open("of-places", O_RDONLY | O_DIRECTORY)) >= 0 && rmdir("of-places") == 0);
}

static void places_round(long round)
{
    struct stat s;
    char text[16] = "";
    (void)round;
    CHECK(fstat(one, &s) == 0 && S_ISLNK(s.st_mode) && readlinkat(one, "", text, sizeof text) == 7);
    CHECK(strcmp(text, "nowhere") == 0 && (fcntl(one, F_GETFL) & (O_PATH | O_NOFOLLOW)) != 0);
    CHECK(fstat(two, &s) == 0 && S_ISDIR(s.st_mode) && s.st_nlink == 0 && (s.st_mode & 0777) == 0750);
    CHECK(openat(two, "file", O_RDWR | O_CREAT, 0600) == -1 && errno == ENOENT && access("of-places", F_OK) == -1);
}

static int ended, of_folder;
static pid_t kept;
static void others_prepare(void)
{
    char path[64];
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(0);
    snprintf(path, sizeof path, "/proc/%d/stat", child);
    CHECK((ended = open(path, O_RDONLY | O_CLOEXEC)) >= 0 && waitpid(child, NULL, 0) == child);
    CHECK((kept = fork()) >= 0);
    if (kept == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        for (;;) pause();
    }
    snprintf(path, sizeof path, "/proc/%d/stat", kept);
    CHECK((one = open(path, O_RDONLY)) >= 0);
    snprintf(path, sizeof path, "/proc/%d", kept);
    CHECK((of_folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
}

static void others_round(long round)
{
    char text[64] = "";
    (void)round;
    CHECK(pread(one, text, sizeof text - 1, 0) > 0 && atoi(text) == kept);
    CHECK((two = openat(of_folder, "stat", O_RDONLY)) >= 0 && read(two, text, sizeof text - 1) > 0 && close(two) == 0);
    CHECK(atoi(text) == kept && pread(ended, text, sizeof text, 0) == -1 && errno == ESRCH);
}

static void kernel_prepare(void)
{
    CHECK((one = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 4 /* NETLINK_SOCK_DIAG */)) >= 0);
    if ((two = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 9 /* NETLINK_AUDIT */)) < 0) not_here("NETLINK_AUDIT");
}

static void kernel_round(long round)
{
    int protocol;
    socklen_t len = sizeof protocol;
    (void)round;
    CHECK(getsockopt(one, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0 && protocol == 4);
    CHECK(getsockopt(two, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0 && protocol == 9);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"path", path_prepare, path_round}, {"flags", flags_prepare, flags_round},
                                        {"owner", owner_prepare, owner_round},
                                        {"listing", listing_prepare, listing_round},
                                        {"reading", reading_prepare, reading_round},
                                        {"namespaces", namespaces_prepare, namespaces_round},
                                        {"places", places_prepare, places_round},
                                        {"others", others_prepare, others_round},
                                        {"kernel", kernel_prepare, kernel_round}};
    return RUN_KIND(kinds);
}
