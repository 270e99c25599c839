/* Processes whose main thread has ended while others run, as it does in launchers and in Go: the first process by
 * pthread_exit(3), its child by exit(2), and its last thread, too. Signals,
 * timers, wait(2), pidfds and what is in /proc are as before. `mainless [ROUNDS]` */
#include "tree.h"
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>

#define CODE 7

static long rounds;
/* Of the child's main thread: zeroed by the kernel when that ends, and by nothing afterwards. */
static volatile int tid_word = 77;

/* The main thread of a process, as /proc tells. */
static char main_state(pid_t pid)
{
    char name[64], line[256], state = 0;
    snprintf(name, sizeof name, "/proc/%d/task/%d/stat", pid, pid);
    FILE *file = fopen(name, "r");
    CHECK(file != NULL && fgets(line, sizeof line, file) != NULL && fclose(file) == 0);
    CHECK(strrchr(line, ')') != NULL && sscanf(strrchr(line, ')'), ") %c", &state) == 1);
    return state;
}

static sigset_t only(int signal)
{
    sigset_t set;
    CHECK(sigemptyset(&set) == 0 && sigaddset(&set, signal) == 0);
    return set;
}

struct ends {
    int in, out;
};

static void *serve(void *argument)
{
    struct ends *ends = argument;
    uint64_t round;
    sigset_t told = only(SIGUSR1);
    siginfo_t info;
    while (tid_word != 0) usleep(100);
    tid_word = 5;
    while (hear_or_end(ends->in, &round)) {
        CHECK(sigwaitinfo(&told, &info) == SIGUSR1 && info.si_pid == getppid());
        CHECK(tid_word == 5 && main_state(getpid()) == 'Z');
        tell(ends->out, round);
    }
    /* Past the C library, which would end the process with a status of its own. The status is that of the last thread,
     * and of the main thread before Linux 5.19. */
    raw_call(SYS_exit, CODE, 0);
    return NULL;
}

static void child_of_it(int in, int out, uint64_t number)
{
    (void)number;
    static struct ends ends;
    ends = (struct ends){in, out};
    sigset_t told = only(SIGUSR1);
    pthread_t thread;
    CHECK(sigprocmask(SIG_BLOCK, &told, NULL) == 0);
    CHECK_ZERO(pthread_create(&thread, NULL, serve, &ends));
    raw_call(SYS_set_tid_address, (long)&tid_word, 0);
    raw_call(SYS_exit, CODE, 0);
}

static void *go_on(void *argument)
{
    pthread_t *first = argument;
    struct child *child = fork_child(child_of_it, 0);
    struct pollfd pidfd = {(int)raw_call(SYS_pidfd_open, child->pid, 0), POLLIN, 0};
    sigset_t tick = only(SIGRTMIN);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    struct itimerspec soon = {.it_value = timespec_of_ns(5000000)};
    timer_t timer;
    CHECK_ZERO(pthread_join(*first, NULL));
    CHECK(pidfd.fd >= 0 && timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    while (main_state(child->pid) != 'Z') usleep(100);
    for (long round = 0; round < rounds; round++) {
        siginfo_t info;
        sleep_ms(ROUND_MS);
        CHECK(timer_settime(timer, 0, &soon, NULL) == 0 && sigwaitinfo(&tick, &info) == SIGRTMIN);
        CHECK(main_state(getpid()) == 'Z' && main_state(child->pid) == 'Z');
        CHECK(poll(&pidfd, 1, 0) == 0 && waitpid(child->pid, NULL, WNOHANG) == 0);
        CHECK(kill(child->pid, SIGUSR1) == 0);
        tell(child->to, (uint64_t)round);
        CHECK(hear(child->from) == (uint64_t)round);
        step("mainless round %ld", round);
    }
    CHECK(close(child->to) == 0);
    ended(child->pid, CODE);
    CHECK(poll(&pidfd, 1, -1) == 1);
    exit(pass());
}

int main(int argc, char **argv)
{
    static pthread_t first, other;
    sigset_t tick = only(SIGRTMIN);
    rounds = number_argument(argc, argv, 1, 60);
    first = pthread_self();
    CHECK(sigprocmask(SIG_BLOCK, &tick, NULL) == 0);
    CHECK_ZERO(pthread_create(&other, NULL, go_on, &first));
    pthread_exit(NULL);
}
