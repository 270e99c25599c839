/* Socket pairs between the first process and its children, with data in flight in both directions, and descriptors that
 * were handed over through one. `tree_pairs KIND [ROUNDS]`, KIND: stream, datagram, packet */
#include "tree.h"
#include <sys/socket.h>

#define CHILDREN 4

static int kind = SOCK_STREAM;

static void put(int fd, uint64_t from, size_t size)
{
    uint8_t buffer[4096];
    for (size_t i = 0; i < size; i++) buffer[i] = (uint8_t)mix(from + i);
    CHECK(send(fd, buffer, size, 0) == (ssize_t)size);
}

static void take(int fd, uint64_t from, size_t size)
{
    uint8_t buffer[4096];
    CHECK(recv(fd, buffer, kind == SOCK_STREAM ? size : sizeof buffer,
        kind == SOCK_STREAM ? MSG_WAITALL : 0) == (ssize_t)size);
    for (size_t i = 0; i < size; i++) CHECK(buffer[i] == (uint8_t)mix(from + i));
}

static void hand_over(int socket, int fd)
{
    char byte = 'f', room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    CHECK(sendmsg(socket, &message, 0) == 1);
}

static int taken_over(int socket)
{
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    CHECK(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message) != NULL);
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* Child: takes what its parent sent, sends something that lies in the socket while all sleep, once per round. */
static void chat(int socket, uint64_t number, uint64_t rounds)
{
    int count = taken_over(socket);
    char byte;
    for (uint64_t round = 0; round < rounds; round++) {
        sleep_ms(number * 3);
        for (uint64_t n = 1; n <= 3; n++) take(socket, round + number, n * 100);
        for (uint64_t n = 1; n <= 3; n++) put(socket, round * 3 + number, n * 150);
        tell(count, number + 1);
    }
    if (kind != SOCK_DGRAM) CHECK(recv(socket, &byte, 1, 0) == 0);
    _exit((int)number);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "stream";
    uint64_t rounds = (uint64_t)number_argument(argc, argv, 2, 100);
    kind = strcmp(name, "stream") == 0 ? SOCK_STREAM : strcmp(name, "packet") == 0 ? SOCK_SEQPACKET : SOCK_DGRAM;
    int ends[CHILDREN], count[2];
    pid_t pids[CHILDREN];
    for (uint64_t i = 0; i < CHILDREN; i++) {
        int pair[2];
        CHECK(socketpair(AF_UNIX, kind | SOCK_CLOEXEC, 0, pair) == 0 && (pids[i] = fork()) >= 0);
        if (pids[i] == 0) {
            for (uint64_t n = 0; n < i; n++) close(ends[n]);
            close(pair[0]);
            chat(pair[1], i, rounds);
        }
        ends[i] = pair[0];
        CHECK(close(pair[1]) == 0);
    }
    CHECK(pipe2(count, O_CLOEXEC) == 0);
    for (int i = 0; i < CHILDREN; i++) hand_over(ends[i], count[1]);
    CHECK(close(count[1]) == 0); /* only the children have it, and never by fork */
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t sum = 0;
        for (uint64_t i = 0; i < CHILDREN; i++)
            for (uint64_t n = 1; n <= 3; n++) put(ends[i], round + i, n * 100);
        sleep_ms(ROUND_MS);
        for (uint64_t i = 0; i < CHILDREN; i++)
            for (uint64_t n = 1; n <= 3; n++) take(ends[i], round * 3 + i, n * 150);
        for (int i = 0; i < CHILDREN; i++) sum += hear(count[0]);
        CHECK(sum == CHILDREN * (CHILDREN + 1) / 2);
        step("%s pairs round %lu", name, (unsigned long)round);
    }
    for (int i = 0; i < CHILDREN; i++) CHECK(close(ends[i]) == 0);
    for (int i = 0; i < CHILDREN; i++) ended(pids[i], i);
    CHECK(read(count[0], ends, 1) == 0);
    return pass();
}
