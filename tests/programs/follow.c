/* Life cycle: `follow exec [ROUNDS]` replaces itself by itself after each third of its rounds; `follow daemon FILE
 * [ROUNDS]` becomes a daemon that writes its lines to FILE; `follow exit STATUS`; `follow signal NUMBER` dies of a
 * signal; `follow trap [ROUNDS]` prints the name of each SIGTERM or SIGINT it gets and ends with status 42 after
 * SIGINT; `follow fds` prints the open descriptors and the number of threads. */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

static void count(const char *what, long rounds)
{
    for (long round = 0; round < rounds; round++) {
        step("%s round %ld", what, round);
        sleep_ms(50);
    }
}

static int by_exec(char **argv, long rounds, long stage)
{
    char what[32], next[32], total[32];
    snprintf(what, sizeof what, "exec stage %ld", stage);
    count(what, rounds / 3);
    if (stage == 2) return pass();
    snprintf(next, sizeof next, "%ld", stage + 1);
    snprintf(total, sizeof total, "%ld", rounds);
    execl("/proc/self/exe", argv[0], "exec", total, next, (char *)NULL);
    CHECK(!"execl");
    return 1;
}

static int by_daemon(const char *path, long rounds)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0) _exit(0);
    CHECK(setsid() > 0);
    CHECK((pid = fork()) >= 0);
    if (pid > 0) _exit(0);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644), null = open("/dev/null", O_RDWR);
    CHECK(fd >= 0 && null >= 0 && dup2(null, 0) == 0 && dup2(fd, 1) == 1 && dup2(fd, 2) == 2);
    close(fd);
    close(null);
    count("daemon", rounds);
    return pass();
}

static volatile sig_atomic_t got_term, got_int;
static void trap(int signal)
{
    if (signal == SIGTERM) got_term++;
    if (signal == SIGINT) got_int++;
}

static int by_trap(long rounds)
{
    struct sigaction action = {.sa_handler = trap};
    CHECK(sigaction(SIGTERM, &action, NULL) == 0 && sigaction(SIGINT, &action, NULL) == 0);
    for (long round = 0; round < rounds && !got_int; round++) {
        struct timespec t = {0, 20000000};
        int term = got_term;
        step("trap round %ld", round);
        while (nanosleep(&t, &t) != 0) CHECK(errno == EINTR && (got_term || got_int));
        if (got_term != term) step("SIGTERM");
    }
    if (!got_int) return pass();
    step("SIGINT");
    return 42;
}

static int print_descriptors(void)
{
    static const char *const folders[] = {"/proc/self/fd", "/proc/self/task"};
    for (int i = 0; i < 2; i++) {
        DIR *d = opendir(folders[i]);
        long entries = 0;
        CHECK(d != NULL);
        for (struct dirent *e; (e = readdir(d)) != NULL;) entries += e->d_name[0] != '.';
        CHECK(closedir(d) == 0);
        printf("%s: %ld\n", i == 0 ? "descriptors" : "threads", entries);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    if (strcmp(kind, "exec") == 0)
        return by_exec(argv, number_argument(argc, argv, 2, 45), number_argument(argc, argv, 3, 0));
    if (strcmp(kind, "daemon") == 0 && argc > 2) return by_daemon(argv[2], number_argument(argc, argv, 3, 45));
    if (strcmp(kind, "exit") == 0) return (int)number_argument(argc, argv, 2, 7);
    if (strcmp(kind, "trap") == 0) return by_trap(number_argument(argc, argv, 2, 100));
    if (strcmp(kind, "fds") == 0) return print_descriptors();
    if (strcmp(kind, "signal") == 0) {
        kill(getpid(), (int)number_argument(argc, argv, 2, SIGSEGV));
        pause();
    }
    return 2;
}
