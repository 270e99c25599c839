/* Named pipes with data in flight, opened in every way, and pipes in packet mode. `fifos [ROUNDS]` */
#include "common.h"
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

static int reader, writer, both, packets[2];

static void open_all(void)
{
    unlink("fifo.one");
    unlink("fifo.two");
    CHECK(mkfifo("fifo.one", 0640) == 0 && mkfifo("fifo.two", 0600) == 0);
    CHECK((reader = open("fifo.one", O_RDONLY | O_NONBLOCK | O_CLOEXEC)) >= 0);
    CHECK((writer = open("fifo.one", O_WRONLY)) >= 0);
    CHECK(fcntl(reader, F_SETFL, 0) == 0 && fcntl(writer, F_SETPIPE_SZ, 1 << 17) == 1 << 17);
    CHECK((both = open("fifo.two", O_RDWR | O_CLOEXEC)) >= 0);
    CHECK(pipe2(packets, O_DIRECT | O_CLOEXEC | O_NONBLOCK) == 0);
}

static void put(int fd, uint64_t from, size_t size)
{
    uint8_t buffer[4096];
    for (size_t i = 0; i < size; i++) buffer[i] = (uint8_t)mix(from + i);
    CHECK(write(fd, buffer, size) == (ssize_t)size);
}

static void take(int fd, uint64_t from, size_t size)
{
    uint8_t buffer[4096];
    CHECK(read(fd, buffer, sizeof buffer > size && fd == packets[0] ? sizeof buffer : size) == (ssize_t)size);
    for (size_t i = 0; i < size; i++) CHECK(buffer[i] == (uint8_t)mix(from + i));
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 60);
    struct stat found;
    char byte;
    open_all();
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        for (uint64_t i = 0; i < 20; i++) put(writer, round * 100 + i, 4096);
        put(both, round, 100);
        for (uint64_t i = 1; i < 6; i++) put(packets[1], round + i, i * 300);
        sleep_ms(25);
        CHECK(stat("fifo.one", &found) == 0 && S_ISFIFO(found.st_mode) && (found.st_mode & 0777) == 0640);
        CHECK(fcntl(reader, F_GETPIPE_SZ) == 1 << 17 && (fcntl(packets[1], F_GETFL) & O_DIRECT) != 0);
        for (uint64_t i = 0; i < 20; i++) take(reader, round * 100 + i, 4096);
        take(both, round, 100);
        for (uint64_t i = 1; i < 6; i++) take(packets[0], round + i, i * 300);
        CHECK(read(packets[0], &byte, 1) == -1 && errno == EAGAIN);
        step("fifos round %lu", (unsigned long)round);
    }
    CHECK(close(writer) == 0 && read(reader, &byte, 1) == 0);
    unlink("fifo.one");
    unlink("fifo.two");
    return pass();
}
