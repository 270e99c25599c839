/* A program that is in another directory in every round, by name and by descriptor, and has another umask; files that
 * it opens by relative names. `wandering [ROUNDS]` */
#include "rounds.h"
#include <fcntl.h>
#include <sys/stat.h>

#define FOLDERS 5
static int folders[FOLDERS], home;
static char top[4096];

static void one_round(long round)
{
    char name[32], here[4200], expected[4200];
    struct stat s;
    if (round > 0) {
        snprintf(expected, sizeof expected, "%s/wander-%ld", top, (round - 1) % FOLDERS);
        CHECK(getcwd(here, sizeof here) != NULL && strcmp(here, expected) == 0);
        CHECK(stat("mark", &s) == 0 && s.st_size == (round - 1) % FOLDERS);
        snprintf(name, sizeof name, "file-%ld", round - 1);
        int fd;
        /* Made already, maybe, in a life that had got further than its image. */
        while ((fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) < 0 && errno == EEXIST) unlink(name);
        CHECK(fd >= 0 && fstat(fd, &s) == 0 && (s.st_mode & 0777) == (0666 & ~(mode_t)((round - 1) % 8 * 8 + 2)));
        CHECK(close(fd) == 0);
    }
    snprintf(name, sizeof name, "wander-%ld", round % FOLDERS);
    if (round % 2) CHECK(fchdir(folders[round % FOLDERS]) == 0);
    else CHECK(fchdir(home) == 0 && chdir(name) == 0);
    umask((mode_t)(round % 8 * 8 + 2));
}

int main(int argc, char **argv)
{
    CHECK(getcwd(top, sizeof top) != NULL && (home = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
    for (int i = 0; i < FOLDERS; i++) {
        char name[64];
        snprintf(name, sizeof name, "wander-%d", i);
        CHECK(mkdir(name, 0755) == 0 && (folders[i] = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC)) >= 0);
        int mark = openat(folders[i], "mark", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        CHECK(mark >= 0 && write(mark, "12345", (size_t)i) == i && close(mark) == 0);
    }
    return run_rounds("wandering", number_argument(argc, argv, 1, 45), one_round);
}
