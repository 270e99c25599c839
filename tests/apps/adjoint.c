/* The loop of an adjoint pass, as reverse time migration has it: states of a wave are put, one after the other, and
 * wanted back in another order, which the program says before by the two calls of the paper on VELOC's prefetching
 * (HPDC 2023, listing 1). Every bit that comes back is checked.
 *
 * `adjoint ORDER HINTS VERSIONS BYTES INTERVAL_US CONFIGURATION`
 * ORDER: reverse, sequential or irregular. HINTS: all, none, or wrong (100000: of versions that are never there, and of
 * others in a wrong order). A version has BYTES, those of an order that begins with '+' grow to that. INTERVAL_US: what
 * the program computes between two calls. Prints PASS, and what it was blocked by. */
#include <veloc.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NAME "wave"
#define WRONG 100000

static int versions, grows;
static size_t bytes;
static uint64_t *field;

static void must(int done, const char *what, int version)
{
    if (done) return;
    printf("FAIL version %d: %s\n", version, what);
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Small at first, as the wave is. */
static size_t size_of(int version)
{
    size_t all = bytes / sizeof *field;
    return grows ? 1 + all * (version + 1) / (versions + 1) : all;
}

static uint64_t value(int version, size_t at)
{
    return (at + 1) * 0x9E3779B97F4A7C15u ^ ((uint64_t)version << 32);
}

static void forward(int version)
{
    for (size_t at = 0; at < size_of(version); at++) field[at] = value(version, at);
}

static int has(int version)
{
    for (size_t at = 0; at < size_of(version); at++) {
        if (field[at] != value(version, at)) return 0;
    }
    return 1;
}

static unsigned int draw(unsigned int *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void arrange(int *order, const char *kind)
{
    unsigned int seed = 17;
    for (int at = 0; at < versions; at++) order[at] = strcmp(kind, "reverse") ? at : versions - 1 - at;
    if (strcmp(kind, "irregular")) return;
    for (int at = versions - 1; at > 0; at--) {
        int other = draw(&seed) % (at + 1), kept = order[at];
        order[at] = order[other];
        order[other] = kept;
    }
}

static void hint(const int *order, const char *kind)
{
    unsigned int seed = 5;
    if (!strcmp(kind, "none")) return;
    if (!strcmp(kind, "all")) {
        for (int at = 0; at < versions; at++) {
            must(VELOC_Prefetch_enqueue(NAME, order[at]) == VELOC_SUCCESS, "hint", order[at]);
        }
        return;
    }
    for (int at = 0; at < WRONG; at++) {
        int version = draw(&seed) % (at % 2 ? versions : 1 << 20);
        must(VELOC_Prefetch_enqueue(NAME, version) == VELOC_SUCCESS, "wrong hint", version);
    }
}

int main(int argc, char **argv)
{
    if (argc < 7) return 64;
    double put = 0, restored = 0, sum = 0;
    grows = argv[1][0] == '+';
    versions = atoi(argv[3]);
    bytes = strtoul(argv[4], NULL, 10);
    int interval = atoi(argv[5]), *order = calloc(versions, sizeof *order);
    field = malloc(bytes + sizeof *field);
    arrange(order, argv[1] + grows);
    must(VELOC_Init_single(0, argv[6]) == VELOC_SUCCESS, "init", 0);
    hint(order, argv[2]);
    for (int version = 0; version < versions; version++) {
        forward(version);
        if (interval) usleep(interval);
        double begin = now();
        must(VELOC_Mem_protect(0, field, size_of(version), sizeof *field) == VELOC_SUCCESS, "protect", version);
        must(VELOC_Checkpoint(NAME, version) == VELOC_SUCCESS, "checkpoint", version);
        put += now() - begin;
        sum += size_of(version) * sizeof *field;
    }
    must(VELOC_Checkpoint_wait() == VELOC_SUCCESS, "wait", versions);
    if (strcmp(argv[2], "none")) must(VELOC_Prefetch_start() == VELOC_SUCCESS, "start", versions);
    memset(field, 0, bytes);
    for (int at = 0; at < versions; at++) {
        int version = order[at];
        double begin = now();
        must(VELOC_Restart_begin(NAME, version) == VELOC_SUCCESS, "restart", version);
        must(VELOC_Recover_size(0) == (int)(size_of(version) * sizeof *field), "size", version);
        must(VELOC_Recover_mem() == VELOC_SUCCESS, "recover", version);
        must(VELOC_Restart_end(1) == VELOC_SUCCESS, "end", version);
        restored += now() - begin;
        must(has(version), "another content", version);
        if (interval) usleep(interval);
    }
    must(VELOC_Finalize(1) == VELOC_SUCCESS, "finalize", versions);
    printf("PASS %s %s: %.0f MB; blocked: checkpoint %.0f MB/s, restart %.0f MB/s\n", argv[1], argv[2], sum / 1e6,
           sum / 1e6 / put, sum / 1e6 / restored);
    return 0;
}
