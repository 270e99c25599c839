/* The frame of the small programs, one topic each: a line per round, then what the round does, then some time in which
 * nothing happens: most checkpoints come then. A round checks what the one before has left, and leaves something else.
 */
#ifndef HOLDFAST_TEST_ROUNDS_H
#define HOLDFAST_TEST_ROUNDS_H

#include "common.h"

/* How long everybody is left alone in each round. */
#define QUIET_MS 40

/* A program with several kinds of its topic. */
struct kind {
    const char *name;
    void (*prepare)(void);
    void (*round)(long round);
};

UNUSED static int run_rounds(const char *name, long rounds, void (*round)(long))
{
    for (long i = 0; i < rounds; i++) {
        step("%s round %ld", name, i);
        round(i);
        sleep_ms(QUIET_MS);
    }
    return pass();
}

/* `PROGRAM KIND [ROUNDS]` */
UNUSED static int run_kind(const struct kind *kinds, size_t count, int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < count; i++) {
        if (strcmp(kinds[i].name, argv[1]) != 0) continue;
        if (kinds[i].prepare != NULL) kinds[i].prepare();
        return run_rounds(kinds[i].name, number_argument(argc, argv, 2, 45), kinds[i].round);
    }
    return 2;
}

#define RUN_KIND(kinds) run_kind(kinds, sizeof(kinds) / sizeof(kinds)[0], argc, argv)

/* For what this machine or this user cannot have. */
UNUSED static void not_here(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    exit(77);
}

#endif
