/* The malloc family as its man pages have it; prints what does not hold, and "ok" at the end. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;
static int strict; /* glibc's posix_memalign sets errno when memory is short; ours must not */
#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s\n", __LINE__, #what); \
            failures++; \
        } \
    } while (0)

static volatile size_t huge = SIZE_MAX / 2 + 1; /* volatile: the compiler must not know better */

static void sizes(void) {
    for (size_t size = 0; size < 3000000; size = size * 3 / 2 + 1) {
        char *block = malloc(size);
        CHECK(block != NULL && (uintptr_t)block % 16 == (size < 9 ? (uintptr_t)block % 16 : 0));
        CHECK(malloc_usable_size(block) >= size);
        memset(block, 0xa5, size);
        char *zero = calloc(size / 8 + 1, 8);
        CHECK(zero != NULL && zero[0] == 0 && memcmp(zero, zero + 1, size / 8 * 8) == 0);
        block = realloc(block, size * 2 + 1);
        CHECK(block != NULL);
        for (size_t i = 0; i < size; i++)
            if (block[i] != (char)0xa5) {
                CHECK(!"content moved along");
                break;
            }
        free(zero);
        free(block);
    }
    CHECK(malloc_usable_size(NULL) == 0);
    void *a = malloc(0), *b = malloc(0), *c = calloc(0, 7);
    CHECK(a && b && c && a != b && b != c);
    CHECK(realloc(a, 0) == NULL); /* frees it */
    free(b);
    free(c);
    free(NULL);
    void *d = realloc(NULL, 10);
    CHECK(d != NULL);
    free(d);
}

static void too_much(void) {
    errno = 0;
    CHECK(malloc(huge) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(calloc(huge, 2) == NULL && errno == ENOMEM);
    char *block = malloc(100);
    strcpy(block, "kept");
    errno = 0;
    CHECK(realloc(block, huge) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(reallocarray(block, huge, 3) == NULL && errno == ENOMEM);
    CHECK(strcmp(block, "kept") == 0);
    block = reallocarray(block, 1000, 10);
    CHECK(block && strcmp(block, "kept") == 0 && malloc_usable_size(block) >= 10000);
    free(block);
    errno = 0;
    CHECK(aligned_alloc(4096, huge) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(pvalloc(SIZE_MAX - 5) == NULL && errno == ENOMEM);
}

static void alignment(void) {
    for (size_t align = sizeof(void *); align <= 1 << 22; align *= 2) {
        void *blocks[4] = {NULL, aligned_alloc(align, align), memalign(align, 100), memalign(align - 1, 10)};
        errno = 55;
        CHECK(posix_memalign(&blocks[0], align, 33) == 0 && errno == 55);
        for (int i = 0; i < 4; i++) {
            CHECK(blocks[i] != NULL && (uintptr_t)blocks[i] % align == 0);
            memset(blocks[i], 1, 10);
            blocks[i] = realloc(blocks[i], 50);
            free(blocks[i]);
        }
    }
    void *kept = &kept;
    errno = 55;
    CHECK(posix_memalign(&kept, 24, 10) == EINVAL);
    CHECK(posix_memalign(&kept, 4, 10) == EINVAL);
    CHECK(posix_memalign(&kept, 0, 10) == EINVAL);
    CHECK(posix_memalign(&kept, 16, huge) == ENOMEM);
    CHECK(kept == &kept && (errno == 55 || !strict));
    char *page = valloc(1), *pages = pvalloc(1);
    CHECK((uintptr_t)page % 4096 == 0 && (uintptr_t)pages % 4096 == 0 && malloc_usable_size(pages) >= 4096);
    free(page);
    free(pages);
    errno = 0;
    CHECK(memalign(SIZE_MAX / 2 + 2, 1) == NULL && errno == EINVAL);
}

static void *work(void *seed) {
    unsigned state = (unsigned)(uintptr_t)seed;
    char *blocks[200] = {0};
    for (int i = 0; i < 20000; i++) {
        state = state * 1103515245 + 12345;
        int at = state / 65536 % 200;
        errno = 42;
        free(blocks[at]);
        if (errno != 42)
            failures++;
        size_t size = state % 9000 + 1;
        blocks[at] = malloc(size);
        blocks[at][0] = blocks[at][size - 1] = (char)i;
    }
    for (int i = 0; i < 200; i++)
        free(blocks[i]);
    return NULL;
}

static void threads_and_forks(void) {
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < 50; i++) { /* fork while the others allocate: the child must be able to */
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            work((void *)7);
            _exit(failures != 0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    strict = argc > 1 && strcmp(argv[1], "strict") == 0;
    sizes();
    too_much();
    alignment();
    threads_and_forks();
    if (failures == 0)
        puts("ok");
    return failures != 0;
}
