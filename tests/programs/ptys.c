/* Pseudo-terminals whose master is in the program: settings, window, packets, locks, a closed slave, a hung-up one, and
 * one that controls the program's own session. `ptys [ROUNDS]` */
#include "common.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>

static int plain[2], packets, packets_slave, fresh, closed, dead, control[2], other_slave;
static volatile sig_atomic_t interrupts;

static void interrupted(int number)
{
    (void)number;
    interrupts++;
}

static int master(void)
{
    int fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(fd >= 0 && grantpt(fd) == 0);
    return fd;
}

static int slave(int of, int flags)
{
    CHECK(unlockpt(of) == 0);
    int fd = open(ptsname(of), flags | O_NOCTTY);
    CHECK(fd >= 0);
    return fd;
}

static void make_raw(int fd)
{
    struct termios t;
    CHECK(tcgetattr(fd, &t) == 0);
    cfmakeraw(&t);
    t.c_cc[VMIN] = 3;
    t.c_cc[VTIME] = 7;
    CHECK(cfsetspeed(&t, B19200) == 0 && tcsetattr(fd, TCSANOW, &t) == 0);
}

static void open_all(void)
{
    struct winsize size = {33, 77, 500, 600};
    plain[0] = master();
    plain[1] = slave(plain[0], O_RDWR | O_CLOEXEC);
    other_slave = slave(plain[0], O_WRONLY | O_NONBLOCK);
    make_raw(plain[1]);
    CHECK(ioctl(plain[1], TIOCSWINSZ, &size) == 0);
    packets = master();
    packets_slave = slave(packets, O_RDWR);
    int on = 1;
    CHECK(ioctl(packets, TIOCPKT, &on) == 0 && ioctl(packets_slave, TIOCEXCL) == 0);
    make_raw(packets_slave);
    struct pollfd p = {packets, POLLIN, 0};
    char status[8];
    if (poll(&p, 1, 50) == 1) CHECK(read(packets, status, sizeof status) == 1); /* tells of the change */
    fresh = master(); /* locked, nobody has opened its slave */
    /* only root may give it away */
    if (getuid() == 0) CHECK(chown(ptsname(fresh), 1234, 1235) == 0);
    CHECK(chmod(ptsname(fresh), 0604) == 0);
    closed = master();
    CHECK(close(slave(closed, O_RDWR)) == 0);
    int gone = master();
    dead = slave(gone, O_RDWR);
    CHECK(close(gone) == 0);
    control[0] = master();
    control[1] = slave(control[0], O_RDWR);
    /* who leads a group may not make a session */
    if (getpgrp() == getpid()) CHECK(setpgid(0, getpgid(getppid())) == 0);
    CHECK(setsid() == getpid() && ioctl(control[1], TIOCSCTTY, 0) == 0);
    CHECK(signal(SIGINT, interrupted) != SIG_ERR && tcsetpgrp(control[1], getpgrp()) == 0);
}

static void expect(int fd, const char *text)
{
    char buffer[64];
    size_t len = strlen(text), got = 0;
    while (got < len) {
        ssize_t n = read(fd, buffer + got, len - got);
        CHECK(n > 0);
        got += (size_t)n;
    }
    CHECK(memcmp(buffer, text, len) == 0);
}

static void check_plain(void)
{
    struct winsize size = {0};
    struct termios t;
    CHECK(ioctl(plain[0], TIOCGWINSZ, &size) == 0 && size.ws_row == 33 && size.ws_col == 77 && size.ws_ypixel == 600);
    CHECK(tcgetattr(plain[1], &t) == 0 && (t.c_lflag & (ICANON | ECHO | ISIG)) == 0);
    CHECK(t.c_cc[VMIN] == 3 && t.c_cc[VTIME] == 7 && cfgetispeed(&t) == B19200);
    CHECK(write(plain[0], "\003\nx", 3) == 3);
    expect(plain[1], "\003\nx");
    CHECK(write(plain[1], "answer", 6) == 6);
    expect(plain[0], "answer");
    CHECK(write(other_slave, "two", 3) == 3);
    expect(plain[0], "two");
    CHECK((fcntl(other_slave, F_GETFL) & (O_ACCMODE | O_NONBLOCK)) == (O_WRONLY | O_NONBLOCK));
    char name[64];
    CHECK(ptsname_r(plain[0], name, sizeof name) == 0 && strcmp(name, ttyname(plain[1])) == 0);
}

static void check_states(void)
{
    char byte;
    int state = 0;
    CHECK(write(packets_slave, "data", 4) == 4);
    char data[8];
    CHECK(read(packets, data, sizeof data) == 5 && data[0] == TIOCPKT_DATA && memcmp(data + 1, "data", 4) == 0);
    CHECK(ioctl(packets_slave, TIOCGEXCL, &state) == 0 && state == 1 && ioctl(plain[1], TIOCGEXCL, &state) == 0
        && state == 0);
    CHECK(ioctl(fresh, TIOCGPTLCK, &state) == 0 && state == 1 && open(ptsname(fresh), O_RDWR | O_NOCTTY) == -1);
    struct pollfd p = {fresh, POLLIN, 0};
    CHECK(poll(&p, 1, 0) == 0);
    struct stat file;
    CHECK(stat(ptsname(fresh), &file) == 0 && (file.st_mode & 07777) == 0604);
    CHECK(file.st_uid == (getuid() == 0 ? 1234 : getuid()) && (getuid() != 0 || file.st_gid == 1235));
    CHECK(read(closed, &byte, 1) == -1 && errno == EIO);
    CHECK(read(dead, &byte, 1) == 0 && write(dead, "x", 1) == -1 && errno == EIO);
}

/* Typing Ctrl-C interrupts the program; /dev/tty is the terminal. */
static void check_control(long round)
{
    CHECK(tcgetsid(control[1]) == getpid() && tcgetpgrp(control[1]) == getpgrp());
    CHECK(write(control[0], "\003", 1) == 1);
    while (interrupts <= round) usleep(1000);
    CHECK(interrupts == round + 1);
    expect(control[0], "^C");
    int tty = open("/dev/tty", O_RDWR);
    CHECK(tty >= 0 && write(tty, "hello\n", 6) == 6);
    expect(control[0], "hello\r\n");
    CHECK(write(control[0], "line\n", 5) == 5);
    expect(tty, "line\n");
    expect(control[0], "line\r\n");
    CHECK(close(tty) == 0);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 60);
    open_all();
    for (long round = 0; round < rounds; round++) {
        step("ptys round %ld", round);
        check_plain();
        check_states();
        check_control(round);
        sleep_ms(40);
    }
    return pass();
}
