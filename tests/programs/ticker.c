/* For measurements: touches a heap, keeps idle threads, wakes up every PERIOD_US and prints each gap between two
 * wake-ups that is longer than half a period above it: `MONOTONIC_NS GAP_US`. So the program itself sees how long it
 * was stopped. `ticker MIB IDLE_THREADS SECONDS [PERIOD_US]` */
#include "common.h"
#include <pthread.h>

static void *idle(void *argument)
{
    for (;;) pause();
    return argument;
}

int main(int argc, char **argv)
{
    size_t bytes = (size_t)number_argument(argc, argv, 1, 1024) << 20;
    long threads = number_argument(argc, argv, 2, 0), seconds = number_argument(argc, argv, 3, 60);
    int64_t period = number_argument(argc, argv, 4, 1000) * 1000;
    char *heap = malloc(bytes + 1);
    CHECK(heap != NULL);
    for (size_t at = 0; at < bytes; at += 8) *(uint64_t *)(heap + at) = mix(at);
    for (long i = 0; i < threads; i++) {
        pthread_t thread;
        CHECK_ZERO(pthread_create(&thread, NULL, idle, NULL));
    }
    printf("ready\n");
    fflush(stdout);
    int64_t last = now_ns(), end = last + seconds * 1000000000;
    while (last < end) {
        struct timespec t = timespec_of_ns(period);
        nanosleep(&t, NULL);
        int64_t now = now_ns();
        if (now - last > period + period / 2) {
            printf("%lld %lld\n", (long long)now, (long long)(now - last) / 1000);
            fflush(stdout);
            now = now_ns();
        }
        last = now;
    }
    return 0;
}
