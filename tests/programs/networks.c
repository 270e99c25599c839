/* Sockets in a network namespace that a program has made: `networks KIND ROUNDS`
 * KIND: own (the program's), both (a child's, with the same names and numbers as the sockets of its parent outside, and
 * connections between the two). Each round reads what the one before has sent, and sends something else. */
#include "apart.h"
#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#define LONG 3000

static struct sockaddr_in number = {.sin_family = AF_INET};
static struct sockaddr_un name = {.sun_family = AF_UNIX};
static socklen_t name_len;
static const char *where = "outside";
static pid_t id;

/* What one side has: ends of connections, of which the second was accepted. */
static int tcp[2], local[2], datagrams[2], unread[2], pair[2], listener, local_listener, waiting, routes;

static struct sockaddr *at(void *address) { return address; }

static void send_all(int fd, long round)
{
    long words[LONG];
    for (int i = 0; i < LONG; i++) words[i] = round * LONG + i + (where[0] << 20);
    CHECK(send(fd, words, sizeof words, 0) == sizeof words);
}

static void take_all(int fd, long round)
{
    long words[LONG];
    CHECK(recv(fd, words, sizeof words, MSG_WAITALL) == sizeof words);
    for (int i = 0; i < LONG; i++) CHECK(words[i] == round * LONG + i + (where[0] << 20));
}

static int made(int domain, int kind)
{
    int fd = socket(domain, kind, 0);
    CHECK(fd >= 0);
    return fd;
}

static void name_it(const char *suffix)
{
    name_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1
        + (size_t)snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "holdfast-networks-%d-%s", (int)id, suffix));
}

/* Names and numbers are the same on either side. */
static void make_all(void)
{
    socklen_t len = sizeof number;
    int one = 1;
    listener = made(AF_INET, SOCK_STREAM), tcp[0] = made(AF_INET, SOCK_STREAM), waiting = made(AF_INET, SOCK_STREAM);
    /* What is closed in the rounds keeps the number for a minute else (TIME_WAIT). */
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(listener, at(&number), len) == 0 && listen(listener, 5) == 0);
    CHECK(getsockname(listener, at(&number), &len) == 0);
    CHECK(connect(tcp[0], at(&number), len) == 0 && (tcp[1] = accept(listener, NULL, NULL)) >= 0);
    CHECK(connect(waiting, at(&number), len) == 0);
    name_it("listener");
    local_listener = made(AF_UNIX, SOCK_STREAM), local[0] = made(AF_UNIX, SOCK_STREAM);
    CHECK(bind(local_listener, at(&name), name_len) == 0 && listen(local_listener, 5) == 0);
    CHECK(connect(local[0], at(&name), name_len) == 0 && (local[1] = accept(local_listener, NULL, NULL)) >= 0);
    name_it("datagrams");
    unread[0] = made(AF_UNIX, SOCK_DGRAM), unread[1] = made(AF_UNIX, SOCK_DGRAM);
    CHECK(bind(unread[1], at(&name), name_len) == 0 && connect(unread[0], at(&name), name_len) == 0);
    datagrams[0] = made(AF_INET, SOCK_DGRAM), datagrams[1] = made(AF_INET, SOCK_DGRAM);
    CHECK(bind(datagrams[1], at(&number), len) == 0 && connect(datagrams[0], at(&number), len) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct sockaddr_nl groups = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
    routes = made(AF_NETLINK, SOCK_RAW);
    CHECK(bind(routes, at(&groups), sizeof groups) == 0);
}

