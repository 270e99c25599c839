/* An epoll, an eventfd and a timerfd that were made before fork(2) are one for all: who adds, writes or sets, does it
 * for the others. `tree_events [ROUNDS]` */
#include "tree.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#define CHILDREN 3

static int epoll, counter, timer, semaphore, ends[2];

static void watch(int fd, uint64_t data)
{
    struct epoll_event event = {EPOLLIN, {.u64 = data}};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

/* Child 0 waits in the epoll that its parent fills, child 1 for the semaphore, child 2 for the timer. */
static void serve(int in, int out, uint64_t number)
{
    uint64_t round, value;
    struct epoll_event event;
    while (hear_or_end(in, &round)) {
        if (number == 0) {
            CHECK(epoll_wait(epoll, &event, 1, -1) == 1 && event.data.u64 == 0x1234567890abcdefu);
            CHECK(read(ends[0], &value, 8) == 8 && value == round);
        } else if (number == 1) {
            for (int i = 0; i < 3; i++) CHECK(read(semaphore, &value, 8) == 8 && value == 1);
        } else {
            CHECK(read(timer, &value, 8) == 8 && value >= 1);
        }
        value = number + 1;
        CHECK(write(counter, &value, 8) == 8);
        tell(out, round);
    }
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    uint64_t value;
    CHECK((epoll = epoll_create1(EPOLL_CLOEXEC)) >= 0 && pipe2(ends, O_CLOEXEC) == 0);
    CHECK((counter = eventfd(0, EFD_NONBLOCK)) >= 0 && (semaphore = eventfd(0, EFD_SEMAPHORE)) >= 0);
    CHECK((timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) >= 0);
    for (uint64_t i = 0; i < CHILDREN; i++) fork_child(serve, i);
    watch(ends[0], 0x1234567890abcdefu); /* its children are there already */
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        struct itimerspec once = {{0, 0}, {0, ROUND_MS * 500000}};
        for (int i = 0; i < CHILDREN; i++) tell(children[i].to, round);
        CHECK(timerfd_settime(timer, 0, &once, NULL) == 0);
        sleep_ms(ROUND_MS);
        CHECK(write(ends[1], &round, 8) == 8);
        value = 3;
        CHECK(write(semaphore, &value, 8) == 8);
        for (int i = 0; i < CHILDREN; i++) CHECK(hear(children[i].from) == round);
        CHECK(read(counter, &value, 8) == 8 && value == 6);
        CHECK(read(counter, &value, 8) == -1 && errno == EAGAIN);
        step("events round %lu", (unsigned long)round);
    }
    finish_all(0);
    return pass();
}
