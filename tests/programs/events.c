/* Descriptors that tell of events: `events KIND [ROUNDS]`
 * KIND: oneshot (disabled until it is asked for again), edge, nested (an epoll in an epoll), closed (a watched
 * descriptor that is closed while a duplicate lives), reused (the same, and its number is another's), taken (numbers
 * that were closed, and that a restart uses itself), ended (a process, watched under such a number), many (300
 * descriptors with data of 64 bits), semaphore (EFD_SEMAPHORE), brim (an eventfd that is full), signals (signalfd: a
 * mask that changes, signals that wait) */
#include "rounds.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int epoll, outer, fd, other;

static void watch(int in, int what, uint32_t events, uint64_t data)
{
    struct epoll_event event = {events, {.u64 = data}};
    CHECK(epoll_ctl(in, EPOLL_CTL_ADD, what, &event) == 0);
}

static int ready(int in, uint64_t data)
{
    struct epoll_event events[4];
    int count = epoll_wait(in, events, 4, 0);
    CHECK(count == 0 || (count == 1 && events[0].data.u64 == data));
    return count;
}

static void add(int to, uint64_t n) { CHECK(write(to, &n, sizeof n) == sizeof n); }
static uint64_t take(int from)
{
    uint64_t n = 0;
    CHECK(read(from, &n, sizeof n) == sizeof n);
    return n;
}

static void make(void)
{
    CHECK((epoll = epoll_create1(EPOLL_CLOEXEC)) >= 0 && (fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) >= 0);
}

static void oneshot_prepare(void)
{
    make();
    watch(epoll, fd, EPOLLIN | EPOLLONESHOT, 1);
}

static void oneshot_round(long round)
{
    struct epoll_event event = {EPOLLIN | EPOLLONESHOT, {.u64 = (uint64_t)round + 2}};
    if (round % 2 == 0) { /* it is on: it comes once, and then no more */
        add(fd, 1);
        CHECK(ready(epoll, (uint64_t)round + 1) == 1 && ready(epoll, 0) == 0);
    } else {
        CHECK(ready(epoll, 0) == 0 && take(fd) == 1);
        event.data.u64 = (uint64_t)round + 2;
        CHECK(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) == 0 && ready(epoll, 0) == 0);
    }
}

static void edge_prepare(void)
{
    make();
    watch(epoll, fd, EPOLLIN | EPOLLET, 7);
}

/* Every addition is told once. That one is told again after a restart is allowed: so it is asked for first. */
static void edge_round(long round)
{
    ready(epoll, 7);
    CHECK(ready(epoll, 7) == 0);
    add(fd, 1);
    CHECK(ready(epoll, 7) == 1 && ready(epoll, 7) == 0);
    if (round % 4 == 3) CHECK(take(fd) == 4);
}

static void nested_prepare(void)
{
    make();
    CHECK((outer = epoll_create1(EPOLL_CLOEXEC)) >= 0);
    watch(outer, epoll, EPOLLIN, 11);
    watch(epoll, fd, EPOLLIN, 12);
}

static void nested_round(long round)
{
    if (round % 2) {
        CHECK(ready(outer, 11) == 1 && ready(epoll, 12) == 1 && take(fd) == 1);
    } else {
        CHECK(ready(outer, 11) == 0);
        add(fd, 1);
    }
}

static void closed_prepare(void)
{
    make();
    watch(epoll, fd, EPOLLIN, 13);
    CHECK((other = fcntl(fd, F_DUPFD_CLOEXEC, 50)) >= 50 && close(fd) == 0);
}

static void closed_round(long round)
{
    if (round % 2) CHECK(ready(epoll, 13) == 1 && take(other) == 1);
    else {
        CHECK(ready(epoll, 13) == 0);
        add(other, 1);
    }
}

static int reused;
static void reused_prepare(void)
{
    closed_prepare();
    CHECK((reused = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) == fd);
    watch(epoll, reused, EPOLLIN, 14);
}

static void reused_round(long round)
{
    if (round % 3 == 0) {
        CHECK(ready(epoll, 0) == 0);
        add(other, 1);
    } else if (round % 3 == 1) {
        CHECK(ready(epoll, 13) == 1 && take(other) == 1 && ready(epoll, 0) == 0);
        add(reused, 1);
    } else {
        CHECK(ready(epoll, 14) == 1 && take(reused) == 1);
    }
}

