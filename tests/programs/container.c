/* A container as Docker, Podman and Kubernetes make them by default, made by hand:
 *
 *     container ROOT UID SHARED COMMAND [ARGUMENT...]
 *
 * New namespaces (mount, pid, uts, ipc, network, cgroup), a root of its own by pivot_root(2) whose files are those of
 * this machine, a fresh /proc, /dev, /dev/shm and /tmp, /sys and parts of /proc read-only or masked, the 14 default
 * capabilities in the bounding set and of them none for UID other than 0, and the published default seccomp profile
 * (moby, profiles/seccomp/default.json: what is not in its list is EPERM, clone3 is ENOSYS, clone(2) makes no
 * namespaces). SHARED are folders, with colons between them, that are there under the same paths inside; the first is
 * the working folder. The command is process 1 of it. ROOT is an empty folder for the mounts. Needs root. Exit: the
 * command's status, or 128 and its signal; 125: the container.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEED(what)                                                                 \
    do {                                                                           \
        if ((what) < 0) {                                                          \
            fprintf(stderr, "container: %s: %s\n", #what, strerror(errno));        \
            _exit(125);                                                            \
        }                                                                          \
    } while (0)

/* What the profile allows on x86-64 without further capabilities. */
static const int allowed[] = {
#define A(name) SYS_##name,
    A(accept) A(accept4) A(access) A(adjtimex) A(alarm) A(arch_prctl) A(bind) A(brk) A(capget) A(capset) A(chdir)
    A(chmod) A(chown) A(chroot) A(clock_adjtime) A(clock_getres) A(clock_gettime) A(clock_nanosleep) A(close)
    A(close_range) A(connect) A(copy_file_range) A(creat) A(dup) A(dup2) A(dup3) A(epoll_create) A(epoll_create1)
    A(epoll_ctl) A(epoll_pwait) A(epoll_pwait2) A(epoll_wait) A(eventfd) A(eventfd2) A(execve) A(execveat) A(exit)
    A(exit_group) A(faccessat) A(faccessat2) A(fadvise64) A(fallocate) A(fanotify_mark) A(fchdir) A(fchmod)
    A(fchmodat) A(fchown) A(fchownat) A(fcntl) A(fdatasync) A(fgetxattr) A(flistxattr) A(flock) A(fork)
    A(fremovexattr) A(fsetxattr) A(fstat) A(fstatfs) A(fsync) A(ftruncate) A(futex) A(futimesat) A(getcpu) A(getcwd)
    A(getdents) A(getdents64) A(getegid) A(geteuid) A(getgid) A(getgroups) A(getitimer) A(getpeername) A(getpgid)
    A(getpgrp) A(getpid) A(getppid) A(getpriority) A(getrandom) A(getresgid) A(getresuid) A(getrlimit)
    A(get_robust_list) A(getrusage) A(getsid) A(getsockname) A(getsockopt) A(get_thread_area) A(gettid)
    A(gettimeofday) A(getuid) A(getxattr) A(inotify_add_watch) A(inotify_init) A(inotify_init1) A(inotify_rm_watch)
    A(io_cancel) A(ioctl) A(io_destroy) A(io_getevents) A(io_pgetevents) A(ioprio_get) A(ioprio_set) A(io_setup)
    A(io_submit) A(kill) A(landlock_add_rule) A(landlock_create_ruleset) A(landlock_restrict_self) A(lchown)
    A(lgetxattr) A(link) A(linkat) A(listen) A(listxattr) A(llistxattr) A(lremovexattr) A(lseek) A(lsetxattr)
    A(lstat) A(madvise) A(membarrier) A(memfd_create) A(mincore) A(mkdir) A(mkdirat) A(mknod) A(mknodat) A(mlock)
    A(mlock2) A(mlockall) A(mmap) A(modify_ldt) A(mprotect) A(mq_getsetattr) A(mq_notify) A(mq_open)
    A(mq_timedreceive) A(mq_timedsend) A(mq_unlink) A(mremap) A(msgctl) A(msgget) A(msgrcv) A(msgsnd) A(msync)
    A(munlock) A(munlockall) A(munmap) A(name_to_handle_at) A(nanosleep) A(newfstatat) A(open) A(openat) A(openat2)
    A(pause) A(pidfd_open) A(pidfd_send_signal) A(pipe) A(pipe2) A(pkey_alloc) A(pkey_free) A(pkey_mprotect) A(poll)
    A(ppoll) A(prctl) A(pread64) A(preadv) A(preadv2) A(prlimit64) A(process_vm_readv) A(process_vm_writev)
    A(pselect6) A(ptrace) A(pwrite64) A(pwritev) A(pwritev2) A(read) A(readahead) A(readlink) A(readlinkat) A(readv)
    A(recvfrom) A(recvmmsg) A(recvmsg) A(remap_file_pages) A(removexattr) A(rename) A(renameat) A(renameat2)
    A(restart_syscall) A(rmdir) A(rseq) A(rt_sigaction) A(rt_sigpending) A(rt_sigprocmask) A(rt_sigqueueinfo)
    A(rt_sigreturn) A(rt_sigsuspend) A(rt_sigtimedwait) A(rt_tgsigqueueinfo) A(sched_getaffinity) A(sched_getattr)
    A(sched_getparam) A(sched_get_priority_max) A(sched_get_priority_min) A(sched_getscheduler)
    A(sched_rr_get_interval) A(sched_setaffinity) A(sched_setattr) A(sched_setparam) A(sched_setscheduler)
    A(sched_yield) A(seccomp) A(select) A(semctl) A(semget) A(semop) A(semtimedop) A(sendfile) A(sendmmsg)
    A(sendmsg) A(sendto) A(setfsgid) A(setfsuid) A(setgid) A(setgroups) A(setitimer) A(setpgid) A(setpriority)
    A(setregid) A(setresgid) A(setresuid) A(setreuid) A(setrlimit) A(set_robust_list) A(setsid) A(setsockopt)
    A(set_thread_area) A(set_tid_address) A(setuid) A(setxattr) A(shmat) A(shmctl) A(shmdt) A(shmget) A(shutdown)
    A(sigaltstack) A(signalfd) A(signalfd4) A(socketpair) A(splice) A(stat) A(statfs) A(statx) A(symlink)
    A(symlinkat) A(sync) A(sync_file_range) A(syncfs) A(sysinfo) A(tee) A(tgkill) A(time) A(timer_create)
    A(timer_delete) A(timer_getoverrun) A(timer_gettime) A(timer_settime) A(timerfd_create) A(timerfd_gettime)
    A(timerfd_settime) A(times) A(tkill) A(truncate) A(umask) A(uname) A(unlink) A(unlinkat) A(utime) A(utimensat)
    A(utimes) A(vfork) A(vmsplice) A(wait4) A(waitid) A(write) A(writev)
#undef A
};

