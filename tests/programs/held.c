/* More things that an image cannot contain: `held KIND ROUNDS [PATH]`, as descriptor 9 where it is one. A checkpoint
 * must name it and leave the program alone: it counts on and ends by itself. Status 77: it is not to be had here. */
#include "rounds.h"
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>

static const char *outside;

static void keep(const char *what, int fd)
{
    if (fd < 0) not_here(what);
    CHECK(fd == 9 || (dup2(fd, 9) == 9 && close(fd) == 0));
}

/* --- memory --- */

static void huge_file(void) { keep("MFD_HUGETLB", memfd_create("huge", MFD_HUGETLB)); }
static void secret(void) { keep("memfd_secret", (int)syscall(SYS_memfd_secret, 0)); }

/* --- files --- */

/* The limit is 300. */
static void many_files(void)
{
    for (int number = 0; number < 280; number = dup(open("/dev/null", O_RDONLY | O_CLOEXEC))) CHECK(number >= 0);
}

/* It works in the folder of one that has ended. */
static void dead_folder(void)
{
    char path[64];
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) for (;;) pause();
    snprintf(path, sizeof path, "/proc/%d", pid);
    CHECK(chdir(path) == 0 && kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

/* And of one that has not. */
static void folder_of_child(void)
{
    char path[64];
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        for (;;) pause();
    }
    snprintf(path, sizeof path, "/proc/%d", pid);
    CHECK(chdir(path) == 0);
}

/* A filter of eBPF: r0 = 0, exit. */
static void bpf_filter(void)
{
    struct bpf_insn program[] = {{.code = BPF_ALU64 | BPF_MOV | BPF_K}, {.code = BPF_JMP | BPF_EXIT}};
    union bpf_attr load = {.prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insn_cnt = 2};
    load.insns = (uintptr_t)program;
    load.license = (uintptr_t) "GPL";
    int loaded = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load);
    if (loaded < 0) not_here("bpf");
    keep("socket", socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (setsockopt(9, SOL_SOCKET, SO_ATTACH_BPF, &loaded, sizeof loaded) != 0) not_here("SO_ATTACH_BPF");
    CHECK(close(loaded) == 0);
}

/* A file in a mount namespace that has gone. */
static int file_elsewhere(void)
{
    int told[2];
    char byte, path[4096 + 64], here[4096];
    CHECK(mkdir("held.mounted", 0700) == 0 && getcwd(here, sizeof here) != NULL && pipe2(told, O_CLOEXEC) == 0);
    pid_t pid = fork(); /* to be in another namespace oneself is something else */
    CHECK(pid >= 0);
    if (pid == 0) {
        if (unshare(CLONE_NEWNS) != 0) _exit(1);
        CHECK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
        CHECK(mount("tmpfs", "held.mounted", "tmpfs", 0, NULL) == 0 && write(told[1], "", 1) == 1);
        for (;;) pause();
    }
    CHECK(close(told[1]) == 0);
    if (read(told[0], &byte, 1) != 1) not_here("unshare");
    snprintf(path, sizeof path, "/proc/%d/root%s/held.mounted/file", (int)pid, here);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
    CHECK(close(told[0]) == 0 && kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
    return fd;
}
static void open_elsewhere(void) { keep("open", file_elsewhere()); }
static void elsewhere(void)
{
    int fd = file_elsewhere();
    CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED && close(fd) == 0);
}
static void closed_folder(void)
{
    CHECK(mkdir("held.closed", 0700) == 0);
    keep("open", open("held.closed/file", O_RDWR | O_CREAT, 0600));
    CHECK(chmod("held.closed", 0600) == 0);
}
static void device(void) { keep("/dev/kmsg", open("/dev/kmsg", O_RDONLY | O_NONBLOCK)); }
static void from_outside(void) { keep(outside, open(outside, O_RDWR | O_NOCTTY | O_NONBLOCK)); }
static void pipe_from_outside(void) { keep(outside, open(outside, O_RDONLY | O_NONBLOCK)); }
static void watch(void)
{
    int fd = inotify_init1(0);
    keep("inotify", fd);
    CHECK(syscall(SYS_inotify_add_watch, 9, outside, IN_CREATE) == 1); /* libholdfast takes no note */
}

/* --- kernel objects --- */

static void parent_process(void) { keep("pidfd_open", (int)syscall(SYS_pidfd_open, getppid(), 0)); }
static void faults(void) { keep("userfaultfd", (int)syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY)); }
static void counter(void)
{
    struct perf_event_attr attributes = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attributes,
        .config = PERF_COUNT_SW_TASK_CLOCK, .exclude_kernel = 1, .exclude_hv = 1};
    keep("perf_event_open", (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0));
}
static void bpf_map(void)
{
    union bpf_attr attributes = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 1};
    keep("bpf", (int)syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof attributes));
}
static void fanotify(void) { keep("fanotify_init", fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID, O_RDONLY)); }
static void rules(void)
{
    uint64_t handled = 1;
    keep("landlock_create_ruleset", (int)syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0));
}

