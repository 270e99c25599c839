/* Pseudo-terminals with bytes that were not read. What every round leaves the next one reads: output for a master, for
 * one in packet mode, and more than its buffer takes at once; input in lines, with ends of files, literal characters
 * and a line that is begun; input byte by byte; settings that are those of before. `pty_data [ROUNDS]` */
#include "rounds.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>

enum { LINES, BYTES, PACKETS, KINDS };
#define ROWS 700
static int master[KINDS], slave[KINDS];
static struct termios settings[KINDS];

static void prepare(void)
{
    int on = 1;
    for (int kind = 0; kind < KINDS; kind++) {
        CHECK((master[kind] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) >= 0 && grantpt(master[kind]) == 0);
        CHECK(unlockpt(master[kind]) == 0 && (slave[kind] = open(ptsname(master[kind]), O_RDWR | O_NOCTTY)) >= 0);
        struct termios *own = &settings[kind];
        CHECK(tcgetattr(slave[kind], own) == 0);
        own->c_lflag &= ~(tcflag_t)(ECHO | ECHONL | (kind == LINES ? 0 : ICANON | ISIG));
        if (kind == LINES) own->c_cc[VEOL] = ';';
        if (kind == BYTES) own->c_iflag &= ~(tcflag_t)(ICRNL | IXON);
        if (kind == BYTES) own->c_cc[VMIN] = 20; /* a look says that nothing is to be read */
        CHECK(tcsetattr(slave[kind], TCSANOW, own) == 0);
    }
    CHECK(ioctl(master[PACKETS], TIOCPKT, &on) == 0);
}

static void put(int fd, const char *text)
{
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
}

/* Waits for what is on its way, and reads once: these bytes. */
static void get(int fd, const char *expected, size_t len)
{
    char text[200];
    struct pollfd p = {fd, POLLIN, 0};
    CHECK(poll(&p, 1, 10000) == 1);
    CHECK(read(fd, text, sizeof text) == (ssize_t)len && memcmp(text, expected, len) == 0);
}

/* Reads all of this, by however many reads; `packets`: each begins with a byte that says that it is data. */
static void get_all(int fd, const char *expected, size_t len, int packets)
{
    char text[300];
    for (size_t at = 0; at < len;) {
        struct pollfd p = {fd, POLLIN, 0};
        CHECK(poll(&p, 1, 10000) == 1);
        ssize_t got = read(fd, text, sizeof text) - packets;
        CHECK(got > 0 && at + (size_t)got <= len && (!packets || text[0] == TIOCPKT_DATA));
        CHECK(memcmp(text + packets, expected + at, (size_t)got) == 0);
        at += (size_t)got;
    }
}

static void fill(long round)
{
    char line[100];
    snprintf(line, sizeof line, "line %ld\n", round);
    put(slave[LINES], line);
    put(master[LINES], line);
    put(master[LINES], "lit\x16\neral \x16\x04\x16\x13\n\x04no end\x04other;beg\x16\x7fun");
    snprintf(line, sizeof line, "\x03\xff%ld\r\n\x11\x13\x04", round);
    put(master[BYTES], line);
    put(slave[BYTES], "bytes\n");
    for (int row = 0; row < ROWS; row++) put(slave[PACKETS], "a row\n");
    snprintf(line, sizeof line, "%ld", round);
    put(master[PACKETS], line);
    /* A sleep for the kernel, which passes on what was written. */
    struct pollfd p = {slave[LINES], POLLIN, 0};
    CHECK(poll(&p, 1, 10000) == 1);
}

static void take(long round)
{
    static char rows[ROWS * 7];
    char line[100];
    int len = snprintf(line, sizeof line, "line %ld\r\n", round);
    get_all(master[LINES], line, (size_t)len, 0);
    len = snprintf(line, sizeof line, "line %ld\n", round);
    get(slave[LINES], line, (size_t)len);
    get(slave[LINES], "lit\neral \x04\x13\n", 12);
    get(slave[LINES], "", 0);
    get(slave[LINES], "no end", 6);
    get(slave[LINES], "other;", 6);
    put(master[LINES], "\x7f\n");
    get(slave[LINES], "beg\x7fu\n", 6);

    len = snprintf(line, sizeof line, "\x03\xff%ld\r\n\x11\x13\x04", round);
    put(master[BYTES], "so that they are twenty");
    snprintf(line + len, sizeof line - (size_t)len, "so that they are twenty");
    get(slave[BYTES], line, strlen(line));
    get_all(master[BYTES], "bytes\r\n", 7, 0);

    for (int row = 0; row < ROWS; row++) memcpy(rows + row * 7, "a row\r\n", 7);
    get_all(master[PACKETS], rows, sizeof rows, 1);
    len = snprintf(line, sizeof line, "%ld", round);
    get(slave[PACKETS], line, (size_t)len);
    for (int kind = 0; kind < KINDS; kind++) {
        struct termios now;
        struct pollfd p = {master[kind], POLLIN | POLLPRI, 0};
        CHECK(tcgetattr(slave[kind], &now) == 0 && memcmp(&now, &settings[kind], sizeof now) == 0);
        CHECK(poll(&p, 1, 0) == 0); /* nothing was echoed, and nothing told */
    }
}

static void data_round(long round)
{
    if (round == 0) prepare();
    if (round > 0) take(round - 1);
    fill(round);
}

int main(int argc, char **argv)
{
    return run_rounds("data", number_argument(argc, argv, 1, 45), data_round);
}
