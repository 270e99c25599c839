/* Unix sockets: `unixes KIND [ROUNDS]`
 * KIND: shut (a pair of which one direction is closed), unlinked (a listener whose file was deleted), renamed (whose
 * file has another name), credentials (SO_PEERCRED, SO_PASSCRED), backlog (connections that were not accepted yet),
 * handed (descriptors that were received), buffers (sizes of the buffers, full), shrunk (a buffer that is smaller than
 * what waits), options */
#include "rounds.h"
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

static int pair[2], listener, client, server;

static void make(int type) { CHECK(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair) == 0); }

static void shut_prepare(void)
{
    make(SOCK_STREAM);
    CHECK(shutdown(pair[0], SHUT_WR) == 0);
}

static void shut_round(long round)
{
    long value;
    CHECK(recv(pair[1], &value, sizeof value, MSG_DONTWAIT) == 0);
    CHECK(send(pair[0], &value, sizeof value, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    if (round > 0) CHECK(recv(pair[0], &value, sizeof value, 0) == sizeof value && value == round - 1);
    CHECK(send(pair[1], &round, sizeof round, 0) == sizeof round);
}

static struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "unixes.socket"};
static int connected(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&name, sizeof name) == 0);
    return fd;
}

static void listen_at(void)
{
    CHECK((listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
    CHECK(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, 20) == 0);
    client = connected();
    CHECK((server = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0);
}

static void exchange(long round)
{
    long value;
    if (round > 0) CHECK(recv(server, &value, sizeof value, 0) == sizeof value && value == round - 1);
    CHECK(send(client, &round, sizeof round, 0) == sizeof round);
}

static void unlinked_prepare(void)
{
    listen_at();
    CHECK(unlink(name.sun_path) == 0);
}

static void unlinked_round(long round)
{
    struct sockaddr_un own;
    socklen_t len = sizeof own;
    exchange(round);
    CHECK(access(name.sun_path, F_OK) == -1);
    CHECK(getsockname(listener, (struct sockaddr *)&own, &len) == 0 && strcmp(own.sun_path, name.sun_path) == 0);
}

static void renamed_prepare(void)
{
    listen_at();
    CHECK(rename(name.sun_path, "unixes.other") == 0);
}

static void renamed_round(long round)
{
    exchange(round);
    CHECK(access(name.sun_path, F_OK) == -1);
    strcpy(name.sun_path, "unixes.other");
    int new = connected(), accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(accepted >= 0 && close(accepted) == 0 && close(new) == 0);
    strcpy(name.sun_path, "unixes.socket");
}

static void credentials_prepare(void)
{
    int on = 1;
    make(SOCK_STREAM);
    CHECK(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
}

static void credentials_round(long round)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    (void)round;
    CHECK(getsockopt(pair[0], SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0);
    CHECK(peer.pid == getpid() && peer.uid == getuid() && peer.gid == getgid());
    char byte, control[256];
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control,
        .msg_controllen = sizeof control};
    CHECK(send(pair[0], "c", 1, 0) == 1 && recvmsg(pair[1], &message, 0) == 1);
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    CHECK(first != NULL && first->cmsg_type == SCM_CREDENTIALS);
    memcpy(&peer, CMSG_DATA(first), sizeof peer);
    CHECK(peer.pid == getpid() && peer.uid == getuid());
}

static int waiting[3];
static void backlog_round(long round)
{
    for (int i = 0; round > 0 && i < 3; i++) {
        int accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        CHECK(accepted >= 0 && send(accepted, "a", 1, 0) == 1);
        char byte = 0;
        CHECK(recv(waiting[i], &byte, 1, 0) == 1 && byte == 'a' && close(accepted) == 0 && close(waiting[i]) == 0);
    }
    for (int i = 0; i < 3; i++) waiting[i] = connected();
}

static int received = -1;
static void handed_prepare(void) { make(SOCK_DGRAM); }
static void handed_round(long round)
{
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'h';
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control,
        .msg_controllen = sizeof control};
    long value;
    if (received >= 0) {
        CHECK(pread(received, &value, sizeof value, 0) == sizeof value && value == round - 1);
        CHECK(lseek(received, 0, SEEK_CUR) == sizeof value && close(received) == 0);
    }
    char path[32];
    snprintf(path, sizeof path, "handed.%ld", round); /* one for each round: what is written again stays written */
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(file >= 0 && write(file, &round, sizeof round) == sizeof round);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &file, sizeof file);
    CHECK(sendmsg(pair[0], &message, 0) == 1 && recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC) == 1);
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
    CHECK(close(file) == 0 && received >= 0);
}

