/* A program with data in the memory of a CUDA device: each round reads what the one before has left there, checks it,
 * and leaves something else. Which driver that is, the loader decides (tests/driver/libcuda.c).
 *
 * `on_device [ROUNDS] [KIND]`: so many rounds, and more until it may end (common.h, HOLDFAST_TEST_STAY).
 * KIND `open`: it keeps a device open by itself, as NVML does. `late`: it begins to use CUDA when there
 * is a file `begin` in its folder. */
#include "rounds.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <sys/mman.h>

#define WORDS 4096

static int (*init)(unsigned);
static int (*allocate)(uint64_t *, size_t);
static int (*to_device)(uint64_t, const void *, size_t);
static int (*from_device)(void *, uint64_t, size_t);
static uint64_t memory[2];

static void *function(void *library, const char *name)
{
    void *found = dlsym(library, name);
    CHECK(found != NULL);
    return found;
}

static void begin(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        puts(dlerror());
        exit(77);
    }
    init = function(library, "cuInit");
    allocate = function(library, "cuMemAlloc_v2");
    to_device = function(library, "cuMemcpyHtoD_v2");
    from_device = function(library, "cuMemcpyDtoH_v2");
    CHECK_ZERO(init(0));
    for (int i = 0; i < 2; i++) CHECK_ZERO(allocate(&memory[i], WORDS * sizeof(uint64_t)));
}

static void one_round(long round, bool late)
{
    static long first = -1;
    uint64_t words[WORDS];
    if (first < 0) {
        if (late && access("begin", F_OK) != 0) return;
        begin();
        first = round;
    }
    for (int half = 0; half < 2; half++) {
        CHECK_ZERO(from_device(words, memory[half], sizeof(words)));
        for (uint64_t i = 0; i < WORDS; i++) {
            CHECK(round == first || words[i] == mix(i + (uint64_t)(round - 1) * WORDS));
            words[i] = mix(i + (uint64_t)round * WORDS);
        }
        CHECK_ZERO(to_device(memory[half], words, sizeof(words)));
    }
}

static int may_end(void)
{
    const char *awaited = getenv("HOLDFAST_TEST_STAY");
    return awaited == NULL || access(awaited, F_OK) == 0;
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 45);
    const char *kind = argc > 2 ? argv[2] : "";
    bool late = strcmp(kind, "late") == 0;
    if (strcmp(kind, "open") == 0) CHECK(memfd_create("nvidiactl", 0) >= 0);
    for (long round = 0; round < rounds || !may_end(); round++) {
        step("cuda round %ld", round);
        one_round(round, late);
        sleep_ms(QUIET_MS);
    }
    return pass();
}
