/* A chain of seven processes, each the child of the one before; a word goes down and comes back in every round, and all
 * ids stay what they were. `tree_deep [ROUNDS]` */
#include "tree.h"

#define DEPTH 6

static void member(int in, int out, uint64_t depth)
{
    pid_t self = getpid(), parent = getppid();
    struct child *next = depth < DEPTH ? fork_child(member, depth + 1) : NULL;
    uint64_t word;
    while (hear_or_end(in, &word)) {
        CHECK(getpid() == self && getppid() == parent);
        sleep_ms(3);
        if (next != NULL) {
            tell(next->to, mix(word + depth));
            word = hear(next->from);
        }
        tell(out, mix(word ^ depth));
    }
    if (next != NULL) finish(next, (int)depth + 1);
    _exit((int)depth);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 140);
    pid_t self = getpid();
    struct child *first = fork_child(member, 1);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        uint64_t word = round;
        for (uint64_t depth = 1; depth < DEPTH; depth++) word = mix(word + depth);
        for (uint64_t depth = DEPTH; depth >= 1; depth--) word = mix(word ^ depth);
        tell(first->to, round);
        CHECK(hear(first->from) == word && getpid() == self);
        step("deep round %lu: %016lx", (unsigned long)round, (unsigned long)word);
    }
    finish(first, 1);
    return pass();
}