static void buffers_prepare(void)
{
    int size = 30000;
    make(SOCK_STREAM);
    CHECK(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0
        && fcntl(pair[0], F_SETFL, O_NONBLOCK) == 0);
}

/* As many bytes as fit, and in the next round all of them come. */
static void buffers_round(long round)
{
    static size_t sent;
    char bytes[1000];
    int size;
    socklen_t len = sizeof size;
    for (size_t got = 0; got < sent;) {
        ssize_t n = recv(pair[1], bytes, sizeof bytes, 0);
        CHECK(n > 0 && bytes[0] == (char)(round - 1) && bytes[n - 1] == (char)(round - 1));
        got += (size_t)n;
    }
    CHECK(getsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, &len) == 0 && size == 60000);
    memset(bytes, (int)round, sizeof bytes);
    ssize_t n;
    for (sent = 0; (n = send(pair[0], bytes, sizeof bytes, 0)) > 0; sent += (size_t)n) {
    }
    CHECK(errno == EAGAIN && sent >= 1000);
}

static void shrunk_prepare(void)
{
    make(SOCK_STREAM);
    CHECK(fcntl(pair[0], F_SETFL, O_NONBLOCK) == 0);
}

/* What waits came when the buffer was large. */
static void shrunk_round(long round)
{
    static char bytes[100000];
    int large = 150000, small = 3000, size;
    socklen_t len = sizeof size;
    if (round > 0) {
        CHECK(getsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, &len) == 0 && size == 2 * small);
        CHECK(recv(pair[1], bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
        for (size_t i = 0; i < sizeof bytes; i++) CHECK(bytes[i] == (char)(round - 1 + (long)i));
    }
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(round + (long)i);
    CHECK(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &large, sizeof large) == 0);
    CHECK(send(pair[0], bytes, sizeof bytes, 0) == sizeof bytes);
    CHECK(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
}

static void options_prepare(void) { make(SOCK_STREAM); }
static void options_round(long round)
{
    struct timeval time = {round + 1, 500000}, now;
    int priority;
    socklen_t len = sizeof now;
    if (round > 0) {
        CHECK(getsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &now, &len) == 0 && now.tv_sec == round
            && now.tv_usec == 500000);
        len = sizeof priority;
        CHECK(getsockopt(pair[1], SOL_SOCKET, SO_PRIORITY, &priority, &len) == 0 && priority == (round - 1) % 6);
        len = sizeof priority;
        CHECK(getsockopt(pair[1], SOL_SOCKET, SO_RCVLOWAT, &priority, &len) == 0 && priority == round);
    }
    int level = (int)round % 6, low = (int)round + 1;
    CHECK(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    CHECK(setsockopt(pair[1], SOL_SOCKET, SO_PRIORITY, &level, sizeof level) == 0);
    CHECK(setsockopt(pair[1], SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low) == 0);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"shut", shut_prepare, shut_round},
                                        {"unlinked", unlinked_prepare, unlinked_round},
                                        {"renamed", renamed_prepare, renamed_round},
                                        {"credentials", credentials_prepare, credentials_round},
                                        {"backlog", listen_at, backlog_round}, {"handed", handed_prepare, handed_round},
                                        {"buffers", buffers_prepare, buffers_round},
                                        {"shrunk", shrunk_prepare, shrunk_round},
                                        {"options", options_prepare, options_round}};
    return RUN_KIND(kinds);
}
