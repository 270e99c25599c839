/* A tree whose shape never stays: children that fork children that fork, none lives for long, all answers arrive.
 * `tree_churn [ROUNDS]` */
#include "tree.h"

#define BREADTH 2
#define DEPTH 3

/* The number of processes below, plus one. */
static int grow(uint64_t seed, int depth)
{
    pid_t pids[BREADTH];
    int total = 1, status;
    for (uint64_t i = 0; depth > 0 && i < BREADTH; i++) {
        CHECK((pids[i] = fork()) >= 0);
        if (pids[i] == 0) _exit(grow(mix(seed + i), depth - 1));
    }
    usleep((useconds_t)(mix(seed) % 4000));
    for (int i = 0; depth > 0 && i < BREADTH; i++) {
        CHECK(waitpid(pids[i], &status, 0) == pids[i] && WIFEXITED(status));
        total += WEXITSTATUS(status);
    }
    return total;
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 400);
    for (long round = 0; round < rounds; round++) {
        int total = grow((uint64_t)round, DEPTH);
        CHECK(total == 15 && wait(NULL) == -1 && errno == ECHILD);
        step("churn round %ld: %d processes", round, total);
    }
    return pass();
}
