/* A process that sleeps in write(2), because nobody has read yet, and one that sleeps in read(2): a single call moves
 * more than fits, and returns the full count. `tree_blocked KIND [ROUNDS]`, KIND: pipe, stream (a socket pair), tcp */
#include "tree.h"
#include <netinet/in.h>
#include <sys/socket.h>

#define SIZE 300000
#define PART 50000

static int ends[2];

static void open_tcp(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof address;
    int size = 40000, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0 && setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &size, sizeof size) == 0);
    CHECK(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    CHECK((ends[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
    CHECK(setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
    CHECK(connect(ends[1], (struct sockaddr *)&address, len) == 0);
    CHECK((ends[0] = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0 && close(listener) == 0);
}

static void produce(int in, int out, uint64_t number)
{
    static uint8_t bytes[SIZE];
    uint64_t round;
    (void)number;
    CHECK(close(ends[0]) == 0);
    while (hear_or_end(in, &round)) {
        for (size_t i = 0; i < SIZE; i++) bytes[i] = (uint8_t)mix(round * SIZE + i);
        CHECK(write(ends[1], bytes, SIZE) == SIZE);
        tell(out, round);
    }
}

/* Reads slowly. */
static void consume(uint64_t round)
{
    static uint8_t bytes[PART];
    for (size_t done = 0, pause = 0; done < SIZE;) {
        ssize_t got = read(ends[0], bytes, PART);
        CHECK(got > 0);
        for (size_t i = 0; i < (size_t)got; i++) CHECK(bytes[i] == (uint8_t)mix(round * SIZE + done + i));
        done += (size_t)got;
        if (done / PART > pause) sleep_ms(4);
        pause = done / PART;
    }
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "pipe";
    long rounds = number_argument(argc, argv, 2, 80);
    if (strcmp(kind, "pipe") == 0) CHECK(pipe2(ends, O_CLOEXEC) == 0);
    else if (strcmp(kind, "stream") == 0) CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    else open_tcp();
    struct child *producer = fork_child(produce, 0);
    CHECK(close(ends[1]) == 0);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        tell(producer->to, round);
        sleep_ms(ROUND_MS / 2); /* the producer sleeps in its write by now */
        consume(round);
        CHECK(hear(producer->from) == round);
        step("%s blocked round %lu", kind, (unsigned long)round);
    }
    finish(producer, 0);
    CHECK(read(ends[0], &rounds, 1) == 0);
    return pass();
}
