/* Messages that wait: unix datagrams from several senders, a named pipe that was deleted; netlink sockets with groups.
 * `messages [ROUNDS]` */
#include "common.h"
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static int receiver, named, hidden, nameless, directed, pipe_in, pipe_out, route, events;
static struct sockaddr_un receiver_name, named_name, hidden_name;
static socklen_t hidden_len;

static socklen_t path_name(struct sockaddr_un *name, const char *path)
{
    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX;
    strcpy(name->sun_path, path);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path) + 1);
}

static int datagram(void)
{
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    CHECK(fd >= 0);
    return fd;
}

static void open_unix(void)
{
    unlink("receiver.sock");
    unlink("named.sock");
    socklen_t len = path_name(&receiver_name, "receiver.sock");
    CHECK(bind(receiver = datagram(), (struct sockaddr *)&receiver_name, len) == 0);
    len = path_name(&named_name, "named.sock");
    CHECK(bind(named = datagram(), (struct sockaddr *)&named_name, len) == 0);
    hidden_name.sun_family = AF_UNIX;
    snprintf(hidden_name.sun_path + 1, 50, "messages-%d", (int)getpid());
    hidden_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(hidden_name.sun_path + 1));
    CHECK(bind(hidden = datagram(), (struct sockaddr *)&hidden_name, hidden_len) == 0);
    nameless = datagram();
    CHECK(connect(directed = datagram(), (struct sockaddr *)&receiver_name, sizeof receiver_name) == 0);
}

static void open_pipe(void)
{
    unlink("gone.fifo");
    CHECK(mkfifo("gone.fifo", 0640) == 0 && (pipe_out = open("gone.fifo", O_RDONLY | O_NONBLOCK)) >= 0);
    CHECK((pipe_in = open("gone.fifo", O_WRONLY | O_CLOEXEC)) >= 0 && unlink("gone.fifo") == 0);
}

static int netlink(int family, unsigned groups)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = groups};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, family);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static void open_netlink(void)
{
    int group = 40, on = 1; /* beyond those that fit an address */
    route = netlink(NETLINK_ROUTE, RTMGRP_NOTIFY);
    CHECK(setsockopt(route, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group) == 0 || errno == EINVAL);
    CHECK(setsockopt(route, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof on) == 0);
    events = netlink(NETLINK_KOBJECT_UEVENT, 0);
}

static void send_all(uint64_t round)
{
    char text[2000];
    const struct sockaddr *to = (const struct sockaddr *)&receiver_name;
    memset(text, (int)('a' + round % 26), sizeof text);
    CHECK(sendto(named, "first", 5, 0, to, sizeof receiver_name) == 5);
    CHECK(sendto(hidden, text, sizeof text, 0, to, sizeof receiver_name) == sizeof text);
    CHECK(sendto(nameless, "third", 5, 0, to, sizeof receiver_name) == 5);
    CHECK(send(directed, "fourth", 6, 0) == 6);
    CHECK(write(pipe_in, text, 700) == 700);
}

static void expect(const void *data, size_t len, const struct sockaddr_un *from)
{
    char buffer[4096];
    struct sockaddr_un name = {0};
    socklen_t room = sizeof name;
    CHECK(recvfrom(receiver, buffer, sizeof buffer, MSG_DONTWAIT, (struct sockaddr *)&name, &room) == (ssize_t)len);
    CHECK(memcmp(buffer, data, len) == 0);
    if (from == NULL) CHECK(room <= sizeof(sa_family_t));
    else CHECK(memcmp(&name, from, room) == 0);
}

static void check_unix(uint64_t round)
{
    char text[2000], byte;
    memset(text, (int)('a' + round % 26), sizeof text);
    expect("first", 5, &named_name);
    expect(text, sizeof text, &hidden_name);
    expect("third", 5, NULL);
    expect("fourth", 6, NULL);
    CHECK(recv(receiver, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    char buffer[1000];
    struct stat status;
    CHECK(read(pipe_out, buffer, sizeof buffer) == 700 && memcmp(buffer, text, 700) == 0);
    CHECK(read(pipe_out, buffer, 1) == -1 && errno == EAGAIN);
    CHECK(fstat(pipe_in, &status) == 0 && S_ISFIFO(status.st_mode) && (status.st_mode & 0777) == 0640
        && status.st_nlink == 0);
}

/* A question is answered: the loopback device is there. */
static void check_netlink(uint32_t number)
{
    struct {
        struct nlmsghdr header;
        struct ifinfomsg about;
    } question = {{sizeof question, RTM_GETLINK, NLM_F_REQUEST, number, 0}, {.ifi_index = 1}};
    struct sockaddr_nl address = {0};
    socklen_t len = sizeof address;
    char answer[16384] __attribute__((aligned(8)));
    struct nlmsghdr *header = (struct nlmsghdr *)answer;
    int on = 0;
    CHECK(getsockname(route, (struct sockaddr *)&address, &len) == 0 && address.nl_groups == RTMGRP_NOTIFY
        && address.nl_pid != 0);
    CHECK(send(route, &question, sizeof question, 0) == sizeof question);
    CHECK(recv(route, answer, sizeof answer, 0) > (ssize_t)sizeof *header);
    CHECK(header->nlmsg_type == RTM_NEWLINK && header->nlmsg_seq == number && header->nlmsg_pid == address.nl_pid);
    len = sizeof on;
    CHECK(getsockopt(route, SOL_NETLINK, NETLINK_EXT_ACK, &on, &len) == 0 && on == 1);
    CHECK(recv(events, answer, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 60);
    open_unix();
    open_pipe();
    open_netlink();
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        step("messages round %llu", (unsigned long long)round);
        send_all(round);
        sleep_ms(40);
        check_unix(round);
        check_netlink((uint32_t)round + 1);
    }
    return pass();
}
