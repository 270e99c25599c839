/* One open file description in two processes: both append through it, read on from where the other stopped, and see the
 * flags that the other sets. `tree_offsets [ROUNDS]` */
#include "tree.h"
#include <sys/stat.h>

#define LINE 64

static int appended, copied, consumed, separate;

static void line_of(char *line, uint64_t number)
{
    snprintf(line, LINE + 1, "line %06lu %016lx %034d\n", (unsigned long)number, (unsigned long)mix(number), 0);
    CHECK(strlen(line) == LINE);
}

static void append(int fd, uint64_t number)
{
    char line[LINE + 1];
    line_of(line, number);
    CHECK(write(fd, line, LINE) == LINE);
}

static void consume(uint64_t number)
{
    char found[LINE], line[LINE + 1];
    line_of(line, number);
    CHECK(read(consumed, found, LINE) == LINE && memcmp(found, line, LINE) == 0);
}

/* The child appends and consumes every other line; its descriptor of the description is another number. */
static void append_in_turn(int in, int out, uint64_t number)
{
    uint64_t round;
    CHECK(close(appended) == 0);
    (void)number;
    while (hear_or_end(in, &round)) {
        CHECK(lseek(copied, 0, SEEK_CUR) == (off_t)(round * 2 + 1) * LINE);
        CHECK(((fcntl(copied, F_GETFL) & O_NONBLOCK) != 0) == (round % 2 == 0));
        append(copied, round * 2 + 1);
        consume(round * 2 + 1);
        CHECK(lseek(separate, 0, SEEK_CUR) == 10); /* the parent closed it: it is the child's alone */
        tell(out, round);
    }
}

static void open_all(void)
{
    CHECK((appended = open("tree_offsets.file", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) >= 0);
    CHECK((copied = dup(appended)) >= 0);
    CHECK((consumed = open("tree_offsets.file", O_RDONLY)) >= 0);
    CHECK((separate = open("tree_offsets.file", O_RDWR)) >= 0 && lseek(separate, 10, SEEK_SET) == 10);
}

static void check_all(uint64_t lines)
{
    char line[LINE + 1], found[LINE];
    struct stat file;
    CHECK(fstat(consumed, &file) == 0 && file.st_size == (off_t)lines * LINE);
    for (uint64_t i = 0; i < lines; i++) {
        line_of(line, i);
        CHECK(pread(consumed, found, LINE, (off_t)i * LINE) == LINE && memcmp(found, line, LINE) == 0);
    }
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    open_all();
    struct child *other = fork_child(append_in_turn, 0);
    CHECK(close(copied) == 0 && close(separate) == 0);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        CHECK(lseek(appended, 0, SEEK_CUR) == (off_t)round * 2 * LINE);
        append(appended, round * 2);
        consume(round * 2);
        CHECK(fcntl(appended, F_SETFL, round % 2 == 0 ? O_NONBLOCK : 0) == 0);
        sleep_ms(ROUND_MS / 2);
        tell(other->to, round);
        CHECK(hear(other->from) == round);
        sleep_ms(ROUND_MS / 2);
        step("offsets round %lu, file %ld", (unsigned long)round, (long)lseek(appended, 0, SEEK_CUR));
    }
    finish(other, 0);
    check_all((uint64_t)rounds * 2);
    return pass();
}
