/* What each process has for itself: limits, umask, current directory, nice value, name, timer slack, oom_score_adj,
 * affinity, ignored signals. `tree_limits [ROUNDS]` */
#include "tree.h"
#include <limits.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define CHILDREN 4

static int read_number(const char *path)
{
    char text[32] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0 && close(fd) == 0);
    return atoi(text);
}

static void write_number(const char *path, int number)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && dprintf(fd, "%d", number) > 0 && close(fd) == 0);
}

static rlim_t limit_of(int resource, rlim_t *hard)
{
    struct rlimit limit;
    CHECK(getrlimit(resource, &limit) == 0);
    *hard = limit.rlim_max;
    return limit.rlim_cur;
}

static void set(uint64_t number)
{
    char name[16];
    struct rlimit files = {100 + number, 200 + number}, core = {number, number},
        stack = {(4 + number) << 20, RLIM_INFINITY};
    rlim_t hard;
    limit_of(RLIMIT_STACK, &hard);
    stack.rlim_max = hard;
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0 && setrlimit(RLIMIT_CORE, &core) == 0
        && setrlimit(RLIMIT_STACK, &stack) == 0);
    umask((mode_t)(number * 9));
    snprintf(name, sizeof name, "limits.%lu", (unsigned long)number);
    CHECK((mkdir(name, 0700) == 0 || errno == EEXIST) && chdir(name) == 0);
    errno = 0;
    CHECK(nice((int)number) != -1 || errno == 0);
    snprintf(name, sizeof name, "child %lu", (unsigned long)number);
    CHECK(prctl(PR_SET_NAME, name) == 0 && prctl(PR_SET_TIMERSLACK, 50000 + number) == 0);
    write_number("/proc/self/oom_score_adj", 900 + (int)number);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(0, &cpus);
    if (number == 1) CHECK(sched_setaffinity(0, sizeof cpus, &cpus) == 0);
    if (number % 2 == 1) CHECK(signal(SIGUSR1, SIG_IGN) != SIG_ERR);
}

static void check(uint64_t number, int nice_value)
{
    char expected[PATH_MAX], found[PATH_MAX];
    rlim_t hard;
    CHECK(limit_of(RLIMIT_NOFILE, &hard) == 100 + number && hard == 200 + number);
    CHECK(limit_of(RLIMIT_CORE, &hard) == number && hard == number);
    CHECK(limit_of(RLIMIT_STACK, &hard) == (4 + number) << 20);
    struct stat file;
    unlink("made"); /* of an earlier life that ended just here */
    int fd = open("made", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0777);
    CHECK(fd >= 0 && fstat(fd, &file) == 0 && (file.st_mode & 0777) == (0777 & ~(mode_t)(number * 9)));
    CHECK(close(fd) == 0 && unlink("made") == 0);
    snprintf(expected, sizeof expected, "/limits.%lu", (unsigned long)number);
    CHECK(getcwd(found, sizeof found) != NULL && strlen(found) > strlen(expected));
    CHECK(strcmp(found + strlen(found) - strlen(expected), expected) == 0);
    errno = 0;
    CHECK(getpriority(PRIO_PROCESS, 0) == nice_value && errno == 0);
    snprintf(expected, sizeof expected, "child %lu", (unsigned long)number);
    CHECK(prctl(PR_GET_NAME, found) == 0 && strcmp(found, expected) == 0);
    CHECK(prctl(PR_GET_TIMERSLACK) == 50000 + (int)number);
    CHECK(read_number("/proc/self/oom_score_adj") == 900 + (int)number);
    cpu_set_t cpus;
    CHECK(sched_getaffinity(0, sizeof cpus, &cpus) == 0
        && (number != 1 || (CPU_COUNT(&cpus) == 1 && CPU_ISSET(0, &cpus))));
    struct sigaction action;
    CHECK(sigaction(SIGUSR1, NULL, &action) == 0 && (action.sa_handler == SIG_IGN) == (number % 2 == 1));
}

static void live(int in, int out, uint64_t number)
{
    uint64_t round;
    int before = getpriority(PRIO_PROCESS, 0), expected = before + (int)number;
    set(number);
    while (hear_or_end(in, &round)) {
        check(number, expected > 19 ? 19 : expected);
        tell(out, round);
    }
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    for (uint64_t i = 1; i <= CHILDREN; i++) fork_child(live, i);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        sleep_ms(ROUND_MS);
        for (int i = 0; i < CHILDREN; i++) tell(children[i].to, round);
        for (int i = 0; i < CHILDREN; i++) CHECK(hear(children[i].from) == round);
        step("limits round %lu", (unsigned long)round);
    }
    finish_all(0);
    char name[16];
    for (int i = 1; i <= CHILDREN; i++) {
        snprintf(name, sizeof name, "limits.%d", i);
        CHECK(rmdir(name) == 0);
    }
    return pass();
}
