/* A server process and two clients, all children of the first process, which only sees that they answer: one connection
 * that lasts and a new one in every round, data in flight. `tree_server KIND [ROUNDS]`, KIND: tcp4, tcp6, unix,
 * abstract */
#include "tree.h"
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#define CLIENTS 2
#define PATH "tree_server.here"

static struct sockaddr_storage address;
static socklen_t len;
static int listener;

static void put(int fd, uint64_t from, size_t size)
{
    uint8_t buffer[8192];
    for (size_t i = 0; i < size; i++) buffer[i] = (uint8_t)mix(from + i);
    CHECK(send(fd, buffer, size, MSG_NOSIGNAL) == (ssize_t)size);
}

static void take(int fd, uint64_t from, size_t size)
{
    uint8_t buffer[8192];
    CHECK(recv(fd, buffer, size, MSG_WAITALL) == (ssize_t)size);
    for (size_t i = 0; i < size; i++) CHECK(buffer[i] == (uint8_t)mix(from + i));
}

static void open_listener(const char *kind)
{
    struct sockaddr_un *local = (struct sockaddr_un *)&address;
    int one = 1;
    if (strcmp(kind, "tcp4") == 0) {
        *(struct sockaddr_in *)&address = (struct sockaddr_in){.sin_family = AF_INET,
            .sin_addr = {htonl(INADDR_LOOPBACK)}};
        len = sizeof(struct sockaddr_in);
    } else if (strcmp(kind, "tcp6") == 0) {
        *(struct sockaddr_in6 *)&address = (struct sockaddr_in6){.sin6_family = AF_INET6,
            .sin6_addr = in6addr_loopback};
        len = sizeof(struct sockaddr_in6);
    } else {
        int at = strcmp(kind, "abstract") == 0;
        local->sun_family = AF_UNIX;
        unlink(PATH);
        snprintf(local->sun_path + at, 40, at ? PATH "%d" : PATH, (int)getpid());
        len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)at + strlen(local->sun_path + at) + !at);
    }
    CHECK((listener = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 16) == 0);
    len = sizeof address;
    CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
}

/* One request: a number, answered by bytes that depend on it. 0: the client has gone. */
static int answer(int fd)
{
    uint64_t request;
    ssize_t got = recv(fd, &request, 8, MSG_WAITALL);
    CHECK(got == 0 || got == 8);
    if (got == 0) return 0;
    put(fd, request, 1000);
    sleep_ms(2);
    put(fd, request + 1000, 5000);
    return 1;
}

/* Until its parent hangs up. */
static void serve(int in, int out, uint64_t number)
{
    struct pollfd fds[32] = {{in, POLLIN, 0}, {listener, POLLIN, 0}};
    nfds_t count = 2;
    (void)number;
    for (;;) {
        CHECK(poll(fds, count, -1) > 0);
        for (nfds_t i = count; i-- > 2;) {
            if (fds[i].revents == 0 || answer(fds[i].fd)) continue;
            CHECK(close(fds[i].fd) == 0);
            fds[i] = fds[--count];
        }
        if (fds[1].revents != 0 && count < 32) {
            int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            CHECK(fd >= 0);
            fds[count++] = (struct pollfd){fd, POLLIN, 0};
        }
        if (fds[0].revents != 0) break;
    }
    tell(out, count); /* nothing is left but its pipe and its listener */
}

static int connected(void)
{
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, len) == 0);
    return fd;
}

static void ask(int fd, uint64_t request, int wait)
{
    CHECK(send(fd, &request, 8, 0) == 8);
    if (wait) sleep_ms(8); /* the answer lies in the socket meanwhile */
    take(fd, request, 6000);
}

static void be_client(int in, int out, uint64_t number)
{
    CHECK(close(listener) == 0);
    int lasting = connected();
    uint64_t round;
    while (hear_or_end(in, &round)) {
        ask(lasting, round * 10 + number, 1);
        int fresh = connected();
        ask(fresh, round * 20 + number, 0);
        CHECK(close(fresh) == 0);
        tell(out, round);
    }
    CHECK(close(lasting) == 0);
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "tcp4";
    long rounds = number_argument(argc, argv, 2, 100);
    open_listener(kind);
    struct child *server = fork_child(serve, 0);
    for (uint64_t i = 1; i <= CLIENTS; i++) fork_child(be_client, i);
    CHECK(close(listener) == 0);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        for (int i = 1; i <= CLIENTS; i++) tell(children[i].to, round);
        for (int i = 1; i <= CLIENTS; i++) CHECK(hear(children[i].from) == round);
        step("%s server round %lu", kind, (unsigned long)round);
    }
    for (int i = 1; i <= CLIENTS; i++) finish(&children[i], 0);
    sleep_ms(50); /* the server hears of it */
    CHECK(close(server->to) == 0 && hear(server->from) == 2 && close(server->from) == 0);
    ended(server->pid, 0);
    unlink(PATH);
    return pass();
}
