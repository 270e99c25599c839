/* Connections that wait to be accepted while who made them has written and is gone already: unix and TCP.
 * `tree_queue [ROUNDS]` */
#include "tree.h"
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct sockaddr_un path = {.sun_family = AF_UNIX, .sun_path = "queue.socket"};
static struct sockaddr_in port = {.sin_family = AF_INET};

static int listener(int domain, void *address, socklen_t len)
{
    int fd = socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, address, len) == 0 && listen(fd, 16) == 0);
    CHECK(getsockname(fd, address, &len) == 0);
    return fd;
}

/* Says something and is gone. */
static void client(int domain, void *address, socklen_t len, uint64_t number)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int fd = socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(fd >= 0 && connect(fd, address, len) == 0);
        tell(fd, number);
        _exit(0);
    }
    ended(pid, 0);
}

static void serve(int fd, uint64_t expected)
{
    uint64_t number;
    int accepted = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    CHECK(accepted >= 0);
    CHECK(hear(accepted) == expected && !hear_or_end(accepted, &number));
    CHECK(close(accepted) == 0);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 80);
    port.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int local = listener(AF_UNIX, &path, sizeof path), internet = listener(AF_INET, &port, sizeof port);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        client(AF_UNIX, &path, sizeof path, round);
        client(AF_INET, &port, sizeof port, round + 1000);
        client(AF_UNIX, &path, sizeof path, round + 2000);
        sleep_ms(8);
        serve(local, round);
        serve(internet, round + 1000);
        serve(local, round + 2000);
        sleep_ms(ROUND_MS);
        step("queue round %lu", (unsigned long)round);
    }
    CHECK(unlink(path.sun_path) == 0);
    return pass();
}
