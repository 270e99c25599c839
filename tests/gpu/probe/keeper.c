/* Question 3 of `tests/gpu/run`: whether a process that had memory of another one can be checkpointed. `keeper MIB`
 *
 * A child, the keeper, owns device memory and gives a descriptor of it; the parent imports, maps, writes, unmaps and
 * releases it, is checkpointed and restored, and imports it again: the content has to be there. */
#include "driver.h"
#include <sys/socket.h>

static void send_descriptor(int to, int descriptor)
{
    char byte = 0, space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    MUST(sendmsg(to, &message, 0) == 1 ? 0 : errno);
}

static int receive_descriptor(int from)
{
    char byte, space[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) != 1 || CMSG_FIRSTHDR(&message) == NULL) exit(NOT_HERE);
    int descriptor;
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

/* Owns the memory until the other end is closed. CUDA is not used before the fork. */
static void keep(int other, size_t bytes)
{
    start("3");
    struct allocation kind = on_device(1);
    unsigned long long memory;
    int descriptor = -1;
    MUST(cuMemCreate(&memory, bytes, &kind, 0));
    MUST(cuMemExportToShareableHandle(&descriptor, memory, 1, 0));
    send_descriptor(other, descriptor);
    char byte;
    while (read(other, &byte, 1) > 0) {
    }
    _exit(0);
}

static unsigned long long import(int descriptor, device_ptr at, size_t bytes)
{
    unsigned long long memory;
    MUST(TIMED("import", cuMemImportFromShareableHandle(&memory, (void *)(intptr_t)descriptor, 1)));
    MUST(TIMED("map", cuMemMap(at, bytes, 0, memory, 0)));
    allow(at, bytes);
    return memory;
}

int main(int argc, char **argv)
{
    size_t bytes = (argc > 1 ? (size_t)atol(argv[1]) : 64) << 20;
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
    pid_t keeper = fork();
    if (keeper == 0) {
        close(ends[0]);
        keep(ends[1], bytes);
    }
    close(ends[1]);
    int descriptor = receive_descriptor(ends[0]);
    start("3");
    device_ptr at = 0;
    MUST(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    unsigned long long memory = import(descriptor, at, bytes);
    MUST(cuMemsetD32(at, 0x5eed5eed, bytes / 4));
    MUST(cuCtxSynchronize());
    MUST(TIMED("unmap", cuMemUnmap(at, bytes)));
    MUST(TIMED("release", cuMemRelease(memory)));
    row("a process that had an import", "is checkpointed below, or refused");
    if (!checkpointed()) return 0;
    restored();
    import(descriptor, at, bytes);
    uint32_t word = 0;
    MUST(cuMemcpyDtoH(&word, at + bytes - 4, 4));
    row("content in the keeper", word == 0x5eed5eed ? "as it was" : "CHANGED: %x", word);
    close(ends[0]);
    waitpid(keeper, NULL, 0);
    return 0;
}
