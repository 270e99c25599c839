/* Datagram sockets with addresses: UDP of both families, with and without a default destination, and unix datagrams by
 * path and abstract name. Every round sends through all of them and looks at names and options. `datagrams [ROUNDS]` */
#include "common.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#define PAIRS 4
static struct pair {
    int from, to, directed;
    struct sockaddr_storage name;
    socklen_t len;
} pairs[PAIRS];
static int idle;

static void name_of(int fd, struct sockaddr_storage *name, socklen_t *len)
{
    memset(name, 0, sizeof *name);
    *len = sizeof *name;
    CHECK(getsockname(fd, (struct sockaddr *)name, len) == 0);
}

static void make(struct pair *pair, int domain, const void *address, socklen_t len, int directed)
{
    CHECK((pair->from = socket(domain, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0);
    CHECK((pair->to = socket(domain, SOCK_DGRAM | SOCK_NONBLOCK, 0)) >= 0);
    CHECK(bind(pair->to, address, len) == 0);
    name_of(pair->to, &pair->name, &pair->len);
    pair->directed = directed;
    if (directed) CHECK(connect(pair->from, (struct sockaddr *)&pair->name, pair->len) == 0);
}

static void open_all(void)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    struct sockaddr_un path = {.sun_family = AF_UNIX, .sun_path = "datagrams.here"}, hidden = {.sun_family = AF_UNIX};
    int one = 1, hops = 5;
    unlink(path.sun_path);
    snprintf(hidden.sun_path + 1, 40, "holdfast-datagrams-%d", (int)getpid());
    make(&pairs[0], AF_INET, &four, sizeof four, 0);
    make(&pairs[1], AF_INET6, &six, sizeof six, 1);
    make(&pairs[2], AF_UNIX, &path, sizeof path, 1);
    make(&pairs[3], AF_UNIX, &hidden,
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(hidden.sun_path + 1)), 0);
    CHECK(setsockopt(pairs[0].from, SOL_SOCKET, SO_BROADCAST, &one, sizeof one) == 0);
    CHECK(setsockopt(pairs[1].from, IPPROTO_IPV6, IPV6_UNICAST_HOPS, &hops, sizeof hops) == 0);
    CHECK((idle = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
    CHECK(setsockopt(idle, SOL_SOCKET, SO_RCVBUF, &(int){50000}, sizeof(int)) == 0);
}

static int option(int fd, int level, int number)
{
    int value = -1;
    socklen_t size = sizeof value;
    CHECK(getsockopt(fd, level, number, &value, &size) == 0);
    return value;
}

static void use(struct pair *pair, uint64_t round)
{
    struct sockaddr_storage name;
    socklen_t len;
    char text[64], got[64];
    int size = snprintf(text, sizeof text, "round %lu of %d", (unsigned long)round, pair->directed);
    name_of(pair->to, &name, &len);
    CHECK(len == pair->len && memcmp(&name, &pair->name, len) == 0);
    for (int i = 0; i < 3; i++) {
        struct pollfd arrived = {.fd = pair->to, .events = POLLIN};
        /* UDP may lose one, and does where a checkpoint comes before it is read: it is sent again. */
        do {
            if (pair->directed)
                CHECK(send(pair->from, text, (size_t)size, 0) == size);
            else
                CHECK(sendto(pair->from, text, (size_t)size, 0, (struct sockaddr *)&pair->name, pair->len) == size);
        } while (poll(&arrived, 1, 2000) == 0 && pair->name.ss_family != AF_UNIX);
        ssize_t len_got = recv(pair->to, got, sizeof got, 0);
        CHECK(len_got == size && memcmp(got, text, (size_t)size) == 0);
    }
    CHECK(recv(pair->to, got, sizeof got, 0) == -1 && errno == EAGAIN);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 60);
    open_all();
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        for (int i = 0; i < PAIRS; i++) use(&pairs[i], round);
        CHECK(option(pairs[0].from, SOL_SOCKET, SO_BROADCAST) == 1
            && option(pairs[0].to, SOL_SOCKET, SO_BROADCAST) == 0);
        CHECK(option(pairs[1].from, IPPROTO_IPV6, IPV6_UNICAST_HOPS) == 5);
        CHECK(option(idle, SOL_SOCKET, SO_RCVBUF) == 100000 && option(idle, SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
        sleep_ms(25);
        step("datagrams round %lu", (unsigned long)round);
    }
    unlink("datagrams.here");
    return pass();
}
