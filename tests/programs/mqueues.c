/* POSIX message queues: two names, one of which is removed; messages of several priorities, some empty, that every
 * round leaves for the next; descriptors for reading, writing, both, one that does not wait; modes.
 * `mqueues [ROUNDS]` */
#include "rounds.h"
#include <fcntl.h>
#include <mqueue.h>
#include <sys/stat.h>

static mqd_t reader, writer, both, gone;
static char name[40], other[40];

static void prepare(void)
{
    struct mq_attr small = {.mq_maxmsg = 6, .mq_msgsize = 40}, large = {.mq_maxmsg = 4, .mq_msgsize = 5000};
    snprintf(name, sizeof name, "/holdfast-%d", (int)getpid());
    snprintf(other, sizeof other, "/holdfast-%d-gone", (int)getpid());
    if ((both = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, &small)) < 0) not_here("message queues");
    CHECK(fchmod(both, 0640) == 0);
    CHECK((reader = mq_open(name, O_RDONLY | O_NONBLOCK)) >= 0 && (writer = mq_open(name, O_WRONLY)) >= 0);
    CHECK((gone = mq_open(other, O_RDWR | O_CREAT | O_EXCL, 0600, &large)) >= 0 && mq_unlink(other) == 0);
}

static void expect(mqd_t queue, const char *text, unsigned priority)
{
    static char data[5000];
    unsigned got = 0;
    ssize_t len = mq_receive(queue, data, sizeof data, &got);
    CHECK(len == (ssize_t)strlen(text) && memcmp(data, text, (size_t)len) == 0 && got == priority);
}

static void put(mqd_t queue, const char *text, unsigned priority)
{
    CHECK(mq_send(queue, text, strlen(text), priority) == 0);
}

static void queue_round(long round)
{
    static char large[4001];
    char text[40];
    struct mq_attr now;
    struct stat file;
    memset(large, 'x', 4000);
    if (round == 0) {
        prepare();
    } else {
        snprintf(text, sizeof text, "low %ld", round - 1);
        expect(reader, "urgent", 9), expect(both, "", 3), expect(reader, text, 1), expect(reader, "low again", 1);
        expect(gone, "first", 0), expect(gone, large, 0);
    }
    CHECK(mq_receive(reader, large, sizeof large, NULL) == -1 && errno == EAGAIN);
    CHECK(mq_getattr(both, &now) == 0 && now.mq_maxmsg == 6 && now.mq_msgsize == 40 && now.mq_curmsgs == 0);
    CHECK(now.mq_flags == 0 && mq_getattr(reader, &now) == 0 && now.mq_flags == O_NONBLOCK);
    CHECK(fstat(both, &file) == 0 && (file.st_mode & 0777) == 0640 && file.st_uid == getuid());
    CHECK(mq_open(other, O_RDWR) == -1 && errno == ENOENT);
    mqd_t again = mq_open(name, O_RDWR);
    CHECK(again >= 0);
    snprintf(text, sizeof text, "low %ld", round);
    put(again, text, 1), put(writer, "low again", 1), put(both, "urgent", 9), put(writer, "", 3);
    CHECK(mq_close(again) == 0);
    put(gone, "first", 0), put(gone, large, 0);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 45);
    for (long round = 0; round < rounds; round++) {
        step("queues round %ld", round);
        queue_round(round);
        sleep_ms(QUIET_MS);
    }
    CHECK(mq_unlink(name) == 0);
    return pass();
}
