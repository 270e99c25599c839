/* Many descriptors: 600 of them, with numbers up to 4000, holes between them, some that share a file's position and
 * some that do not; every round closes, moves and duplicates a few. `descriptors [ROUNDS [high]]`; high: the numbers
 * are the last ones that the hard limit allows. */
#include "rounds.h"
#include <fcntl.h>
#include <sys/resource.h>

#define COUNT 600
static int numbers[COUNT];

static int first = 100;

static int number_of(long which, long round) { return first + (int)(mix((uint64_t)(which * 1000 + round)) % 3900); }

static int free_number(long which, long round)
{
    int number = number_of(which, round);
    while (fcntl(number, F_GETFD) != -1) number = first + (number - first + 1) % 3900;
    return number;
}

static void one_round(long round)
{
    for (long which = 0; which < COUNT; which++) {
        CHECK(fcntl(numbers[which], F_GETFD) == (which % 3 ? FD_CLOEXEC : 0));
        /* those of one ten share a position */
        CHECK(lseek(numbers[which], 0, SEEK_CUR) == (which / 10 * 10 + round) % 1000);
    }
    for (long ten = 0; ten < COUNT; ten += 10)
        CHECK(lseek(numbers[ten + round % 10], (ten + round + 1) % 1000, SEEK_SET) >= 0);
    for (long which = round % 13; which < COUNT; which += 13) {
        int number = free_number(which, round);
        CHECK(dup3(numbers[which], number, which % 3 ? O_CLOEXEC : 0) == number && close(numbers[which]) == 0);
        numbers[which] = number;
    }
    int lowest = dup(0);
    CHECK(lowest >= 0 && lowest < 100 && close(lowest) == 0);
}

int main(int argc, char **argv)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 4096;
    if (argc > 2) {
        limit.rlim_cur = limit.rlim_max < 1 << 20 ? limit.rlim_max : 1 << 20;
        first = (int)limit.rlim_cur - 3900;
    }
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int file = open("descriptors.file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(file >= 0 && ftruncate(file, 5000) == 0);
    for (long which = 0; which < COUNT; which++) {
        if (which % 10 == 0) {
            CHECK(close(file) == 0 && (file = open("descriptors.file", O_RDWR | O_CLOEXEC)) >= 0);
            CHECK(lseek(file, which % 1000, SEEK_SET) == which % 1000);
        }
        numbers[which] = free_number(which, 1000);
        CHECK(dup3(file, numbers[which], which % 3 ? O_CLOEXEC : 0) == numbers[which]);
    }
    CHECK(close(file) == 0);
    return run_rounds("descriptors", number_argument(argc, argv, 1, 45), one_round);
}
