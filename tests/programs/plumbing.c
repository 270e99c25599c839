/* Pipes and socket pairs to oneself with data in flight, epoll, eventfd, timerfd, signalfd. `plumbing [ROUNDS]` */
#include "common.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

static int small[2], large[2], stream[2], datagram[2], packet[2], closed;
static int plain_event, counting_event, timer, signals, epoll;

static void put(int fd, uint64_t from, size_t len)
{
    uint8_t buffer[4096];
    CHECK(len <= sizeof buffer);
    for (size_t i = 0; i < len; i++) buffer[i] = (uint8_t)mix(from + i);
    CHECK(write(fd, buffer, len) == (ssize_t)len);
}

static void take(int fd, uint64_t from, size_t len)
{
    uint8_t buffer[4096];
    CHECK(read(fd, buffer, len) == (ssize_t)len);
    for (size_t i = 0; i < len; i++) CHECK(buffer[i] == (uint8_t)mix(from + i));
}

static void watch(int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {events, {.u64 = data}};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

static void open_all(void)
{
    int finished[2];
    CHECK(pipe2(small, O_CLOEXEC) == 0 && pipe2(large, O_NONBLOCK) == 0);
    CHECK(fcntl(large[1], F_SETPIPE_SZ, 1 << 18) == 1 << 18);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, stream) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, datagram) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, packet) == 0);
    CHECK(pipe2(finished, O_CLOEXEC) == 0 && write(finished[1], "last words", 10) == 10 && close(finished[1]) == 0);
    closed = finished[0];
    CHECK((plain_event = eventfd(5, EFD_NONBLOCK)) >= 0);
    CHECK((counting_event = eventfd(1000000, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC)) >= 0);
    CHECK((timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) >= 0);
    struct itimerspec period = {{0, 20000000}, {0, 20000000}};
    CHECK(timerfd_settime(timer, 0, &period, NULL) == 0);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 6);
    CHECK_ZERO(pthread_sigmask(SIG_BLOCK, &set, NULL));
    CHECK((signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)) >= 0);
    CHECK((epoll = epoll_create1(EPOLL_CLOEXEC)) >= 0);
    watch(stream[0], EPOLLIN | EPOLLET, 0x1111111111111111u);
    watch(timer, EPOLLIN, 0x2222222222222222u);
    watch(packet[1], EPOLLIN | EPOLLONESHOT, 0x3333333333333333u);
    watch(signals, EPOLLIN, 0x4444444444444444u);
}

static void put_in_flight(uint64_t round)
{
    put(small[1], round * 1000, 3000);
    for (uint64_t i = 0; i < 50; i++) put(large[1], round + i * 4096, 4096);
    put(stream[1], round * 7, 2000);
    put(stream[0], round * 11, 1500);
    for (size_t i = 1; i <= 3; i++) put(datagram[0], round + i, i * 100);
    for (size_t i = 1; i <= 3; i++) put(packet[0], round + i, i * 10);
    union sigval value = {.sival_int = (int)round};
    CHECK(sigqueue(getpid(), SIGRTMIN + 6, value) == 0);
}

static void check_pipes(uint64_t round)
{
    int queued = 0;
    CHECK(ioctl(small[0], FIONREAD, &queued) == 0 && queued == 3000);
    take(small[0], round * 1000, 1000);
    take(small[0], round * 1000 + 1000, 2000);
    CHECK(ioctl(large[0], FIONREAD, &queued) == 0 && queued == 50 * 4096);
    for (uint64_t i = 0; i < 50; i++) take(large[0], round + i * 4096, 4096);
    char byte;
    CHECK(read(large[0], &byte, 1) == -1 && errno == EAGAIN);
    CHECK(fcntl(large[0], F_GETPIPE_SZ) == 1 << 18);
    take(stream[0], round * 7, 2000);
    take(stream[1], round * 11, 1500);
    char room[4096];
    for (size_t i = 1; i <= 3; i++) { /* message boundaries */
        CHECK(recv(datagram[1], room, sizeof room, MSG_PEEK) == (ssize_t)(i * 100));
        take(datagram[1], round + i, i * 100);
        CHECK(recv(packet[1], room, sizeof room, MSG_PEEK) == (ssize_t)(i * 10));
        take(packet[1], round + i, i * 10);
    }
    struct pollfd p = {closed, POLLIN, 0};
    CHECK(poll(&p, 1, 0) == 1 && (p.revents & POLLHUP) != 0);
}

static void check_events(uint64_t round)
{
    uint64_t count = 0;
    CHECK(read(plain_event, &count, 8) == 8 && count == 5 + round);
    count = 6 + round;
    CHECK(write(plain_event, &count, 8) == 8);
    CHECK(read(counting_event, &count, 8) == 8 && count == 1);
    struct signalfd_siginfo info;
    CHECK(read(signals, &info, sizeof info) == sizeof info);
    CHECK(info.ssi_signo == (uint32_t)SIGRTMIN + 6 && info.ssi_int == (int)round && info.ssi_pid == (uint32_t)getpid());
    CHECK(read(signals, &info, sizeof info) == -1 && errno == EAGAIN);
}

/* The timer ticks through everything: waits for it by epoll, in which nothing else may show by now. */
static void wait_for_tick(void)
{
    for (;;) {
        struct epoll_event event;
        int n = epoll_wait(epoll, &event, 1, 1000);
        CHECK(n == 1);
        if (event.data.u64 == 0x2222222222222222u) break;
        /* an edge that was re-announced is allowed, but there must be nothing to read */
        char byte;
        CHECK(event.data.u64 == 0x1111111111111111u && recv(stream[0], &byte, 1, MSG_DONTWAIT) == -1
            && errno == EAGAIN);
    }
    uint64_t ticks = 0;
    CHECK(read(timer, &ticks, 8) == 8 && ticks >= 1);
    struct itimerspec now;
    CHECK(timerfd_gettime(timer, &now) == 0 && now.it_interval.tv_nsec == 20000000);
}

static void check_one_shot(void)
{
    struct epoll_event event = {EPOLLIN | EPOLLONESHOT, {.u64 = 0x3333333333333333u}}, got;
    /* it fired once in the first round and must stay silent though there is data again */
    CHECK(poll(&(struct pollfd){packet[1], POLLIN, 0}, 1, 0) == 1);
    for (int i = 0; i < 3; i++) {
        int n = epoll_wait(epoll, &got, 1, 0);
        if (n == 1) CHECK(got.data.u64 != 0x3333333333333333u);
    }
    (void)event;
}

static void fire_one_shot(void)
{
    struct epoll_event got[8];
    put(packet[0], 1, 1);
    int n = epoll_wait(epoll, got, 8, 100), seen = 0;
    for (int i = 0; i < n; i++) seen |= got[i].data.u64 == 0x3333333333333333u;
    CHECK(seen);
    take(packet[1], 1, 1);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    open_all();
    fire_one_shot();
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        step("plumbing round %llu", (unsigned long long)round);
        put_in_flight(round);
        sleep_ms(20);
        check_one_shot();
        check_pipes(round);
        check_events(round);
        wait_for_tick();
    }
    char words[32] = "";
    CHECK(read(closed, words, sizeof words) == 10 && memcmp(words, "last words", 10) == 0);
    CHECK(read(closed, words, sizeof words) == 0);
    return pass();
}
