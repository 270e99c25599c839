/* Two members of a gang that know each other by their addresses: `addresses KIND RANK FILE [ROUNDS] [ADDRESS]`
 * FILE: where rank 0 says its ports to rank 1. ADDRESS: of rank 0, 127.0.0.1 else; that of rank 1 is the one from which
 * it connects. Rank 0 sends all the time, rank 1 reads slowly; meanwhile rank 1 connects anew, sends messages in each
 * way that there is, and has programs connect that it executes. Both check all addresses that they are told.
 * KIND: gang; job: both are processes of one job. child: what rank 1 executes (ADDRESS and FILE, a port). */
#include "common.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PIECE 65536
#define MIB (1 << 20)
/* The most of a run. */
#define RESTARTS 2

/* Own addresses and those of the other one, as they were at the start. */
static struct sockaddr_in own, other, other_udp;
static const char *self;
static int stream, listener, udp;

static int is(const struct sockaddr_in *found, const struct sockaddr_in *expected)
{
    return found->sin_family == AF_INET && found->sin_addr.s_addr == expected->sin_addr.s_addr &&
           (expected->sin_port == 0 || found->sin_port == expected->sin_port);
}

static struct sockaddr_in any_port(struct sockaddr_in address)
{
    address.sin_port = 0;
    return address;
}

static void check_names(int fd, const struct sockaddr_in *here, const struct sockaddr_in *there)
{
    struct sockaddr_in name = {0};
    socklen_t len = sizeof name;
    /* A stop may be between the kernel's answer and what is made of it: then the next one is right (`is_others`). */
    for (int try = 0; try < 2 && !(try > 0 && is(&name, here)); try++)
        CHECK(getsockname(fd, (struct sockaddr *)&name, &len) == 0 && len == sizeof name);
    CHECK(is(&name, here));
    for (int try = 0; try < 2 && !(try > 0 && is(&name, there)); try++)
        CHECK(getpeername(fd, (struct sockaddr *)&name, &len) == 0 && len == sizeof name);
    CHECK(is(&name, there));
    memset(&name, 0, sizeof name);
    CHECK(syscall(SYS_getpeername, fd, &name, &len) == 0 && is(&name, there));
    /* What does not fit is cut off. */
    unsigned char cut[5] = {0, 0, 0, 0, 7};
    len = 4;
    CHECK(getpeername(fd, (struct sockaddr *)cut, &len) == 0 && len == sizeof name && cut[4] == 7);
    CHECK(getpeername(-1, (struct sockaddr *)&name, &len) == -1 && errno == EBADF);
}

static int bound(int type)
{
    struct sockaddr_in at = any_port(own);
    int fd = socket(AF_INET, type, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

static void send_all(int fd, const void *data, size_t len)
{
    for (const char *at = data; len > 0;) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);
        CHECK(sent > 0);
        at += sent;
        len -= (size_t)sent;
    }
}

static void receive_all(int fd, void *data, size_t len)
{
    for (char *at = data; len > 0;) {
        ssize_t got = recv(fd, at, len, 0);
        CHECK(got > 0);
        at += got;
        len -= (size_t)got;
    }
}

static unsigned char expected(uint64_t at)
{
    return (unsigned char)(at * 7 + at / 251);
}

/* A message with a name, sent or received in one of four ways. */
static ssize_t message(int fd, uint32_t *data, struct sockaddr_in *name, int way, int out, int flags)
{
    struct iovec part = {data, sizeof *data};
    struct msghdr head = {.msg_name = name, .msg_namelen = sizeof *name, .msg_iov = &part, .msg_iovlen = 1};
    struct mmsghdr one = {.msg_hdr = head};
    struct sockaddr_in before = *name;
    socklen_t len = sizeof *name;
    ssize_t result;
    switch (way % 4) {
    case 0:
        result = out ? sendto(fd, data, sizeof *data, 0, (struct sockaddr *)name, len)
                     : recvfrom(fd, data, sizeof *data, flags, (struct sockaddr *)name, &len);
        break;
    case 1:
        result = out ? sendmsg(fd, &one.msg_hdr, 0) : recvmsg(fd, &one.msg_hdr, flags);
        break;
    case 2:
        result = out ? sendmmsg(fd, &one, 1, 0) : recvmmsg(fd, &one, 1, flags, NULL);
        if (result == 1) result = one.msg_len;
        break;
    default:
        result = out ? syscall(SYS_sendto, fd, data, sizeof *data, 0, name, len)
                     : syscall(SYS_recvfrom, fd, data, sizeof *data, flags, name, &len);
    }
    CHECK(!out || memcmp(&before, name, sizeof before) == 0);
    return result;
}

