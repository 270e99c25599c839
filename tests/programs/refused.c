/* A program that holds one thing which an image cannot contain: `refused KIND [ROUNDS [PORT, PATH or KEY]]`. A
 * checkpoint must name it and leave the program alone: it counts on and ends by itself. */
#include "common.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/if_packet.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
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

/* A 32-bit child: an ELF header, one program header, and `for (;;) pause();`. */
static pid_t small_program(void)
{
    static const unsigned char file[] = {
        0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 3, 0, 1, 0, 0, 0, 0x54, 0x80, 4, 8, 52, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 52, 0, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0,
        1, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 4, 8, 0, 0x80, 4, 8, 93, 0, 0, 0, 93, 0, 0, 0, 5, 0, 0, 0, 0, 0x10, 0, 0,
        0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7};
    int fd = open("refused.small", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700), told[2];
    CHECK(fd >= 0 && write(fd, file, sizeof file) == sizeof file && close(fd) == 0 && pipe2(told, O_CLOEXEC) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        execl("refused.small", "small", (char *)NULL);
        _exit(write(told[1], "", 1) != 1);
    }
    char byte;
    CHECK(close(told[1]) == 0);
    if (read(told[0], &byte, 1) != 0) {
        puts("not here"); /* this kernel has no 32-bit programs */
        exit(77);
    }
    CHECK(close(told[0]) == 0);
    return pid;
}

/* To somebody who is not part of the program. */
static void connected_tcp(long port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((in_port_t)port),
        .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    keep_at_nine(client);
}

static void connected_unix(const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    strncpy(name.sun_path, path, sizeof name.sun_path - 1);
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0);
    keep_at_nine(client);
}

static void raw_socket(void)
{
    int fd = socket(AF_PACKET, SOCK_DGRAM, 0);
    if (fd < 0) {
        puts("not here");
        exit(77);
    }
    struct tpacket_req in_memory = {.tp_block_size = 4096, .tp_block_nr = 1, .tp_frame_size = 2048, .tp_frame_nr = 2};
    CHECK(setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &in_memory, sizeof in_memory) == 0);
    keep_at_nine(fd);
}

/* A connection whose peer was outside: it stands until a restart, then it was reset. */
static int was_reset(void)
{
    char byte;
    ssize_t got = recv(9, &byte, 1, MSG_DONTWAIT);
    CHECK(got == -1 && (errno == EAGAIN || errno == ECONNRESET));
    return errno == ECONNRESET;
}

/* A mapping that is in the way, or untouched memory of which there is too much. */
static void map(int fd, size_t len)
{
    int flags = MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
    CHECK(mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0) != MAP_FAILED);
    if (fd >= 0) close(fd);
}

/* The kernel maps a ring for asynchronous input and output, and libholdfast does not know. */
static void ring(void)
{
    aio_context_t context = 0;
    if (raw_call(SYS_io_setup, 4, (long)&context) != 0) {
        puts("not here");
        exit(77);
    }
}

/* Pages that are at no address any more, and may be again. */
static void hide(void)
{
    char *pages = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    memset(pages, 7, 1 << 16);
    if (remap_file_pages(pages + 4096, 4096, 0, 0, 0) != 0) {
        puts("not here");
        exit(77);
    }
}

/* What was written to a terminal and not read yet cannot be seen where it cannot be put back. */
static void unread_terminal(void)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    CHECK(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    CHECK(slave >= 0 && write(slave, "unread", 6) == 6 && close(slave) == 0);
    keep_at_nine(master);
}

/* What has happened and was not read yet cannot be told again. */
static void unread_events(void)
{
    int fd = keep_at_nine(inotify_init1(0));
    CHECK(inotify_add_watch(fd, "/dev", IN_OPEN) == 1);
    DIR *folder = opendir("/dev");
    CHECK(folder != NULL && closedir(folder) == 0);
}

/* More content than goes into a record, and no mapping. */
static void large_memfd(void)
{
    int fd = keep_at_nine(memfd_create("large", 0));
    char *block = calloc(1, 1 << 20);
    for (int i = 0; i < 65; i++) CHECK(write(fd, block, 1 << 20) == 1 << 20);
    free(block);
}

