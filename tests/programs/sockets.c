/* Sockets with addresses, both ends in this program: `sockets KIND [ROUNDS]`. A listener to which every round connects
 * anew; a connection that lasts, with data in flight in both directions across every round; names and options that must
 * stay.
 * KIND: tcp4, tcp6, mapped (IPv4 to an IPv6 listener), unix (a path), abstract, packets (unix SEQPACKET), shut
 * (half-closed). */
#include "common.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static int domain = AF_INET, kind = SOCK_STREAM, half_closed;
static struct sockaddr_storage address, client_name, server_name;
static socklen_t len, client_len, server_len;
static int listener, client, server, pending = -1;
static const char *path;

static void put(int fd, uint64_t from, size_t size)
{
    uint8_t buffer[40000];
    CHECK(size <= sizeof buffer);
    for (size_t i = 0; i < size; i++) buffer[i] = (uint8_t)mix(from + i);
    CHECK(send(fd, buffer, size, 0) == (ssize_t)size);
}

static void take(int fd, uint64_t from, size_t size)
{
    uint8_t buffer[40000];
    CHECK(recv(fd, buffer, size, kind == SOCK_STREAM ? MSG_WAITALL : 0) == (ssize_t)size);
    for (size_t i = 0; i < size; i++) CHECK(buffer[i] == (uint8_t)mix(from + i));
}

static void name_of(int fd, int peer, struct sockaddr_storage *name, socklen_t *size)
{
    memset(name, 0, sizeof *name);
    *size = sizeof *name;
    CHECK((peer ? getpeername : getsockname)(fd, (struct sockaddr *)name, size) == 0);
}

static int connected(void)
{
    int fd = socket(domain, kind | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, len) == 0);
    return fd;
}

static void choose(const char *name)
{
    struct sockaddr_in *four = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address;
    struct sockaddr_un *local = (struct sockaddr_un *)&address;
    if (strcmp(name, "packets") == 0) kind = SOCK_SEQPACKET;
    half_closed = strcmp(name, "shut") == 0;
    if (strcmp(name, "tcp6") == 0 || strcmp(name, "mapped") == 0) {
        domain = AF_INET6;
        len = sizeof *six;
        *six = (struct sockaddr_in6){.sin6_family = AF_INET6,
            .sin6_addr = name[0] == 't' ? in6addr_loopback : in6addr_any};
    } else if (strcmp(name, "tcp4") == 0 || half_closed) {
        len = sizeof *four;
        *four = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    } else {
        domain = local->sun_family = AF_UNIX;
        path = strcmp(name, "abstract") == 0 ? NULL : "sockets.here";
        len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + 20);
        if (path != NULL)
            strcpy(local->sun_path, path);
        else
            snprintf(local->sun_path + 1, 21, "holdfast%012d", (int)getpid());
        if (path != NULL) len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path) + 1);
    }
}

static void open_all(const char *name)
{
    int one = 1, keep = 77;
    choose(name);
    if (path != NULL) unlink(path);
    CHECK((listener = socket(domain, kind | SOCK_CLOEXEC, 0)) >= 0);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 9) == 0);
    if (path != NULL) CHECK(chmod(path, 0640) == 0);
    name_of(listener, 0, &address, &len);
    if (strcmp(name, "mapped") == 0) { /* its clients are of IPv4 */
        in_port_t port = ((struct sockaddr_in6 *)&address)->sin6_port;
        struct sockaddr_in four = {.sin_family = domain = AF_INET, .sin_port = port,
            .sin_addr = {htonl(INADDR_LOOPBACK)}};
        memcpy(&address, &four, len = sizeof four);
    }
    client = connected();
    CHECK((server = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0);
    CHECK(fcntl(server, F_SETFL, 0) == 0 && fcntl(server, F_SETFD, FD_CLOEXEC) == 0);
    if (domain != AF_UNIX) {
        CHECK(setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
        CHECK(setsockopt(client, IPPROTO_TCP, TCP_KEEPIDLE, &keep, sizeof keep) == 0);
    }
    CHECK(setsockopt(server, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) == 0);
    name_of(client, 0, &client_name, &client_len);
    name_of(server, 0, &server_name, &server_len);
    if (half_closed) {
        put(server, 5, 3000);
        CHECK(shutdown(server, SHUT_WR) == 0);
    }
}

static int option(int fd, int level, int number)
{
    int value = -1;
    socklen_t size = sizeof value;
    CHECK(getsockopt(fd, level, number, &value, &size) == 0);
    return value;
}

static void check_names(void)
{
    struct sockaddr_storage name;
    socklen_t size;
    struct stat found;
    name_of(client, 0, &name, &size);
    CHECK(size == client_len && memcmp(&name, &client_name, size) == 0);
    name_of(server, 0, &name, &size);
    CHECK(size == server_len && memcmp(&name, &server_name, size) == 0);
    name_of(client, 1, &name, &size);
    CHECK(size == len && memcmp(&name, &address, size) == 0);
    if (path != NULL) CHECK(stat(path, &found) == 0 && S_ISSOCK(found.st_mode) && (found.st_mode & 0777) == 0640);
    CHECK(option(server, SOL_SOCKET, SO_KEEPALIVE) == 1 && option(client, SOL_SOCKET, SO_KEEPALIVE) == 0);
    CHECK(option(listener, SOL_SOCKET, SO_ACCEPTCONN) == 1);
    if (domain != AF_UNIX) {
        CHECK(option(client, IPPROTO_TCP, TCP_NODELAY) == 1 && option(server, IPPROTO_TCP, TCP_NODELAY) == 0);
        CHECK(option(client, IPPROTO_TCP, TCP_KEEPIDLE) == 77);
        /* The client's is set by a checkpoint (README): its port must be free when it has died. */
        CHECK(option(listener, SOL_SOCKET, SO_REUSEADDR) == 1);
    }
}

/* A new connection; now and then one that was begun a round ago and is accepted only now. */
static void anew(uint64_t round)
{
    int near = pending >= 0 ? pending : connected(), far = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(far >= 0);
    put(near, round, 500);
    take(far, round, 500);
    put(far, round + 9, 700);
    CHECK(close(far) == 0);
    take(near, round + 9, 700);
    CHECK(recv(near, &round, 1, 0) == 0 && close(near) == 0);
    pending = round % 2 == 0 ? connected() : -1;
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 2, 60);
    open_all(argc > 1 ? argv[1] : "tcp4");
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        put(client, round * 3, 1000);
        put(client, round * 5, 30000);
        if (!half_closed) put(server, round * 7, 2000);
        sleep_ms(25);
        check_names();
        take(server, round * 3, 1000);
        take(server, round * 5, 30000);
        if (!half_closed) take(client, round * 7, 2000);
        anew(round);
        step("sockets round %lu", (unsigned long)round);
    }
    if (half_closed) {
        take(client, 5, 3000);
        CHECK(recv(client, &rounds, 1, 0) == 0);
    }
    CHECK(close(client) == 0 && recv(server, &rounds, 1, 0) == 0);
    if (path != NULL) unlink(path);
    return pass();
}