/* Each counter is watched under many numbers behind all that the program has, which are closed by now. */
#define COUNTERS 8
#define NUMBERS 64
static int counters[COUNTERS];
static void taken_prepare(void)
{
    make();
    for (int i = 0; i < COUNTERS; i++) CHECK((counters[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) >= 0);
    for (int i = 0; i < COUNTERS * NUMBERS; i++) {
        int number = counters[COUNTERS - 1] + 1 + i % NUMBERS;
        CHECK(dup3(counters[i / NUMBERS], number, O_CLOEXEC) == number);
        watch(epoll, number, EPOLLIN, (uint64_t)i);
        CHECK(close(number) == 0);
    }
}

static void taken_round(long round)
{
    struct epoll_event events[COUNTERS * NUMBERS];
    int now = (int)(round % COUNTERS), seen[NUMBERS] = {0};
    CHECK(epoll_wait(epoll, events, COUNTERS * NUMBERS, 0) == 0);
    add(counters[now], 1);
    CHECK(epoll_wait(epoll, events, COUNTERS * NUMBERS, 0) == NUMBERS);
    for (int i = 0; i < NUMBERS; i++) {
        CHECK((int)events[i].data.u64 / NUMBERS == now && seen[events[i].data.u64 % NUMBERS]++ == 0);
    }
    CHECK(take(counters[now]) == 1);
}

/* The same of a process, and a number that is far away. */
static pid_t child;
static void ended_prepare(void)
{
    make();
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        for (;;) pause();
    }
    int first = (int)syscall(SYS_pidfd_open, child, 0);
    CHECK(first >= 0 && (other = fcntl(first, F_DUPFD_CLOEXEC, 50)) >= 50 && close(first) == 0);
    CHECK(dup3(other, 1000, O_CLOEXEC) == 1000);
    watch(epoll, 1000, EPOLLIN, 15);
    CHECK(close(1000) == 0);
}

static void ended_round(long round)
{
    siginfo_t info;
    CHECK(ready(epoll, 0) == 0);
    if (round % 3 != 2) return;
    struct epoll_event event;
    CHECK(kill(child, SIGKILL) == 0 && epoll_wait(epoll, &event, 1, -1) == 1 && event.data.u64 == 15);
    CHECK(waitid(P_PID, (id_t)child, &info, WEXITED) == 0 && close(other) == 0 && close(fd) == 0 && close(epoll) == 0);
    ended_prepare();
}

#define MANY 300
static int many[MANY];
static void many_prepare(void)
{
    make();
    for (int i = 0; i < MANY; i++) {
        CHECK((many[i] = eventfd(0, EFD_CLOEXEC)) >= 0);
        watch(epoll, many[i], EPOLLIN | (i % 2 ? EPOLLEXCLUSIVE : EPOLLRDHUP), mix((uint64_t)i));
    }
}

static void many_round(long round)
{
    int now = (int)(round * 7 % MANY), before = (int)((round - 1) * 7 % MANY);
    if (round > 0) CHECK(ready(epoll, mix((uint64_t)before)) == 1 && take(many[before]) == (uint64_t)round);
    CHECK(ready(epoll, 0) == 0);
    add(many[now], (uint64_t)round + 1);
}

static void semaphore_prepare(void) { CHECK((fd = eventfd(20, EFD_SEMAPHORE | EFD_CLOEXEC)) >= 0); }
static void semaphore_round(long round)
{
    (void)round;
    for (int i = 0; i < 20; i++) CHECK(take(fd) == 1);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    uint64_t n;
    CHECK(read(fd, &n, sizeof n) == -1 && errno == EAGAIN && fcntl(fd, F_SETFL, 0) == 0);
    add(fd, 20);
}

static void brim_prepare(void) { CHECK((fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) >= 0); }
static void brim_round(long round)
{
    uint64_t one = 1;
    if (round > 0) CHECK(write(fd, &one, sizeof one) == -1 && errno == EAGAIN && take(fd) == 0xfffffffffffffffeu);
    add(fd, 0xfffffffffffffffeu);
}

static sigset_t set_of(long round)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 3 + (int)(round % 5));
    return set;
}

static void signals_prepare(void)
{
    for (long i = 0; i < 5; i++) {
        sigset_t set = set_of(i);
        CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    }
    sigset_t set = set_of(0);
    CHECK((fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)) >= 0);
}

static void signals_round(long round)
{
    struct signalfd_siginfo info;
    union sigval value = {.sival_int = (int)round};
    if (round > 0) {
        CHECK(read(fd, &info, sizeof info) == sizeof info
            && (int)info.ssi_signo == SIGRTMIN + 3 + (int)((round - 1) % 5));
        CHECK(info.ssi_int == round - 1 && (pid_t)info.ssi_pid == getpid());
    }
    CHECK(read(fd, &info, sizeof info) == -1 && errno == EAGAIN);
    sigset_t set = set_of(round);
    CHECK(signalfd(fd, &set, 0) == fd && sigqueue(getpid(), SIGRTMIN + 3 + (int)(round % 5), value) == 0);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"oneshot", oneshot_prepare, oneshot_round}, {"edge", edge_prepare, edge_round},
                                        {"nested", nested_prepare, nested_round},
                                        {"closed", closed_prepare, closed_round},
                                        {"reused", reused_prepare, reused_round},
                                        {"taken", taken_prepare, taken_round},
                                        {"ended", ended_prepare, ended_round},
                                        {"many", many_prepare, many_round},
                                        {"semaphore", semaphore_prepare, semaphore_round},
                                        {"brim", brim_prepare, brim_round},
                                        {"signals", signals_prepare, signals_round}};
    return RUN_KIND(kinds);
}