static void *sends(void *argument)
{
    static unsigned char data[PIECE];
    uint64_t total = *(long *)argument * (uint64_t)MIB;
    for (uint64_t at = 0; at < total; at += PIECE) {
        for (size_t i = 0; i < PIECE; i++) data[i] = expected(at + i);
        send_all(stream, data, PIECE);
        if (at % (4 * MIB) == 0) step("sent %d MiB", (int)(at / MIB));
    }
    return NULL;
}

/* Whether what a call has told is an address of the other one. What a thread is just being told in a stop may be
 * another one (docs/limitations.md, Gangs): once for each restart, and the next ones must be right. */
static int is_others(struct sockaddr_in *from, int *strange)
{
    struct sockaddr_in from_other = any_port(other);
    if (is(from, &from_other)) return 1;
    from->sin_addr = other.sin_addr;
    return ++*strange <= RESTARTS && is(from, &from_other);
}

/* Answers messages. */
static void *answers(void *unused)
{
    (void)unused;
    int strange = 0;
    for (int turn = 0;; turn++) {
        uint32_t data;
        struct sockaddr_in from = {0};
        if (message(udp, &data, &from, turn % 3, 0, 0) != sizeof data) continue;
        CHECK(is_others(&from, &strange));
        CHECK(message(udp, &data, &from, turn / 3, 1, 0) == sizeof data);
    }
    return NULL;
}

/* Takes connections. */
static void *accepts(void *unused)
{
    (void)unused;
    int strange = 0;
    for (int turn = 0;; turn++) {
        struct sockaddr_in from = {0};
        socklen_t len = sizeof from;
        int fd = turn % 2 ? accept(listener, (struct sockaddr *)&from, &len)
                          : accept4(listener, (struct sockaddr *)&from, &len, SOCK_CLOEXEC);
        CHECK(fd >= 0 && is_others(&from, &strange));
        check_names(fd, &own, &from);
        CHECK(send(fd, "!", 1, MSG_NOSIGNAL) == 1 && close(fd) == 0);
    }
    return NULL;
}

/* Waits in calls all the time, until the stream ends. */
static void serve(void)
{
    pthread_t both[2];
    char end;
    CHECK_ZERO(pthread_create(&both[0], NULL, answers, NULL));
    CHECK_ZERO(pthread_create(&both[1], NULL, accepts, NULL));
    CHECK(recv(stream, &end, 1, 0) == 0);
    check_names(stream, &own, &other);
    for (int i = 0; i < 2; i++) CHECK_ZERO(pthread_cancel(both[i]));
    for (int i = 0; i < 2; i++) {
        void *result;
        CHECK_ZERO(pthread_join(both[i], &result));
        CHECK(result == PTHREAD_CANCELED);
    }
}

static void connect_anew(int fd, const struct sockaddr_in *here, const struct sockaddr_in *there)
{
    char byte = 0;
    CHECK(connect(fd, (const struct sockaddr *)there, sizeof *there) == 0);
    check_names(fd, here, there);
    CHECK(recv(fd, &byte, 1, 0) == 1 && byte == '!' && close(fd) == 0);
}

/* Sends a message until there is an answer: one that is under way in a checkpoint may be lost. */
static void ask(int fd, uint32_t round, int is_directed)
{
    for (;;) {
        uint32_t data = round;
        struct sockaddr_in to = other_udp, from = {0};
        struct pollfd one = {fd, POLLIN, 0};
        if (is_directed) CHECK(send(fd, &data, sizeof data, 0) == sizeof data || errno == ECONNREFUSED);
        else CHECK(message(fd, &data, &to, (int)round, 1, 0) == sizeof data);
        while (poll(&one, 1, 300) > 0) {
            if (message(fd, &data, &from, (int)round / 2, 0, MSG_DONTWAIT) != sizeof data) continue;
            CHECK(is(&from, &other_udp));
            if (data == round) return;
        }
    }
}

