/* A program of two members of a gang with TCP connections between them: `members KIND RANK FILE [ROUNDS] [ADDRESS]`
 * FILE: where rank 0 says its port to rank 1, and which both have. ADDRESS: of rank 0, 127.0.0.1 else.
 * KIND: pingpong (messages, each checked, answered by others), bulk (much from one to the other, who reads slowly),
 * both (both ways at once), half (connections of which one end has sent its last, made anew in each round), many
 * (twenty connections, in all of which something waits) */
#include "common.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>

#define MIB (1 << 20)
#define PIECE 65536
#define MANY 20

static int rank, listener;
static struct sockaddr_in there;

/* What a stream has at a place. */
static unsigned char expected(uint64_t at, int stream)
{
    return (unsigned char)(at * 7 + at / 251 + (uint64_t)stream * 13);
}

static void fill(unsigned char *data, size_t len, uint64_t at, int stream) {
    for (size_t i = 0; i < len; i++) data[i] = expected(at + i, stream);
}

static void check(const unsigned char *data, size_t len, uint64_t at, int stream) {
    for (size_t i = 0; i < len; i++) CHECK(data[i] == expected(at + i, stream));
}

static void send_all(int fd, const unsigned char *data, size_t len)
{
    while (len > 0) {
        ssize_t sent = send(fd, data, len, MSG_NOSIGNAL);
        CHECK(sent > 0);
        data += sent;
        len -= (size_t)sent;
    }
}

/* Reads so much, or less if the end comes. */
static size_t receive_all(int fd, unsigned char *data, size_t len)
{
    size_t got = 0;
    while (got < len) {
        ssize_t now = recv(fd, data + got, len - got, 0);
        CHECK(now >= 0);
        if (now == 0) break;
        got += (size_t)now;
    }
    return got;
}

/* Rank 0 listens, and rank 1 learns where. */
static void meet(const char *file, const char *address)
{
    there = (struct sockaddr_in){.sin_family = AF_INET};
    CHECK(inet_pton(AF_INET, address, &there.sin_addr) == 1);
    if (rank == 0) {
        socklen_t len = sizeof there;
        char text[16], new[4096];
        int on = 1;
        listener = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(listener >= 0 && setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
        CHECK(bind(listener, (struct sockaddr *)&there, sizeof there) == 0 && listen(listener, 50) == 0);
        CHECK(getsockname(listener, (struct sockaddr *)&there, &len) == 0);
        snprintf(text, sizeof text, "%d\n", ntohs(there.sin_port));
        snprintf(new, sizeof new, "%s.new", file);
        FILE *out = fopen(new, "w");
        CHECK(out != NULL && fputs(text, out) >= 0 && fclose(out) == 0 && rename(new, file) == 0);
        return;
    }
    for (;; sleep_ms(5)) {
        FILE *in = fopen(file, "r");
        int port;
        if (in == NULL) continue;
        CHECK(fscanf(in, "%d", &port) == 1 && fclose(in) == 0);
        there.sin_port = htons((uint16_t)port);
        return;
    }
}

static int connected(void)
{
    int fd = rank == 0 ? accept(listener, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    if (rank == 1) CHECK(connect(fd, (struct sockaddr *)&there, sizeof there) == 0);
    return fd;
}

static void pingpong(long rounds)
{
    static unsigned char data[200000];
    int fd = connected(), on = 1;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    for (long round = 0; round < rounds; round++) {
        size_t len = 1 + (size_t)(round * 7919 % (long)sizeof data);
        for (int turn = 0; turn < 2; turn++) {
            int stream = (int)(2 * round + turn);
            if (turn == rank) {
                fill(data, len, 0, stream);
                send_all(fd, data, len);
            } else {
                CHECK(receive_all(fd, data, len) == len);
                check(data, len, 0, stream);
            }
        }
        socklen_t size = sizeof on;
        CHECK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &size) == 0 && on);
        if (round % 50 == 0) step("pingpong round %ld", round);
        sleep_ms(2);
    }
    CHECK(close(fd) == 0);
}

struct way {
    int fd, stream;
    uint64_t total;
};

static void *sends(void *argument)
{
    struct way *way = argument;
    unsigned char data[PIECE];
    for (uint64_t at = 0; at < way->total; at += sizeof data) {
        fill(data, sizeof data, at, way->stream);
        send_all(way->fd, data, sizeof data);
        if (at % (4 * MIB) == 0) step("sent %d MiB", (int)(at / MIB));
    }
    return NULL;
}

