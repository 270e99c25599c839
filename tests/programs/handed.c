/* Descriptors in flight (SCM_RIGHTS) in unread messages of unix sockets. What every round leaves the next one receives:
 * a stream, in which they come with one certain byte; the same where senders are told; packets; datagrams between
 * names; a connection. Among them pipes, files and sockets that are open nowhere else, one of which has a message with
 * a descriptor in it, and what is open here, too. And one whose owner has looked at a part of it (SO_PEEK_OFF).
 * `handed [ROUNDS]` */
#include "rounds.h"
#include <fcntl.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#define MOST 40
static int stream[2], told[2], packets[2], connected[2], looked[2], sender, receiver, shared;
static struct sockaddr_un sender_name, receiver_name;

static void send_to(int fd, const char *data, const struct sockaddr_un *to, const int *files, size_t count)
{
    struct iovec piece = {(void *)(uintptr_t)data, strlen(data)};
    char room[CMSG_SPACE(MOST * sizeof(int))] __attribute__((aligned(8))) = {0};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    if (to != NULL) message.msg_name = (void *)(uintptr_t)to, message.msg_namelen = sizeof *to;
    if (count > 0) {
        message.msg_control = room, message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(header), files, count * sizeof(int));
    }
    CHECK(sendmsg(fd, &message, 0) == (ssize_t)strlen(data));
}

/* Sends, and closes what was sent. */
static void hand(int fd, const char *data, const int *files, size_t count)
{
    send_to(fd, data, NULL, files, count);
    for (size_t i = 0; i < count; i++) CHECK(close(files[i]) == 0);
}

/* Receives at most `size` bytes, which must be these; returns how many descriptors have come. `from`: by whom. */
static size_t receive(int fd, size_t size, const char *expected, int *files, struct sockaddr_un *from)
{
    char data[100] = {0}, room[CMSG_SPACE(MOST * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))]
        __attribute__((aligned(8)));
    struct iovec piece = {data, size};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (from != NULL) message.msg_name = from, message.msg_namelen = sizeof *from;
    ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    CHECK(got == (ssize_t)strlen(expected) && memcmp(data, expected, (size_t)got) == 0);
    size_t count = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL; header = CMSG_NXTHDR(&message, header))
        if (header->cmsg_type == SCM_RIGHTS) {
            count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(files, CMSG_DATA(header), count * sizeof(int));
        } else {
            struct ucred ids;
            memcpy(&ids, CMSG_DATA(header), sizeof ids);
            CHECK(header->cmsg_type == SCM_CREDENTIALS && ids.pid == getpid() && ids.uid == getuid());
        }
    return count;
}

/* The reading end of a pipe whose other end is closed, with this in it. */
static int pipe_with(const char *text)
{
    int ends[2];
    CHECK(pipe(ends) == 0 && write(ends[1], text, strlen(text)) == (ssize_t)strlen(text) && close(ends[1]) == 0);
    return ends[0];
}

static void read_all(int fd, const char *expected)
{
    char text[50] = {0};
    CHECK(read(fd, text, strlen(expected)) == (ssize_t)strlen(expected) && strcmp(text, expected) == 0);
    CHECK(read(fd, text, 1) == 0 && close(fd) == 0);
}

