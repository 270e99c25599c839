/* A pseudo-terminal of the job's own: a child leads a session on it, with two groups of which one is in the foreground;
 * input that was not read, settings, size; ^C and the size's change reach the right group. `tree_pty [ROUNDS]` */
#include "tree.h"
#include <sys/ioctl.h>
#include <termios.h>

static volatile sig_atomic_t interrupts, resized;

static void count(int number, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    interrupts += number == SIGINT;
    resized += number == SIGWINCH;
}

static void open_terminal(const char *name)
{
    struct termios settings;
    CHECK(setsid() == getpid());
    int fd = open(name, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && ioctl(fd, TIOCSCTTY, 0) == 0 && dup2(fd, 0) == 0 && close(fd) == 0);
    CHECK(tcgetattr(0, &settings) == 0);
    settings.c_lflag &= ~(tcflag_t)ECHO;
    settings.c_cc[VKILL] = 7;
    CHECK(tcsetattr(0, TCSANOW, &settings) == 0);
}

/* The leader of the session, in the background; its child has the terminal. */
static void lead(int in, int out, uint64_t number)
{
    uint64_t round;
    pid_t foreground = (pid_t)number;
    struct termios settings;
    struct winsize size;
    while (hear_or_end(in, &round)) {
        CHECK(tcgetpgrp(0) == foreground && tcgetsid(0) == getpid() && isatty(0));
        CHECK(tcgetattr(0, &settings) == 0 && (settings.c_lflag & ECHO) == 0 && settings.c_cc[VKILL] == 7);
        CHECK(ioctl(0, TIOCGWINSZ, &size) == 0 && size.ws_row == 20 + round % 30 && size.ws_col == 80);
        CHECK(interrupts == 0 && resized == 0);
        tell(out, round);
    }
    _exit(3);
}

/* Reads lines and says how many signals it got. */
static void be_foreground(int out)
{
    char line[256], expected[64];
    for (uint64_t round = 0;; round++) {
        ssize_t got = read(0, line, sizeof line - 1);
        if (got <= 0) _exit(2); /* the terminal has gone */
        line[got] = '\0';
        snprintf(expected, sizeof expected, "line of round %lu\n", (unsigned long)round);
        CHECK(strcmp(line, expected) == 0);
        CHECK(interrupts == (int)round && resized == (int)round + 1);
        tell(out, round);
    }
}

static void live_on(int in, int out, uint64_t number, const char *name)
{
    (void)number;
    open_terminal(name);
    CHECK(signal(SIGTTOU, SIG_IGN) != SIG_ERR && signal(SIGHUP, SIG_IGN) != SIG_ERR);
    handle(SIGINT, count, SA_RESTART);
    handle(SIGWINCH, count, SA_RESTART);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(setpgid(0, 0) == 0 && tcsetpgrp(0, getpid()) == 0);
        CHECK(signal(SIGTTOU, SIG_DFL) != SIG_ERR);
        tell(out, 1);
        be_foreground(out);
    }
    while (tcgetpgrp(0) != pid) sleep_ms(1);
    lead(in, out, (uint64_t)pid);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    int down[2], up[2], terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    char name[64];
    CHECK(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0
        && ptsname_r(terminal, name, sizeof name) == 0);
    CHECK(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(close(terminal) == 0 && close(down[1]) == 0);
        live_on(down[0], up[1], 0, name);
    }
    CHECK(close(down[0]) == 0 && hear(up[0]) == 1);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        struct winsize size = {.ws_row = (unsigned short)(20 + round % 30), .ws_col = 80};
        char line[64], again[64];
        CHECK(ioctl(terminal, TIOCSWINSZ, &size) == 0);
        snprintf(line, sizeof line, "line of round %lu", (unsigned long)round);
        CHECK(write(terminal, line, strlen(line)) == (ssize_t)strlen(line)); /* no line yet: it waits */
        sleep_ms(ROUND_MS);
        tell(down[1], round);
        CHECK(hear(up[0]) == round);
        CHECK(write(terminal, "\n", 1) == 1 && hear(up[0]) == round);
        CHECK(write(terminal, "\003", 1) == 1);
        CHECK(ptsname_r(terminal, again, sizeof again) == 0 && strcmp(name, again) == 0);
        step("pty round %lu", (unsigned long)round);
    }
    CHECK(close(down[1]) == 0);
    ended(pid, 3);
    return pass();
}