/* A sparse file with a name. */
static void large_file(size_t len)
{
    int fd = open("refused.large", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)len) == 0);
    map(fd, len);
}

/* A filter that allows everything is one all the same. */
/* System V shared memory, which somebody else is to have too; never removed here. */
static void attach(key_t key)
{
    int id = shmget(key, 8192, IPC_CREAT | 0666);
    CHECK(id >= 0 && shmat(id, NULL, 0) != (void *)-1);
}

/* Of a child that has ended; to be in another one oneself is something else. */
static void foreign_namespace(void)
{
    int told[2];
    char byte, path[64];
    CHECK(pipe2(told, O_CLOEXEC) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        if (unshare(CLONE_NEWUTS) != 0) _exit(1);
        CHECK(write(told[1], "", 1) == 1);
        for (;;) pause();
    }
    CHECK(close(told[1]) == 0);
    if (read(told[0], &byte, 1) != 1) {
        puts("not here");
        exit(77);
    }
    snprintf(path, sizeof path, "/proc/%d/ns/uts", (int)pid);
    keep_at_nine(open(path, O_RDONLY));
    CHECK(close(told[0]) == 0 && kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

static pid_t hold(const char *kind, const char *where)
{
    if (strcmp(kind, "segment") == 0) attach((key_t)atol(where));
    if (strcmp(kind, "tcp") == 0 || strcmp(kind, "lost") == 0) connected_tcp(atol(where));
    if (strcmp(kind, "unix") == 0) connected_unix(where);
    if (strcmp(kind, "packet") == 0) raw_socket();
    if (strcmp(kind, "mapping") == 0) ring();
    if (strcmp(kind, "hidden") == 0) hide();
    if (strcmp(kind, "memfd") == 0) large_memfd();
    if (strcmp(kind, "pty") == 0) unread_terminal();
    if (strcmp(kind, "namespace") == 0) foreign_namespace();
    if (strcmp(kind, "large") == 0) large_file((size_t)1025 << 20);
    if (strcmp(kind, "inotify") == 0) unread_events();
    if (strncmp(kind, "io_uring", 8) == 0) {
        struct io_uring_params parameters = {0};
        long fd = raw_call(SYS_io_uring_setup, 4, (long)&parameters);
        if (fd < 0) {
            puts("not here");
            exit(77);
        }
        keep_at_nine((int)fd);
        if (strcmp(kind, "io_uring_mapped") == 0) {
            int flags = MAP_SHARED | MAP_POPULATE, access = PROT_READ | PROT_WRITE;
            CHECK(mmap(NULL, 256, access, flags, 9, IORING_OFF_SQES) != MAP_FAILED);
            CHECK(mmap(NULL, parameters.sq_off.array + 4 * 4, access, flags, 9, IORING_OFF_SQ_RING) != MAP_FAILED);
        }
    }
    if (strcmp(kind, "guard") == 0) {
        char *shared = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(shared != MAP_FAILED);
        if (madvise(shared + 8192, 4096, 102 /* MADV_GUARD_INSTALL */) != 0) {
            puts("not here");
            exit(77);
        }
    }
    if (strcmp(kind, "undumpable") == 0) CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
    if (strcmp(kind, "stranger") == 0) {
        return small_program();
    }
    return 0;
}

static long rounds;

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    rounds = number_argument(argc, argv, 2, 15);
    pid_t child = hold(kind, argc > 3 ? argv[3] : "");
    for (long round = 0; round < rounds; round++) {
        step("refused round %ld", round);
        sleep_ms(100);
        if (strcmp(kind, "lost") == 0 && was_reset()) return pass();
    }
    CHECK(strcmp(kind, "lost") != 0);
    if (child > 0) {
        int status;
        CHECK(waitpid(child, &status, WNOHANG) == 0);
        CHECK(kill(child, 9) == 0 && waitpid(child, &status, 0) == child);
    }
    return pass();
}
