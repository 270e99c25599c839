/* What a program that puts its own memory into a store may expect of holdfast.h, step by step. Prints PASS.
 * `objects OPTIONS` */
#include <errno.h>
#include <holdfast.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            printf("FAIL line %d: %s (%s)\n", __LINE__, #condition, holdfast_error(NULL));                   \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

#define LARGE (3 << 20)

static char *large;
static double small[100];
static int step;

static void fill(int with)
{
    for (int i = 0; i < LARGE; i++) large[i] = (char)(i * 7 + with);
    for (int i = 0; i < 100; i++) small[i] = i * 0.5 + with;
    step = with;
}

static int has(int with)
{
    for (int i = 0; i < LARGE; i++) {
        if (large[i] != (char)(i * 7 + with)) return 0;
    }
    for (int i = 0; i < 100; i++) {
        if (small[i] != i * 0.5 + with) return 0;
    }
    return step == with;
}

static void versions(holdfast_objects *set)
{
    const char *some[] = {"step", "small"};
    for (int version = 1; version <= 3; version++) {
        fill(version);
        MUST(holdfast_put(set, version) == 0);
    }
    /* In parts, with changes after each. */
    fill(4);
    MUST(holdfast_begin(set, 4) == 0 && holdfast_begin(set, 5) == HOLDFAST_E_STATE);
    MUST(holdfast_put_some(set, some, 2) == 0);
    small[3] = -1;
    MUST(holdfast_put_some(set, some, 1) == HOLDFAST_E_ARGUMENT);
    MUST(holdfast_put_rest(set) == 0);
    large[3] = -1;
    MUST(holdfast_end(set) == 0 && holdfast_end(set) == HOLDFAST_E_STATE);
    /* One that is not wanted. */
    MUST(holdfast_begin(set, 5) == 0 && holdfast_put_rest(set) == 0 && holdfast_abandon(set) == 0);
    MUST(holdfast_newest(set, HOLDFAST_ANY) == 4 && holdfast_newest(set, 4) == 3);
    MUST(holdfast_newest(set, 1) == HOLDFAST_E_NOT_FOUND);
    MUST(holdfast_wait(set) == 0 && holdfast_finished(set) == 1);
}

static void restores(holdfast_objects *set)
{
    char byte = 'x', *other = malloc(LARGE);
    MUST(holdfast_will_restore(set, 4) == 0 && holdfast_will_restore(set, 2) == 0 && holdfast_start(set) == 0);
    fill(9);
    MUST(holdfast_restore(set, 4) == 0 && has(4));
    MUST(holdfast_restore(set, 2) == 0 && has(2));
    MUST(holdfast_size(set, 3, "large") == LARGE && holdfast_size(set, 3, "none") == HOLDFAST_E_NOT_FOUND);
    MUST(holdfast_size(set, 77, "large") == HOLDFAST_E_NOT_FOUND);
    MUST(holdfast_restore_into(set, 3, "large", other, LARGE) == 0 && other[5] == (char)(5 * 7 + 3));
    MUST(holdfast_restore_into(set, 3, "small", &byte, 1) == HOLDFAST_E_SIZE && byte == 'x');
    MUST(holdfast_restored(set) == 0);
    MUST(holdfast_unregister(set, "small") == 0 && holdfast_unregister(set, "small") == HOLDFAST_E_ARGUMENT);
    MUST(holdfast_region(set, "small", small, sizeof small - 8, 8) == 0);
    fill(9);
    MUST(holdfast_restore(set, 1) == HOLDFAST_E_SIZE && has(9));
    MUST(holdfast_region(set, "small", small, sizeof small, 8) == 0);
    MUST(holdfast_restore(set, 1) == 0 && has(1));
    MUST(holdfast_discard(set, 1) == 0);
    free(other);
}

static void child_of_fork(holdfast_objects *set)
{
    pid_t child = fork();
    if (child == 0) {
        int refused = holdfast_put(set, 8) == HOLDFAST_E_FORKED && holdfast_wait(set) == HOLDFAST_E_FORKED;
        refused = refused && strstr(holdfast_error(set), "fork") != NULL;
        holdfast_close(set);
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    /* The server is no child of ours. */
    MUST(waitpid(-1, &status, 0) == -1 && errno == ECHILD);
    MUST(holdfast_newest(set, HOLDFAST_ANY) == 4);
}

int main(int argc, char **argv)
{
    const char *options = argc > 1 ? argv[1] : NULL;
    errno = 77;
    MUST(holdfast_open("a/b", 0, 1, options) == NULL && strstr(holdfast_error(NULL), "a/b"));
    MUST(holdfast_open("heat", 1, 1, options) == NULL);
    MUST(holdfast_open("heat", 0, 1, "nothing") == NULL);
    holdfast_objects *set = holdfast_open("heat", 0, 1, options);
    MUST(set != NULL);
    MUST(errno == 77);
    large = malloc(LARGE);
    MUST(holdfast_region(set, "large", large, LARGE, 1) == 0);
    MUST(holdfast_region(set, "small", NULL, 8, 8) == HOLDFAST_E_ARGUMENT);
    MUST(holdfast_region(set, "small", small, sizeof small, sizeof *small) == 0);
    MUST(holdfast_region(set, "step", &step, sizeof step, sizeof step) == 0);
    MUST(holdfast_put(NULL, 1) == HOLDFAST_E_ARGUMENT && holdfast_put(set, UINT64_MAX) == HOLDFAST_E_ARGUMENT);
    MUST(holdfast_newest(set, HOLDFAST_ANY) == HOLDFAST_E_NOT_FOUND);
    versions(set);
    restores(set);
    child_of_fork(set);
    /* Another process, as it seems to the store, and the end of all. */
    holdfast_close(set);
    set = holdfast_open("heat", 0, 1, options);
    MUST(set != NULL && holdfast_newest(set, HOLDFAST_ANY) == 4);
    MUST(holdfast_region(set, "large", large, LARGE, 1) == 0);
    MUST(holdfast_restore(set, 3) == 0 && large[9] == (char)(9 * 7 + 3));
    MUST(holdfast_drop(set) == 0 && holdfast_newest(set, HOLDFAST_ANY) == HOLDFAST_E_NOT_FOUND);
    holdfast_close(set);
    holdfast_close(NULL);
    puts("PASS");
    return 0;
}
