/* Settings of the process and of each thread that have to do with neither memory nor files; another set every round.
 * `attributes [ROUNDS]` */
#include "common.h"
#include <fcntl.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_GET_MDWE 66
#endif
#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57
#define PR_GET_IO_FLUSHER 58
#endif
#define GET_REGISTRATIONS (1 << 9)
#define NO_AMBIENT_RAISE (1 << 6) /* SECBIT_NO_CAP_AMBIENT_RAISE */
#define KEEP_CAPS (1 << 4)
#define THREADS 4
#define PAGE 4096

static pthread_barrier_t meeting;
static long rounds;
static int flusher_allowed, securebits_allowed, thp_flags_known;

/* What a thread has set in this round; `v` differs by thread and round. */
static unsigned long slack(long v) { return 50000 + (unsigned long)(v % 100) * 1000; }
static int death_signal(long v) { return (int[]){0, SIGURG, SIGWINCH, SIGCONT}[v % 4]; }
static int io_priority(long v) { return v % 5 == 4 ? 3 << 13 | 7 : 2 << 13 | (int)(v % 8); }
static int policy(long v) { return (int[]){0, 2, 1, 3, 4}[v % 5]; } /* default, bind, preferred, interleave, local */
static int bits(long v)
{
    return (v % 2 ? KEEP_CAPS : 0) | (securebits_allowed && v % 3 == 1 ? NO_AMBIENT_RAISE : 0);
}

static long current_policy(int *mode, unsigned long *nodes)
{
    unsigned long set[16] = {0};
    long result = syscall(SYS_get_mempolicy, mode, set, 1024ul, NULL, 0ul);
    *nodes = set[0];
    return result;
}

static void set_own(long v)
{
    char name[16];
    snprintf(name, sizeof name, "v%ld", v);
    CHECK(prctl(PR_SET_NAME, name) == 0);
    CHECK(prctl(PR_SET_TIMERSLACK, slack(v)) == 0);
    CHECK(prctl(PR_SET_PDEATHSIG, death_signal(v)) == 0);
    if (securebits_allowed) CHECK(prctl(PR_SET_SECUREBITS, bits(v)) == 0);
    else CHECK(prctl(PR_SET_KEEPCAPS, v % 2) == 0);
    if (flusher_allowed) CHECK(prctl(PR_SET_IO_FLUSHER, v % 2, 0, 0, 0) == 0);
    CHECK(syscall(SYS_ioprio_set, 1, 0, io_priority(v)) == 0);
    unsigned long node = 1, *nodes = policy(v) % 4 ? &node : NULL;
    CHECK(syscall(SYS_set_mempolicy, policy(v), nodes, nodes ? 64ul : 0ul) == 0 || errno == ENOSYS);
}

static void check_own(long v)
{
    char name[16], expected[16];
    snprintf(expected, sizeof expected, "v%ld", v);
    CHECK(prctl(PR_GET_NAME, name) == 0 && strcmp(name, expected) == 0);
    CHECK((unsigned long)prctl(PR_GET_TIMERSLACK) == slack(v));
    int signal = -1, mode = -1;
    unsigned long nodes;
    CHECK(prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal == death_signal(v));
    CHECK(prctl(PR_GET_SECUREBITS) == bits(v) && prctl(PR_GET_KEEPCAPS) == v % 2);
    if (flusher_allowed) CHECK(prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0) == v % 2);
    CHECK(syscall(SYS_ioprio_get, 1, 0) == io_priority(v));
    if (current_policy(&mode, &nodes) == 0) CHECK(mode == policy(v) && nodes == (unsigned long)(policy(v) % 4 ? 1 : 0));
}

/* --- the whole process --- */

static int subreaper(long round) { return round % 2; }
static int dumpable(long round) { return getuid() == 0 && round % 3 == 1 ? 0 : 1; }
static int thp(long round) { return (int[]){0, 1, thp_flags_known ? 3 : 1}[round % 3]; }
static int score(long round) { return 100 + (int)(round % 4) * 10; }
static int mdwe(long round) { return round >= rounds / 2; }

static int registrations(long round)
{
    return (round >= 4 ? MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED : 0) |
           (round >= 9 ? MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED : 0) |
           (round >= 14 ? MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE : 0);
}

static void set_process(long round)
{
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, subreaper(round)) == 0);
    if (getuid() == 0) CHECK(prctl(PR_SET_DUMPABLE, dumpable(round)) == 0);
    CHECK(prctl(PR_SET_THP_DISABLE, thp(round) & 1, thp(round) & 2, 0, 0) == 0);
    if (mdwe(round) && prctl(PR_GET_MDWE, 0, 0, 0, 0) == 0) CHECK(prctl(PR_SET_MDWE, 1, 0, 0, 0) == 0);
    char text[16];
    int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    snprintf(text, sizeof text, "%d", score(round));
    CHECK(file >= 0 && write(file, text, strlen(text)) > 0 && close(file) == 0);
    for (int bit = 0; bit < 9; bit++)
        if (registrations(round) >> bit & 1) CHECK(syscall(SYS_membarrier, 1 << bit, 0, 0) == 0);
}

static void check_process(long round)
{
    int flag = -1;
    CHECK(prctl(PR_GET_CHILD_SUBREAPER, &flag) == 0 && flag == subreaper(round));
    CHECK(prctl(PR_GET_DUMPABLE) == dumpable(round));
    CHECK(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == thp(round));
    CHECK(prctl(PR_GET_MDWE, 0, 0, 0, 0) == mdwe(round));
    char text[16] = {0};
    int file = open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0 && close(file) == 0 && atoi(text) == score(round));
    long known = syscall(SYS_membarrier, GET_REGISTRATIONS, 0, 0);
    CHECK(known == registrations(round) || errno == EINVAL);
    if (round >= 4) CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0);
    else CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == -1 && errno == EPERM);
    if (round >= 14) CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0) == 0);
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    CHECK(mprotect(page, PAGE, PROT_READ | PROT_EXEC) == (mdwe(round) ? -1 : 0));
    CHECK(munmap(page, PAGE) == 0);
}

static void *life(void *argument)
{
    long self = (long)(intptr_t)argument;
    for (long round = 0; round < rounds; round++) {
        long v = round * 7 + self;
        set_own(v);
        if (self == 0) set_process(round);
        pthread_barrier_wait(&meeting);
        if (self == 0) step("attributes round %ld", round);
        for (int look = 0; look < 4; look++) {
            sleep_ms(20);
            check_own(v);
            if (self == 0) check_process(round);
        }
        pthread_barrier_wait(&meeting);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    rounds = number_argument(argc, argv, 1, 26);
    flusher_allowed = prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0) >= 0;
    securebits_allowed = prctl(PR_SET_SECUREBITS, 0) == 0;
    thp_flags_known = prctl(PR_SET_THP_DISABLE, 1, 2, 0, 0) == 0;
    CHECK_ZERO(pthread_barrier_init(&meeting, NULL, THREADS));
    pthread_t threads[THREADS];
    for (long i = 1; i < THREADS; i++)
        CHECK_ZERO(pthread_create(&threads[i], NULL, life, (void *)(intptr_t)i));
    life(NULL);
    for (long i = 1; i < THREADS; i++) CHECK_ZERO(pthread_join(threads[i], NULL));
    return pass();
}
