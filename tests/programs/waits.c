/* A program asleep: `waits CALL [ROUNDS] [MILLISECONDS] [SIDE_FILE]`.
 *
 * Waits ROUNDS times in CALL, which ends by its own timeout or is ended by a second thread after MILLISECONDS. The call
 * must never report EINTR and never end early. The time that each wait took goes to SIDE_FILE (one line, nanoseconds),
 * where the test compares it with the time that the program was stopped.
 * `waits list` prints the calls, those with a timeout of their own marked by `timeout`, the others by `woken`.
 */
#include "common.h"
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/time.h>

/* A wait may end this much early: clocks are read twice, and the rest after a stop is computed by the agent. */
#define EARLY_NS 3000000

static int64_t wait_ns;      /* of the round */
static int64_t wake_at_ns;   /* when the waker acts */
static int pipe_ends[2], pair_ends[2], event_fd, timer_fd, lock_fd, sem_id = -1, queue_id = -1;
static uint32_t futex_word;
static sigset_t one_signal;
static pid_t main_tid;
static volatile sig_atomic_t handled;

static struct timespec relative(void) { return timespec_of_ns(wait_ns); }

static struct timespec absolute(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return timespec_of_ns((int64_t)t.tv_sec * 1000000000 + t.tv_nsec + wait_ns);
}

static void nothing_waker(void) {}

/* Calls with a timeout of their own. */

