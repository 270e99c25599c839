/* RANKS processes of one set, each of which puts an object of BYTES every PERIOD milliseconds until it is killed, and
 * notes in LOG.RANK what it was told: "put V" when holdfast_put has returned, "safe V" for each eighth when
 * holdfast_wait has (even ranks), or holdfast_finished has said that it would (odd ones).
 * `load OPTIONS RANKS BYTES LOG put PERIOD`
 * Afterwards: the newest version of each rank, and every one that is named, has the bytes that were put.
 * `load OPTIONS RANKS BYTES LOG check [VERSION...]` prints a line for each rank: its newest version, or what is wrong.
 */
#include <holdfast.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t words;
static unsigned long *object;
static int rank;

static unsigned long word(long long version, size_t at)
{
    return (at + rank * 1000003ul) * 0x9E3779B97F4A7C15ul ^ (at % 64 ? 0 : version * 0x9E3779B1ul);
}

static void say(int log, const char *what, long long version)
{
    char line[64];
    int len = snprintf(line, sizeof line, "%s %lld\n", what, version);
    if (write(log, line, len) != len) exit(2);
}

static void put(holdfast_objects *set, int log, int period)
{
    for (long long version = 1;; version++) {
        for (size_t at = 0; at < words; at++) object[at] = word(version, at);
        if (holdfast_put(set, version)) {
            fprintf(stderr, "rank %d: put %lld: %s\n", rank, version, holdfast_error(set));
            exit(1);
        }
        say(log, "put", version);
        if (rank % 2 == 0 && version % 8 == 0 && holdfast_wait(set)) {
            fprintf(stderr, "rank %d: wait %lld: %s\n", rank, version, holdfast_error(set));
            exit(1);
        }
        while (rank % 2 && version % 8 == 0 && holdfast_finished(set) == 0) usleep(1000);
        if (version % 8 == 0) say(log, "safe", version);
        usleep(period * 1000);
    }
}

static int is_there(holdfast_objects *set, long long version)
{
    memset(object, 0, words * sizeof *object);
    if (holdfast_restore(set, version)) {
        printf("%d version %lld: %s\n", rank, version, holdfast_error(set));
        return 0;
    }
    for (size_t at = 0; at < words; at++) {
        if (object[at] == word(version, at)) continue;
        printf("%d WRONG version %lld word %zu\n", rank, version, at);
        return 0;
    }
    return 1;
}

static void check(holdfast_objects *set, int count, char **versions)
{
    long long newest = holdfast_newest(set, HOLDFAST_ANY);
    if (newest == HOLDFAST_E_NOT_FOUND) {
        printf("%d 0\n", rank);
        return;
    }
    for (int at = 0; at < count; at++)
        if (!is_there(set, atoll(versions[at]))) return;
    if (is_there(set, newest)) printf("%d %lld\n", rank, newest);
}

int main(int argc, char **argv)
{
    if (argc < 6) return 64;
    int ranks = atoi(argv[2]), status, failed = 0;
    words = strtoul(argv[3], NULL, 10) / sizeof *object;
    object = malloc(words * sizeof *object);
    for (rank = 0; rank < ranks; rank++) {
        if (fork()) continue;
        char name[4096];
        snprintf(name, sizeof name, "%s.%d", argv[4], rank);
        int log = open(name, O_WRONLY | O_CREAT | O_APPEND, 0600);
        holdfast_objects *set = holdfast_open("set", rank, ranks, argv[1]);
        if (!set || log < 0 || holdfast_region(set, "object", object, words * sizeof *object, sizeof *object)) {
            printf("%d error %s\n", rank, holdfast_error(NULL));
            return 1;
        }
        if (strcmp(argv[5], "put") == 0)
            put(set, log, atoi(argv[6]));
        else
            check(set, argc - 6, argv + 6);
        holdfast_close(set);
        return 0;
    }
    while (wait(&status) > 0) failed |= status;
    return failed != 0;
}
