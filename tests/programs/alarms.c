/* Timers that are descriptors: `alarms KIND [ROUNDS]`
 * KIND: periodic, absolute (by the clock on the wall), expired (that nobody has read yet), disarmed */
#include "rounds.h"
#include <poll.h>
#include <sys/timerfd.h>

static int fd;

static void set(int flags, int64_t value, int64_t interval)
{
    struct itimerspec t = {timespec_of_ns(interval), timespec_of_ns(value)};
    CHECK(timerfd_settime(fd, flags, &t, NULL) == 0);
}

static uint64_t take(void)
{
    uint64_t count = 0;
    CHECK(read(fd, &count, sizeof count) == sizeof count);
    return count;
}

static void monotonic(void) { CHECK((fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) >= 0); }
static void periodic_prepare(void)
{
    CHECK((fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC)) >= 0);
    set(0, 7000000, 13000000);
}

static void periodic_round(long round)
{
    struct itimerspec now;
    (void)round;
    CHECK(take() >= 1);
    CHECK(timerfd_gettime(fd, &now) == 0 && now.it_interval.tv_nsec == 13000000 && now.it_value.tv_nsec <= 13000000);
}

static void wall(void) { CHECK((fd = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC | TFD_NONBLOCK)) >= 0); }
static void absolute_round(long round)
{
    struct timespec now;
    uint64_t count;
    struct pollfd p = {fd, POLLIN, 0};
    CHECK(clock_gettime(CLOCK_REALTIME, &now) == 0);
    int64_t end = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + 30000000;
    set(TFD_TIMER_ABSTIME | (round % 2 ? TFD_TIMER_CANCEL_ON_SET : 0), end, 0);
    if (read(fd, &count, sizeof count) == -1) CHECK(errno == EAGAIN && poll(&p, 1, -1) == 1 && take() == 1);
    else CHECK(count == 1); /* on a busy machine it may be as late as that */
    CHECK(clock_gettime(CLOCK_REALTIME, &now) == 0 && (int64_t)now.tv_sec * 1000000000 + now.tv_nsec >= end);
}

static void expired_round(long round)
{
    if (round > 0) CHECK(take() == 1);
    set(0, 1, 0);
    struct pollfd p = {fd, POLLIN, 0};
    CHECK(poll(&p, 1, -1) == 1);
}

static void disarmed_round(long round)
{
    struct itimerspec now;
    struct pollfd p = {fd, POLLIN, 0};
    CHECK(timerfd_gettime(fd, &now) == 0);
    if (round % 2) {
        CHECK(now.it_value.tv_sec >= 90000 && now.it_interval.tv_sec == round - 1);
        set(0, 0, 0);
    } else {
        CHECK(now.it_value.tv_sec == 0 && now.it_value.tv_nsec == 0);
        set(0, 100000000000000, (int64_t)round * 1000000000);
    }
    CHECK(poll(&p, 1, 0) == 0);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"periodic", periodic_prepare, periodic_round},
                                        {"absolute", wall, absolute_round},
                                        {"expired", monotonic, expired_round}, {"disarmed", monotonic, disarmed_round}};
    return RUN_KIND(kinds);
}
