/* What only one process can have, and memory that takes time to free: a TCP and a UDP port, unix sockets with a path
 * and with an abstract name, locks of each kind. It makes the file `alive` again and again.
 * `served MIB` until HOLDFAST_TEST_STAY */
#include "common.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>

static int made(int domain, int type, const void *address, socklen_t len)
{
    int fd = socket(domain, type, 0);
    CHECK(fd >= 0 && bind(fd, address, len) == 0);
    if (type == SOCK_STREAM) CHECK(listen(fd, 5) == 0);
    return fd;
}

static int named(const char *name, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t len = offsetof(struct sockaddr_un, sun_path) + (socklen_t)strlen(name) + 1;
    strcpy(address.sun_path, name);
    return made(AF_UNIX, type, &address, len);
}

static void abstract(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int len = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "served-%d", getpid());
    made(AF_UNIX, SOCK_STREAM, &address, offsetof(struct sockaddr_un, sun_path) + 1 + (socklen_t)len);
}

static void ports(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    made(AF_INET, SOCK_STREAM, &address, sizeof address);
    made(AF_INET, SOCK_DGRAM, &address, sizeof address);
}

static void locks(void)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fds[3];
    for (int i = 0; i < 3; i++) {
        char name[] = "locked0";
        name[6] = (char)('0' + i);
        CHECK((fds[i] = open(name, O_RDWR | O_CREAT, 0644)) >= 0);
    }
    CHECK(flock(fds[0], LOCK_EX) == 0);
    CHECK(fcntl(fds[1], F_SETLK, &all) == 0);
    CHECK(fcntl(fds[2], F_OFD_SETLK, &all) == 0);
}

int main(int argc, char **argv)
{
    const char *awaited = getenv("HOLDFAST_TEST_STAY");
    size_t size = (size_t)number_argument(argc, argv, 1, 16) << 20;
    ports();
    abstract();
    int listener = named("stream.socket", SOCK_STREAM);
    named("datagram.socket", SOCK_DGRAM);
    locks();
    char *memory = malloc(size);
    CHECK(memory != NULL);
    for (size_t at = 0; at < size; at += 4096) memory[at] = (char)(at >> 12);
    step("served");
    struct timespec pause = timespec_of_ns(2000000);
    while (awaited == NULL || access(awaited, F_OK) != 0) {
        for (size_t at = 0; at < size; at += 4096) CHECK(memory[at] == (char)(at >> 12));
        int state = -1;
        socklen_t len = sizeof state;
        CHECK(getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &state, &len) == 0 && state == 1);
        int alive = open("alive", O_CREAT | O_WRONLY, 0644);
        CHECK(alive >= 0 && close(alive) == 0);
        nanosleep(&pause, NULL);
    }
    return pass();
}
