/* Versions of objects, put in several ways: benches/streams.py starts it and reads what it prints.
 *
 *   streams WAY OBJECT_BYTES TOTAL_BYTES ROUNDS FOLDER [PERCENT]
 *
 * One iteration writes PERCENT (100) of the pages of all objects, and then puts TOTAL_BYTES of them. Printed: bytes per
 * object, seconds of each round's put, seconds of its computing. WAY:
 *   memcpy   into memory of its own
 *   clflush  the same, and each line is flushed
 *   file     write(2) into a file of FOLDER for each object, made anew
 *   sync     the same with fdatasync(2)
 *   nvs      nvs_snapshot()       put    nvs_put() of each object
 *   protect  as nvs, but written pages are found by mprotect(2) and SIGSEGV, and copied into memory of its own */
#define _GNU_SOURCE
#include <emmintrin.h>
#include <fcntl.h>
#include <nvs.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void check(int is_good, const char *what)
{
    if (!is_good) {
        fprintf(stderr, "streams: %s: %s\n", what, nvs_error());
        exit(1);
    }
}

static char **objects, *protected_from, *protected_to;
static unsigned char *written;

static void fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    char *page = (char *)((uintptr_t)info->si_addr & ~4095UL);
    if (page < protected_from || page >= protected_to)
        abort();
    written[(page - protected_from) / 4096] = 1;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

static void flush(const char *at, size_t len)
{
    for (size_t i = 0; i < len; i += 64)
        _mm_clflush(at + i);
    _mm_sfence();
}

int main(int argc, char **argv)
{
    check(argc >= 6, "usage");
    const char *way = argv[1], *folder = argv[5];
    size_t size = strtoul(argv[2], 0, 10), total = strtoul(argv[3], 0, 10);
    int rounds = atoi(argv[4]), percent = argc > 6 ? atoi(argv[6]) : 100;
    size_t count = total / size;
    int is_nvs = !strcmp(way, "nvs") || !strcmp(way, "put");
    objects = calloc(count, sizeof *objects);
    char *to = mmap(0, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    char *all = mmap(0, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char name[64], path[4096];
    if (is_nvs)
        check(nvs_init("bench/0") == 0, "nvs_init");
    for (size_t i = 0; i < count; i++) {
        snprintf(name, sizeof name, "v%zu", i);
        objects[i] = is_nvs ? nvs_create_obj(name, size) : all + i * size;
        check(objects[i] != 0, "nvs_create_obj");
    }
    int protects = !strcmp(way, "protect");
    if (protects) {
        protected_from = all, protected_to = all + total;
        written = calloc(total / 4096 + 1, 1);
        struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
        sigaction(SIGSEGV, &action, 0);
        memset(written, 1, total / 4096);
    }
    size_t pages = size / 4096;
    for (int round = 0; round < rounds; round++) {
        double begun = now();
        for (size_t i = 0; i < count; i++) {
            /* Spread over the object, each page from its beginning to its end. */
            size_t written_pages = round == 0 ? pages : pages * percent / 100;
            for (size_t k = 0; k < written_pages; k++)
                memset(objects[i] + (k * pages / written_pages) * 4096, round + i, 4096);
        }
        double computed = now();
        if (!strcmp(way, "memcpy")) {
            for (size_t i = 0; i < count; i++)
                memcpy(to + i * size, objects[i], size);
        } else if (!strcmp(way, "clflush")) {
            for (size_t i = 0; i < count; i++) {
                memcpy(to + i * size, objects[i], size);
                flush(to + i * size, size);
            }
        } else if (!strcmp(way, "file") || !strcmp(way, "sync")) {
            for (size_t i = 0; i < count; i++) {
                snprintf(path, sizeof path, "%s/v%zu", folder, i);
                int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
                check(fd >= 0 && write(fd, objects[i], size) == (ssize_t)size, "write");
                check(way[0] != 's' || fdatasync(fd) == 0, "fdatasync");
                close(fd);
            }
        } else if (!strcmp(way, "nvs")) {
            check(nvs_snapshot() == 0, "nvs_snapshot");
        } else if (!strcmp(way, "put")) {
            for (size_t i = 0; i < count; i++) {
                snprintf(name, sizeof name, "v%zu", i);
                check(nvs_put(name) == 0, "nvs_put");
            }
        } else if (protects) {
            for (size_t page = 0; page < total / 4096; page++)
                if (written[page])
                    memcpy(to + page * 4096, all + page * 4096, 4096);
            memset(written, 0, total / 4096);
            mprotect(all, total, PROT_READ);
        }
        printf("%zu %.6f %.6f\n", size, now() - computed, computed - begun);
    }
    return 0;
}
