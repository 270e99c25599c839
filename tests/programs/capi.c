/* The C API: `capi` checkpoints itself and tells whether it came back from a restart; `capi alone` runs without an
 * agent, where every call must fail at once; `capi protected` keeps its state in protected memory, crashes after half
 * of its rounds in its first life, and goes on from that memory in the second. */
#include "common.h"
#include "holdfast.h"
#include <dlfcn.h>

/* Looked up at run time, so that the program starts without the library too. */
static int (*checkpoint)(void), (*restarted)(void), (*free_protected)(void *);
static int (*restore_protected)(const char *, void *, size_t);
static void *(*malloc_protected)(const char *, size_t);

static void *find(const char *name)
{
    void *at = dlsym(RTLD_DEFAULT, name);
    if (at == NULL) {
        printf("%s is missing\n", name);
        exit(1);
    }
    return at;
}

#define SIZE 100000

static int alone(void)
{
    CHECK(checkpoint() < 0);
    CHECK(restarted() < 0);
    char buffer[16];
    CHECK(restore_protected("state", buffer, sizeof buffer) < 0);
    return pass();
}

static int checkpoints_itself(void)
{
    unsigned char *state = malloc_protected("state", SIZE);
    CHECK(state != NULL && ((uintptr_t)state & 4095) == 0);
    for (int i = 0; i < SIZE; i++) state[i] = (unsigned char)mix((uint64_t)i);
    CHECK(restarted() == 0);
    step("before");
    int result = checkpoint();
    if (result == 0)
        step("checkpointed");
    else if (result == 1)
        step("restarted %d", restarted());
    else
        step("error %d", result);
    CHECK(result >= 0 && restarted() == result);
    for (int i = 0; i < SIZE; i++) CHECK(state[i] == (unsigned char)mix((uint64_t)i));
    CHECK(free_protected(state) == 0);
    return pass();
}

static int from_protected_memory(void)
{
    uint64_t *state = malloc_protected("state", SIZE);
    CHECK(state != NULL);
    int came_back = restore_protected("state", state, SIZE) == 0;
    if (!came_back) memset(state, 0, SIZE);
    for (; state[0] < 20; state[0]++) {
        step("round %llu sum %016llx", (unsigned long long)state[0], (unsigned long long)state[1]);
        if (state[0] == 10 && !came_back) {
            CHECK(checkpoint() == 0);
            state[1] = 0;
            abort();
        }
        state[1] += mix(state[0]);
    }
    return pass();
}

int main(int argc, char **argv)
{
    checkpoint = (int (*)(void))find("holdfast_checkpoint");
    restarted = (int (*)(void))find("holdfast_restarted");
    malloc_protected = (void *(*)(const char *, size_t))find("holdfast_malloc_protected");
    free_protected = (int (*)(void *))find("holdfast_free_protected");
    restore_protected = (int (*)(const char *, void *, size_t))find("holdfast_restore_protected");
    if (argc > 1 && strcmp(argv[1], "alone") == 0) return alone();
    if (argc > 1 && strcmp(argv[1], "protected") == 0) return from_protected_memory();
    return checkpoints_itself();
}
