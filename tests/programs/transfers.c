/* Transfers that must arrive whole: `transfers KIND [ROUNDS]`.
 *
 * One call moves far more than fits the kernel's buffer, so it is nearly always asleep in the middle of the transfer.
 * It must return the whole length, and every byte must be the right one.
 */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define LENGTH (1 << 20)
#define PIECE 32768

static uint8_t sent[LENGTH], received[LENGTH];
static int ends[2]; /* [0] is read from, [1] written to */
static int bulk_fd = -1;
static uint8_t *bulk;
static size_t bulk_len;

static void fill(long round)
{
    for (size_t i = 0; i < LENGTH; i += 8) {
        uint64_t word = mix((uint64_t)round << 32 | i);
        memcpy(sent + i, &word, 8);
    }
}

/* Reads slowly, so that the writer sleeps. */
static void *slow_reader(void *argument)
{
    (void)argument;
    size_t have = 0;
    while (have < LENGTH) {
        ssize_t n = read(ends[0], received + have, LENGTH - have < PIECE ? LENGTH - have : PIECE);
        CHECK(n > 0);
        have += (size_t)n;
        sleep_ms(5);
    }
    return NULL;
}

/* Writes slowly, so that the reader sleeps. */
static void *slow_writer(void *argument)
{
    (void)argument;
    for (size_t done = 0; done < LENGTH; done += PIECE) {
        CHECK(write(ends[1], sent + done, PIECE) == PIECE);
        sleep_ms(5);
    }
    return NULL;
}

static void move(ssize_t (*whole)(void), void *(*other)(void *))
{
    pthread_t thread;
    memset(received, 0, LENGTH);
    CHECK_ZERO(pthread_create(&thread, NULL, other, NULL));
    ssize_t n = whole();
    if (n != LENGTH) printf("moved %zd of %d bytes\n", n, LENGTH);
    CHECK(n == LENGTH);
    CHECK_ZERO(pthread_join(thread, NULL));
    CHECK(memcmp(sent, received, LENGTH) == 0);
}

static ssize_t by_write(void) { return write(ends[1], sent, LENGTH); }
static ssize_t by_send(void) { return send(ends[1], sent, LENGTH, 0); }
static ssize_t by_recv(void) { return recv(ends[0], received, LENGTH, MSG_WAITALL); }
static ssize_t by_writev(void)
{
    struct iovec parts[3] = {{sent, 100000}, {sent + 100000, 500001}, {sent + 600001, LENGTH - 600001}};
    return writev(ends[1], parts, 3);
}
static ssize_t by_sendmsg(void)
{
    struct iovec parts[2] = {{sent, 300000}, {sent + 300000, LENGTH - 300000}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return sendmsg(ends[1], &message, 0);
}

/* Takes whatever comes, slowly. */
static void *drain(void *argument)
{
    for (;; sleep_ms(1)) CHECK(read(ends[0], received, PIECE) > 0);
    return argument;
}

/* One write after the other, with nothing in between: nearly every stop finds this one in the same call. */
static void flood(long rounds)
{
    pthread_t thread;
    CHECK_ZERO(pthread_create(&thread, NULL, drain, NULL));
    for (long round = 0; round < rounds; round++) CHECK(write(ends[1], sent, LENGTH / 4) == LENGTH / 4);
}

/* Large results without a partner: getrandom and /dev/zero look at signals between pages. */
static void bulk_round(const char *kind)
{
    memset(bulk, 0xff, bulk_len);
    ssize_t n = bulk_fd >= 0 ? read(bulk_fd, bulk, bulk_len) : getrandom(bulk, bulk_len, 0);
    if (n != (ssize_t)bulk_len) printf("%s gave %zd of %zu bytes\n", kind, n, bulk_len);
    CHECK(n == (ssize_t)bulk_len);
    for (size_t page = 0; page < bulk_len; page += 4096) {
        uint64_t word;
        memcpy(&word, bulk + page + 64, 8);
        CHECK(bulk_fd >= 0 ? word == 0 : word != UINT64_MAX);
    }
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "write";
    int is_random = strcmp(kind, "getrandom") == 0, is_zero = strcmp(kind, "zero") == 0;
    long rounds = number_argument(argc, argv, 2, is_random ? 25 : is_zero ? 35 : 12);
    if (is_random || is_zero) {
        bulk_len = (size_t)number_argument(argc, argv, 3, is_random ? 48 : 256) << 20;
        CHECK((bulk = malloc(bulk_len)) != NULL);
        if (is_zero) CHECK((bulk_fd = open("/dev/zero", O_RDONLY | O_CLOEXEC)) >= 0);
    } else if (strcmp(kind, "write") == 0 || strcmp(kind, "writev") == 0 || strcmp(kind, "flood") == 0) {
        CHECK(pipe2(ends, O_CLOEXEC) == 0);
    } else {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    }
    for (long round = 0; round < (strcmp(kind, "flood") == 0 ? 1 : rounds); round++) {
        step("%s round %ld", kind, round);
        fill(round);
        if (is_random || is_zero)
            bulk_round(kind);
        else if (strcmp(kind, "write") == 0)
            move(by_write, slow_reader);
        else if (strcmp(kind, "writev") == 0)
            move(by_writev, slow_reader);
        else if (strcmp(kind, "send") == 0)
            move(by_send, slow_reader);
        else if (strcmp(kind, "sendmsg") == 0)
            move(by_sendmsg, slow_reader);
        else if (strcmp(kind, "waitall") == 0)
            move(by_recv, slow_writer);
        else if (strcmp(kind, "flood") == 0)
            flood(rounds);
        else
            return 2;
    }
    return pass();
}
