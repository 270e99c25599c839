/* More calls in which a thread sleeps until another one does something: `sleeps CALL [ROUNDS]`. None may report EINTR
 * or come back early. CALL: see the table at the end. */
#include "rounds.h"
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>

#define QUIET_BEFORE_MS 50
static int ends[2], pair[2], listener, watch, signals;
static sem_t semaphore;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, inheriting;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier, taken;
static pthread_t other;

static void wake_pipe(void) { CHECK(write(ends[1], "w", 1) == 1); }
static void take_pipe(void)
{
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1);
}
static void wake_pair(void) { CHECK(send(pair[1], "w", 1, 0) == 1); }

static void sleep_in_accept(void)
{
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0 && close(fd) == 0);
}
static void wake_accept(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "sleeps.socket"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(connect(fd, (struct sockaddr *)&name, sizeof name) == 0 && close(fd) == 0);
}
static void sleep_in_recvmsg(void)
{
    char byte;
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    CHECK(recvmsg(pair[0], &message, 0) == 1 && byte == 'w');
}
static void sleep_in_recvmmsg(void)
{
    char bytes[2];
    struct iovec vectors[2] = {{&bytes[0], 1}, {&bytes[1], 1}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &vectors[0], .msg_iovlen = 1}},
        {.msg_hdr = {.msg_iov = &vectors[1], .msg_iovlen = 1}}};
    CHECK(recvmmsg(pair[0], messages, 2, MSG_WAITFORONE, NULL) == 1 && bytes[0] == 'w');
}
static void sleep_in_signalfd(void)
{
    struct signalfd_siginfo info;
    CHECK(read(signals, &info, sizeof info) == sizeof info && (int)info.ssi_signo == SIGRTMIN + 2);
}
static void wake_signalfd(void) { CHECK(kill(getpid(), SIGRTMIN + 2) == 0); }
static void sleep_in_inotify(void)
{
    char buffer[512] __attribute__((aligned(8)));
    ssize_t len = read(watch, buffer, sizeof buffer);
    CHECK(len > 0 && ((struct inotify_event *)(void *)buffer)->mask == IN_CLOSE_WRITE);
}
static void wake_inotify(void)
{
    CHECK(close(open("sleeps.watched/file", O_CREAT | O_WRONLY, 0600)) == 0);
}
static void sleep_in_join(void) { CHECK_ZERO(pthread_join(other, NULL)); }
static void nothing(void) {}
static void sleep_in_barrier(void) { pthread_barrier_wait(&barrier); }
static void sleep_in_mutex(void) { CHECK_ZERO(pthread_mutex_lock(&mutex) | pthread_mutex_unlock(&mutex)); }
static void sleep_in_inheriting(void) {
    CHECK_ZERO(pthread_mutex_lock(&inheriting) | pthread_mutex_unlock(&inheriting));
}
static void sleep_in_rwlock(void) { CHECK_ZERO(pthread_rwlock_rdlock(&rwlock) | pthread_rwlock_unlock(&rwlock)); }
static void sleep_in_sem(void) { CHECK(sem_wait(&semaphore) == 0); }
static void wake_sem(void) { CHECK(sem_post(&semaphore) == 0); }
static void sleep_in_select(void)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    CHECK(select(ends[0] + 1, &set, NULL, NULL, NULL) == 1);
    take_pipe();
}
static void sleep_in_splice(void)
{
    static int more[2];
    char byte;
    if (more[0] == 0) CHECK(pipe2(more, O_CLOEXEC) == 0);
    CHECK(splice(ends[0], NULL, more[1], NULL, 1, 0) == 1 && read(more[0], &byte, 1) == 1 && byte == 'w');
}
static void sleep_in_tee(void)
{
    static int more[2];
    char byte;
    if (more[0] == 0) CHECK(pipe2(more, O_CLOEXEC) == 0);
    CHECK(tee(ends[0], more[1], 1, 0) == 1 && read(more[0], &byte, 1) == 1 && byte == 'w');
    take_pipe();
}
static void sleep_in_readv(void)
{
    char bytes[2];
    struct iovec vectors[2] = {{&bytes[0], 1}, {&bytes[1], 1}};
    CHECK(readv(ends[0], vectors, 2) == 1 && bytes[0] == 'w');
}
static uint32_t word;
static void sleep_in_waitv(void)
{
    struct futex_waitv waiter = {.val = 0, .uaddr = (uintptr_t)&word, .flags = FUTEX_32};
    long result = syscall(SYS_futex_waitv, &waiter, 1, 0, NULL, 0);
    CHECK(result == 0 || (result == -1 && errno == EAGAIN));
    CHECK(__atomic_exchange_n(&word, 0, __ATOMIC_SEQ_CST) == 1);
}
static void wake_waitv(void)
{
    __atomic_store_n(&word, 1, __ATOMIC_SEQ_CST);
    CHECK(syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0) >= 0);
}
/* A lock that a thread gets, of a file that it opened itself; only open file descriptions can wait inside one
 * process. */
