/* Processes with threads that do nothing: `idlers PROCESSES THREADS`. Every thread sleeps in the kernel, each process's
 * in several ways; all are made before `ready` is printed. They end when standard input does. */
#include "common.h"
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>

static int never[2]; /* a pipe into which nobody writes */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t made;

static void *idle(void *argument)
{
    struct pollfd p = {never[0], POLLIN, 0};
    struct epoll_event event;
    sem_t semaphore;
    char byte;
    CHECK(sem_init(&semaphore, 0, 0) == 0);
    pthread_barrier_wait(&made);
    for (;;) {
        switch ((uintptr_t)argument % 6) {
        case 0: pause(); break;
        case 1: poll(&p, 1, -1); break;
        case 2: CHECK(read(never[0], &byte, 1) != 0); break;
        case 3: epoll_wait(epoll_create1(EPOLL_CLOEXEC), &event, 1, -1); break;
        case 4: sem_wait(&semaphore); break;
        default:
            CHECK_ZERO(pthread_mutex_lock(&mutex));
            CHECK_ZERO(pthread_cond_wait(&cond, &mutex));
            CHECK_ZERO(pthread_mutex_unlock(&mutex));
        }
    }
    return NULL;
}

static void start_threads(long threads)
{
    pthread_t thread;
    CHECK_ZERO(pthread_barrier_init(&made, NULL, (unsigned)threads));
    for (uintptr_t i = 1; i < (uintptr_t)threads; i++) CHECK_ZERO(pthread_create(&thread, NULL, idle, (void *)i));
    pthread_barrier_wait(&made);
}

int main(int argc, char **argv)
{
    long processes = number_argument(argc, argv, 1, 20), threads = number_argument(argc, argv, 2, 10);
    pid_t first = getpid(), pids[1000];
    int ready[2];
    char byte;
    CHECK(processes <= 1000 && pipe(never) == 0 && pipe(ready) == 0);
    for (long i = 1; i < processes; i++) {
        CHECK((pids[i] = fork()) >= 0);
        if (pids[i] != 0) continue;
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == first);
        start_threads(threads);
        CHECK(write(ready[1], "r", 1) == 1);
        for (;;) pause();
    }
    start_threads(threads);
    for (long i = 1; i < processes; i++) CHECK(read(ready[0], &byte, 1) == 1);
    printf("ready: %ld processes, %ld threads\n", processes, processes * threads);
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {
    }
    for (long i = 1; i < processes; i++) CHECK(kill(pids[i], SIGKILL) == 0 && waitpid(pids[i], NULL, 0) == pids[i]);
    return 0;
}
