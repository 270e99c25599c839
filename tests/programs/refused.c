/* A program that holds one thing which an image cannot contain: `refused KIND [ROUNDS]`. A checkpoint must name it and
 * leave the program alone: it counts on and ends by itself. */
#include "common.h"
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

static int keep_at_nine(int fd)
{
    CHECK(fd >= 0 && dup2(fd, 9) == 9);
    if (fd != 9) close(fd);
    return 9;
}

static void connected_tcp(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), client;
    CHECK(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    CHECK((client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
    CHECK(connect(client, (struct sockaddr *)&address, len) == 0);
    keep_at_nine(client); /* the listener stays open: a connection that nobody accepted is reset when it closes */
}

static pid_t hold(const char *kind)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (strcmp(kind, "tcp") == 0) connected_tcp();
    if (strcmp(kind, "udp") == 0) keep_at_nine(socket(AF_INET, SOCK_DGRAM, 0));
    if (strcmp(kind, "unix") == 0) {
        int fd = keep_at_nine(socket(AF_UNIX, SOCK_STREAM, 0));
        CHECK(bind(fd, (struct sockaddr *)&name, sizeof(sa_family_t)) == 0 && listen(fd, 1) == 0);
    }
    if (strcmp(kind, "inotify") == 0) keep_at_nine(inotify_init1(0));
    if (strcmp(kind, "io_uring") == 0) {
        struct io_uring_params parameters = {0};
        long fd = syscall(SYS_io_uring_setup, 4, &parameters);
        if (fd < 0) {
            puts("not here");
            exit(77);
        }
        keep_at_nine((int)fd);
    }
    if (strcmp(kind, "child") == 0) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            for (;;) pause();
        }
        return pid;
    }
    return 0;
}

static long rounds;

/* The main thread leaves; another one counts. */
static void *survivor(void *argument)
{
    for (long round = 0; round < rounds; round++) {
        step("refused round %ld", round);
        sleep_ms(100);
    }
    exit(pass());
    return argument;
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    rounds = number_argument(argc, argv, 2, 15);
    pid_t child = hold(kind);
    if (strcmp(kind, "leaderless") == 0) {
        pthread_t thread;
        CHECK_ZERO(pthread_create(&thread, NULL, survivor, NULL));
        pthread_exit(NULL);
    }
    for (long round = 0; round < rounds; round++) {
        step("refused round %ld", round);
        sleep_ms(100);
    }
    if (child > 0) {
        int status;
        CHECK(waitpid(child, &status, WNOHANG) == 0);
        CHECK(kill(child, 9) == 0 && waitpid(child, &status, 0) == child);
    }
    return pass();
}
