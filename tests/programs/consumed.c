/* Clocks of the time that was spent computing, of the process and of a thread: they go on, never back.
 * `consumed [ROUNDS]` */
#include "rounds.h"
#include <sys/resource.h>

static int64_t read_clock(clockid_t id)
{
    struct timespec t;
    CHECK(clock_gettime(id, &t) == 0);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void one_round(long round)
{
    (void)round;
    static const clockid_t ids[] = {CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID};
    for (int i = 0; i < 2; i++) {
        int64_t before = read_clock(ids[i]), now = before;
        while (now < before + 2000000) {
            int64_t next = read_clock(ids[i]);
            CHECK(next >= now);
            now = next;
        }
    }
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0 && usage.ru_maxrss > 0);
}

int main(int argc, char **argv) { return run_rounds("consumed", number_argument(argc, argv, 1, 45), one_round); }