#define COUNT(list) (sizeof(list) / sizeof *(list))

static struct sock_filter filter[2 * COUNT(allowed) + 40];
static size_t filled;

static void put(struct sock_filter one)
{
    filter[filled++] = one;
}

/* The low half of argument `n` into the accumulator. */
static void load_argument(int n)
{
    put((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * n));
}

static void answer(uint32_t what)
{
    put((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, what));
}

static void confine(void)
{
    put((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)));
    put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0));
    answer(SECCOMP_RET_ERRNO | EPERM);
    put((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    for (size_t i = 0; i < COUNT(allowed); i++) {
        put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)allowed[i], 0, 1));
        answer(SECCOMP_RET_ALLOW);
    }
    put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1));
    answer(SECCOMP_RET_ERRNO | ENOSYS);
    put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4));
    load_argument(0);
    put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x7e020000, 1, 0)); /* CLONE_NEW* */
    answer(SECCOMP_RET_ALLOW);
    answer(SECCOMP_RET_ERRNO | EPERM);
    put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 4));
    load_argument(0);
    put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 40 /* AF_VSOCK */, 1, 0));
    answer(SECCOMP_RET_ALLOW);
    answer(SECCOMP_RET_ERRNO | EPERM);
    put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_personality, 0, 8));
    load_argument(0);
    static const uint32_t personalities[] = {0, 8, 0x20000, 0x20008, 0xffffffff};
    for (size_t i = 0; i < COUNT(personalities); i++) {
        put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, personalities[i],
                                         (uint8_t)(COUNT(personalities) - i), 0));
    }
    answer(SECCOMP_RET_ERRNO | EPERM);
    answer(SECCOMP_RET_ALLOW);
    answer(SECCOMP_RET_ERRNO | EPERM);
    struct sock_fprog program = {.len = (unsigned short)filled, .filter = filter};
    /* As Docker by default: without no_new_privs, while there is CAP_SYS_ADMIN. */
    NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
}

static void under(char *path, const char *root, const char *name)
{
    if (snprintf(path, 4096, "%s%s", root, name) >= 4096) _exit(125);
}

static void fresh(const char *root, const char *name, const char *kind, unsigned long flags, const char *options)
{
    char path[4096];
    under(path, root, name);
    NEED(mount(kind, path, kind, flags, options));
}