static void wait_nanosleep(void)
{
    struct timespec t = relative();
    CHECK(nanosleep(&t, NULL) == 0);
}
static void wait_clock_nanosleep(void)
{
    struct timespec t = relative();
    CHECK_ZERO(clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL));
}
static void wait_clock_nanosleep_abs(void)
{
    struct timespec t = absolute(CLOCK_MONOTONIC);
    CHECK_ZERO(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL));
}
static void wait_poll(void)
{
    struct pollfd p = {pipe_ends[0], POLLIN, 0};
    CHECK(poll(&p, 1, (int)(wait_ns / 1000000)) == 0);
}
static void wait_ppoll(void)
{
    struct pollfd p = {pipe_ends[0], POLLIN, 0};
    struct timespec t = relative();
    sigset_t none;
    sigemptyset(&none);
    CHECK(ppoll(&p, 1, &t, &none) == 0);
}
static void wait_select(void)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pipe_ends[0], &set);
    struct timeval t = {wait_ns / 1000000000, wait_ns % 1000000000 / 1000};
    CHECK(select(pipe_ends[0] + 1, &set, NULL, NULL, &t) == 0);
}
static void wait_pselect(void)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pipe_ends[0], &set);
    struct timespec t = relative();
    sigset_t none;
    sigemptyset(&none);
    CHECK(pselect(pipe_ends[0] + 1, &set, NULL, NULL, &t, &none) == 0);
}
static int epoll_on_pipe(void)
{
    static int fd = -1;
    if (fd < 0) {
        struct epoll_event event = {EPOLLIN, {0}};
        CHECK((fd = epoll_create1(EPOLL_CLOEXEC)) >= 0);
        CHECK(epoll_ctl(fd, EPOLL_CTL_ADD, pipe_ends[0], &event) == 0);
    }
    return fd;
}
static void wait_epoll_wait(void)
{
    struct epoll_event event;
    CHECK(epoll_wait(epoll_on_pipe(), &event, 1, (int)(wait_ns / 1000000)) == 0);
}
static void wait_epoll_pwait(void)
{
    struct epoll_event event;
    sigset_t none;
    sigemptyset(&none);
    CHECK(epoll_pwait(epoll_on_pipe(), &event, 1, (int)(wait_ns / 1000000), &none) == 0);
}
static void wait_epoll_pwait2(void)
{
    struct epoll_event event;
    struct timespec t = relative();
    CHECK(epoll_pwait2(epoll_on_pipe(), &event, 1, &t, NULL) == 0);
}
static void wait_futex_timed(void)
{
    struct timespec t = relative();
    CHECK(syscall(SYS_futex, &futex_word, FUTEX_WAIT_PRIVATE, futex_word, &t, NULL, 0) == -1 && errno == ETIMEDOUT);
}
static void wait_futex_bitset(void)
{
    struct timespec t = absolute(CLOCK_MONOTONIC);
    CHECK(syscall(SYS_futex, &futex_word, FUTEX_WAIT_BITSET_PRIVATE, futex_word, &t, NULL,
                  FUTEX_BITSET_MATCH_ANY) == -1 && errno == ETIMEDOUT);
}
static void wait_sem_timedwait(void)
{
    static sem_t semaphore;
    CHECK(sem_init(&semaphore, 0, 0) == 0);
    struct timespec t = absolute(CLOCK_REALTIME);
    CHECK(sem_timedwait(&semaphore, &t) == -1 && errno == ETIMEDOUT);
}
static void wait_cond_timedwait(void)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    struct timespec t = absolute(CLOCK_REALTIME);
    CHECK_ZERO(pthread_mutex_lock(&mutex));
    int error = 0;
    while (error == 0) error = pthread_cond_timedwait(&cond, &mutex, &t);
    CHECK(error == ETIMEDOUT);
    CHECK_ZERO(pthread_mutex_unlock(&mutex));
}
static void wait_sigtimedwait(void)
{
    struct timespec t = relative();
    siginfo_t info;
    CHECK(sigtimedwait(&one_signal, &info, &t) == -1 && errno == EAGAIN);
}
static void wait_semtimedop(void)
{
    if (sem_id < 0) {
        CHECK((sem_id = semget(IPC_PRIVATE, 1, 0600)) >= 0);
    }
    struct sembuf operation = {0, -1, 0};
    struct timespec t = relative();
    CHECK(semtimedop(sem_id, &operation, 1, &t) == -1 && errno == EAGAIN);
}
static void wait_recv_timeout(void)
{
    struct timeval t = {wait_ns / 1000000000, wait_ns % 1000000000 / 1000};
    CHECK(setsockopt(pair_ends[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0);
    char byte;
    CHECK(recv(pair_ends[0], &byte, 1, 0) == -1 && errno == EAGAIN);
}
static void wait_timerfd(void)
{
    struct itimerspec t = {{0, 0}, relative()};
    uint64_t expirations = 0;
    CHECK(timerfd_settime(timer_fd, 0, &t, NULL) == 0);
    CHECK(read(timer_fd, &expirations, sizeof expirations) == sizeof expirations && expirations == 1);
}

/* Calls that a second thread ends. */

static void wait_pipe_read(void)
{
    char byte = 0;
    CHECK(read(pipe_ends[0], &byte, 1) == 1 && byte == 'w');
}
static void wake_pipe(void) { CHECK(write(pipe_ends[1], "w", 1) == 1); }

static void wait_poll_endless(void)
{
    struct pollfd p = {pipe_ends[0], POLLIN, 0};
    CHECK(poll(&p, 1, -1) == 1);
    wait_pipe_read();
}
static void wait_epoll_endless(void)
{
    struct epoll_event event;
    CHECK(epoll_wait(epoll_on_pipe(), &event, 1, -1) == 1);
    wait_pipe_read();
}
static void wait_socket_recv(void)
{
    char byte = 0;
    CHECK(recv(pair_ends[0], &byte, 1, 0) == 1 && byte == 'w');
}
static void wake_socket(void) { CHECK(send(pair_ends[1], "w", 1, 0) == 1); }

static void wait_eventfd(void)
{
    uint64_t count = 0;
    CHECK(read(event_fd, &count, sizeof count) == sizeof count && count == 7);
}
static void wake_eventfd(void)
{
    uint64_t seven = 7;
    CHECK(write(event_fd, &seven, sizeof seven) == sizeof seven);
}
static void wait_futex(void)
{
    while (__atomic_load_n(&futex_word, __ATOMIC_SEQ_CST) == 0) {
        long r = syscall(SYS_futex, &futex_word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
        CHECK(r == 0 || errno == EAGAIN);
    }
    futex_word = 0;
}
static void wake_futex(void)
{
    __atomic_store_n(&futex_word, 1, __ATOMIC_SEQ_CST);
    CHECK(syscall(SYS_futex, &futex_word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0) >= 0);
}
static void wait_sigwaitinfo(void)
{
    siginfo_t info;
    CHECK(sigwaitinfo(&one_signal, &info) == SIGRTMIN + 3 && info.si_value.sival_int == 77);
}
static void wake_queue(void)
{
    union sigval value = {.sival_int = 77};
    CHECK(sigqueue(getpid(), SIGRTMIN + 3, value) == 0);
}
static void handler(int signal)
{
    (void)signal;
    handled = 1;
}
/* The one call here that is meant to end with EINTR: by the program's own signal, and by nothing else. */
static void wait_sigsuspend(void)
{
    sigset_t open;
    sigfillset(&open);
    sigdelset(&open, SIGRTMIN + 4);
    handled = 0;
    CHECK(sigsuspend(&open) == -1 && errno == EINTR && handled == 1);
    sigset_t after;
    CHECK_ZERO(pthread_sigmask(SIG_BLOCK, NULL, &after));
    CHECK(sigismember(&after, SIGRTMIN + 4) == 1 && sigismember(&after, SIGHUP) == 0);
}
static void wait_pause(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 4);
    handled = 0;
    CHECK_ZERO(pthread_sigmask(SIG_UNBLOCK, &set, NULL));
    CHECK(pause() == -1 && errno == EINTR && handled == 1);
}
static void wake_handler(void) { CHECK(syscall(SYS_tgkill, getpid(), main_tid, SIGRTMIN + 4) == 0); }

static pthread_barrier_t lock_taken;
static void wait_flock(void)
{
    pthread_barrier_wait(&lock_taken);
    CHECK(flock(lock_fd, LOCK_EX) == 0);
    CHECK(flock(lock_fd, LOCK_UN) == 0);
}

struct message {
    long type;
    char text[8];
};
static void wait_msgrcv(void)
{
    struct message m;
    CHECK(msgrcv(queue_id, &m, sizeof m.text, 5, 0) == 8);
}
static void wake_msgrcv(void)
{
    struct message m = {5, "message"};
    CHECK(msgsnd(queue_id, &m, sizeof m.text, 0) == 0);
}

static const struct call {
    const char *name;
    void (*wait)(void);
    void (*wake)(void);
} calls[] = {
    {"nanosleep", wait_nanosleep, nothing_waker},
    {"clock_nanosleep", wait_clock_nanosleep, nothing_waker},
    {"clock_nanosleep_abs", wait_clock_nanosleep_abs, nothing_waker},
    {"poll", wait_poll, nothing_waker},
    {"ppoll", wait_ppoll, nothing_waker},
    {"select", wait_select, nothing_waker},
    {"pselect", wait_pselect, nothing_waker},
    {"epoll_wait", wait_epoll_wait, nothing_waker},
    {"epoll_pwait", wait_epoll_pwait, nothing_waker},
    {"epoll_pwait2", wait_epoll_pwait2, nothing_waker},
    {"futex_timed", wait_futex_timed, nothing_waker},
    {"futex_bitset", wait_futex_bitset, nothing_waker},
    {"sem_timedwait", wait_sem_timedwait, nothing_waker},
    {"cond_timedwait", wait_cond_timedwait, nothing_waker},
    {"sigtimedwait", wait_sigtimedwait, nothing_waker},
    {"semtimedop", wait_semtimedop, nothing_waker},
    {"recv_timeout", wait_recv_timeout, nothing_waker},
    {"timerfd", wait_timerfd, nothing_waker},
    {"pipe_read", wait_pipe_read, wake_pipe},
    {"poll_endless", wait_poll_endless, wake_pipe},
    {"epoll_endless", wait_epoll_endless, wake_pipe},
    {"socket_recv", wait_socket_recv, wake_socket},
    {"eventfd", wait_eventfd, wake_eventfd},
    {"futex", wait_futex, wake_futex},
    {"sigwaitinfo", wait_sigwaitinfo, wake_queue},
    {"sigsuspend", wait_sigsuspend, wake_handler},
    {"pause", wait_pause, wake_handler},
    {"flock", wait_flock, NULL},
    {"msgrcv", wait_msgrcv, wake_msgrcv},
};
#define CALLS (sizeof calls / sizeof calls[0])

static void *waker(void *argument)
{
    const struct call *call = argument;
    struct timespec at = timespec_of_ns(wake_at_ns);
    int other = -1;
    if (call->wake == NULL) { /* flock: hold the lock through another open file description */
        CHECK((other = open("waits.lock", O_RDWR)) >= 0);
        CHECK(flock(other, LOCK_EX) == 0);
        pthread_barrier_wait(&lock_taken);
    }
    CHECK_ZERO(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL));
    if (call->wake == NULL)
        CHECK(close(other) == 0);
    else
        call->wake();
    return NULL;
}

static void prepare(const struct call *call)
{
    main_tid = (pid_t)syscall(SYS_gettid);
    CHECK(pipe2(pipe_ends, O_CLOEXEC) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair_ends) == 0);
    CHECK((event_fd = eventfd(0, EFD_CLOEXEC)) >= 0);
    CHECK((timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) >= 0);
    sigemptyset(&one_signal);
    sigaddset(&one_signal, SIGRTMIN + 3);
    sigset_t blocked = one_signal;
    sigaddset(&blocked, SIGRTMIN + 4);
    CHECK_ZERO(pthread_sigmask(SIG_BLOCK, &blocked, NULL));
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGRTMIN + 4, &action, NULL) == 0);
    if (strcmp(call->name, "flock") == 0) {
        CHECK((lock_fd = open("waits.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600)) >= 0);
        CHECK_ZERO(pthread_barrier_init(&lock_taken, NULL, 2));
    }
    if (strcmp(call->name, "msgrcv") == 0) CHECK((queue_id = msgget(IPC_PRIVATE, 0600)) >= 0);
}

static void tell(const char *path, int64_t took_ns)
{
    if (path == NULL) return;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    CHECK(fd >= 0);
    CHECK(dprintf(fd, "%lld\n", (long long)took_ns) > 0);
    CHECK(close(fd) == 0);
}

int main(int argc, char **argv)
{
    const struct call *call = NULL;
    for (size_t i = 0; argc > 1 && i < CALLS; i++) {
        if (strcmp(argv[1], "list") == 0)
            printf("%s %s\n", calls[i].name, calls[i].wake == nothing_waker ? "timeout" : "woken");
        if (strcmp(argv[1], calls[i].name) == 0) call = &calls[i];
    }
    if (call == NULL) return argc > 1 && strcmp(argv[1], "list") == 0 ? 0 : 2;
    long rounds = number_argument(argc, argv, 2, 8);
    wait_ns = number_argument(argc, argv, 3, 300) * slowness() * 1000000;
    prepare(call);
    for (long round = 0; round < rounds; round++) {
        pthread_t thread;
        step("%s round %ld", call->name, round);
        int64_t start = now_ns();
        wake_at_ns = start + wait_ns;
        if (call->wake != nothing_waker) CHECK_ZERO(pthread_create(&thread, NULL, waker, (void *)call));
        call->wait();
        int64_t took = now_ns() - start;
        if (call->wake != nothing_waker) CHECK_ZERO(pthread_join(thread, NULL));
        CHECK(took >= wait_ns - EARLY_NS);
        tell(argc > 4 ? argv[4] : NULL, took);
    }
    if (sem_id >= 0) CHECK(semctl(sem_id, 0, IPC_RMID) == 0);
    if (queue_id >= 0) CHECK(msgctl(queue_id, IPC_RMID, NULL) == 0);
    return pass();
}
