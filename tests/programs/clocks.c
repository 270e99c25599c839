/* Clocks, by the C library (that reads them without a system call) and by the kernel: they agree, and none goes back.
 * `clocks [ROUNDS]` */
#include "rounds.h"
#include <sys/syscall.h>
#include <sys/time.h>

static const clockid_t ids[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_MONOTONIC_RAW,
                                CLOCK_MONOTONIC_COARSE, CLOCK_REALTIME_COARSE, CLOCK_TAI};
#define COUNT (sizeof ids / sizeof ids[0])
static int64_t last[COUNT];

static int64_t ns(struct timespec t) { return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec; }

static void one_round(long round)
{
    (void)round;
    for (int again = 0; again < 100; again++)
        for (size_t i = 0; i < COUNT; i++) {
            struct timespec by_library, by_kernel;
            CHECK(clock_gettime(ids[i], &by_library) == 0 && syscall(SYS_clock_gettime, ids[i], &by_kernel) == 0);
            CHECK(ns(by_library) >= last[i] && ns(by_kernel) >= ns(by_library));
            CHECK(ns(by_kernel) - ns(by_library) < 1000000000000);
            last[i] = ns(by_kernel);
        }
    struct timeval day;
    CHECK(gettimeofday(&day, NULL) == 0);
    int64_t seconds = time(NULL), now = (int64_t)day.tv_sec;
    CHECK(seconds - now >= -1 && seconds - now < 1000 && now - last[0] / 1000000000 < 1000);
    /* time that passes: the monotonic clock and that of the boot move alike */
    struct timespec a, b;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &a) == 0);
    sleep_ms(3); /* not by reading the clock: see under_other_kernels in tests/tests/e2e/chains_apps.rs */
    CHECK(clock_gettime(CLOCK_MONOTONIC, &b) == 0 && ns(b) - ns(a) >= 3000000);
}

int main(int argc, char **argv) { return run_rounds("clocks", number_argument(argc, argv, 1, 45), one_round); }
