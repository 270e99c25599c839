/* Sockets of the internet that send packets of other kinds than UDP: `echoes KIND [ROUNDS]`. KIND: raw (ICMP and IPv4
 * with headers of the program's own, connected, filtered; root), lite (UDP-Lite). Every round sends through what the
 * one before has left. */
#include "rounds.h"
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <sys/socket.h>

#define ICMP_FILTER 1
#define UDPLITE_SEND_CSCOV 10
#define UDPLITE_RECV_CSCOV 11

static int one, two;
static struct sockaddr_in here = {.sin_family = AF_INET};

static int get(int fd, int level, int name)
{
    int value = -1;
    socklen_t size = sizeof value;
    CHECK(getsockopt(fd, level, name, &value, &size) == 0);
    return value;
}

static void set(int fd, int level, int name, int value)
{
    CHECK(setsockopt(fd, level, name, &value, sizeof value) == 0);
}

static uint16_t sum(const void *data, size_t len)
{
    const uint16_t *words = data;
    uint32_t total = 0;
    for (size_t i = 0; i < len / 2; i++) total += words[i];
    total = (total >> 16) + (total & 0xffff);
    return (uint16_t)~(total + (total >> 16));
}

static struct icmphdr request(long round)
{
    struct icmphdr echo = {.type = ICMP_ECHO};
    echo.un.echo.id = htons((uint16_t)getpid()), echo.un.echo.sequence = htons((uint16_t)round);
    echo.checksum = sum(&echo, sizeof echo);
    return echo;
}

/* Waits for the answer, past what others get. */
static void hear(int fd, size_t header, long round)
{
    for (;;) {
        char data[100];
        struct pollfd p = {fd, POLLIN, 0};
        CHECK(poll(&p, 1, 10000) == 1);
        ssize_t len = recv(fd, data, sizeof data, 0);
        struct icmphdr echo;
        if (len < (ssize_t)(header + sizeof echo)) continue;
        memcpy(&echo, data + header, sizeof echo);
        CHECK(echo.type == ICMP_ECHOREPLY);
        if (echo.un.echo.id != htons((uint16_t)getpid())) continue;
        if (ntohs(echo.un.echo.sequence) == (uint16_t)round) return;
    }
}

static void prepare_raw(void)
{
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK), here.sin_port = htons(9);
    if ((one = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)) < 0) not_here("raw sockets");
    CHECK((two = socket(AF_INET, SOCK_RAW, IPPROTO_RAW)) >= 0);
    set(one, SOL_RAW, ICMP_FILTER, ~(1 << ICMP_ECHOREPLY));
    set(one, IPPROTO_IP, IP_TTL, 33);
    CHECK(connect(one, (struct sockaddr *)&here, sizeof here) == 0);
}

static void round_raw(long round)
{
    struct icmphdr echo = request(round);
    struct sockaddr_in peer;
    socklen_t size = sizeof peer;
    CHECK(get(one, SOL_RAW, ICMP_FILTER) == ~(1 << ICMP_ECHOREPLY) && get(one, IPPROTO_IP, IP_TTL) == 33);
    CHECK(get(one, IPPROTO_IP, IP_HDRINCL) == 0 && get(two, IPPROTO_IP, IP_HDRINCL) == 1);
    CHECK(getpeername(one, (struct sockaddr *)&peer, &size) == 0 && peer.sin_addr.s_addr == here.sin_addr.s_addr);
    CHECK(send(one, &echo, sizeof echo, 0) == sizeof echo);
    hear(one, sizeof(struct iphdr), round);

    struct { struct iphdr ip; struct icmphdr echo; } whole = {.echo = request(round + 1)};
    whole.ip = (struct iphdr){.version = 4, .ihl = 5, .ttl = 9, .protocol = IPPROTO_ICMP,
        .saddr = here.sin_addr.s_addr, .daddr = here.sin_addr.s_addr};
    CHECK(sendto(two, &whole, sizeof whole, 0, (struct sockaddr *)&here, sizeof here) == sizeof whole);
    hear(one, sizeof(struct iphdr), round + 1);
}

static void prepare_lite(void)
{
    socklen_t size = sizeof here;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if ((one = socket(AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE)) < 0) not_here("UDP-Lite");
    CHECK((two = socket(AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE)) >= 0);
    CHECK(bind(one, (struct sockaddr *)&here, sizeof here) == 0);
    CHECK(getsockname(one, (struct sockaddr *)&here, &size) == 0);
    CHECK(connect(two, (struct sockaddr *)&here, sizeof here) == 0);
    set(one, IPPROTO_UDPLITE, UDPLITE_RECV_CSCOV, 12);
    set(two, IPPROTO_UDPLITE, UDPLITE_SEND_CSCOV, 14);
}

static void round_lite(long round)
{
    long got = 0;
    struct sockaddr_in now;
    socklen_t size = sizeof now;
    struct pollfd p = {one, POLLIN, 0};
    CHECK(get(one, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_UDPLITE);
    CHECK(get(one, IPPROTO_UDPLITE, UDPLITE_RECV_CSCOV) == 12 && get(two, IPPROTO_UDPLITE, UDPLITE_SEND_CSCOV) == 14);
    CHECK(getsockname(one, (struct sockaddr *)&now, &size) == 0 && now.sin_port == here.sin_port);
    CHECK(send(two, &round, sizeof round, 0) == sizeof round && poll(&p, 1, 10000) == 1);
    CHECK(recv(one, &got, sizeof got, 0) == sizeof got && got == round);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {
        {"raw", prepare_raw, round_raw}, {"lite", prepare_lite, round_lite}};
    return RUN_KIND(kinds);
}
