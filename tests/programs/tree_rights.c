/* Descriptors that are passed from process to process, and are in flight for a while: pipes whose reading end
 * the sender closes at once. `queued`: each in a connection of its own, closed by the sender before it is accepted.
 * `tree_rights stream|packet|queued [ROUNDS]` */
#include "tree.h"
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

static const struct sockaddr_un path = {.sun_family = AF_UNIX, .sun_path = "rights.socket"};
static int ours = -1, theirs = -1, listener = -1;

static void hand_over(int fd, uint64_t number)
{
    struct iovec piece = {&number, sizeof number};
    char room[CMSG_SPACE(sizeof fd)] __attribute__((aligned(8))) = {0};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(ours, &message, 0) == sizeof number);
}

static int take(uint64_t expected)
{
    uint64_t number;
    int fd;
    struct iovec piece = {&number, sizeof number};
    char room[CMSG_SPACE(sizeof fd)] __attribute__((aligned(8)));
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    CHECK(recvmsg(theirs, &message, MSG_CMSG_CLOEXEC) == sizeof number && number == expected);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    CHECK(header != NULL && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof fd));
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

static void taker(int in, int out, uint64_t number)
{
    CHECK(listener >= 0 || close(ours) == 0);
    while (hear_or_end(in, &number)) {
        sleep_ms(8); /* it waits in the socket */
        CHECK(listener < 0 || (theirs = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0);
        int fd = take(number);
        CHECK(listener < 0 || close(theirs) == 0);
        CHECK(hear(fd) == number * 7);
        CHECK(close(fd) == 0);
        tell(out, number);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    int type = strcmp(argv[1], "packet") == 0 ? SOCK_SEQPACKET : SOCK_STREAM, pair[2];
    long rounds = number_argument(argc, argv, 2, 80);
    if (strcmp(argv[1], "queued") == 0) {
        CHECK((listener = socket(AF_UNIX, type | SOCK_CLOEXEC, 0)) >= 0);
        CHECK(bind(listener, (const struct sockaddr *)&path, sizeof path) == 0 && listen(listener, 4) == 0);
    } else {
        CHECK(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair) == 0);
        ours = pair[0], theirs = pair[1];
    }
    struct child *child = fork_child(taker, 0);
    CHECK(listener >= 0 || close(theirs) == 0);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        int ends[2];
        CHECK(pipe2(ends, O_CLOEXEC) == 0);
        if (listener >= 0) {
            CHECK((ours = socket(AF_UNIX, type | SOCK_CLOEXEC, 0)) >= 0);
            CHECK(connect(ours, (const struct sockaddr *)&path, sizeof path) == 0);
        }
        hand_over(ends[0], round);
        CHECK(close(ends[0]) == 0 && (listener < 0 || close(ours) == 0));
        tell(ends[1], round * 7);
        tell(child->to, round);
        CHECK(hear(child->from) == round);
        CHECK(close(ends[1]) == 0);
        sleep_ms(ROUND_MS);
        step("rights round %lu", (unsigned long)round);
    }
    finish(child, 0);
    CHECK(listener < 0 || unlink(path.sun_path) == 0);
    return pass();
}
