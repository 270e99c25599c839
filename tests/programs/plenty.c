/* Nine hundred descriptors of a few kinds: pairs of sockets, pipes, event counters, and duplicates of some, with
 * something in each. `plenty [ROUNDS]` */
#include "rounds.h"
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define MANY 150
static int pairs[MANY][2], pipes[MANY][2], counters[MANY], twins[MANY];

static unsigned char byte_of(long round, int i) { return (unsigned char)(round * 7 + i); }

static void one_round(long round)
{
    for (int i = 0; i < MANY; i++) {
        unsigned char byte = byte_of(round - 1, i), found;
        uint64_t count = (uint64_t)(round + i);
        if (round > 0) {
            CHECK(read(pairs[i][1], &found, 1) == 1 && found == byte);
            CHECK(read(pipes[i][0], &found, 1) == 1 && found == byte);
            CHECK(read(i % 2 ? twins[i] : counters[i], &count, sizeof count) == sizeof count);
            CHECK(count == (uint64_t)(round + i));
        }
        byte = byte_of(round, i), count = (uint64_t)(round + 1 + i);
        CHECK(write(pairs[i][0], &byte, 1) == 1 && write(pipes[i][1], &byte, 1) == 1);
        CHECK(write(counters[i], &count, sizeof count) == sizeof count);
    }
}

int main(int argc, char **argv)
{
    for (int i = 0; i < MANY; i++) {
        CHECK(socketpair(AF_UNIX, (i % 2 ? SOCK_STREAM : SOCK_SEQPACKET) | SOCK_CLOEXEC, 0, pairs[i]) == 0);
        CHECK(pipe2(pipes[i], O_CLOEXEC) == 0);
        CHECK((counters[i] = eventfd(0, EFD_NONBLOCK)) >= 0 && (twins[i] = dup(counters[i])) >= 0);
    }
    return run_rounds("plenty", number_argument(argc, argv, 1, 45), one_round);
}
