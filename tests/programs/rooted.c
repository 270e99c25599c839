/* A program, or a child of it, with a root directory of its own: `rooted KIND ROUNDS`
 * KIND: inside (its folder too), outside (its folder is not below it), child (whose parent has the job's root) */
#include "rounds.h"
#include <fcntl.h>
#include <sys/stat.h>

static int ask[2], told[2], log_file;

static void write_file(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    CHECK(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) && close(file) == 0);
}

static void jail(void)
{
    CHECK(mkdir("rooted.jail", 0755) == 0 || errno == EEXIST);
    write_file("rooted.jail/marker", "in the jail");
    if (chroot("rooted.jail") != 0) not_here("chroot");
    log_file = open("/log", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
    CHECK(log_file >= 0);
}

static void go_inside(void)
{
    jail();
    CHECK(chdir("/") == 0);
}

/* Nothing of the host is there, and what is there is what was there. */
static void look(long round)
{
    struct stat found;
    char name[64];
    CHECK(stat("/etc/passwd", &found) != 0 && errno == ENOENT && stat("/marker", &found) == 0);
    CHECK(stat("/..", &found) == 0);
    ino_t root = found.st_ino;
    CHECK(stat("/", &found) == 0 && found.st_ino == root);
    CHECK(write(log_file, "line\n", 5) == 5 && stat("/log", &found) == 0 && found.st_size == 5 * (round + 1));
    snprintf(name, sizeof name, "/round.%ld", round);
    write_file(name, "x");
    // An image may be of a moment after the one, and be restarted after the other.
    CHECK(unlink(name) == 0 || errno == ENOENT);
}

static void inside(long round)
{
    char folder[64];
    look(round);
    CHECK(getcwd(folder, sizeof folder) != NULL && strcmp(folder, "/") == 0);
}

/* Names that do not begin with a slash begin outside. */
static void outside(long round)
{
    struct stat found;
    look(round);
    CHECK(stat("rooted.jail/marker", &found) == 0 && stat("marker", &found) != 0);
}

static void make_child(void)
{
    long round;
    CHECK(pipe(ask) == 0 && pipe(told) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return;
    close(ask[1]);
    go_inside();
    while (read(ask[0], &round, sizeof round) == sizeof round) {
        inside(round);
        CHECK(write(told[1], &round, sizeof round) == sizeof round);
    }
    _exit(0);
}

static void child(long round)
{
    long answer;
    struct stat found;
    CHECK(write(ask[1], &round, sizeof round) == sizeof round);
    CHECK(read(told[0], &answer, sizeof answer) == sizeof answer && answer == round);
    CHECK(stat("/etc/passwd", &found) == 0 && stat("rooted.jail/marker", &found) == 0);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {
        {"inside", go_inside, inside}, {"outside", jail, outside}, {"child", make_child, child}};
    return RUN_KIND(kinds);
}
