/* RANKS processes of one set that put versions 1 to LAST, or restore the newest one, whose bytes are known.
 * `versions OPTIONS RANKS put LAST`, `versions OPTIONS RANKS check`
 * `versions OPTIONS RANKS hold FILE` puts version 1, prints "held", and keeps the set open until there is FILE.
 * check prints a line for each rank: its newest version, "none", or "error TEXT"; bytes that are not those that were
 * put are "WRONG", and status 9. */
#include <holdfast.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 20000

static unsigned int words[WORDS];

/* Half of it stays from version to version. */
static unsigned int word(int rank, int version, int at)
{
    return (unsigned int)(at * 2654435761u + rank * 97u) ^ (at % 2 ? version * 40503u : 0);
}

static void put(holdfast_objects *set, int rank, int last)
{
    for (int version = 1; version <= last; version++) {
        for (int at = 0; at < WORDS; at++) words[at] = word(rank, version, at);
        if (holdfast_put(set, version) || holdfast_wait(set)) {
            fprintf(stderr, "rank %d: %s\n", rank, holdfast_error(set));
            exit(1);
        }
    }
}

static void check(holdfast_objects *set, int rank)
{
    long long newest = holdfast_newest(set, HOLDFAST_ANY);
    if (newest == HOLDFAST_E_NOT_FOUND) {
        printf("%d none\n", rank);
        return;
    }
    if (newest < 0 || holdfast_restore(set, newest)) {
        printf("%d error %s\n", rank, holdfast_error(set));
        return;
    }
    for (int at = 0; at < WORDS; at++) {
        if (words[at] == word(rank, newest, at)) continue;
        printf("%d WRONG version %lld word %d\n", rank, newest, at);
        exit(9);
    }
    printf("%d %lld\n", rank, newest);
}

static void hold(holdfast_objects *set, int rank, const char *file)
{
    put(set, rank, 1);
    printf("held\n");
    fflush(stdout);
    while (access(file, F_OK)) usleep(10000);
}

int main(int argc, char **argv)
{
    if (argc < 4) return 64;
    int ranks = atoi(argv[2]), failed = 0, status;
    for (int rank = 0; rank < ranks; rank++) {
        if (fork()) continue;
        holdfast_objects *set = holdfast_open("set", rank, ranks, argv[1]);
        if (!set || holdfast_region(set, "words", words, sizeof words, sizeof *words)) {
            printf("%d error %s\n", rank, holdfast_error(NULL));
            return 0;
        }
        if (strcmp(argv[3], "put") == 0)
            put(set, rank, atoi(argv[4]));
        else if (strcmp(argv[3], "hold") == 0)
            hold(set, rank, argv[4]);
        else
            check(set, rank);
        holdfast_close(set);
        return 0;
    }
    while (wait(&status) > 0) failed |= WEXITSTATUS(status);
    return failed;
}
