/* Internet sockets, both ends in this program: `internet KIND [ROUNDS]`
 * KIND: backlog (connections that were not accepted yet), group (two listeners at one port, SO_REUSEPORT), regrouped,
 * ungrouped (the same, and the option was taken away from both, or one), reused (SO_REUSEADDR, likewise), waiting (20
 * kB that wait to be read), urgent (data out of line), reset (connections that were reset), bound (a port that nobody
 * listens at), multicast (groups that a socket has joined), wildcard (a listener at all addresses, without
 * SO_REUSEADDR), options (of TCP and IP), pending (a connection that is made without waiting) */
#include "rounds.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

static int listener, second, client, server;
static struct sockaddr_in here;

static int tcp(int flags)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    CHECK(fd >= 0);
    return fd;
}

static void set(int fd, int level, int option, int value) {
    CHECK(setsockopt(fd, level, option, &value, sizeof value) == 0);
}
static int get(int fd, int level, int option)
{
    int value = -1;
    socklen_t len = sizeof value;
    CHECK(getsockopt(fd, level, option, &value, &len) == 0);
    return value;
}

/* How an address may be had twice. */
enum use { ALONE, AGAIN, TOGETHER };

static int bound(uint32_t address, enum use use)
{
    socklen_t len = sizeof here;
    int fd = tcp(0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = here.sin_port, .sin_addr = {htonl(address)}};
    if (use != ALONE) set(fd, SOL_SOCKET, use == AGAIN ? SO_REUSEADDR : SO_REUSEPORT, 1);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && getsockname(fd, (struct sockaddr *)&here, &len) == 0);
    return fd;
}