static int lock_here, lock_there;
static void put_lock(int fd, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
    CHECK(fcntl(fd, F_OFD_SETLKW, &lock) == 0);
}
static void sleep_in_lock(void)
{
    put_lock(lock_here, F_WRLCK);
    put_lock(lock_here, F_UNLCK);
}
static void wake_lock(void) { put_lock(lock_there, F_UNLCK); }
static void sleep_in_fifo(void)
{
    int fd = open("sleeps.fifo", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && close(fd) == 0);
}
static void wake_fifo(void) { CHECK(close(open("sleeps.fifo", O_WRONLY | O_CLOEXEC)) == 0); }
static void sleep_in_sigwait(void)
{
    sigset_t set;
    int number;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 2);
    CHECK_ZERO(sigwait(&set, &number));
    CHECK(number == SIGRTMIN + 2);
}

/* What the other thread has before the first one sleeps. */
static void hold_mutex(void) { CHECK_ZERO(pthread_mutex_lock(&mutex)); }
static void free_mutex(void) { CHECK_ZERO(pthread_mutex_unlock(&mutex)); }
static void hold_inheriting(void) { CHECK_ZERO(pthread_mutex_lock(&inheriting)); }
static void free_inheriting(void) { CHECK_ZERO(pthread_mutex_unlock(&inheriting)); }
static void hold_rwlock(void) { CHECK_ZERO(pthread_rwlock_wrlock(&rwlock)); }
static void free_rwlock(void) { CHECK_ZERO(pthread_rwlock_unlock(&rwlock)); }
static void hold_lock(void) { put_lock(lock_there, F_WRLCK); }

static const struct call {
    const char *name;
    void (*sleep)(void), (*hold)(void), (*wake)(void);
} calls[] = {
    {"accept", sleep_in_accept, nothing, wake_accept},
    {"recvmsg", sleep_in_recvmsg, nothing, wake_pair},
    {"recvmmsg", sleep_in_recvmmsg, nothing, wake_pair},
    {"signalfd", sleep_in_signalfd, nothing, wake_signalfd},
    {"inotify", sleep_in_inotify, nothing, wake_inotify},
    {"join", sleep_in_join, nothing, nothing},
    {"barrier", sleep_in_barrier, nothing, sleep_in_barrier},
    {"mutex", sleep_in_mutex, hold_mutex, free_mutex},
    {"inheriting", sleep_in_inheriting, hold_inheriting, free_inheriting},
    {"rwlock", sleep_in_rwlock, hold_rwlock, free_rwlock},
    {"sem_wait", sleep_in_sem, nothing, wake_sem},
    {"select", sleep_in_select, nothing, wake_pipe},
    {"splice", sleep_in_splice, nothing, wake_pipe},
    {"tee", sleep_in_tee, nothing, wake_pipe},
    {"readv", sleep_in_readv, nothing, wake_pipe},
    {"futex_waitv", sleep_in_waitv, nothing, wake_waitv},
    {"lock", sleep_in_lock, hold_lock, wake_lock},
    {"open", sleep_in_fifo, nothing, wake_fifo},
    {"sigwait", sleep_in_sigwait, nothing, wake_signalfd},
};

static const struct call *chosen;
static void *waker(void *argument)
{
    chosen->hold();
    pthread_barrier_wait(&taken);
    sleep_ms(QUIET_BEFORE_MS);
    chosen->wake();
    return argument;
}

static void prepare(void)
{
    pthread_mutexattr_t attributes;
    sigset_t set;
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "sleeps.socket"};
    CHECK(pipe2(ends, O_CLOEXEC) == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    CHECK((listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
    CHECK(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, 5) == 0);
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 2);
    CHECK_ZERO(pthread_sigmask(SIG_BLOCK, &set, NULL));
    CHECK((signals = signalfd(-1, &set, SFD_CLOEXEC)) >= 0 && sem_init(&semaphore, 0, 0) == 0);
    CHECK_ZERO(pthread_barrier_init(&barrier, NULL, 2) | pthread_barrier_init(&taken, NULL, 2));
    CHECK_ZERO(pthread_mutexattr_init(&attributes));
    CHECK_ZERO(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT)
        | pthread_mutex_init(&inheriting, &attributes));
    CHECK((lock_here = open("sleeps.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600)) >= 0);
    CHECK((lock_there = open("sleeps.lock", O_RDWR | O_CLOEXEC)) >= 0);
    CHECK(mkfifo("sleeps.fifo", 0600) == 0);
    if (strcmp(chosen->name, "inotify") == 0)
        CHECK((watch = inotify_init1(IN_CLOEXEC)) >= 0 && mkdir("sleeps.watched", 0700) == 0
            && inotify_add_watch(watch, "sleeps.watched", IN_CLOSE_WRITE) >= 0);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof calls / sizeof calls[0]; i++)
        if (strcmp(argv[1], calls[i].name) == 0) chosen = &calls[i];
    if (chosen == NULL) return 2;
    prepare();
    long rounds = number_argument(argc, argv, 2, 40);
    for (long round = 0; round < rounds; round++) {
        step("%s round %ld", chosen->name, round);
        CHECK_ZERO(pthread_create(&other, NULL, waker, NULL));
        int64_t start = now_ns();
        pthread_barrier_wait(&taken);
        chosen->sleep();
        CHECK(now_ns() - start >= (QUIET_BEFORE_MS - 10) * 1000000);
        if (chosen->sleep != sleep_in_join) CHECK_ZERO(pthread_join(other, NULL));
    }
    return pass();
}
