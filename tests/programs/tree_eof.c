/* The end of a pipe or of a connection comes when the last process that holds it lets go, and not before: nobody else
 * may hold it. `tree_eof [ROUNDS]` */
#include "tree.h"
#include <poll.h>
#include <sys/socket.h>

#define PAIRS 100

static int pipes[PAIRS][2], sockets[PAIRS][2];

/* Holds one end of each; in each round it lets go of one pipe and one socket. */
static void hold(int in, int out, uint64_t number)
{
    uint64_t round;
    (void)number;
    for (int i = 0; i < PAIRS; i++) CHECK(close(pipes[i][0]) == 0 && close(sockets[i][0]) == 0);
    while (hear_or_end(in, &round)) {
        CHECK(close(pipes[round][1]) == 0 && close(sockets[round][1]) == 0);
        tell(out, round);
    }
}

static short state_of(int fd)
{
    struct pollfd p = {fd, POLLIN, 0};
    CHECK(poll(&p, 1, 0) >= 0);
    return p.revents;
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, PAIRS);
    char byte;
    CHECK(rounds <= PAIRS && signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    for (int i = 0; i < PAIRS; i++)
        CHECK(pipe2(pipes[i], O_CLOEXEC) == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets[i]) == 0);
    struct child *holders[] = {fork_child(hold, 0), fork_child(hold, 1)};
    for (int i = 0; i < PAIRS; i++) CHECK(close(pipes[i][1]) == 0 && close(sockets[i][1]) == 0);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        for (int i = 0; i < 2; i++) {
            /* as long as one of the two has it, it is open */
            for (uint64_t n = round; n < PAIRS; n++) CHECK(state_of(pipes[n][0]) == 0 && state_of(sockets[n][0]) == 0);
            sleep_ms(ROUND_MS / 2);
            tell(holders[i]->to, round);
            CHECK(hear(holders[i]->from) == round);
        }
        CHECK(state_of(pipes[round][0]) == POLLHUP && read(pipes[round][0], &byte, 1) == 0);
        CHECK((state_of(sockets[round][0]) & POLLHUP) != 0 && read(sockets[round][0], &byte, 1) == 0);
        CHECK(write(sockets[round][0], &byte, 1) == -1 && errno == EPIPE);
        CHECK(close(pipes[round][0]) == 0 && close(sockets[round][0]) == 0);
        step("eof round %lu", (unsigned long)round);
    }
    for (int i = 0; i < 2; i++) finish(holders[i], 0);
    return pass();
}
