/* Names of sockets that are another one's, or nobody's, by now: `names KIND [ROUNDS]`
 * KIND: lower (a second listener has the name, and a lower number), swapped (two listeners have each other's name),
 * sender (messages that wait, whose senders were closed) */
#include "rounds.h"
#include <fcntl.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct sockaddr_un named(const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    strcpy(name.sun_path, path);
    return name;
}

static int bound(int type, const char *path)
{
    struct sockaddr_un name = named(path);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    unlink(path);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&name, sizeof name) == 0);
    if (type == SOCK_STREAM) CHECK(listen(fd, 5) == 0);
    return fd;
}

/* Who listens under a path. */
static void expect(const char *path, int listener)
{
    struct sockaddr_un name = named(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(connect(fd, (struct sockaddr *)&name, sizeof name) == 0);
    int other = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    CHECK(other >= 0 && close(other) == 0 && close(fd) == 0);
}

static int first, second;
static void lower_prepare(void)
{
    int low = dup(0);
    first = bound(SOCK_STREAM, "names.socket");
    second = bound(SOCK_STREAM, "names.socket");
    CHECK(low >= 0 && low < first && dup3(second, low, O_CLOEXEC) == low && close(second) == 0);
    second = low;
}

static void lower_round(long round)
{
    (void)round;
    expect("names.socket", second);
}

static void swapped_prepare(void)
{
    first = bound(SOCK_STREAM, "names.one");
    second = bound(SOCK_STREAM, "names.two");
    CHECK(rename("names.one", "names.aside") == 0 && rename("names.two", "names.one") == 0);
    CHECK(rename("names.aside", "names.two") == 0);
}

static void swapped_round(long round)
{
    struct sockaddr_un own;
    socklen_t len = sizeof own;
    (void)round;
    expect("names.one", second);
    expect("names.two", first);
    CHECK(getsockname(first, (struct sockaddr *)&own, &len) == 0 && strcmp(own.sun_path, "names.one") == 0);
    CHECK(access("names.aside", F_OK) == -1);
}

static int receiver;
static void sender_prepare(void) { receiver = bound(SOCK_DGRAM, "names.receiver"); }

static void receive(const char *text, const char *from, size_t len)
{
    char got[32] = "";
    struct sockaddr_un name = {0};
    socklen_t size = sizeof name;
    ssize_t n = recvfrom(receiver, got, sizeof got, MSG_DONTWAIT, (struct sockaddr *)&name, &size);
    CHECK(n == (ssize_t)strlen(text) && strcmp(got, text) == 0);
    CHECK(size >= offsetof(struct sockaddr_un, sun_path) + len && memcmp(name.sun_path, from, len) == 0);
}

static void send_by(int fd, const char *text)
{
    struct sockaddr_un to = named("names.receiver");
    CHECK(sendto(fd, text, strlen(text), 0, (struct sockaddr *)&to, sizeof to) == (ssize_t)strlen(text));
    CHECK(close(fd) == 0);
}

/* The file of one is gone, that of another one is there, and one has an abstract name. */
static void sender_round(long round)
{
    struct sockaddr_un hidden = {.sun_family = AF_UNIX};
    (void)round;
    strcpy(hidden.sun_path + 1, "names.hidden");
    if (round > 0) {
        receive("one", "names.gone", sizeof "names.gone");
        receive("two", "names.kept", sizeof "names.kept");
        receive("three", hidden.sun_path, 1 + strlen("names.hidden"));
        receive("four", "names.gone", sizeof "names.gone");
    }
    CHECK(access("names.gone", F_OK) == -1 && (round == 0 || access("names.kept", F_OK) == 0));
    send_by(bound(SOCK_DGRAM, "names.gone"), "one");
    send_by(bound(SOCK_DGRAM, "names.kept"), "two");
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen("names.hidden"));
    CHECK(bind(fd, (struct sockaddr *)&hidden, len) == 0);
    send_by(fd, "three");
    send_by(bound(SOCK_DGRAM, "names.gone"), "four");
    CHECK(unlink("names.gone") == 0);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"lower", lower_prepare, lower_round},
                                        {"swapped", swapped_prepare, swapped_round},
                                        {"sender", sender_prepare, sender_round}};
    return RUN_KIND(kinds);
}