/* All sockets of one side are of one namespace: `waiting` is asked for its device. */
static void check_all(long round)
{
    char byte;
    struct ifreq device = {.ifr_name = "lo"};
    CHECK(ioctl(pair[0], SIOCGIFFLAGS, &device) == 0 && device.ifr_flags & IFF_UP);
    if (round > 0) {
        take_all(tcp[1], round - 1), take_all(tcp[0], round - 1), take_all(local[1], round - 1);
        take_all(unread[1], round - 1), take_all(pair[1], round - 1);
    }
    send_all(tcp[0], round), send_all(tcp[1], round), send_all(local[0], round);
    send_all(unread[0], round), send_all(pair[0], round);
    CHECK(send(datagrams[0], where, 1, 0) == 1 && recv(datagrams[1], &byte, 1, 0) == 1 && byte == *where);
    /* One connects to each listener anew, and the one that waited is accepted. */
    int next = made(AF_INET, SOCK_STREAM);
    CHECK(connect(next, at(&number), sizeof number) == 0);
    int accepted = accept(listener, NULL, NULL);
    CHECK(accepted >= 0 && send(waiting, where, 1, 0) == 1 && recv(accepted, &byte, 1, 0) == 1 && byte == *where);
    CHECK(close(accepted) == 0 && close(waiting) == 0);
    waiting = next;
    name_it("listener");
    next = made(AF_UNIX, SOCK_STREAM);
    CHECK(connect(next, at(&name), name_len) == 0 && (accepted = accept(local_listener, NULL, NULL)) >= 0);
    CHECK(close(next) == 0 && close(accepted) == 0);
}

static void switch_loopback_on(void)
{
    struct ifreq device = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = made(AF_INET, SOCK_DGRAM);
    CHECK(ioctl(fd, SIOCSIFFLAGS, &device) == 0 && close(fd) == 0);
}

static void own(void)
{
    where = "inside";
    leave_for(CLONE_NEWNET, 0, 0);
    switch_loopback_on();
    make_all();
}

/* --- both sides --- */

static int path_listener, between[2], brought[2], of_outside;
static struct sockaddr_un path = {.sun_family = AF_UNIX, .sun_path = "networks.socket"};

/* What is connected with the parent, and a socket that stays outside though its process has gone inside. */
static void enter(void)
{
    int of_parent[] = {tcp[0], tcp[1], local[0], local[1], datagrams[0], datagrams[1], unread[0], unread[1], pair[0],
        pair[1], listener, local_listener, waiting, routes, path_listener, brought[1]};
    for (size_t i = 0; i < sizeof of_parent / sizeof *of_parent; i++) CHECK(close(of_parent[i]) == 0);
    own();
    between[0] = made(AF_UNIX, SOCK_STREAM);
    CHECK(connect(between[0], at(&path), sizeof path) == 0);
}

static void look(long round)
{
    char byte;
    check_all(round);
    CHECK(send(between[0], "b", 1, 0) == 1 && send(brought[0], "p", 1, 0) == 1);
    struct sockaddr_in there;
    socklen_t len = sizeof there;
    CHECK(getsockname(of_outside, at(&there), &len) == 0 && sendto(of_outside, "o", 1, 0, at(&there), len) == 1);
    CHECK(recv(of_outside, &byte, 1, 0) == 1 && byte == 'o');
}

static void both(void)
{
    struct sockaddr_in any = number;
    unlink(path.sun_path);
    make_all();
    of_outside = made(AF_INET, SOCK_DGRAM);
    CHECK(bind(of_outside, at(&any), sizeof any) == 0);
    path_listener = made(AF_UNIX, SOCK_STREAM);
    CHECK(bind(path_listener, at(&path), sizeof path) == 0 && listen(path_listener, 5) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, brought) == 0);
    make_child_in(enter, look);
    CHECK((between[1] = accept(path_listener, NULL, NULL)) >= 0);
}

static void look_both(long round)
{
    char byte;
    check_all(round);
    ask_child(round);
    CHECK(recv(between[1], &byte, 1, 0) == 1 && byte == 'b' && recv(brought[1], &byte, 1, 0) == 1 && byte == 'p');
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"own", own, check_all}, {"both", both, look_both}};
    number.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    id = getpid();
    return RUN_KIND(kinds);
}