/* Slowly: the buffers of both ends are full most of the time. */
static void receives(const struct way *way, int tells)
{
    unsigned char data[PIECE];
    for (uint64_t at = 0; at < way->total; at += sizeof data) {
        CHECK(receive_all(way->fd, data, sizeof data) == sizeof data);
        check(data, sizeof data, at, way->stream);
        if (tells && at % (4 * MIB) == 0) step("received %d MiB", (int)(at / MIB));
        sleep_ms(3);
    }
}

static void bulk(long mib)
{
    struct way way = {connected(), 1, (uint64_t)mib * MIB};
    if (rank == 1) sends(&way);
    if (rank == 0) receives(&way, 1);
    CHECK(close(way.fd) == 0);
}

static void both(long mib)
{
    int fd = connected();
    struct way out = {fd, rank, (uint64_t)mib * MIB}, in = {fd, 1 - rank, (uint64_t)mib * MIB};
    pthread_t sender;
    CHECK_ZERO(pthread_create(&sender, NULL, sends, &out));
    receives(&in, 0);
    CHECK_ZERO(pthread_join(sender, NULL));
    CHECK(close(fd) == 0);
}

/* Rank 1 sends its last at once, which rank 0 reads later; what rank 0 sends then comes slowly. */
static void half(long rounds)
{
    static unsigned char data[300000];
    for (long round = 0; round < rounds; round++) {
        int fd = connected();
        if (rank == 1) {
            fill(data, sizeof data, 0, (int)round);
            send_all(fd, data, sizeof data);
            CHECK(shutdown(fd, SHUT_WR) == 0 && send(fd, data, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
        } else {
            sleep_ms(30);
            CHECK(receive_all(fd, data, sizeof data) == sizeof data && recv(fd, data, 1, MSG_PEEK) >= 0);
            check(data, sizeof data, 0, (int)round);
            unsigned char end;
            CHECK(recv(fd, &end, 1, 0) == 0);
            for (size_t at = 0; at < 10000; at += 1000) {
                fill(data, 1000, at, (int)round + 1);
                send_all(fd, data, 1000);
                sleep_ms(4);
            }
        }
        if (rank == 1) {
            CHECK(receive_all(fd, data, 10001) == 10000);
            check(data, 10000, 0, (int)round + 1);
        }
        CHECK(close(fd) == 0);
        if (round % 10 == 0) step("half round %ld", round);
    }
}

static void many(long rounds)
{
    static unsigned char data[20000];
    int all[MANY];
    for (int i = 0; i < MANY; i++) {
        all[i] = connected();
        /* Which one it is: they may be accepted in any order. */
        if (rank == 1) CHECK(send(all[i], &i, sizeof i, 0) == sizeof i);
    }
    if (rank == 0) {
        int order[MANY];
        for (int i = 0; i < MANY; i++) {
            int which;
            CHECK(receive_all(all[i], (unsigned char *)&which, sizeof which) == sizeof which);
            CHECK(which >= 0 && which < MANY);
            order[which] = all[i];
        }
        memcpy(all, order, sizeof all);
    }
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < MANY; i++) {
            fill(data, sizeof data, (uint64_t)round * sizeof data, 2 * i + rank);
            send_all(all[i], data, sizeof data);
        }
        sleep_ms(30);
        for (int i = 0; i < MANY; i++) {
            CHECK(receive_all(all[i], data, sizeof data) == sizeof data);
            check(data, sizeof data, (uint64_t)round * sizeof data, 2 * i + 1 - rank);
        }
        if (round % 10 == 0) step("many round %ld", round);
    }
    for (int i = 0; i < MANY; i++) CHECK(close(all[i]) == 0);
}

int main(int argc, char **argv)
{
    const struct {
        const char *name;
        void (*run)(long);
        long otherwise;
    } kinds[] = {{"pingpong", pingpong, 1500}, {"bulk", bulk, 80}, {"both", both, 60}, {"half", half, 60},
        {"many", many, 80}};
    if (argc < 4) return 2;
    rank = argv[2][0] == '1';
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].name, argv[1]) != 0) continue;
        meet(argv[3], argc > 5 ? argv[5] : "127.0.0.1");
        kinds[i].run(number_argument(argc, argv, 4, kinds[i].otherwise));
        return pass();
    }
    return 2;
}
