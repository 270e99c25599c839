/* Parts of tree_crowd.c: what its processes share, and the waits of which none may end early. */
#include "tree.h"
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define ROLES 19
#define WAIT_NS 7000000
/* Clocks are read twice, and the rest of a wait is computed by the agent. */
#define EARLY_NS 3000000

struct table {
    volatile uint64_t turns[ROLES];
    volatile pid_t listens, owner;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint64_t token, sum;
};

static struct table *table_open(void)
{
    struct table *table = shared_memory(sizeof *table);
    pthread_mutexattr_t mutex;
    pthread_condattr_t cond;
    CHECK_ZERO(pthread_mutexattr_init(&mutex));
    CHECK_ZERO(pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED));
    CHECK_ZERO(pthread_mutex_init(&table->mutex, &mutex));
    CHECK_ZERO(pthread_condattr_init(&cond));
    CHECK_ZERO(pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED));
    CHECK_ZERO(pthread_cond_init(&table->cond, &cond));
    return table;
}

static void read_all(int fd, uint8_t *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t got = read(fd, bytes + done, size - done);
        CHECK(got > 0);
        done += (size_t)got;
    }
}

/* Lines of 16 bytes: the file must have as many as were written. */
static void append_line(uint64_t turn)
{
    static int fd = -1;
    char line[17], last[16];
    struct stat file;
    if (fd < 0) CHECK((fd = open("tree_crowd.lines", O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600)) >= 0);
    snprintf(line, sizeof line, "line %010lu", (unsigned long)turn);
    CHECK(fstat(fd, &file) == 0 && file.st_size == (off_t)turn * 16);
    CHECK(write(fd, line, 16) == 16 && pread(fd, last, 16, (off_t)turn * 16) == 16 && memcmp(line, last, 16) == 0);
}

/* One way to wait after the other, for the same time. */
static void wait_in_every_way(uint64_t number, uint64_t turn)
{
    static int pipe_ends[2], epoll = -1;
    static sem_t semaphore;
    struct timespec t = timespec_of_ns(WAIT_NS), absolute;
    struct timeval micro = {0, WAIT_NS / 1000};
    struct epoll_event event = {EPOLLIN, {0}};
    struct pollfd p = {0, POLLIN, 0};
    sigset_t set = set_of(SIGRTMIN + 9);
    int64_t begun = now_ns();
    fd_set fds;
    (void)number;
    if (epoll < 0) {
        CHECK(pipe2(pipe_ends, O_CLOEXEC) == 0 && (epoll = epoll_create1(EPOLL_CLOEXEC)) >= 0);
        CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, pipe_ends[0], &event) == 0 && sem_init(&semaphore, 0, 0) == 0);
        block(SIGRTMIN + 9);
    }
    p.fd = pipe_ends[0];
    FD_ZERO(&fds);
    FD_SET(p.fd, &fds);
    switch (turn % 6) {
    case 0: CHECK(nanosleep(&t, NULL) == 0); break;
    case 1: CHECK(poll(&p, 1, WAIT_NS / 1000000) == 0); break;
    case 2: CHECK(epoll_wait(epoll, &event, 1, WAIT_NS / 1000000) == 0); break;
    case 3: CHECK(select(p.fd + 1, &fds, NULL, NULL, &micro) == 0); break;
    case 4: CHECK(sigtimedwait(&set, NULL, &t) == -1 && errno == EAGAIN); break;
    default:
        clock_gettime(CLOCK_REALTIME, &absolute);
        absolute = timespec_of_ns((int64_t)absolute.tv_sec * 1000000000 + absolute.tv_nsec + WAIT_NS);
        CHECK(sem_timedwait(&semaphore, &absolute) == -1 && errno == ETIMEDOUT);
    }
    CHECK(now_ns() - begun >= WAIT_NS - EARLY_NS);
}
