/* Blocked time of a put: RANKS processes of one set, each with one object of BYTES that it changes and puts every
 * PERIOD for SECONDS, beside a plain copy of as many bytes in the same loop. `make bench-objects` runs it and says what
 * the server took.
 *
 * usage: ranks STORE RANKS BYTES PERIOD_MS SECONDS KEEP
 * Prints a line for each rank: puts, median and 99th percentile of put and copy in microseconds, the newest version. */
#include <holdfast.h>
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void rank(char **args, unsigned int own) {
    unsigned int ranks = atoi(args[2]);
    size_t bytes = strtoul(args[3], NULL, 10), words = bytes / sizeof(unsigned long);
    double period = atof(args[4]) * 1e3, end;
    size_t most = 2 + atof(args[5]) * 1e6 / period, count = 0;
    double *puts = calloc(most, sizeof *puts), *copies = calloc(most, sizeof *copies);
    unsigned long *object = malloc(bytes), *copy = malloc(bytes);
    char options[4096];
    snprintf(options, sizeof options, "store=%s;keep=%s", args[1], args[6]);
    holdfast_objects *set = holdfast_open("bench", own, ranks, options);
    if (!set || !puts || !copies || !object || !copy) errx(1, "rank %u: %s", own, holdfast_error(NULL));
    if (holdfast_region(set, "object", object, bytes, sizeof *object)) errx(1, "%s", holdfast_error(set));
    memset(copy, 1, bytes);
    end = now_us() + atof(args[5]) * 1e6;
    for (double next = now_us(); next < end && count < most; next += period) {
        for (size_t at = 0; at < words; at++) object[at] = (at + own) * 2654435761u + count;
        double begin = now_us();
        if (holdfast_put(set, count + 1)) errx(1, "rank %u: %s", own, holdfast_error(set));
        puts[count] = now_us() - begin;
        begin = now_us();
        memcpy(copy, object, bytes);
        __asm__ volatile("" : : "r"(copy) : "memory");
        copies[count++] = now_us() - begin;
        double left = next + period - now_us();
        if (left > 0) usleep(left);
    }
    qsort(puts, count, sizeof *puts, by_size);
    qsort(copies, count, sizeof *copies, by_size);
    double begin = now_us();
    if (holdfast_wait(set)) errx(1, "rank %u: %s", own, holdfast_error(set));
    printf("rank %u puts %zu put_us %.0f %.0f copy_us %.0f %.0f wait_ms %.0f newest %lld\n", own, count,
           puts[count / 2], puts[count * 99 / 100], copies[count / 2], copies[count * 99 / 100],
           (now_us() - begin) / 1e3, (long long)holdfast_newest(set, HOLDFAST_ANY));
    holdfast_close(set);
}

int main(int count, char **args) {
    if (count != 7) errx(64, "usage: ranks STORE RANKS BYTES PERIOD_MS SECONDS KEEP");
    for (int own = 0; own < atoi(args[2]); own++)
        if (fork() == 0) {
            rank(args, own);
            exit(0);
        }
    int status, failed = 0;
    while (wait(&status) > 0) failed |= status != 0;
    return failed;
}