static int connected(void)
{
    int fd = tcp(0);
    struct sockaddr_in to = here;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

static int accepted(int from)
{
    int fd = accept4(from, NULL, NULL, SOCK_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static void close_hard(int fd)
{
    struct linger none = {1, 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0 && close(fd) == 0);
}

static void listen_prepare(void)
{
    listener = bound(INADDR_LOOPBACK, AGAIN);
    CHECK(listen(listener, 20) == 0);
}

static void pair_prepare(void)
{
    listen_prepare();
    client = connected();
    server = accepted(listener);
}

static int waiting[3];
static void backlog_round(long round)
{
    for (int i = 0; round > 0 && i < 3; i++) {
        int fd = accepted(listener);
        char byte = 0;
        CHECK(send(fd, "a", 1, 0) == 1 && recv(waiting[i], &byte, 1, 0) == 1 && byte == 'a');
        close_hard(waiting[i]);
        close_hard(fd);
    }
    for (int i = 0; i < 3; i++) waiting[i] = connected();
}

static void group_prepare(void)
{
    listener = bound(INADDR_LOOPBACK, TOGETHER);
    second = bound(INADDR_LOOPBACK, TOGETHER);
    CHECK(listen(listener, 5) == 0 && listen(second, 5) == 0);
}

static void group_round(long round)
{
    (void)round;
    CHECK(get(listener, SOL_SOCKET, SO_REUSEPORT) == 1 && get(second, SOL_SOCKET, SO_REUSEPORT) == 1);
    int fd = connected();
    struct pollfd both[2] = {{listener, POLLIN, 0}, {second, POLLIN, 0}};
    CHECK(poll(both, 2, -1) == 1);
    int other = accepted(both[0].revents ? listener : second);
    close_hard(fd);
    close_hard(other);
}

/* Both listen at one port, and what let them is not set any more. */
static void regrouped_prepare(void)
{
    group_prepare();
    set(listener, SOL_SOCKET, SO_REUSEPORT, 0);
    set(second, SOL_SOCKET, SO_REUSEPORT, 0);
}

static void regrouped_round(long round)
{
    (void)round;
    CHECK(get(listener, SOL_SOCKET, SO_REUSEPORT) == 0 && get(second, SOL_SOCKET, SO_REUSEPORT) == 0);
}

static void ungrouped_prepare(void)
{
    group_prepare();
    set(listener, SOL_SOCKET, SO_REUSEPORT, 0);
}

static void ungrouped_round(long round)
{
    (void)round;
    CHECK(get(listener, SOL_SOCKET, SO_REUSEPORT) == 0 && get(second, SOL_SOCKET, SO_REUSEPORT) == 1);
}

/* Two sockets of UDP, likewise; and two of TCP, of which one listens. */
static int datagrams[2], streams[2];
static void reused_prepare(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    for (int i = 0; i < 2; i++) {
        CHECK((datagrams[i] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0);
        set(datagrams[i], SOL_SOCKET, SO_REUSEADDR, 1);
        CHECK(bind(datagrams[i], (struct sockaddr *)&at, sizeof at) == 0);
        CHECK(getsockname(datagrams[i], (struct sockaddr *)&at, &len) == 0);
    }
    set(datagrams[0], SOL_SOCKET, SO_REUSEADDR, 0);
    for (int i = 0; i < 2; i++) streams[i] = bound(INADDR_LOOPBACK, AGAIN);
    CHECK(listen(streams[0], 5) == 0);
    set(streams[1], SOL_SOCKET, SO_REUSEADDR, 0);
}

static void reused_round(long round)
{
    (void)round;
    CHECK(get(datagrams[0], SOL_SOCKET, SO_REUSEADDR) == 0 && get(datagrams[1], SOL_SOCKET, SO_REUSEADDR) == 1);
    CHECK(get(streams[0], SOL_SOCKET, SO_REUSEADDR) == 1 && get(streams[1], SOL_SOCKET, SO_REUSEADDR) == 0);
    int fd = connected();
    close_hard(accepted(streams[0]));
    close_hard(fd);
}

static void waiting_prepare(void)
{
    pair_prepare();
    CHECK(fcntl(client, F_SETFL, O_NONBLOCK) == 0);
}

static void waiting_round(long round)
{
    static size_t sent;
    static char bytes[10000];
    for (size_t got = 0; got < sent;) {
        ssize_t n = recv(server, bytes, sizeof bytes, 0);
        CHECK(n > 0 && bytes[0] == (char)(round - 1) && bytes[n - 1] == (char)(round - 1));
        got += (size_t)n;
    }
    memset(bytes, (int)round, sizeof bytes);
    ssize_t n;
    for (sent = 0; sent < 20000 && (n = send(client, bytes, sizeof bytes, 0)) > 0; sent += (size_t)n) {
    }
    CHECK(sent > 0);
}

static void urgent_round(long round)
{
    char byte = 0;
    (void)round;
    CHECK(send(client, "before", 6, 0) == 6 && send(client, "!", 1, MSG_OOB) == 1 && send(client, "after", 5, 0) == 5);
    struct pollfd p = {server, POLLPRI, 0};
    CHECK(poll(&p, 1, -1) == 1 && recv(server, &byte, 1, MSG_OOB) == 1 && byte == '!');
    char text[16] = "";
    CHECK(recv(server, text, 6, MSG_WAITALL) == 6 && recv(server, text + 6, 5, MSG_WAITALL) == 5
        && strcmp(text, "beforeafter") == 0);
}

static int dead = -1;
static void reset_round(long round)
{
    char byte;
    if (round > 0) {
        /* that it was reset may be told once more */
        CHECK(recv(dead, &byte, 1, 0) == 0 || errno == ECONNRESET);
        CHECK(send(dead, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
        CHECK(close(dead) == 0);
    }
    dead = connected();
    int other = accepted(listener);
    CHECK(send(dead, "d", 1, 0) == 1 && recv(other, &byte, 1, 0) == 1);
    close_hard(other);
    struct pollfd p = {dead, POLLIN, 0};
    CHECK(poll(&p, 1, -1) == 1 && recv(dead, &byte, 1, 0) == -1 && errno == ECONNRESET);
}

static void bound_prepare(void) { listener = bound(INADDR_LOOPBACK, ALONE); }
static void bound_round(long round)
{
    struct sockaddr_in own;
    socklen_t len = sizeof own;
    (void)round;
    CHECK(getsockname(listener, (struct sockaddr *)&own, &len) == 0 && own.sin_port == here.sin_port);
    int fd = tcp(0), other = tcp(0);
    CHECK(connect(fd, (struct sockaddr *)&here, sizeof here) == -1 && errno == ECONNREFUSED && close(fd) == 0);
    CHECK(bind(other, (struct sockaddr *)&here, sizeof here) == -1 && errno == EADDRINUSE && close(other) == 0);
}

static int groups = -1;
static const char *const addresses[] = {"239.1.2.3", "239.7.7.7"};
static void multicast_prepare(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    CHECK((groups = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0
        && bind(groups, (struct sockaddr *)&any, sizeof any) == 0);
    for (int i = 0; i < 2; i++) {
        struct ip_mreqn join = {.imr_multiaddr = {inet_addr(addresses[i])}, .imr_address = {htonl(INADDR_LOOPBACK)},
            .imr_ifindex = 1};
        if (setsockopt(groups, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join) != 0) not_here("IP_ADD_MEMBERSHIP");
    }
    struct in_addr by = {htonl(INADDR_LOOPBACK)};
    CHECK(setsockopt(groups, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof by) == 0);
    set(groups, IPPROTO_IP, IP_MULTICAST_LOOP, 1);
}

static void multicast_round(long round)
{
    struct sockaddr_in to;
    socklen_t len = sizeof to;
    long value = -1;
    CHECK(getsockname(groups, (struct sockaddr *)&to, &len) == 0);
    to.sin_addr.s_addr = inet_addr(addresses[round % 2]);
    struct pollfd p = {groups, POLLIN, 0};
    /* One that was not read before a checkpoint is lost, as UDP may lose any. */
    do
        CHECK(sendto(groups, &round, sizeof round, 0, (struct sockaddr *)&to, sizeof to) == sizeof round);
    while (poll(&p, 1, 2000) == 0);
    CHECK(recv(groups, &value, sizeof value, 0) == sizeof value && value == round);
    struct ip_mreqn again = {.imr_multiaddr = {inet_addr(addresses[0])}, .imr_ifindex = 1};
    CHECK(setsockopt(groups, IPPROTO_IP, IP_ADD_MEMBERSHIP, &again, sizeof again) == -1 && errno == EADDRINUSE);
}

static void wildcard_prepare(void)
{
    listener = bound(INADDR_ANY, ALONE);
    CHECK(listen(listener, 5) == 0);
    client = connected();
    server = accepted(listener);
}

static void exchange_round(long round)
{
    long value;
    if (round > 0) CHECK(recv(server, &value, sizeof value, MSG_WAITALL) == sizeof value && value == round - 1);
    CHECK(send(client, &round, sizeof round, 0) == sizeof round);
}

static void options_round(long round)
{
    int v = (int)round;
    if (round > 0) {
        CHECK(get(client, IPPROTO_TCP, TCP_NODELAY) == !(v % 2) && get(client, SOL_SOCKET, SO_KEEPALIVE) == v % 2);
        CHECK(get(client, IPPROTO_TCP, TCP_KEEPIDLE) == v + 9 && get(client, IPPROTO_TCP, TCP_KEEPCNT) == v % 7 + 2);
        CHECK(get(client, IPPROTO_TCP, TCP_USER_TIMEOUT) == 999 + v
            && get(client, IPPROTO_IP, IP_TOS) == (v - 1) % 8 * 4);
        CHECK(get(server, IPPROTO_IP, IP_TTL) == v + 29 && get(server, SOL_SOCKET, SO_RCVLOWAT) == v % 5 + 1);
    }
    set(client, IPPROTO_TCP, TCP_NODELAY, v % 2);
    set(client, SOL_SOCKET, SO_KEEPALIVE, (v + 1) % 2);
    set(client, IPPROTO_TCP, TCP_KEEPIDLE, v + 10);
    set(client, IPPROTO_TCP, TCP_KEEPCNT, (v + 1) % 7 + 2);
    set(client, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 + v);
    set(client, IPPROTO_IP, IP_TOS, v % 8 * 4);
    set(server, IPPROTO_IP, IP_TTL, v + 30);
    set(server, SOL_SOCKET, SO_RCVLOWAT, (v + 1) % 5 + 1);
}

static int pending = -1;
static void pending_round(long round)
{
    if (round > 0) {
        struct pollfd p = {pending, POLLOUT, 0};
        CHECK(poll(&p, 1, -1) == 1 && get(pending, SOL_SOCKET, SO_ERROR) == 0);
        int fd = accepted(listener);
        char byte = 0;
        CHECK(send(pending, "p", 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1 && byte == 'p');
        close_hard(fd);
        close_hard(pending);
    }
    pending = tcp(SOCK_NONBLOCK);
    CHECK(connect(pending, (struct sockaddr *)&here, sizeof here) == 0 || errno == EINPROGRESS);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"backlog", listen_prepare, backlog_round},
                                        {"group", group_prepare, group_round},
                                        {"regrouped", regrouped_prepare, regrouped_round},
                                        {"ungrouped", ungrouped_prepare, ungrouped_round},
                                        {"reused", reused_prepare, reused_round},
                                        {"waiting", waiting_prepare, waiting_round},
                                        {"urgent", pair_prepare, urgent_round},
                                        {"reset", listen_prepare, reset_round}, {"bound", bound_prepare, bound_round},
                                        {"multicast", multicast_prepare, multicast_round},
                                        {"wildcard", wildcard_prepare, exchange_round},
                                        {"options", pair_prepare, options_round},
                                        {"pending", listen_prepare, pending_round}};
    return RUN_KIND(kinds);
}
