/* What outlives its name or its use, and settings that seldom matter: `leftovers KIND [ROUNDS]`
 * KIND: links (two descriptors of one deleted file, opened by two names), linked (the same, one of them mapped),
 * later (a file mapped for reading that may be mapped for writing), grows (the same, and the file grows), times (time
 * and mode of a deleted file), over (a TCP connection that both ends have shut), udp, pair (datagram sockets of which
 * a direction is shut), filter (of a socket), gone (datagrams to a server whose name is gone), rebound (two listeners
 * of one name), bound (an address that the host does not have), stamps (options of a UDP socket), settings (of the
 * process), droppable (memory that may vanish), group (of a child that has ended) */
#include "rounds.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#define LEN 8192

static int one, two;
static char *shared;

static void links_prepare(void)
{
    CHECK((one = open("first", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) >= 0 && ftruncate(one, LEN) == 0);
    CHECK(link("first", "second") == 0 && (two = open("second", O_RDWR | O_CLOEXEC)) >= 0);
    CHECK(unlink("first") == 0 && unlink("second") == 0);
}

static void links_round(long round)
{
    long value = 0;
    CHECK(pwrite(one, &round, sizeof round, 0) == sizeof round);
    CHECK(pread(two, &value, sizeof value, 0) == sizeof value && value == round);
    CHECK(pwrite(two, &round, sizeof round, 4096) == sizeof round);
    CHECK(pread(one, &value, sizeof value, 4096) == sizeof value && value == round);
}

/* Opened by one name, mapped by the other. */
static void linked_prepare(void)
{
    links_prepare();
    shared = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, two, 0);
    CHECK(shared != MAP_FAILED && close(two) == 0);
}

static void linked_round(long round)
{
    long value = 0;
    if (round > 0) CHECK(pread(one, &value, sizeof value, 0) == sizeof value && value == round - 1);
    memcpy(shared, &round, sizeof round);
    CHECK(pread(one, &value, sizeof value, 0) == sizeof value && value == round);
}

static void later_prepare(void)
{
    CHECK((one = open("later", O_RDWR | O_CREAT | O_CLOEXEC, 0644)) >= 0 && ftruncate(one, LEN) == 0);
    CHECK((shared = mmap(NULL, LEN, PROT_READ, MAP_SHARED, one, 0)) != MAP_FAILED && close(one) == 0);
}

static void later_round(long round)
{
    CHECK(mprotect(shared, LEN, PROT_READ | PROT_WRITE) == 0);
    memcpy(shared + 100, &round, sizeof round);
    CHECK(mprotect(shared, LEN, PROT_READ) == 0 && memcmp(shared + 100, &round, sizeof round) == 0);
}

static void grows_prepare(void)
{
    CHECK((one = open("grows", O_RDWR | O_CREAT | O_CLOEXEC, 0644)) >= 0);
    char line[LEN];
    memset(line, 'a', sizeof line);
    CHECK(write(one, line, sizeof line) == sizeof line);
    CHECK((shared = mmap(NULL, LEN, PROT_READ, MAP_SHARED, one, 0)) != MAP_FAILED);
}

static void grows_round(long round)
{
    CHECK(shared[0] == 'a' && shared[LEN - 1] == 'a');
    CHECK(pwrite(one, "more", 4, LEN + round * 4) == 4);
}

static void times_prepare(void)
{
    struct timespec times[2] = {{1000, 0}, {1234567890, 123456789}};
    CHECK((one = open("times", O_RDWR | O_CREAT | O_CLOEXEC, 0600)) >= 0 && write(one, "hello", 5) == 5);
    CHECK(fchmod(one, 0640) == 0 && unlink("times") == 0 && futimens(one, times) == 0);
    // Root can give files away.
    if (geteuid() == 0) CHECK(fchown(one, 1234, 4321) == 0);
}

static void times_round(long round)
{
    struct stat s;
    (void)round;
    CHECK(fstat(one, &s) == 0 && s.st_mtim.tv_sec == 1234567890 && s.st_mtim.tv_nsec == 123456789);
    CHECK((s.st_mode & 0777) == 0640 && s.st_size == 5);
    if (geteuid() == 0) CHECK(s.st_uid == 1234 && s.st_gid == 4321);
}

static struct sockaddr_in here = {.sin_family = AF_INET};

static int bound(int type)
{
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    socklen_t len = sizeof here;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    here.sin_port = 0;
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&here, sizeof here) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&here, &len) == 0);
    return fd;
}

