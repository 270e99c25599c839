/* Sockets that send packets of other kinds than UDP: `echoes KIND [ROUNDS]`. KIND: raw (ICMP and IPv4 with headers of
 * the program's own, connected with and without a port, filtered; root), lite (UDP-Lite), ping (those for echoes),
 * frames (packets of a device, in a network namespace of its own). Every round sends through what the one before has
 * left. */
#include "apart.h"
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define ICMP_FILTER 1
#define UDPLITE_SEND_CSCOV 10
#define UDPLITE_RECV_CSCOV 11

static int one, two, three;
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
    struct sockaddr_in unported = {.sin_family = AF_INET, .sin_addr = here.sin_addr};
    CHECK((three = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)) >= 0);
    CHECK(connect(three, (struct sockaddr *)&unported, sizeof unported) == 0);
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
    echo = request(round + 2);
    CHECK(send(three, &echo, sizeof echo, 0) == sizeof echo);
    hear(one, sizeof(struct iphdr), round + 2);
    CHECK(getpeername(three, (struct sockaddr *)&peer, &size) == -1 && errno == ENOTCONN);
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

/* What is sent and not read yet a restart loses: then it is sent again. */
static void send_until_heard(int from, int to, const void *data, size_t size)
{
    struct pollfd p = {to, POLLIN, 0};
    do CHECK(send(from, data, size, 0) == (ssize_t)size);
    while (poll(&p, 1, 1000) == 0);
}

static void prepare_ping(void)
{
    socklen_t size = sizeof here;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if ((one = socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP)) < 0) not_here("net.ipv4.ping_group_range");
    CHECK(bind(one, (struct sockaddr *)&here, sizeof here) == 0);
    CHECK(getsockname(one, (struct sockaddr *)&here, &size) == 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = here.sin_addr};
    CHECK(connect(one, (struct sockaddr *)&to, sizeof to) == 0);
    set(one, IPPROTO_IP, IP_TTL, 33);
}

static void round_ping(long round)
{
    struct sockaddr_in now;
    socklen_t size = sizeof now;
    struct icmphdr echo = {.type = ICMP_ECHO, .un.echo.sequence = htons((uint16_t)round)}, answer;
    CHECK(get(one, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_ICMP && get(one, IPPROTO_IP, IP_TTL) == 33);
    CHECK(getsockname(one, (struct sockaddr *)&now, &size) == 0 && now.sin_port == here.sin_port);
    send_until_heard(one, one, &echo, sizeof echo);
    while (recv(one, &answer, sizeof answer, 0) == sizeof answer && answer.un.echo.sequence != echo.un.echo.sequence) {}
    CHECK(answer.type == ICMP_ECHOREPLY && answer.un.echo.id == here.sin_port);
    while (recv(one, &answer, sizeof answer, MSG_DONTWAIT) > 0) {}
}

static void prepare_frames(void)
{
    struct ifreq device = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP), .sll_ifindex = 1};
    struct packet_mreq all = {.mr_ifindex = 1, .mr_type = PACKET_MR_PROMISC};
    socklen_t size = sizeof here;
    /* Byte 9 of the header says UDP. */
    struct sock_filter udp[] = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 9),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_UDP, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0xffff), BPF_STMT(BPF_RET | BPF_K, 0)};
    struct sock_fprog program = {sizeof udp / sizeof *udp, udp};
    leave_for(CLONE_NEWNET, 0, 0);
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK((two = socket(AF_INET, SOCK_DGRAM, 0)) >= 0 && ioctl(two, SIOCSIFFLAGS, &device) == 0);
    CHECK(bind(two, (struct sockaddr *)&here, size) == 0 && getsockname(two, (struct sockaddr *)&here, &size) == 0);
    CHECK(connect(two, (struct sockaddr *)&here, size) == 0);
    CHECK((one = socket(AF_PACKET, SOCK_DGRAM, 0)) >= 0 && bind(one, (struct sockaddr *)&at, sizeof at) == 0);
    CHECK((three = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ARP))) >= 0);
    set(one, SOL_PACKET, PACKET_AUXDATA, 1);
    CHECK(setsockopt(one, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) == 0);
    CHECK(setsockopt(one, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
}

static void round_frames(long round)
{
    struct sockaddr_ll at;
    socklen_t size = sizeof at;
    char packet[200];
    CHECK(getsockname(one, (struct sockaddr *)&at, &size) == 0);
    CHECK(at.sll_protocol == htons(ETH_P_IP) && at.sll_ifindex == 1 && get(one, SOL_PACKET, PACKET_AUXDATA) == 1);
    size = sizeof at;
    CHECK(getsockname(three, (struct sockaddr *)&at, &size) == 0);
    CHECK(at.sll_protocol == htons(ETH_P_ARP) && at.sll_ifindex == 0);
    send_until_heard(two, one, &round, sizeof round);
    CHECK(recv(one, packet, sizeof packet, 0) == 28 + sizeof round && packet[9] == IPPROTO_UDP);
    while (recv(one, packet, sizeof packet, MSG_DONTWAIT) > 0) {}
    while (recv(two, packet, sizeof packet, MSG_DONTWAIT) > 0) {}
    CHECK(recv(three, packet, sizeof packet, MSG_DONTWAIT) == -1);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {
        {"raw", prepare_raw, round_raw}, {"lite", prepare_lite, round_lite},
        {"ping", prepare_ping, round_ping}, {"frames", prepare_frames, round_frames}};
    return RUN_KIND(kinds);
}
