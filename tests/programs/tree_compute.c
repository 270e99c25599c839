/* Five children that compute, each with an exit code of its own, collected by wait(2) at the end.
 * `tree_compute [ROUNDS]` */
#include "tree.h"

#define CHILDREN 5
#define TURNS 2000

static uint64_t advance(uint64_t sum, uint64_t round)
{
    for (uint64_t i = 0; i < TURNS; i++) sum = mix(sum ^ (round * TURNS + i));
    return sum;
}

/* Computes until nobody tells it to go on. */
static void compute(int in, int out, uint64_t number)
{
    uint64_t round, sum = number;
    while (hear_or_end(in, &round)) {
        sum = advance(sum, round);
        tell(out, sum);
    }
    _exit((int)(sum % 200));
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    uint64_t sums[CHILDREN];
    int status, seen = 0;
    for (uint64_t i = 0; i < CHILDREN; i++) fork_child(compute, sums[i] = i);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        for (int i = 0; i < CHILDREN; i++) tell(children[i].to, round);
        sleep_ms(ROUND_MS);
        for (int i = 0; i < CHILDREN; i++) {
            sums[i] = advance(sums[i], round);
            CHECK(hear(children[i].from) == sums[i]);
        }
        CHECK(waitpid(-1, &status, WNOHANG) == 0);
        step("compute round %lu: %016lx", (unsigned long)round, (unsigned long)sums[CHILDREN - 1]);
    }
    for (int i = 0; i < CHILDREN; i++) hang_up(&children[i]);
    for (pid_t pid; (pid = wait(&status)) > 0;) {
        int i = 0;
        while (i < CHILDREN && children[i].pid != pid) i++;
        CHECK(i < CHILDREN && WIFEXITED(status) && WEXITSTATUS(status) == (int)(sums[i] % 200));
        seen++;
    }
    CHECK(errno == ECHILD && seen == CHILDREN);
    for (int i = 0; i < CHILDREN; i++) step("child %d: exit code %d", i, (int)(sums[i] % 200));
    return pass();
}
