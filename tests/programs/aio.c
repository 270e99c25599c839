/* Contexts of Linux AIO: ids that stay, events that nobody has taken yet, rings that have gone round, requests that are
 * under way when a round begins (direct reads), a child that has none. `aio [ROUNDS]` */
#include "rounds.h"
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define SIZE 65536
/* More than a third of what a ring of this many requests has room for (127), so that it goes round. */
#define MANY 45

/* How many requests a third one takes and gives up to near its end, and how many wait in a fourth, nearly full. */
#define LATE 125
#define FULL 90

static aio_context_t busy, waiting, late, full;
static int file, other;
static char *bytes, few[4];
/* What was given to the second context and not taken yet: a number for each, ascending. */
static uint64_t given, taken;

static void prepare(void)
{
    CHECK((file = open("aio.data", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) >= 0);
    CHECK(posix_memalign((void **)&bytes, 4096, SIZE) == 0);
    for (int i = 0; i < SIZE; i++) bytes[i] = (char)mix((uint64_t)i);
    CHECK(write(file, bytes, SIZE) == SIZE && fsync(file) == 0);
    CHECK((other = open("aio.data", O_RDONLY | O_CLOEXEC)) >= 0);
    /* Where the file system has it: else requests end at once. */
    (void)!fcntl(file, F_SETFL, O_DIRECT);
    if (syscall(SYS_io_setup, 16, &busy) != 0) not_here("io_setup");
    CHECK(syscall(SYS_io_setup, 16, &waiting) == 0);
    CHECK(syscall(SYS_io_setup, 16, &late) == 0 && syscall(SYS_io_setup, 16, &full) == 0);
}

static void give(aio_context_t context, int from, uint64_t number, size_t len)
{
    struct iocb request = {.aio_data = number, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (uint32_t)from,
        .aio_buf = (uintptr_t)(from == file ? bytes : few), .aio_nbytes = len};
    struct iocb *all[] = {&request};
    CHECK(syscall(SYS_io_submit, context, 1, all) == 1);
}

static void take(aio_context_t context, uint64_t number, size_t len)
{
    struct io_event event;
    CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1);
    CHECK(event.data == number && event.res == (int64_t)len);
}

/* Always at the same places of their rings, where as many requests are hard to make again. */
static void late_and_full(long round)
{
    for (int i = 0; i < (round == 0 ? LATE : 127); i++) {
        give(late, other, (uint64_t)i, 4);
        take(late, (uint64_t)i, 4);
    }
    for (uint64_t i = 0; round > 0 && i < FULL; i++) take(full, i, 4);
    for (uint64_t i = 0; i < FULL; i++) give(full, other, i, 4);
}

static void round_of(long round)
{
    late_and_full(round);
    /* The read of the round before, into memory that is another one's meanwhile. */
    if (round > 0) {
        take(busy, (uint64_t)round, SIZE);
        for (int i = 0; i < SIZE; i++) CHECK(bytes[i] == (char)mix((uint64_t)i));
    }
    while (taken < given) take(waiting, taken++, 4);
    /* Not direct, so they end at once, in this order. */
    for (int i = 0; i < MANY; i++) {
        give(waiting, other, given++, 4);
        if (i % 3 == 0) take(waiting, taken++, 4);
    }
    if (round % 5 == 0) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            struct io_event event;
            _exit(syscall(SYS_io_getevents, busy, 0, 1, &event, NULL) != -1 || errno != EINVAL);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < SIZE; i++) bytes[i] = 0;
    give(busy, file, (uint64_t)round + 1, SIZE);
}

int main(int argc, char **argv)
{
    prepare();
    return run_rounds("aio", number_argument(argc, argv, 1, 45), round_of);
}
