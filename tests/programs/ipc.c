/* Semaphores and queues of the system: `ipc KIND [ROUNDS]`
 * A third argument: the file for the id of what is System V's.
 * KIND: semaphores (System V), undo (SEM_UNDO), undo_waiting (a thread waits with it), lock (taken and
 * released with it), messages (System V, of several types, from one round to the next),
 * waiting (the same, and a thread that waits for one), named (POSIX semaphores with a name), queue (POSIX message
 * queues, with priorities) */
#include "rounds.h"
#include <fcntl.h>
#include <mqueue.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/wait.h>

static int id = -1;
static const char *id_file;
static void tell_id(void)
{
    FILE *file = id_file == NULL ? NULL : fopen(id_file, "w");
    if (file != NULL) CHECK(fprintf(file, "%d\n", id) > 0 && fclose(file) == 0);
}
static void remove_it(void);
static int is_queue;

static void semaphores_prepare(void)
{
    CHECK((id = semget(IPC_PRIVATE, 3, 0600)) >= 0 && atexit(remove_it) == 0);
    tell_id();
}

static int value(int which) { return semctl(id, which, GETVAL); }
static void change(int which, int by, int flags)
{
    struct sembuf operation = {(unsigned short)which, (short)by, (short)(flags | IPC_NOWAIT)};
    CHECK(semop(id, &operation, 1) == 0);
}

static void semaphores_round(long round)
{
    for (int i = 0; i < 3; i++) CHECK(value(i) == round * (i + 1));
    for (int i = 0; i < 3; i++) change(i, i + 1, 0);
}

static void undo_round(long round)
{
    if (round == 0) change(0, 5, SEM_UNDO);
    CHECK(value(0) == 5);
}

static void *wait_for_it(void *nothing)
{
    struct sembuf operation = {1, -1, SEM_UNDO};
    semop(id, &operation, 1);
    return nothing;
}
static void undo_waiting_prepare(void)
{
    pthread_t thread;
    semaphores_prepare();
    CHECK_ZERO(pthread_create(&thread, NULL, wait_for_it, NULL));
}
static void nothing_round(long round) { CHECK(value(0) == 0 && round >= 0); }

/* A child that executes nothing releases it by its end, this process by a call; SETVAL ends what there is to undo. */
static void lock_round(long round)
{
    int status;
    if (round == 0) CHECK(semctl(id, 0, SETVAL, 1) == 0);
    CHECK(value(0) == 1 && value(1) == round);
    change(0, -1, SEM_UNDO);
    CHECK(value(0) == 0);
    change(0, 1, SEM_UNDO);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        change(0, -1, SEM_UNDO);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0 && value(0) == 1);
    change(1, 5, SEM_UNDO);
    CHECK(semctl(id, 1, SETVAL, (int)round + 1) == 0);
}

struct text {
    long type, value;
};

static void messages_prepare(void)
{
    is_queue = 1;
    CHECK((id = msgget(IPC_PRIVATE, 0600)) >= 0 && atexit(remove_it) == 0);
    tell_id();
}

static void messages_round(long round)
{
    struct text message;
    for (long type = 3; round > 0 && type > 0; type--)
        CHECK(msgrcv(id, &message, sizeof message.value, type, IPC_NOWAIT) == sizeof message.value
            && message.value == round - 1 + type);
    for (long type = 1; type <= 3; type++) {
        message = (struct text){type, round + type};
        CHECK(msgsnd(id, &message, sizeof message.value, IPC_NOWAIT) == 0);
    }
}

/* One thread waits for a message, another for a semaphore, until the last round. */
static pthread_t waiting;
static void *wait_for_message(void *nothing)
{
    struct text message = {0};
    CHECK(msgrcv(id, &message, sizeof message.value, 9, 0) == sizeof message.value && message.value == 99);
    return nothing;
}

static void waiting_prepare(void)
{
    messages_prepare();
    CHECK(pthread_create(&waiting, NULL, wait_for_message, NULL) == 0);
}

static void waiting_round(long round)
{
    messages_round(round);
    if (round != 44) return;
    struct text message = {9, 99};
    CHECK(msgsnd(id, &message, sizeof message.value, 0) == 0 && pthread_join(waiting, NULL) == 0);
}

static void remove_it(void)
{
    if (is_queue) msgctl(id, IPC_RMID, NULL);
    else semctl(id, 0, IPC_RMID);
}

static sem_t *named;
static char name[64];
static void named_prepare(void)
{
    snprintf(name, sizeof name, "/holdfast-test-%d", getpid());
    CHECK((named = sem_open(name, O_CREAT | O_EXCL, 0600, 2)) != SEM_FAILED);
}

static void named_round(long round)
{
    int now;
    CHECK(sem_getvalue(named, &now) == 0 && now == 2 + round % 5);
    CHECK(sem_post(named) == 0);
    for (int i = 0; round % 5 == 4 && i < 5; i++) CHECK(sem_wait(named) == 0);
    if (round == 44) CHECK(sem_close(named) == 0 && sem_unlink(name) == 0);
}

/* One message stays in the queue, behind all others: it is never empty, so nothing takes the notification away
 * (mq_notify(3)) and the queue is one that tells in every moment of a checkpoint. */
static mqd_t queue;
static void queue_prepare(void)
{
    struct mq_attr attributes = {.mq_maxmsg = 8, .mq_msgsize = 64};
    struct sigevent nothing = {.sigev_notify = SIGEV_NONE};
    snprintf(name, sizeof name, "/holdfast-test-%d", getpid());
    queue = mq_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600, &attributes);
    if (queue < 0) not_here("mq_open");
    CHECK(mq_unlink(name) == 0 && mq_send(queue, "stays", 5, 0) == 0);
    CHECK(mq_notify(queue, &nothing) == 0);
}

static void queue_round(long round)
{
    char text[64];
    unsigned priority;
    for (unsigned i = 5; round > 0 && i > 0; i--) {
        CHECK(mq_receive(queue, text, sizeof text, &priority) == sizeof(long) && priority == i);
        CHECK(*(long *)(void *)text == round - 1 + (long)i);
    }
    for (unsigned i = 1; i <= 5; i++) {
        *(long *)(void *)text = round + (long)i;
        CHECK(mq_send(queue, text, sizeof(long), i) == 0);
    }
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"semaphores", semaphores_prepare, semaphores_round},
                                        {"undo", semaphores_prepare, undo_round},
                                        {"undo_waiting", undo_waiting_prepare, nothing_round},
                                        {"lock", semaphores_prepare, lock_round},
                                        {"messages", messages_prepare, messages_round},
                                        {"waiting", waiting_prepare, waiting_round},
                                        {"named", named_prepare, named_round},
                                        {"queue", queue_prepare, queue_round}};
    id_file = argc > 3 ? argv[3] : NULL;
    return RUN_KIND(kinds);
}
