/* What all test programs share.
 *
 * A test program checks itself and prints numbered lines that are the same in every run, so that the output of an
 * undisturbed run and the joined output of any number of checkpoint, kill -9, restart rounds must be equal byte by
 * byte. It ends with "PASS" and status 0, or with what went wrong and status 1. Each line is written when it is
 * complete.
 */
#ifndef HOLDFAST_TEST_COMMON_H
#define HOLDFAST_TEST_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

UNUSED static void fail_at(const char *file, int line, const char *what, int error)
{
    fprintf(stdout, "FAIL %s:%d: %s (errno %d, %s)\n", file, line, what, error, strerror(error));
    fflush(stdout);
    _exit(1);
}

/* Ends the program when `condition` does not hold. */
#define CHECK(condition)                                            \
    do {                                                            \
        if (!(condition)) fail_at(__FILE__, __LINE__, #condition, errno); \
    } while (0)

/* For functions that return an error number, such as those of pthreads. */
#define CHECK_ZERO(call)                                             \
    do {                                                             \
        int error_ = (call);                                         \
        if (error_ != 0) fail_at(__FILE__, __LINE__, #call, error_); \
    } while (0)

/* A system call past the C library: where errno would be that of another thread, or what the library keeps is not to be
 * asked. The result, or a negative error number. */
UNUSED static long raw_call(long number, long a, long b)
{
    long result;
    register long fourth __asm__("r10") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(0L), "r"(fourth)
        : "rcx", "r11", "memory");
    return result;
}

static int step_number UNUSED;

/* One numbered line. */
UNUSED __attribute__((format(printf, 1, 2))) static void step(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("%05d ", ++step_number);
    vprintf(format, list);
    putchar('\n');
    fflush(stdout);
    va_end(list);
}

UNUSED static struct timespec timespec_of_ns(int64_t ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    return t;
}

/* With HOLDFAST_TEST_STAY=FILE a program does not end before that file is there: what a test does with it meanwhile
 * takes as long as it takes. */
UNUSED static int has_to_stay(void)
{
    const char *awaited = getenv("HOLDFAST_TEST_STAY");
    return awaited != NULL && access(awaited, F_OK) != 0;
}

/* It changes some memory meanwhile, as programs do. */
UNUSED static int pass(void)
{
    static volatile long turns;
    struct timespec pause = timespec_of_ns(2000000);
    for (; has_to_stay(); turns++) nanosleep(&pause, NULL);
    puts("PASS");
    fflush(stdout);
    return 0;
}

UNUSED static long number_argument(int argc, char **argv, int index, long otherwise)
{
    return index < argc ? strtol(argv[index], NULL, 10) : otherwise;
}

UNUSED static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* How many times longer than asked `sleep_ms` takes: a busy machine gets more time to do something meanwhile. */
UNUSED static long slowness(void)
{
    static long times;
    if (times == 0) {
        const char *wanted = getenv("HOLDFAST_TEST_SLOWLY");
        times = wanted != NULL ? atol(wanted) : 1;
    }
    return times;
}

/* Sleeps; being interrupted is an error. */
UNUSED static void sleep_ms(long ms)
{
    struct timespec t = timespec_of_ns((int64_t)ms * slowness() * 1000000);
    CHECK(nanosleep(&t, NULL) == 0);
}

/* Computes for about `ms` of elapsed time. */
UNUSED static void spin_ms(long ms)
{
    int64_t end = now_ns() + (int64_t)ms * 1000000;
    while (now_ns() < end) {
    }
}

/* A different, reproducible 64-bit number for each `n` (finaliser of splitmix64). */
UNUSED static uint64_t mix(uint64_t n)
{
    n += 0x9e3779b97f4a7c15u;
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
    return n ^ (n >> 31);
}

#endif
