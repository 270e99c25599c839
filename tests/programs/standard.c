/* Standard streams that are not what they were at the start: `standard KIND [ROUNDS]`
 * KIND: closed (0 and 2 are closed, and stay so), reopened (0 is a file, read in pieces), copied (the output under
 * other numbers), piped (0 is a pipe of the program's own) */
#include "rounds.h"
#include <fcntl.h>

static int copy;

static void closed_prepare(void) { CHECK(close(0) == 0 && close(2) == 0); }
static void closed_round(long round)
{
    (void)round;
    CHECK(fcntl(0, F_GETFD) == -1 && errno == EBADF && fcntl(2, F_GETFD) == -1 && errno == EBADF);
    int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK(lowest == 0 && close(0) == 0);
}

static void reopened_prepare(void)
{
    FILE *file = fopen("standard.file", "we");
    CHECK(file != NULL);
    for (int i = 0; i < 45; i++) CHECK(fprintf(file, "line %d\n", i) > 0);
    CHECK(fclose(file) == 0 && freopen("standard.file", "r", stdin) != NULL && setvbuf(stdin, NULL, _IOFBF, 64) == 0
        && fileno(stdin) == 0);
}

static void reopened_round(long round)
{
    long value = -1;
    CHECK(scanf("line %ld\n", &value) == 1 && value == round);
}

static void copied_prepare(void) { CHECK((copy = fcntl(1, F_DUPFD_CLOEXEC, 90)) >= 90); }
static void copied_round(long round)
{
    CHECK(dprintf(copy, "copied %ld\n", round) > 0);
    CHECK(lseek(copy, 0, SEEK_CUR) == lseek(1, 0, SEEK_CUR));
}

static void piped_prepare(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0 && dup2(ends[0], 0) == 0 && close(ends[0]) == 0);
    copy = ends[1];
}

static void piped_round(long round)
{
    long value;
    if (round > 0) CHECK(read(0, &value, sizeof value) == sizeof value && value == round - 1);
    CHECK(write(copy, &round, sizeof round) == sizeof round);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"closed", closed_prepare, closed_round},
                                        {"reopened", reopened_prepare, reopened_round},
                                        {"copied", copied_prepare, copied_round},
                                        {"piped", piped_prepare, piped_round}};
    return RUN_KIND(kinds);
}
