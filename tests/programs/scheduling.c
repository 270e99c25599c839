/* How a thread is scheduled, one kind at a time: `scheduling KIND [ROUNDS]`
 * KIND: batch, idle, nice (of threads, and of the process), affinity, realtime (SCHED_FIFO, SCHED_RR; root), deadline
 * (root), turns (of a length of its own) */
#include "rounds.h"
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define THREADS 3
static int ids[THREADS + 1];
static pthread_barrier_t meeting;

static void *stays(void *argument)
{
    ids[(intptr_t)argument] = gettid();
    pthread_barrier_wait(&meeting);
    for (;;) sleep_ms(20);
    return NULL;
}

/* Threads to give settings to; the first is the main one. */
static void make_threads(void)
{
    pthread_t thread;
    ids[0] = gettid();
    CHECK_ZERO(pthread_barrier_init(&meeting, NULL, THREADS + 1));
    for (long i = 1; i <= THREADS; i++) CHECK_ZERO(pthread_create(&thread, NULL, stays, (void *)(intptr_t)i));
    pthread_barrier_wait(&meeting);
}

static void policy(int id, int expected, int next, int priority)
{
    struct sched_param now, wanted = {priority};
    if (expected >= 0) CHECK(sched_getscheduler(id) == expected && sched_getparam(id, &now) == 0);
    if (sched_setscheduler(id, next, &wanted) != 0) not_here("sched_setscheduler");
}

static void batch_round(long round)
{
    for (int i = 0; i <= THREADS; i++)
        policy(ids[i], round ? ((round - 1 + i) % 2 ? SCHED_BATCH : SCHED_OTHER) : -1,
        (round + i) % 2 ? SCHED_BATCH : SCHED_OTHER, 0);
}

static void idle_round(long round)
{
    /* nobody but root comes back from there */
    for (int i = 1; i <= THREADS; i++)
        policy(ids[i], round < 1 ? -1 : round - 1 < i * 10 ? SCHED_OTHER : SCHED_IDLE,
        round < i * 10 ? SCHED_OTHER : SCHED_IDLE, 0);
}

static void nice_round(long round)
{
    for (int i = 0; i <= THREADS; i++) {
        int expected = (int)(round + 4) / 5 + i, next = (int)(round + 5) / 5 + i;
        errno = 0;
        if (round > 0) CHECK(getpriority(PRIO_PROCESS, (id_t)ids[i]) == expected && errno == 0);
        CHECK(setpriority(PRIO_PROCESS, (id_t)ids[i], next) == 0);
    }
}

/* struct sched_attr, first version (sched_setattr(2)) */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

/* How long a thread runs before it is another one's turn (Linux 6.12); the last one has asked for nothing. */
static void turns_round(long round)
{
    static uint64_t usual;
    for (int i = 0; i <= THREADS; i++) {
        struct attributes now = {0};
        CHECK(syscall(SYS_sched_getattr, ids[i], &now, sizeof now, 0) == 0);
        if (round == 0 && i == 0) usual = now.runtime;
        if (usual == 0) not_here("turns");
        CHECK(now.runtime == (round == 0 || i == THREADS ? usual : (uint64_t)(round + i) * 1000000));
        now.runtime = (uint64_t)(round + 1 + i) * 1000000;
        if (i < THREADS) CHECK(syscall(SYS_sched_setattr, ids[i], &now, 0) == 0);
    }
}

static void affinity_round(long round)
{
    static cpu_set_t all;
    if (round == 0) CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    for (int i = 0; i <= THREADS; i++) {
        cpu_set_t expected, next, now;
        CPU_ZERO(&expected);
        CPU_ZERO(&next);
        long place[2] = {(round - 1 + i) % CPU_COUNT(&all), (round + i) % CPU_COUNT(&all)};
        for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++) {
            if (!CPU_ISSET(cpu, &all)) continue;
            if (seen == place[0]) CPU_SET(cpu, &expected);
            if (seen++ == place[1]) CPU_SET(cpu, &next);
        }
        CHECK(sched_getaffinity(ids[i], sizeof now, &now) == 0 && (round == 0 || CPU_EQUAL(&now, &expected)));
        CHECK(sched_setaffinity(ids[i], sizeof next, &next) == 0);
    }
}

static void realtime_round(long round)
{
    for (int i = 0; i <= THREADS; i++) {
        struct sched_param now;
        if (round > 0) CHECK(sched_getparam(ids[i], &now) == 0 && now.sched_priority == (round - 1 + i) % 40 + 1);
        policy(ids[i], round ? ((round - 1 + i) % 2 ? SCHED_FIFO : SCHED_RR) : -1,
            (round + i) % 2 ? SCHED_FIFO : SCHED_RR, (int)(round + i) % 40 + 1);
    }
}

static void deadline_round(long round)
{
    struct attributes now, next = {sizeof next, 6 /* SCHED_DEADLINE */, 0, 0, 0, 1000000 + (uint64_t)round * 1000,
                                    50000000, 100000000};
    CHECK(syscall(SYS_sched_getattr, ids[1], &now, sizeof now, 0) == 0);
    if (round > 0)
        CHECK(now.policy == 6 && now.runtime == next.runtime - 1000 && now.deadline == 50000000
            && now.period == 100000000);
    if (syscall(SYS_sched_setattr, ids[1], &next, 0) != 0) not_here("sched_setattr");
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"batch", make_threads, batch_round}, {"idle", make_threads, idle_round},
                                        {"nice", make_threads, nice_round}, {"affinity", make_threads, affinity_round},
                                        {"realtime", make_threads, realtime_round},
                                        {"deadline", make_threads, deadline_round},
                                        {"turns", make_threads, turns_round}};
    return RUN_KIND(kinds);
}
