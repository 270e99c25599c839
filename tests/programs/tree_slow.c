/* TCP between processes of one job with more on its way than the reader has taken: what waits at the sender has to come
 * along. `tree_slow KIND [ROUNDS]`, KIND: reader (a fast writer and a slow reader), closed (the writer closes its end
 * at once, and is not there any more), both (each end has shut what it sends, with much of it on its way) */
#include "tree.h"
#include <netinet/in.h>
#include <sys/socket.h>

/* More than a reader's buffer has at first, less than a sender's. */
#define MUCH 1500000
#define PART 65536

static int listener;
static struct sockaddr_in address = {.sin_family = AF_INET};
static uint8_t bytes[PART];

static void begin(void)
{
    socklen_t len = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK((listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
    CHECK(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
}

static int to_listener(void)
{
    int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(made >= 0 && connect(made, (struct sockaddr *)&address, sizeof address) == 0);
    return made;
}

static void send_all(int to, uint64_t from, uint64_t size)
{
    for (uint64_t at = 0; at < size;) {
        size_t part = size - at < PART ? (size_t)(size - at) : PART;
        for (size_t i = 0; i < part; i++) bytes[i] = (uint8_t)mix(from + at + i);
        CHECK(send(to, bytes, part, MSG_NOSIGNAL) == (ssize_t)part);
        at += part;
    }
}

static void read_all(int from, uint64_t at, uint64_t size)
{
    while (size > 0) {
        ssize_t got = read(from, bytes, size < PART ? (size_t)size : PART);
        CHECK(got > 0);
        for (ssize_t i = 0; i < got; i++) CHECK(bytes[i] == (uint8_t)mix(at + (uint64_t)i));
        at += (uint64_t)got;
        size -= (uint64_t)got;
    }
}

static void write_on(int in, int out, uint64_t rounds)
{
    uint64_t end;
    (void)out;
    int to = to_listener();
    send_all(to, 0, rounds * PART);
    CHECK(shutdown(to, SHUT_WR) == 0 && !hear_or_end(in, &end));
}

static void slow_reader(long rounds)
{
    struct child *writer = fork_child(write_on, (uint64_t)rounds);
    int from = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(from >= 0);
    for (long round = 0; round < rounds; round++) {
        read_all(from, (uint64_t)round * PART, PART);
        step("slow round %ld", round);
        sleep_ms(ROUND_MS);
    }
    CHECK(read(from, bytes, 1) == 0);
    finish(writer, 0);
}

static void write_and_close(int in, int out, uint64_t number)
{
    uint64_t round;
    (void)number;
    while (hear_or_end(in, &round)) {
        int to = to_listener();
        send_all(to, round, MUCH);
        CHECK(close(to) == 0);
        tell(out, round);
    }
}

static void closed(long rounds)
{
    struct child *writer = fork_child(write_and_close, 0);
    for (long round = 0; round < rounds; round++) {
        tell(writer->to, (uint64_t)round);
        int from = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        CHECK(from >= 0 && hear(writer->from) == (uint64_t)round);
        step("closed round %ld", round);
        sleep_ms(ROUND_MS);
        read_all(from, (uint64_t)round, MUCH / 2);
        sleep_ms(ROUND_MS);
        read_all(from, (uint64_t)round + MUCH / 2, MUCH - MUCH / 2);
        CHECK(read(from, bytes, 1) == 0 && close(from) == 0);
    }
    finish(writer, 0);
}

static void both(long rounds)
{
    for (long round = 0; round < rounds; round++) {
        int one = to_listener(), other = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        CHECK(other >= 0);
        send_all(one, (uint64_t)round, MUCH);
        send_all(other, (uint64_t)round + 1, MUCH);
        CHECK(shutdown(one, SHUT_WR) == 0 && shutdown(other, SHUT_WR) == 0);
        step("both round %ld", round);
        sleep_ms(ROUND_MS);
        read_all(other, (uint64_t)round, MUCH);
        CHECK(read(other, bytes, 1) == 0);
        sleep_ms(ROUND_MS);
        read_all(one, (uint64_t)round + 1, MUCH);
        CHECK(read(one, bytes, 1) == 0 && close(one) == 0 && close(other) == 0);
    }
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "reader";
    long rounds = number_argument(argc, argv, 2, 60);
    begin();
    if (strcmp(kind, "reader") == 0) slow_reader(rounds);
    else if (strcmp(kind, "closed") == 0) closed(rounds);
    else both(rounds);
    return pass();
}