static void read_only(const char *root, const char *name)
{
    char path[4096];
    under(path, root, name);
    if (mount(path, path, NULL, MS_BIND | MS_REC, NULL) < 0 && errno == ENOENT) return;
    NEED(mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
}

static void masked(const char *root, const char *name)
{
    char path[4096];
    under(path, root, name);
    struct stat found;
    if (stat(path, &found) < 0) return;
    if (S_ISDIR(found.st_mode)) {
        NEED(mount("tmpfs", path, "tmpfs", MS_RDONLY, NULL));
    } else {
        NEED(mount("/dev/null", path, NULL, MS_BIND, NULL));
    }
}

static void devices(const char *root)
{
    static const struct {
        const char *name;
        int minor;
    } all[] = {{"/dev/null", 3}, {"/dev/zero", 5}, {"/dev/full", 7}, {"/dev/random", 8}, {"/dev/urandom", 9}};
    char path[4096];
    for (size_t i = 0; i < COUNT(all); i++) {
        under(path, root, all[i].name);
        NEED(mknod(path, S_IFCHR | 0666, makedev(1, all[i].minor)));
    }
    under(path, root, "/dev/tty");
    NEED(mknod(path, S_IFCHR | 0666, makedev(5, 0)));
    static const char *const folders[] = {"/dev/pts", "/dev/shm"};
    for (size_t i = 0; i < COUNT(folders); i++) {
        under(path, root, folders[i]);
        NEED(mkdir(path, 0755));
    }
    fresh(root, "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620");
    fresh(root, "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777,size=67108864");
    static const char *const links[][2] = {{"pts/ptmx", "/dev/ptmx"}, {"/proc/self/fd", "/dev/fd"},
                                           {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"},
                                           {"/proc/self/fd/2", "/dev/stderr"}};
    for (size_t i = 0; i < COUNT(links); i++) {
        under(path, root, links[i][1]);
        NEED(symlink(links[i][0], path));
    }
}

#define SHARES 8

/* A folder of the host, under the same path inside. */
static void share(const char *root, const char *name, int folder)
{
    char path[4096], source[64];
    under(path, root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = 0;
        (void)mkdir(path, 0755);
        *at = '/';
    }
    (void)mkdir(path, 0755);
    (void)snprintf(source, sizeof source, "/proc/self/fd/%d", folder);
    NEED(mount(source, path, NULL, MS_BIND, NULL));
    (void)close(folder);
}

static void make_root(const char *root, char **shared, int count)
{
    int folders[SHARES];
    NEED(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    for (int i = 0; i < count; i++) NEED(folders[i] = open(shared[i], O_PATH | O_DIRECTORY | O_CLOEXEC));
    NEED(mount("/", root, NULL, MS_BIND | MS_REC, NULL));
    fresh(root, "/proc", "proc", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);
    fresh(root, "/sys", "sysfs", MS_NOSUID | MS_NOEXEC | MS_NODEV | MS_RDONLY, NULL);
    fresh(root, "/tmp", "tmpfs", 0, "mode=1777");
    fresh(root, "/dev", "tmpfs", MS_NOSUID | MS_STRICTATIME, "mode=755,size=65536k");
    devices(root);
    for (int i = 0; i < count; i++) share(root, shared[i], folders[i]);
    static const char *const kept[] = {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"};
    for (size_t i = 0; i < COUNT(kept); i++) read_only(root, kept[i]);
    static const char *const hidden[] = {"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
                                         "/proc/timer_list", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"};
    for (size_t i = 0; i < COUNT(hidden); i++) masked(root, hidden[i]);
    NEED(chdir(root));
    NEED(syscall(SYS_pivot_root, ".", "."));
    NEED(umount2(".", MNT_DETACH));
    NEED(chdir("/"));
}

static void loopback(void)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    NEED(any);
    NEED(ioctl(any, SIOCSIFFLAGS, &lo));
    (void)close(any);
}

/* Docker's default: chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, net_raw,
 * sys_chroot, mknod, audit_write, setfcap (moby, oci/caps/defaults.go). */
static const uint64_t capabilities = 0x00000000a80425fb;

static void drop(uid_t user)
{
    for (int i = 0; i < 64; i++) {
        if (!(capabilities >> i & 1) && prctl(PR_CAPBSET_DROP, i, 0, 0, 0) < 0 && errno != EINVAL) _exit(125);
    }
    NEED(setgroups(0, NULL));
    NEED(setresgid(user, user, user));
    NEED(setresuid(user, user, user));
    uint64_t held = user == 0 ? capabilities : 0;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{(uint32_t)held, (uint32_t)held, 0},
                                             {(uint32_t)(held >> 32), (uint32_t)(held >> 32), 0}};
    NEED(syscall(SYS_capset, &header, data));
}

static int end_of(pid_t child)
{
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) return 125;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int count, char **words)
{
    if (count < 5) {
        fprintf(stderr, "usage: container ROOT UID SHARED COMMAND [ARGUMENT...]\n");
        return 125;
    }
    NEED(unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWCGROUP));
    pid_t child = fork();
    NEED(child);
    if (child != 0) return end_of(child);
    NEED(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0));
    (void)umask(0);
    char *shared[SHARES];
    int shares = 0;
    for (char *at = strtok(words[3], ":"); at != NULL && shares < SHARES; at = strtok(NULL, ":")) shared[shares++] = at;
    make_root(words[1], shared, shares);
    NEED(sethostname("container", 9));
    loopback();
    NEED(chdir(shared[0]));
    (void)umask(022);
    confine();
    drop((uid_t)atoi(words[2]));
    NEED(setenv("HOME", shared[0], 1));
    NEED(execvp(words[4], words + 4));
}