static int memory_with(const char *text)
{
    int fd = memfd_create("handed", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

static void fill(const char *word)
{
    int files[MOST], pair[2];
    /* Bytes before those that bring something, and behind: a read ends behind them, and not before. */
    hand(stream[1], "before ", NULL, 0);
    files[0] = pipe_with(word), files[1] = memory_with(word);
    hand(stream[1], "with", files, 2);
    hand(stream[1], " behind", NULL, 0);
    files[0] = pipe_with(word);
    hand(stream[1], "end", files, 1);

    hand(told[1], "first ", NULL, 0);
    files[0] = pipe_with(word);
    hand(told[1], "second", files, 1);

    /* A socket in a message, and in it a message with an eventfd. */
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    CHECK((files[0] = eventfd(7, EFD_CLOEXEC)) >= 0);
    hand(pair[1], word, files, 1);
    CHECK(close(pair[1]) == 0);
    hand(packets[1], "nothing", NULL, 0);
    hand(packets[1], "socket", pair, 1);
    for (size_t i = 0; i < MOST; i++) files[i] = pipe_with(word);
    hand(packets[1], "many", files, MOST);

    /* One that is open here, too. */
    files[0] = shared;
    CHECK(lseek(shared, 5, SEEK_SET) == 5);
    send_to(sender, "shared", &receiver_name, files, 1);
    send_to(sender, "plain", &receiver_name, NULL, 0);

    files[0] = pipe_with(word), files[1] = open("/dev/null", O_WRONLY | O_CLOEXEC);
    hand(connected[1], "connection", files, 2);

    char part[4];
    CHECK(send(looked[1], "0123456789", 10, 0) == 10 && recv(looked[0], part, 4, MSG_PEEK) == 4);
    CHECK(memcmp(part, "0123", 4) == 0);
}

static void take_stream(const char *word)
{
    int files[MOST];
    char text[50] = {0};
    CHECK(receive(stream[0], 3, "bef", files, NULL) == 0);
    CHECK(receive(stream[0], 4, "ore ", files, NULL) == 0);
    CHECK(receive(stream[0], 1, "w", files, NULL) == 2);
    read_all(files[0], word);
    CHECK(read(files[1], text, sizeof text) == (ssize_t)strlen(word) && strcmp(text, word) == 0);
    CHECK(close(files[1]) == 0);
    CHECK(receive(stream[0], 50, "ith behindend", files, NULL) == 1);
    read_all(files[0], word);
    CHECK(receive(told[0], 50, "first second", files, NULL) == 1);
    read_all(files[0], word);
}

static void take(const char *word)
{
    int files[MOST], inner[MOST];
    uint64_t count;
    take_stream(word);
    CHECK(receive(packets[0], 50, "nothing", files, NULL) == 0 && receive(packets[0], 50, "socket", files, NULL) == 1);
    CHECK(receive(files[0], 50, word, inner, NULL) == 1 && recv(files[0], &count, sizeof count, 0) == 0);
    CHECK(read(inner[0], &count, sizeof count) == sizeof count && count == 7);
    CHECK(close(inner[0]) == 0 && close(files[0]) == 0);
    CHECK(receive(packets[0], 50, "many", files, NULL) == MOST);
    for (size_t i = 0; i < MOST; i++) read_all(files[i], word);

    struct sockaddr_un from = {0};
    CHECK(receive(receiver, 50, "shared", files, &from) == 1 && strcmp(from.sun_path, sender_name.sun_path) == 0);
    CHECK(lseek(files[0], 0, SEEK_CUR) == 5 && lseek(files[0], 9, SEEK_SET) == 9);
    CHECK(lseek(shared, 0, SEEK_CUR) == 9 && close(files[0]) == 0);
    CHECK(receive(receiver, 50, "plain", files, NULL) == 0);

    CHECK(receive(connected[0], 50, "connection", files, NULL) == 2);
    read_all(files[0], word);
    CHECK(write(files[1], "x", 1) == 1 && close(files[1]) == 0);

    char rest[10];
    CHECK(recv(looked[0], rest, 6, MSG_PEEK) == 6 && memcmp(rest, "456789", 6) == 0);
    CHECK(recv(looked[0], rest, 10, 0) == 10 && memcmp(rest, "0123456789", 10) == 0);
}

static void prepare(void)
{
    int on = 1, listener;
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "handed.listener"};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, stream) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, told) == 0);
    CHECK(setsockopt(told[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, looked) == 0);
    CHECK(setsockopt(looked[0], SOL_SOCKET, SO_PEEK_OFF, &(int){0}, sizeof(int)) == 0);
    sender_name = receiver_name = (struct sockaddr_un){.sun_family = AF_UNIX};
    strcpy(sender_name.sun_path, "handed.sender"), strcpy(receiver_name.sun_path, "handed.receiver");
    CHECK((sender = socket(AF_UNIX, SOCK_DGRAM, 0)) >= 0 && (receiver = socket(AF_UNIX, SOCK_DGRAM, 0)) >= 0);
    CHECK(bind(sender, (struct sockaddr *)&sender_name, sizeof sender_name) == 0);
    CHECK(bind(receiver, (struct sockaddr *)&receiver_name, sizeof receiver_name) == 0);
    CHECK((listener = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0 && (connected[1] = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0);
    CHECK(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, 1) == 0);
    CHECK(connect(connected[1], (struct sockaddr *)&name, sizeof name) == 0);
    CHECK((connected[0] = accept(listener, NULL, NULL)) >= 0 && close(listener) == 0);
    CHECK((shared = open("handed.file", O_RDWR | O_CREAT, 0600)) >= 0 && write(shared, "0123456789", 10) == 10);
}

static void hand_round(long round)
{
    char word[30];
    if (round == 0) {
        prepare();
    } else {
        snprintf(word, sizeof word, "round %ld", round - 1);
        take(word);
    }
    snprintf(word, sizeof word, "round %ld", round);
    fill(word);
}

int main(int argc, char **argv)
{
    return run_rounds("handed", number_argument(argc, argv, 1, 45), hand_round);
}
