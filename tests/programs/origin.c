/* Where the program's own text comes from: `origin KIND [ROUNDS]`
 * KIND: copy (a copy of the file, executed by a relative name), link (a symbolic link), descriptor (fexecve), deleted
 * (the file is deleted once it runs), memfd (it has never had a name) */
#include "rounds.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

static const char *kind;

static void one_round(long round)
{
    char link[4096] = "";
    (void)round;
    CHECK(readlink("/proc/self/exe", link, sizeof link - 1) > 0);
    if (strcmp(kind, "link") == 0) CHECK(strstr(link, "/programs/origin") != NULL);
    else if (strcmp(kind, "memfd") == 0) CHECK(strstr(link, "memfd:origin") != NULL);
    else CHECK(strstr(link, "/origin.copy") != NULL);
    if (strcmp(kind, "deleted") == 0) CHECK(strstr(link, "(deleted)") != NULL);
}

static void copy_to(int to)
{
    struct stat s;
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    CHECK(from >= 0 && fstat(from, &s) == 0 && sendfile(to, from, NULL, (size_t)s.st_size) == s.st_size
        && close(from) == 0);
}

static void again(char **argv)
{
    char *const arguments[] = {argv[0], argv[1], argv[1] == NULL ? NULL : argv[2], NULL};
    extern char **environ;
    int fd;
    CHECK(setenv("HOLDFAST_TEST_AGAIN", "1", 1) == 0);
    if (strcmp(kind, "memfd") == 0) {
        CHECK((fd = memfd_create("origin", MFD_CLOEXEC)) >= 0);
        copy_to(fd);
        fexecve(fd, arguments, environ);
    }
    if (strcmp(kind, "link") == 0) {
        char own[4096] = "";
        CHECK(readlink("/proc/self/exe", own, sizeof own - 1) > 0 && symlink(own, "origin.link") == 0);
        execv("./origin.link", arguments);
    }
    CHECK((fd = open("origin.copy", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755)) >= 0);
    copy_to(fd);
    CHECK(close(fd) == 0 && (fd = open("origin.copy", O_RDONLY | O_CLOEXEC)) >= 0);
    if (strcmp(kind, "descriptor") == 0) fexecve(fd, arguments, environ);
    execv("./origin.copy", arguments);
    CHECK(!"executed");
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    kind = argv[1];
    if (getenv("HOLDFAST_TEST_AGAIN") == NULL) again(argv);
    if (strcmp(kind, "deleted") == 0) CHECK(unlink("origin.copy") == 0);
    return run_rounds(kind, number_argument(argc, argv, 2, 45), one_round);
}
