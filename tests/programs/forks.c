/* Fork handlers that allocate: some are registered before anything else runs (a library's constructor may be the
 * first), some in main; threads allocate and read and write files meanwhile, and others fork. `forks [ROUNDS]` */
#include "rounds.h"
#include <pthread.h>
#include <sys/wait.h>

static int calls[2][3];

static void use_allocator(int who, int when)
{
    void *volatile small = malloc(100);
    void *volatile large = malloc(300000);
    CHECK(small != NULL && large != NULL);
    free(large);
    free(small);
    __atomic_add_fetch(&calls[who][when], 1, __ATOMIC_SEQ_CST);
}

static void first_before(void) { use_allocator(0, 0); }
static void first_in_parent(void) { use_allocator(0, 1); }
static void first_in_child(void) { use_allocator(0, 2); }
static void before(void) { use_allocator(1, 0); }
static void in_parent(void) { use_allocator(1, 1); }
static void in_child(void) { use_allocator(1, 2); }

static void register_first(void) { (void)pthread_atfork(first_before, first_in_parent, first_in_child); }
/* Runs before the constructors of all libraries. */
__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = register_first;

static void *allocate_on(void *argument)
{
    for (size_t i = (uintptr_t)argument;; i++) {
        char *block = malloc(1 + i * 257 % 50000);
        CHECK(block != NULL);
        block[0] = 1;
        free(block);
        if (i % 64 == 0) sleep_ms(1);
    }
    return NULL;
}

/* The C library allocates while it has a file locked, and locks its list of files. */
static void *write_on(void *argument)
{
    (void)argument;
    for (size_t i = 0;; i++) {
        char *text = NULL;
        size_t len = 0;
        FILE *file = open_memstream(&text, &len);
        CHECK(file != NULL && fprintf(file, "%5000zu", i) == 5000 && fflush(NULL) == 0);
        CHECK(fclose(file) == 0 && len == 5000);
        free(text);
        if (i % 16 == 0) sleep_ms(1);
    }
    return NULL;
}

static void fork_once(int code)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int status = calls[0][2] == 1 && calls[1][2] == 1 ? code : 99;
        free(malloc(100000));
        _exit(status);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == code);
}

static int forks, enough;
static void *fork_on(void *argument)
{
    (void)argument;
    for (; !__atomic_load_n(&enough, __ATOMIC_SEQ_CST); sleep_ms(5)) {
        fork_once(7);
        __atomic_add_fetch(&forks, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void one_round(long round)
{
    int now = __atomic_load_n(&forks, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 10; i++) fork_once((int)round % 50);
    while (__atomic_load_n(&forks, __ATOMIC_SEQ_CST) == now) sleep_ms(1);
    CHECK(calls[0][0] >= 10 * (round + 1) && calls[1][0] >= 10 * (round + 1));
}

int main(int argc, char **argv)
{
    pthread_t thread;
    CHECK_ZERO(pthread_atfork(before, in_parent, in_child));
    for (uintptr_t i = 1; i <= 2; i++) CHECK_ZERO(pthread_create(&thread, NULL, allocate_on, (void *)i));
    for (int i = 0; i < 3; i++) CHECK_ZERO(pthread_create(&thread, NULL, write_on, NULL));
    CHECK_ZERO(pthread_create(&thread, NULL, fork_on, NULL));
    int status = run_rounds("forks", number_argument(argc, argv, 1, 45), one_round);
    /* exit(3) takes the program's handlers out. */
    __atomic_store_n(&enough, 1, __ATOMIC_SEQ_CST);
    CHECK_ZERO(pthread_join(thread, NULL));
    return status;
}