/* What was sent last stays until the last round. */
static void over_prepare(void)
{
    int listener = bound(SOCK_STREAM);
    CHECK(listen(listener, 1) == 0 && (one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
    CHECK(connect(one, (struct sockaddr *)&here, sizeof here) == 0 && (two = accept(listener, NULL, NULL)) >= 0);
    CHECK(send(two, "last words", 10, 0) == 10 && close(listener) == 0);
    CHECK(shutdown(one, SHUT_WR) == 0 && shutdown(two, SHUT_WR) == 0);
}

static void over_round(long round)
{
    char words[20];
    CHECK(recv(two, words, sizeof words, 0) == 0);
    if (round % 2 == 0) CHECK(recv(one, words, sizeof words, MSG_PEEK) == (round < 40 ? 10 : 0));
    if (round == 38) CHECK(recv(one, words, sizeof words, 0) == 10 && memcmp(words, "last words", 10) == 0);
    CHECK(send(one, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
}

static void udp_prepare(void)
{
    one = bound(SOCK_DGRAM);
    CHECK(connect(one, (struct sockaddr *)&here, sizeof here) == 0 && shutdown(one, SHUT_WR) == 0);
    two = bound(SOCK_DGRAM);
    CHECK(connect(two, (struct sockaddr *)&here, sizeof here) == 0 && shutdown(two, SHUT_RD) == 0);
}

static void udp_round(long round)
{
    struct pollfd ready = {.fd = two, .events = POLLIN | POLLRDHUP};
    (void)round;
    CHECK(send(one, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    CHECK(poll(&ready, 1, 0) == 1 && (ready.revents & POLLRDHUP) != 0);
}

static void pair_prepare(void)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) == 0);
    one = pair[0], two = pair[1];
    CHECK(send(two, "early", 5, 0) == 5 && shutdown(one, SHUT_RD) == 0);
}

static void pair_round(long round)
{
    char words[20];
    CHECK(send(two, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    if (round == 40) CHECK(recv(one, words, sizeof words, MSG_DONTWAIT) == 5);
    CHECK(send(one, "y", 1, 0) == 1 && recv(two, words, sizeof words, 0) == 1);
}

/* Takes nothing but what begins with an x. */
static void filter_prepare(void)
{
    struct sock_filter program[] = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 8),
                                    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 'x', 0, 1),
                                    BPF_STMT(BPF_RET | BPF_K, 0x40000), BPF_STMT(BPF_RET | BPF_K, 0)};
    struct sock_fprog filter = {4, program};
    one = bound(SOCK_DGRAM);
    CHECK(setsockopt(one, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0);
    CHECK((two = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0);
}

static void filter_round(long round)
{
    char words[20];
    (void)round;
    struct pollfd arrived = {.fd = one, .events = POLLIN};
    CHECK(sendto(two, "yes", 3, 0, (struct sockaddr *)&here, sizeof here) == 3);
    /* One that was not read before a checkpoint is lost, as UDP may lose any. */
    do
        CHECK(sendto(two, "xes", 3, 0, (struct sockaddr *)&here, sizeof here) == 3);
    while (poll(&arrived, 1, 2000) == 0);
    CHECK(recv(one, words, sizeof words, 0) == 3 && words[0] == 'x');
    CHECK(recv(one, words, sizeof words, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

static struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "leftovers.socket"};

static void gone_prepare(void)
{
    CHECK((one = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0);
    CHECK(bind(one, (struct sockaddr *)&name, sizeof name) == 0);
    CHECK((two = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0);
    CHECK(connect(two, (struct sockaddr *)&name, sizeof name) == 0 && unlink(name.sun_path) == 0);
}

static void gone_round(long round)
{
    long value;
    if (round > 0) CHECK(recv(one, &value, sizeof value, MSG_DONTWAIT) == sizeof value && value == round - 1);
    CHECK(send(two, &round, sizeof round, MSG_DONTWAIT) == sizeof round && access(name.sun_path, F_OK) == -1);
}

static int listening(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&name, sizeof name) == 0 && listen(fd, 3) == 0);
    return fd;
}

static void rebound_prepare(void)
{
    one = listening();
    CHECK(unlink(name.sun_path) == 0);
    two = listening();
}

static void rebound_round(long round)
{
    int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), accepted;
    (void)round;
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0 && (accepted = accept(two, NULL, NULL)) >= 0);
    CHECK(close(client) == 0 && close(accepted) == 0);
}

static void bound_prepare(void)
{
    struct sockaddr_in6 there = {.sin6_family = AF_INET6};
    int on = 1;
    CHECK(inet_pton(AF_INET6, "2001:db8::ff00:42:8329", &there.sin6_addr) == 1);
    if ((one = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0) not_here("IPv6");
    CHECK(setsockopt(one, IPPROTO_IPV6, IPV6_FREEBIND, &on, sizeof on) == 0);
    if (bind(one, (struct sockaddr *)&there, sizeof there) != 0) not_here("IPV6_FREEBIND");
    CHECK(listen(one, 1) == 0);
}

static void bound_round(long round)
{
    int on = 0;
    socklen_t len = sizeof on;
    (void)round;
    CHECK(getsockopt(one, IPPROTO_IPV6, IPV6_FREEBIND, &on, &len) == 0 && on == 1);
}

static const int stamps[][3] = {{SOL_SOCKET, SO_TIMESTAMP, 1}, {IPPROTO_IP, IP_RECVTOS, 1}, {IPPROTO_IP, IP_MINTTL, 3},
                                {SOL_SOCKET, SO_RXQ_OVFL, 1}, {IPPROTO_IP, IP_RECVORIGDSTADDR, 1}};
#define STAMPS (sizeof stamps / sizeof stamps[0])

static void stamps_prepare(void)
{
    one = bound(SOCK_DGRAM);
    for (size_t i = 0; i < STAMPS; i++) CHECK(setsockopt(one, stamps[i][0], stamps[i][1], &stamps[i][2], 4) == 0);
}

static void stamps_round(long round)
{
    (void)round;
    for (size_t i = 0; i < STAMPS; i++) {
        int value = 0;
        socklen_t len = sizeof value;
        CHECK(getsockopt(one, stamps[i][0], stamps[i][1], &value, &len) == 0 && value == stamps[i][2]);
    }
}

#define SET_MEMORY_MERGE 67
#define GET_MEMORY_MERGE 68
static int merges;

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

static void settings_prepare(void)
{
    put("/proc/self/coredump_filter", "0x7f");
    // A kernel may be built without KSM.
    merges = prctl(SET_MEMORY_MERGE, 1, 0, 0, 0) == 0;
}

static void settings_round(long round)
{
    char text[20];
    int fd = open("/proc/self/coredump_filter", O_RDONLY | O_CLOEXEC);
    (void)round;
    CHECK(fd >= 0 && read(fd, text, sizeof text) > 0 && close(fd) == 0 && strtol(text, NULL, 16) == 0x7f);
    if (merges) CHECK(prctl(GET_MEMORY_MERGE, 0, 0, 0, 0) == 1);
}

/* MAP_DROPPABLE, Linux 6.11: a child sees zeros, whatever madvise(2) is told. */
static void droppable_prepare(void)
{
    shared = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | 0x08, -1, 0);
    if (shared == MAP_FAILED) not_here("MAP_DROPPABLE");
    CHECK(madvise(shared, LEN, MADV_KEEPONFORK) == -1);
}

static void droppable_round(long round)
{
    int status;
    if (round > 0) CHECK(shared[0] == (char)(round - 1) || shared[0] == 0);
    shared[0] = (char)round;
    CHECK(madvise(shared, LEN, MADV_KEEPONFORK) == -1 && errno == EINVAL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(shared[0]);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A process makes a group, and dies; a child of it, which is ours, has ended in that group. */
static pid_t leader, ended;

static void group_prepare(void)
{
    int ends[2];
    siginfo_t info;
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 && pipe(ends) == 0);
    CHECK((leader = fork()) >= 0);
    if (leader == 0) {
        CHECK(setpgid(0, 0) == 0 && (ended = fork()) >= 0);
        if (ended == 0) _exit(3);
        CHECK(write(ends[1], &ended, sizeof ended) == sizeof ended);
        _exit(0);
    }
    CHECK(read(ends[0], &ended, sizeof ended) == sizeof ended && close(ends[0]) == 0 && close(ends[1]) == 0);
    CHECK(waitpid(leader, NULL, 0) == leader);
    CHECK(waitid(P_PID, (id_t)ended, &info, WEXITED | WNOWAIT) == 0);
}

static void group_round(long round)
{
    siginfo_t info;
    (void)round;
    CHECK(getpgid(ended) == leader);
    CHECK(waitid(P_PGID, (id_t)leader, &info, WEXITED | WNOWAIT) == 0 && info.si_pid == ended && info.si_status == 3);
}

int main(int argc, char **argv)
{
    const struct kind kinds[] = {
        {"links", links_prepare, links_round},       {"linked", linked_prepare, linked_round},
        {"later", later_prepare, later_round},       {"grows", grows_prepare, grows_round},
        {"times", times_prepare, times_round},       {"over", over_prepare, over_round},
        {"udp", udp_prepare, udp_round},             {"pair", pair_prepare, pair_round},
        {"filter", filter_prepare, filter_round},    {"gone", gone_prepare, gone_round},
        {"rebound", rebound_prepare, rebound_round}, {"bound", bound_prepare, bound_round},
        {"stamps", stamps_prepare, stamps_round},    {"settings", settings_prepare, settings_round},
        {"group", group_prepare, group_round},       {"droppable", droppable_prepare, droppable_round},
    };
    return RUN_KIND(kinds);
}
