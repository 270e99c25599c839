/* Pipes: `pipes KIND [ROUNDS]`
 * KIND: full (1 MiB of room, full in every round), ended (the writer has gone, data is left), deaf (the reader has
 * gone), empty (O_NONBLOCK), spliced (splice, tee and vmsplice), many (200 pipes with a few bytes each), reopened (by
 * /proc/self/fd) */
#include "rounds.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/uio.h>

static int ends[2], more[2];
static unsigned char block[1 << 20], back[1 << 20];

static void make(void) { CHECK(pipe2(ends, O_CLOEXEC) == 0); }

static void fill(unsigned char *to, size_t len, long seed)
{
    for (size_t i = 0; i < len; i++) to[i] = (unsigned char)mix((uint64_t)seed + i / 64);
}

static void full_prepare(void)
{
    make();
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) == 1 << 20);
}

static void full_round(long round)
{
    CHECK(fcntl(ends[0], F_GETPIPE_SZ) == 1 << 20);
    if (round > 0) {
        fill(block, sizeof block, round - 1);
        size_t got = 0;
        while (got < sizeof back) {
            ssize_t len = read(ends[0], back + got, sizeof back - got);
            CHECK(len > 0);
            got += (size_t)len;
        }
        CHECK(memcmp(block, back, sizeof block) == 0);
    }
    fill(block, sizeof block, round);
    CHECK(write(ends[1], block, sizeof block) == sizeof block);
}

static void ended_prepare(void)
{
    make();
    fill(block, 4500, 1);
    CHECK(write(ends[1], block, 4500) == 4500 && close(ends[1]) == 0);
}

static void ended_round(long round)
{
    CHECK(read(ends[0], back, 100) == 100 && memcmp(back, block + round * 100, 100) == 0);
    if (round == 44) CHECK(read(ends[0], back, 1) == 0);
}

static void deaf_prepare(void)
{
    CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    make();
    CHECK(close(ends[0]) == 0);
}

static void deaf_round(long round)
{
    (void)round;
    CHECK(write(ends[1], "x", 1) == -1 && errno == EPIPE);
}

static void empty_prepare(void) { CHECK(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0); }
static void empty_round(long round)
{
    char byte;
    (void)round;
    CHECK(read(ends[0], &byte, 1) == -1 && errno == EAGAIN);
    CHECK((fcntl(ends[0], F_GETFL) & O_NONBLOCK) && (fcntl(ends[1], F_GETFL) & O_NONBLOCK));
    for (int i = 0; i < 10; i++) CHECK(write(ends[1], "x", 1) == 1 && read(ends[0], &byte, 1) == 1);
}

static void spliced_prepare(void)
{
    make();
    CHECK(pipe2(more, O_CLOEXEC) == 0);
}

static void spliced_round(long round)
{
    if (round > 0) {
        fill(block, 3000, round - 1);
        CHECK(read(more[0], back, 3000) == 3000 && memcmp(block, back, 3000) == 0);
        CHECK(read(ends[0], back, 3000) == 3000 && memcmp(block, back, 3000) == 0);
        CHECK(read(more[0], back, 3000) == 3000 && memcmp(block, back, 3000) == 0);
    }
    fill(block, 3000, round);
    struct iovec vector = {block, 3000};
    CHECK(vmsplice(ends[1], &vector, 1, 0) == 3000 && tee(ends[0], more[1], 3000, 0) == 3000);
    CHECK(splice(ends[0], NULL, more[1], NULL, 3000, 0) == 3000);
    CHECK(write(ends[1], block, 3000) == 3000);
}

#define MANY 200
static int many[MANY][2];
static void many_prepare(void)
{
    for (int i = 0; i < MANY; i++) CHECK(pipe2(many[i], O_CLOEXEC) == 0);
}

static void many_round(long round)
{
    uint64_t value;
    for (int i = 0; i < MANY; i++) {
        if (round > 0)
            CHECK(read(many[i][0], &value, 8) == 8 && value == mix((uint64_t)(round - 1) * MANY + (uint64_t)i));
        value = mix((uint64_t)round * MANY + (uint64_t)i);
        CHECK(write(many[i][1], &value, 8) == 8);
    }
}

static int again;
static int large_of_opened;
static void reopened_prepare(void)
{
    char path[64];
    make();
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    CHECK((again = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)) >= 0);
    CHECK((large_of_opened = fcntl(again, F_GETFL) & ~(O_ACCMODE | O_NONBLOCK)) >= 0);
}

/* A second description of the same end, with flags of its own. */
static void reopened_round(long round)
{
    long value;
    char byte;
    CHECK(fcntl(again, F_GETFL) == (O_RDONLY | O_NONBLOCK | large_of_opened));
    /* O_LARGEFILE is of what was opened */
    CHECK(fcntl(ends[0], F_GETFL) == O_RDONLY && fcntl(ends[1], F_GETFL) == O_WRONLY);
    if (round > 0) CHECK(read(round % 2 ? again : ends[0], &value, sizeof value) == sizeof value && value == round - 1);
    CHECK(read(again, &byte, 1) == -1 && errno == EAGAIN && write(ends[1], &round, sizeof round) == sizeof round);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"full", full_prepare, full_round}, {"ended", ended_prepare, ended_round},
                                        {"deaf", deaf_prepare, deaf_round}, {"empty", empty_prepare, empty_round},
                                        {"spliced", spliced_prepare, spliced_round}, {"many", many_prepare, many_round},
                                        {"reopened", reopened_prepare, reopened_round}};
    return RUN_KIND(kinds);
}
