/* Bytes out of band (MSG_OOB) that wait in a stream, with others before and behind them: `urgent KIND [ROUNDS]`
 * KIND: unix, unix_front (nothing before it), unix_inline (SO_OOBINLINE), unix_received (it was received, the mark is
 * left), tcp, tcp_front, tcp_inline, tcp_received */
#include "rounds.h"
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static int sender, receiver;
static const char *before = "abc";
static int is_inline, is_received;

static void unix_prepare(void)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    sender = pair[0];
    receiver = pair[1];
    if (send(sender, "!", 1, MSG_OOB) != 1) not_here("MSG_OOB of unix sockets");
    char byte;
    CHECK(recv(receiver, &byte, 1, MSG_OOB) == 1 && recv(receiver, &byte, 1, MSG_DONTWAIT) == -1);
}

static void tcp_prepare(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof here;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), none = -1, on = 1;
    CHECK(bind(listener, (struct sockaddr *)&here, sizeof here) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&here, &len) == 0);
    sender = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(setsockopt(sender, IPPROTO_TCP, 1, &on, sizeof on) == 0); /* TCP_NODELAY */
    CHECK(connect(sender, (struct sockaddr *)&here, sizeof here) == 0);
    CHECK((receiver = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0 && close(listener) == 0);
    if (setsockopt(receiver, SOL_SOCKET, SO_PEEK_OFF, &none, sizeof none) != 0) not_here("SO_PEEK_OFF of TCP");
}

static void front(void) { before = ""; }
static void receive(void) { is_received = 1; }
static void inline_(void)
{
    is_inline = 1;
    CHECK(setsockopt(receiver, SOL_SOCKET, SO_OOBINLINE, &is_inline, sizeof is_inline) == 0);
}
static void unix_front(void) { unix_prepare(), front(); }
static void unix_inline(void) { unix_prepare(), inline_(); }
static void unix_received(void) { unix_prepare(), receive(); }
static void tcp_front(void) { tcp_prepare(), front(); }
static void tcp_inline(void) { tcp_prepare(), inline_(); }
static void tcp_received(void) { tcp_prepare(), receive(); }

/* One read stops at the mark. */
static void expect(const char *text, int at_mark)
{
    char got[16] = "";
    int at = -1;
    CHECK(ioctl(receiver, SIOCATMARK, &at) == 0 && at == at_mark);
    CHECK(recv(receiver, got, sizeof got - 1, MSG_DONTWAIT) == (ssize_t)strlen(text) && strcmp(got, text) == 0);
}

static void round_(long round)
{
    char byte = 0;
    struct pollfd p = {receiver, POLLPRI, 0};
    if (round > 0) {
        CHECK(poll(&p, 1, 0) == !is_received);
        ssize_t got = recv(receiver, &byte, 1, MSG_OOB | MSG_DONTWAIT);
        CHECK(is_received || is_inline ? got == -1 && errno == EINVAL : got == 1 && byte == '!');
        if (*before) expect(before, 0);
        expect(is_inline ? "!def" : "def", 1);
        CHECK(recv(receiver, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    }
    CHECK(send(sender, before, strlen(before), 0) == (ssize_t)strlen(before));
    CHECK(send(sender, "!", 1, MSG_OOB) == 1 && send(sender, "def", 3, 0) == 3);
    /* that of TCP has come to the other end when this says so */
    CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLPRI);
    if (is_received) CHECK(recv(receiver, &byte, 1, MSG_OOB) == 1 && byte == '!');
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {
        {"unix", unix_prepare, round_},         {"unix_front", unix_front, round_},
        {"unix_inline", unix_inline, round_},   {"unix_received", unix_received, round_},
        {"tcp", tcp_prepare, round_},           {"tcp_front", tcp_front, round_},
        {"tcp_inline", tcp_inline, round_},     {"tcp_received", tcp_received, round_},
    };
    return RUN_KIND(kinds);
}
