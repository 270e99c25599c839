/* shutdown(2) of sockets that are not connected, or for reading: `shut KIND [ROUNDS]`
 * KIND: unix (before it is connected), listener (one that accepts nothing any more), tcp (before it is connected),
 * reading (one end of a TCP connection), both (the same, for writing too) */
#include "rounds.h"
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

static int listener, client, server;
static struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "shut.socket"};

/* What poll says of it. */
static int state(int fd)
{
    struct pollfd p = {fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    CHECK(poll(&p, 1, 0) >= 0);
    return p.revents;
}

static int local(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    return fd;
}

static void listen_at(void)
{
    listener = local();
    unlink(name.sun_path);
    CHECK(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, 5) == 0);
}

static int made, usual;
static void shut_one(void)
{
    made = local();
    usual = state(made);
    CHECK(shutdown(made, SHUT_RDWR) == 0 && state(made) != usual);
}

static void unix_prepare(void)
{
    listen_at();
    shut_one();
}

/* It can be connected all the same, and sends nothing; the other end does not know. */
static void unix_round(long round)
{
    char byte;
    (void)round;
    CHECK(state(made) & POLLRDHUP);
    CHECK(connect(made, (struct sockaddr *)&name, sizeof name) == 0);
    int other = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(send(made, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    CHECK(recv(other, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN && close(made) == 0 && close(other) == 0);
    shut_one();
}

static void listener_prepare(void)
{
    listen_at();
    CHECK(shutdown(listener, SHUT_RD) == 0);
}

static void listener_round(long round)
{
    int fd = local();
    (void)round;
    CHECK(connect(fd, (struct sockaddr *)&name, sizeof name) == -1 && errno == ECONNREFUSED && close(fd) == 0);
}

static int tcp(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    return fd;
}

static void tcp_prepare(void)
{
    made = tcp();
    CHECK(shutdown(made, SHUT_RDWR) == -1 && errno == ENOTCONN);
}

static void tcp_round(long round)
{
    char byte;
    (void)round;
    CHECK((state(made) & POLLRDHUP) && recv(made, &byte, 1, 0) == 0);
}

static void connect_both(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof here;
    listener = tcp();
    client = tcp();
    CHECK(bind(listener, (struct sockaddr *)&here, sizeof here) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&here, &len) == 0);
    CHECK(connect(client, (struct sockaddr *)&here, sizeof here) == 0);
    CHECK((server = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0);
}

static void reading_prepare(void)
{
    connect_both();
    CHECK(shutdown(client, SHUT_RD) == 0);
}

static void reading_round(long round)
{
    char byte = 0;
    (void)round;
    CHECK((state(client) & POLLRDHUP) && recv(client, &byte, 1, 0) == 0);
    CHECK(send(client, "x", 1, 0) == 1 && recv(server, &byte, 1, MSG_WAITALL) == 1 && byte == 'x');
    CHECK((state(server) & POLLRDHUP) == 0);
}

static void both_prepare(void)
{
    connect_both();
    CHECK(shutdown(client, SHUT_RDWR) == 0 && recv(server, &(char){0}, 1, 0) == 0);
}

static void both_round(long round)
{
    char byte = 0;
    (void)round;
    CHECK((state(client) & POLLRDHUP) && recv(client, &byte, 1, 0) == 0 && recv(server, &byte, 1, 0) == 0);
    CHECK(send(client, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"unix", unix_prepare, unix_round},
                                        {"listener", listener_prepare, listener_round},
                                        {"tcp", tcp_prepare, tcp_round},
                                        {"reading", reading_prepare, reading_round},
                                        {"both", both_prepare, both_round}};
    return RUN_KIND(kinds);
}