/* --- confinement past the C library --- */

static long past(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static void restrict_self(void)
{
    uint64_t handled = 1;
    long rules = past(SYS_landlock_create_ruleset, (long)&handled, sizeof handled, 0);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (rules < 0) exit(77);
    CHECK(past(SYS_landlock_restrict_self, rules, 0, 0) == 0 && close((int)rules) == 0);
}

static void *restricted(void *ready)
{
    restrict_self();
    *(volatile int *)ready = 1;
    while (pause() != 0) {}
    return NULL;
}

static void domain(void) { restrict_self(); }
static void domain_of_thread(void)
{
    static int ready;
    pthread_t thread;
    CHECK_ZERO(pthread_create(&thread, NULL, restricted, &ready));
    while (!*(volatile int *)&ready) sleep_ms(1);
}

/* When there is a file that asks for it, in a thread of its own: of what is done past the C library one that an image
 * has seen before is not asked again. */
static void *restricted_later(void *unused)
{
    pthread_t thread;
    static int ready;
    (void)unused;
    while (access("confine", F_OK) != 0) sleep_ms(5);
    CHECK_ZERO(pthread_create(&thread, NULL, restricted, &ready));
    while (!*(volatile int *)&ready) sleep_ms(1);
    FILE *done = fopen("confined", "we");
    CHECK(done != NULL && fclose(done) == 0);
    while (pause() != 0) {}
    return NULL;
}

static void domain_later(void)
{
    pthread_t thread;
    CHECK_ZERO(pthread_create(&thread, NULL, restricted_later, NULL));
}

/* --- code of 32 bits --- */

/* In compatibility mode, where this thread stays: `jmp .`, behind what has led there. */
static void *narrow(void *ready)
{
    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT,
        -1, 0);
    CHECK(code != MAP_FAILED);
    memcpy(code, (unsigned char[]){0xeb, 0xfe}, 2);
    *(volatile int *)ready = 1;
    __asm__ volatile("pushq %0; pushq %1; lretq" : : "i"(0x23), "r"(code) : "memory");
    return NULL;
}

static void narrow_code(void)
{
    static int ready;
    pthread_t thread;
    CHECK_ZERO(pthread_create(&thread, NULL, narrow, &ready));
    while (!*(volatile int *)&ready) sleep_ms(1);
    sleep_ms(20);
}

/* --- memory of the kernel, which stays when descriptor 9 is closed --- */

static void only_mapping(const char *what, int kind)
{
    if (mmap(NULL, 8192, PROT_READ | PROT_WRITE, kind, 9, 0) == MAP_FAILED) not_here(what);
    CHECK(close(9) == 0);
}
static void counter_memory(void)
{
    counter();
    only_mapping("a mapping of perf_event_open", MAP_SHARED);
}
static void ring_memory(void)
{
    struct io_uring_params parameters = {0};
    keep("io_uring", (int)raw_call(SYS_io_uring_setup, 64, (long)&parameters));
    only_mapping("a private mapping of io_uring", MAP_PRIVATE);
}
static int set_ids[130];
static void remove_sets(void)
{
    for (int i = 0; i < 130; i++) semctl(set_ids[i], 0, IPC_RMID);
}
static void sets(void)
{
    for (int i = 0; i < 130; i++) CHECK((set_ids[i] = semget(IPC_PRIVATE, 1, 0600)) >= 0);
    CHECK(atexit(remove_sets) == 0);
}
static void shadow_stack(void)
{
    if (syscall(453 /* map_shadow_stack */, 0, 4096, 0) < 0) not_here("map_shadow_stack");
}

/* --- sockets --- */

static void kernel_socket(void) { keep("netlink", socket(AF_NETLINK, SOCK_RAW, 16 /* NETLINK_GENERIC */)); }
static void kernel_answer(void)
{
    struct {
        uint32_t len;
        uint16_t type, flags;
        uint32_t sequence, port;
        uint8_t family, padding[15];
    } request = {32, 18 /* RTM_GETLINK */, 0x301 /* request, dump */, 1, 0, 0, {0}};
    keep("netlink", socket(AF_NETLINK, SOCK_RAW, 0));
    CHECK(send(9, &request, sizeof request, 0) == sizeof request);
}
static void multipath(void) { keep("MPTCP", socket(AF_INET, SOCK_STREAM, 262 /* IPPROTO_MPTCP */)); }
static void machine(void) { keep("AF_VSOCK", socket(AF_VSOCK, SOCK_STREAM, 0)); }

static void named(int fd)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "held.socket"};
    CHECK(bind(fd, (struct sockaddr *)&name, sizeof name) == 0);
}

static void send_descriptor(int to, int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'h';
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control,
        .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(int));
    CHECK(sendmsg(to, &message, 0) == 1);
}