/* A program of its own, by fork and exec. */
static void executed(void)
{
    char port[16], address[INET_ADDRSTRLEN];
    snprintf(port, sizeof port, "%d", ntohs(other.sin_port));
    CHECK(inet_ntop(AF_INET, &other.sin_addr, address, sizeof address) != NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct sockaddr_in here = any_port(own);
        connect_anew(bound(SOCK_STREAM), &here, &other);
        execl(self, self, "child", "1", port, "0", address, (char *)NULL);
        _exit(9);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void ask_and_read(long mib)
{
    static unsigned char data[PIECE];
    struct sockaddr_in here = any_port(own);
    int directed = bound(SOCK_DGRAM);
    CHECK(connect(directed, (struct sockaddr *)&other_udp, sizeof other_udp) == 0);
    uint64_t total = (uint64_t)mib * MIB;
    for (uint64_t at = 0; at < total; at += PIECE) {
        uint32_t round = (uint32_t)(at / PIECE);
        receive_all(stream, data, PIECE);
        for (size_t i = 0; i < PIECE; i++) CHECK(data[i] == expected(at + i));
        check_names(stream, &own, &other);
        if (round % 8 == 0) {
            connect_anew(bound(SOCK_STREAM), &here, &other);
            ask(udp, round, 0);
            check_names(directed, &here, &other_udp);
            ask(directed, round, 1);
        }
        if (round % 64 == 0) executed();
        sleep_ms(3);
    }
}

/* Rank 0 listens, and rank 1 learns where; then each knows the other's addresses. */
static void meet(int rank, const char *file, const char *address)
{
    struct sockaddr_in *zero = rank == 0 ? &own : &other;
    socklen_t len = sizeof *zero;
    *zero = (struct sockaddr_in){.sin_family = AF_INET};
    CHECK(inet_pton(AF_INET, address, &zero->sin_addr) == 1);
    if (rank == 0) {
        char new[4096];
        struct sockaddr_in name;
        listener = bound(SOCK_STREAM);
        udp = bound(SOCK_DGRAM);
        CHECK(listen(listener, 50) == 0 && getsockname(listener, (struct sockaddr *)&own, &len) == 0);
        CHECK(getsockname(udp, (struct sockaddr *)&name, &len) == 0);
        snprintf(new, sizeof new, "%s.new", file);
        FILE *out = fopen(new, "w");
        CHECK(out != NULL && fprintf(out, "%d %d\n", ntohs(own.sin_port), ntohs(name.sin_port)) > 0);
        CHECK(fclose(out) == 0 && rename(new, file) == 0);
        stream = accept(listener, (struct sockaddr *)&other, &len);
        CHECK(stream >= 0);
        return;
    }
    int ports[2];
    for (FILE *in = NULL; in == NULL; sleep_ms(5)) {
        in = fopen(file, "r");
        if (in != NULL) CHECK(fscanf(in, "%d %d", &ports[0], &ports[1]) == 2 && fclose(in) == 0);
    }
    other.sin_port = htons((uint16_t)ports[0]);
    other_udp = other;
    other_udp.sin_port = htons((uint16_t)ports[1]);
    stream = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(stream >= 0 && connect(stream, (struct sockaddr *)&other, sizeof other) == 0);
    CHECK(getsockname(stream, (struct sockaddr *)&own, &len) == 0);
    udp = bound(SOCK_DGRAM);
}

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    self = argv[0];
    int rank = argv[2][0] == '1';
    const char *address = argc > 5 ? argv[5] : "127.0.0.1";
    if (strcmp(argv[1], "child") == 0) {
        struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
        struct sockaddr_in here = {0};
        socklen_t len = sizeof here;
        CHECK(inet_pton(AF_INET, address, &there.sin_addr) == 1);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        char byte;
        CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&there, sizeof there) == 0);
        CHECK(getsockname(fd, (struct sockaddr *)&here, &len) == 0);
        check_names(fd, &here, &there);
        return recv(fd, &byte, 1, 0) == 1 && byte == '!' ? 0 : 1;
    }
    long mib = number_argument(argc, argv, 4, 40);
    pid_t second = -1;
    if (strcmp(argv[1], "job") == 0) {
        second = fork();
        CHECK(second >= 0);
        rank = second == 0;
    }
    meet(rank, argv[3], address);
    if (rank == 0) {
        pthread_t sender;
        CHECK_ZERO(pthread_create(&sender, NULL, sends, &mib));
        serve();
        CHECK_ZERO(pthread_join(sender, NULL));
    } else {
        ask_and_read(mib);
    }
    CHECK(close(stream) == 0);
    if (second == 0) return 0;
    int status = 0;
    if (second > 0) CHECK(waitpid(second, &status, 0) == second && status == 0);
    return pass();
}
