/* Files that get another name while or after they are written, as programs do that want to leave whole files only:
 * always the same name while they are written, one of their own then. One is written on and read after its renaming, as
 * logs are. `renamed [FILES]` */
#include "common.h"
#include <fcntl.h>
#include <sys/stat.h>

#define PIECES 5
#define LEN 900

static void piece(char *text, long file, int number)
{
    for (int i = 0; i < LEN; i++) text[i] = (char)('a' + mix((uint64_t)(file * 10000 + number * LEN + i)) % 26);
    text[LEN - 1] = '\n';
}

static void append(int fd, long file, int number)
{
    char text[LEN];
    piece(text, file, number);
    CHECK(write(fd, text, LEN) == LEN);
    sleep_ms(7);
}

static void check(const char *name, long file, int pieces)
{
    char right[LEN], found[LEN + 1];
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    for (int number = 0; number < pieces; number++) {
        piece(right, file, number);
        CHECK(read(fd, found, LEN) == LEN && memcmp(right, found, LEN) == 0);
    }
    CHECK(read(fd, found, 1) == 0 && close(fd) == 0);
}

/* A restart finds done what was done after the checkpoint to files that are not open. */
static void rename_once(const char *from, const char *to)
{
    CHECK(rename(from, to) == 0 || (errno == ENOENT && access(to, F_OK) == 0));
}

int main(int argc, char **argv)
{
    long files = number_argument(argc, argv, 1, 40);
    for (long file = 0; file < files; file++) {
        char name[64], text[LEN], right[LEN];
        int part = open("part", O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0640);
        int log = open("log", O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
        int reader = open("log", O_RDONLY | O_CLOEXEC);
        CHECK(part >= 0 && log >= 0 && reader >= 0);
        for (int number = 0; number < PIECES; number++) {
            append(part, file, number);
            append(log, file + 1000, number);
            piece(right, file + 1000, number);
            CHECK(read(reader, text, LEN) == LEN && memcmp(text, right, LEN) == 0);
        }
        CHECK(close(part) == 0);
        snprintf(name, sizeof name, "whole-%ld", file);
        rename_once("part", name);
        check(name, file, PIECES);
        snprintf(name, sizeof name, "log-%ld", file);
        rename_once("log", name);
        append(log, file + 1000, PIECES);
        piece(right, file + 1000, PIECES);
        CHECK(read(reader, text, LEN) == LEN && memcmp(text, right, LEN) == 0 && close(reader) == 0);
        check(name, file + 1000, PIECES + 1);
        CHECK(close(log) == 0);
        step("file %ld", file);
    }
    return pass();
}
