/* Guard regions (MADV_GUARD_INSTALL, Linux 6.13): in anonymous memory, in the stack of a thread, and in a private
 * mapping of a file (6.15; refused under holdfast as by an older kernel). Every round installs some, removes some,
 * fills what was removed, and checks all. `guards [ROUNDS]` */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif
#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))
#define AREAS 3
#define MAX_PAGES 1200
#define GUARDED UINT64_MAX

/* What each page of an area must hold: 0 for zeros, GUARDED, else the seed of its numbers. */
static struct {
    uint64_t *at;
    size_t pages;
    uint64_t seed[MAX_PAGES];
} areas[AREAS];
static uint64_t seeds = 1, dice = 5;
static int ends[2];
static char *of_file;
static int file_guards;
static pthread_barrier_t meeting;
static char *stack;
static const size_t stack_len = 64 * PAGE;

static uint64_t throw(uint64_t below)
{
    return mix(++dice) % below;
}

/* Whether the kernel can read the byte there. */
static int readable(const void *at)
{
    char back;
    if (write(ends[1], at, 1) == 1) return read(ends[0], &back, 1) == 1;
    CHECK(errno == EFAULT);
    return 0;
}

static sigjmp_buf out;
static volatile sig_atomic_t faults;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    faults++;
    siglongjmp(out, 1);
}

static int faults_when_touched(volatile char *at)
{
    int before = faults;
    if (sigsetjmp(out, 1) == 0) *at = 1;
    return faults != before;
}

static void fill(int area, size_t from, size_t to)
{
    for (size_t page = from; page < to; page++) {
        uint64_t seed = areas[area].seed[page] = ++seeds;
        for (size_t i = 0; i < WORDS; i++) areas[area].at[page * WORDS + i] = mix(seed * WORDS + i);
    }
}

static void check(int area)
{
    size_t guards = 0;
    for (size_t page = 0; page < areas[area].pages; page++) {
        const uint64_t *at = areas[area].at + page * WORDS;
        uint64_t seed = areas[area].seed[page];
        CHECK(readable(at) == (seed != GUARDED));
        if (seed == GUARDED) {
            if (guards++ % 16 == 0) CHECK(faults_when_touched((char *)at));
            continue;
        }
        for (size_t i = 0; i < WORDS; i++) CHECK(at[i] == (seed == 0 ? 0 : mix(seed * WORDS + i)));
    }
}

static void change(int area)
{
    size_t from = throw(areas[area].pages), to = from + 1 + throw(40);
    if (to > areas[area].pages) to = areas[area].pages;
    char *at = (char *)(areas[area].at + from * WORDS);
    size_t len = (to - from) * PAGE;
    if (throw(2)) {
        CHECK(madvise(at, len, MADV_GUARD_INSTALL) == 0);
        for (size_t page = from; page < to; page++) areas[area].seed[page] = GUARDED;
        return;
    }
    CHECK(madvise(at, len, MADV_GUARD_REMOVE) == 0);
    for (size_t page = from; page < to; page++)
        if (areas[area].seed[page] == GUARDED) areas[area].seed[page] = 0;
    if (throw(2)) fill(area, from, to);
}

static void map_file(void)
{
    int file = open("guards.data", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    char page[PAGE];
    for (int i = 0; i < 8; i++) {
        memset(page, 'a' + i, PAGE);
        CHECK(write(file, page, PAGE) == PAGE);
    }
    of_file = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    CHECK(of_file != MAP_FAILED && close(file) == 0);
    of_file[PAGE] = of_file[3 * PAGE] = 'Z';
    file_guards = madvise(of_file + 2 * PAGE, 3 * PAGE, MADV_GUARD_INSTALL) == 0;
    CHECK(file_guards || errno == EINVAL);
}

/* Pages 2 to 4 are guarded in even rounds; in odd ones they are the file's again. */
static void check_file(long round)
{
    for (int i = 0; i < 8; i++) {
        int guarded = file_guards && round % 2 == 0 && i >= 2 && i <= 4;
        CHECK(readable(of_file + i * PAGE) == !guarded);
        if (guarded) continue;
        char first = i == 1 || (i == 3 && !file_guards) ? 'Z' : (char)('a' + i);
        CHECK(of_file[i * PAGE] == first && of_file[i * PAGE + 9] == 'a' + i);
    }
}

static void *with_guarded_stack(void *argument)
{
    char room[8 * PAGE];
    long rounds = (long)(intptr_t)argument;
    for (long round = 0; round < rounds; round++) {
        memset(room, (int)round, sizeof room);
        pthread_barrier_wait(&meeting);
        for (size_t i = 0; i < sizeof room; i++) CHECK(room[i] == (char)round);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 30);
    CHECK(pipe(ends) == 0);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    for (int area = 0; area < AREAS; area++) {
        areas[area].pages = 300u << area > MAX_PAGES ? MAX_PAGES : 300u << area;
        areas[area].at =
            mmap(NULL, areas[area].pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(areas[area].at != MAP_FAILED);
        fill(area, 0, areas[area].pages);
    }
    if (madvise(areas[0].at, PAGE, MADV_GUARD_INSTALL) != 0) return pass(); /* an older kernel */
    CHECK(madvise(areas[0].at, PAGE, MADV_GUARD_REMOVE) == 0);
    areas[0].seed[0] = 0;
    map_file();
    stack = mmap(NULL, stack_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED && madvise(stack, PAGE, MADV_GUARD_INSTALL) == 0);
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK_ZERO(pthread_barrier_init(&meeting, NULL, 2));
    CHECK_ZERO(pthread_attr_init(&attributes));
    CHECK_ZERO(pthread_attr_setstack(&attributes, stack, stack_len));
    CHECK_ZERO(pthread_create(&thread, &attributes, with_guarded_stack, (void *)(intptr_t)rounds));
    for (long round = 0; round < rounds; round++) {
        step("guards round %ld", round);
        for (int turn = 0; turn < 8; turn++) {
            for (int area = 0; area < AREAS; area++) change(area);
            sleep_ms(8);
        }
        for (int area = 0; area < AREAS; area++) check(area);
        check_file(round);
        if (file_guards) {
            int advice = round % 2 ? MADV_GUARD_INSTALL : MADV_GUARD_REMOVE;
            CHECK(madvise(of_file + 2 * PAGE, 3 * PAGE, advice) == 0);
        }
        CHECK(!readable(stack) && faults_when_touched(stack) && readable(stack + PAGE));
        pthread_barrier_wait(&meeting);
    }
    CHECK_ZERO(pthread_join(thread, NULL));
    return pass();
}
