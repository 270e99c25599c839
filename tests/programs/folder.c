/* A current directory that was removed: alone, with the one above it, or with its name taken by another; and the umask.
 * `folder [ROUNDS]` */
#include "common.h"
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

static char base[PATH_MAX];

/* It may be there already: made by the life that was killed after the image. */
static int is_made(const char *name)
{
    return mkdir(name, 0755) == 0 || errno == EEXIST;
}

static void enter_and_remove(long round)
{
    CHECK(chdir(base) == 0);
    rmdir("taken");
    const char *name = round % 3 == 0 ? "gone" : round % 3 == 1 ? "above/gone" : "taken";
    if (round % 3 == 1) CHECK(is_made("above"));
    CHECK(is_made(name) && chmod(name, round % 2 ? 0751 : 0700) == 0);
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/%s", base, name);
    CHECK(chdir(path) == 0 && rmdir(path) == 0);
    snprintf(path, sizeof path, "%s/above", base);
    if (round % 3 == 1) CHECK(rmdir(path) == 0);
    snprintf(path, sizeof path, "%s/taken", base);
    if (round % 3 == 2) CHECK(is_made(path));
}

static void check_removed(long round)
{
    char path[PATH_MAX];
    CHECK(getcwd(path, sizeof path) == NULL && errno == ENOENT);
    CHECK(open("file", O_CREAT | O_RDWR, 0600) == -1 && errno == ENOENT);
    CHECK(mkdir("folder", 0700) == -1 && errno == ENOENT);
    struct stat here, above, expected;
    CHECK(stat(".", &here) == 0 && S_ISDIR(here.st_mode));
    CHECK((here.st_mode & 07777) == (round % 2 ? 0751 : 0700));
    CHECK(stat("..", &above) == 0 && stat(base, &expected) == 0);
    CHECK((above.st_ino == expected.st_ino && above.st_dev == expected.st_dev) == (round % 3 != 1));
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 30);
    CHECK(getcwd(base, sizeof base) != NULL);
    umask(0);
    for (long round = 0; round < rounds; round++) {
        step("folder round %ld", round);
        enter_and_remove(round);
        mode_t mask = (mode_t)(round * 5 & 077);
        umask(mask);
        for (int look = 0; look < 4; look++) {
            sleep_ms(20);
            check_removed(round);
        }
        CHECK(umask(0) == mask);
    }
    CHECK(chdir(base) == 0);
    rmdir("taken");
    return pass();
}
