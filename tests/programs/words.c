/* Arguments and environment, in memory and as /proc shows them; changed as servers do that tell their state there.
 * `words [ROUNDS]` */
#include "rounds.h"
#include <fcntl.h>

static char *own_argument, **arguments;
static size_t room;

static size_t read_file(const char *path, char *to, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len = read(fd, to, size);
    CHECK(fd >= 0 && len >= 0 && close(fd) == 0);
    return (size_t)len;
}

static void one_round(long round)
{
    char text[4096], expected[64];
    snprintf(expected, sizeof expected, "%0*ld", (int)room, round - 1);
    if (round > 0) {
        size_t len = read_file("/proc/self/cmdline", text, sizeof text);
        size_t start = strlen(arguments[0]) + 1;
        CHECK(len == start + room + 1 + strlen(arguments[2]) + 1 && strcmp(text + start, expected) == 0);
        CHECK(strcmp(getenv("HOLDFAST_TEST_ROUND"), expected) == 0);
    }
    snprintf(expected, sizeof expected, "%0*ld", (int)room, round);
    memcpy(own_argument, expected, room);
    CHECK(setenv("HOLDFAST_TEST_ROUND", expected, 1) == 0);
    size_t len = read_file("/proc/self/environ", text, sizeof text);
    CHECK(memmem(text, len, "HOLDFAST_TEST_WORD=first", 24) != NULL);
    CHECK(strcmp(getenv("HOLDFAST_TEST_WORD"), "first") == 0 && getenv("HOLDFAST_TEST_GONE") == NULL);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        CHECK(setenv("HOLDFAST_TEST_WORD", "first", 1) == 0);
        execl("/proc/self/exe", argv[0], "00000000", argc > 1 ? argv[1] : "45", (char *)NULL);
        return 1;
    }
    arguments = argv;
    own_argument = argv[1];
    room = strlen(argv[1]);
    return run_rounds("words", number_argument(argc, argv, 2, 45), one_round);
}