static int datagrams[2];
static void two_datagrams(void)
{
    keep("socket", socket(AF_UNIX, SOCK_DGRAM, 0));
    named(9);
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "held.socket"};
    CHECK((datagrams[0] = socket(AF_UNIX, SOCK_DGRAM, 0)) >= 0);
    CHECK(connect(datagrams[0], (struct sockaddr *)&name, sizeof name) == 0);
}
static void empty_datagram(void)
{
    two_datagrams();
    CHECK(send(datagrams[0], "", 0, 0) == 0);
}
static void handing_timer(void)
{
    struct itimerspec hour = {.it_value = {.tv_sec = 3600}};
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    CHECK(timer >= 0 && timerfd_settime(timer, 0, &hour, NULL) == 0);
    two_datagrams();
    send_descriptor(datagrams[0], timer);
    CHECK(close(timer) == 0);
}
static void half_named(void)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    keep("socketpair", pair[0]);
    named(9);
}
static void peeking(void)
{
    int offset = 1, listener = socket(AF_INET, SOCK_STREAM, 0), sender = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
    CHECK(connect(sender, (struct sockaddr *)&at, sizeof at) == 0 && send(sender, "data", 4, 0) == 4);
    keep("connection", accept(listener, NULL, NULL));
    if (setsockopt(9, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset) != 0) not_here("SO_PEEK_OFF of TCP");
}

/* Who has sent something is told with it, so that a look ends at the byte. */
static void urgent(void)
{
    int pair[2], on = 1;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && send(pair[1], "before", 6, 0) == 6);
    if (send(pair[1], "!", 1, MSG_OOB) != 1) not_here("MSG_OOB of unix sockets");
    keep("socketpair", pair[0]);
    CHECK(setsockopt(9, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
}

static struct sockaddr_un name_of_socket = {.sun_family = AF_UNIX, .sun_path = "held.socket"};
static int listening(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(fd, (struct sockaddr *)&name_of_socket, sizeof name_of_socket) == 0 && listen(fd, 5) == 0);
    return fd;
}

static void shut(void)
{
    int listener = listening();
    keep("socket", socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    CHECK(shutdown(9, SHUT_WR) == 0);
    CHECK(connect(9, (struct sockaddr *)&name_of_socket, sizeof name_of_socket) == 0);
    CHECK(accept4(listener, NULL, NULL, SOCK_CLOEXEC) >= 0);
}

static void name(void)
{
    keep("socket", listening());
    CHECK(unlink("held.socket") == 0 && open("held.socket", O_RDWR | O_CREAT | O_CLOEXEC, 0600) >= 0);
}

/* --- the process --- */

static pid_t child;
static void traced(void)
{
    int ends[2];
    char byte;
    pid_t parent = getpid();
    CHECK(pipe(ends) == 0 && prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY) + 1 >= 0 && (child = fork()) >= 0);
    if (child == 0) {
        byte = ptrace(PTRACE_SEIZE, parent, 0, 0) == 0 ? 'y' : 'n';
        if (write(ends[1], &byte, 1) != 1) _exit(1);
        for (;;) pause();
    }
    CHECK(read(ends[0], &byte, 1) == 1);
    if (byte != 'y') not_here("ptrace");
}

/* An ordinary user needs a user namespace for it. */
static void own_objects(void)
{
    if (unshare(CLONE_NEWIPC) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWIPC) != 0) not_here("unshare");
    CHECK(semget(IPC_PRIVATE, 1, 0600) >= 0);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*hold)(void);
    } kinds[] = {{"huge_file", huge_file}, {"secret", secret}, {"elsewhere", elsewhere},
                 {"open_elsewhere", open_elsewhere}, {"closed_folder", closed_folder},
                 {"bpf_filter", bpf_filter}, 
                 {"device", device}, {"terminal", from_outside}, {"pipe", pipe_from_outside},
                 {"watch", watch},
                 {"process", parent_process}, {"faults", faults}, {"counter", counter}, {"bpf", bpf_map},
                 {"fanotify", fanotify},
                 {"rules", rules},
                 {"domain", domain}, {"domain_of_thread", domain_of_thread},
                 {"domain_later", domain_later}, {"narrow_code", narrow_code},
                 {"kernel_socket", kernel_socket}, {"kernel_answer", kernel_answer},
                 {"multipath", multipath}, {"machine", machine}, {"empty_datagram", empty_datagram},
                 {"handing_timer", handing_timer}, {"half_named", half_named},
                 {"many_files", many_files}, {"peeking", peeking}, {"urgent", urgent},
                 {"shut", shut}, {"name", name}, {"dead_folder", dead_folder}, {"folder_of_child", folder_of_child},
                 {"traced", traced},
                 {"counter_memory", counter_memory},
                 {"ring_memory", ring_memory}, {"shadow_stack", shadow_stack}, {"sets", sets},
                 {"own_objects", own_objects}};
    if (argc < 3) return 2;
    outside = argc > 3 ? argv[3] : "";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(argv[1], kinds[i].name) == 0) kinds[i].hold();
    long rounds = number_argument(argc, argv, 2, 15);
    for (long round = 0; round < rounds; round++) {
        step("held round %ld", round);
        sleep_ms(100);
    }
    if (child > 0) CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    return pass();
}
