/* Named pipes between processes: data in flight, and a process that sleeps in open(2) until the other side comes.
 * `tree_fifo [ROUNDS]` */
#include "tree.h"
#include <sys/stat.h>

#define LASTING "tree_fifo.one"
#define MEETING "tree_fifo.two"

static void put(int fd, uint64_t from, size_t size)
{
    uint8_t buffer[4096];
    for (size_t i = 0; i < size; i++) buffer[i] = (uint8_t)mix(from + i);
    CHECK(write(fd, buffer, size) == (ssize_t)size);
}

static void take(int fd, uint64_t from, size_t size)
{
    uint8_t buffer[4096];
    CHECK(read(fd, buffer, size) == (ssize_t)size);
    for (size_t i = 0; i < size; i++) CHECK(buffer[i] == (uint8_t)mix(from + i));
}

static void consume(int in, int out, uint64_t number)
{
    int lasting = open(LASTING, O_RDONLY | O_CLOEXEC);
    uint64_t round;
    char byte;
    CHECK(lasting >= 0);
    while (hear_or_end(in, &round)) {
        int meeting = open(MEETING, O_RDONLY | O_CLOEXEC); /* sleeps until the producer comes */
        CHECK(meeting >= 0);
        take(meeting, round + number, 1000);
        CHECK(read(meeting, &byte, 1) == 0 && close(meeting) == 0);
        take(lasting, round * 3, 4096);
        take(lasting, round * 5, 1234);
        tell(out, round);
    }
    CHECK(read(lasting, &byte, 1) == 0);
}

static void produce(int in, int out, uint64_t number)
{
    int lasting = open(LASTING, O_WRONLY | O_CLOEXEC);
    uint64_t round;
    CHECK(lasting >= 0);
    while (hear_or_end(in, &round)) {
        put(lasting, round * 3, 4096);
        put(lasting, round * 5, 1234);
        sleep_ms(ROUND_MS);
        int meeting = open(MEETING, O_WRONLY | O_CLOEXEC);
        CHECK(meeting >= 0);
        put(meeting, round + number, 1000);
        CHECK(close(meeting) == 0);
        tell(out, round);
    }
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    unlink(LASTING);
    unlink(MEETING);
    CHECK(mkfifo(LASTING, 0600) == 0 && mkfifo(MEETING, 0600) == 0);
    fork_child(produce, 7);
    fork_child(consume, 7);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        for (int i = 0; i < 2; i++) tell(children[i].to, round);
        for (int i = 0; i < 2; i++) CHECK(hear(children[i].from) == round);
        step("fifo round %lu", (unsigned long)round);
    }
    finish_all(0);
    CHECK(unlink(LASTING) == 0 && unlink(MEETING) == 0);
    return pass();
}
