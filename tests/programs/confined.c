/* A program, a thread or a child of it that is confined otherwise than its job is: `confined KIND ROUNDS`
 * KIND: a namespace (pid, time; socket_file, socket, nested, deep: what is in one), landlock, thread_uts,
 * thread_strict, child_files */
#include "apart.h"
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

static int quiet[2];

/* An ordinary user needs a user namespace for all others. */
static void leave(int namespace)
{
    if (unshare(namespace) != 0 && unshare(CLONE_NEWUSER | namespace) != 0) not_here("unshare");
}

/* In a file system that only it has. */
static void socket_file(void)
{
    leave_for(CLONE_NEWNS, 0, 0);
    CHECK(mkdir("confined.own", 0755) == 0 || errno == EEXIST);
    CHECK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    CHECK(mount("own", "confined.own", "tmpfs", 0, NULL) == 0 && mknod("confined.own/socket", S_IFSOCK | 0600, 0) == 0);
}

/* A socket of a network namespace in which no process is any more: a child has left it to its parent. */
static void with_socket(void)
{
    int ends[2], made;
    union { char room[CMSG_SPACE(sizeof made)]; struct cmsghdr head; } control;
    char byte = 0;
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, 
        .msg_controllen = sizeof control};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t maker = fork();
    CHECK(maker >= 0);
    if (maker == 0) {
        leave(CLONE_NEWNET);
        CHECK((made = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
        control.head =
            (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof made)};
        memcpy(CMSG_DATA(&control.head), &made, sizeof made);
        CHECK(sendmsg(ends[1], &message, 0) == 1);
        _exit(0);
    }
    close(ends[1]);
    if (recvmsg(ends[0], &message, 0) != 1) exit(77);
    CHECK(waitpid(maker, NULL, 0) == maker && close(ends[0]) == 0);
}

static void pid(void) { leave(CLONE_NEWPID); }
static void time_namespace(void) { leave(CLONE_NEWTIME); }

/* No file is made any more, and no signal is sent to who is outside (LANDLOCK_SCOPE_SIGNAL, Linux 6.12). */
static void landlock(void)
{
    uint64_t handled[] = {LANDLOCK_ACCESS_FS_MAKE_REG, 0, 2};
    int rules = (int)syscall(SYS_landlock_create_ruleset, handled, sizeof handled, 0);
    if (rules < 0) not_here("landlock_create_ruleset");
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_landlock_restrict_self, rules, 0) == 0 && close(rules) == 0);
    CHECK(open("confined.new", O_WRONLY | O_CREAT, 0600) == -1 && errno == EACCES);
}

/* --- one thread --- */

static volatile int ready;

static void *of_thread(void *confine)
{
    char byte;
    ((void (*)(void))confine)();
    ready = 1;
    /* All that the strict mode allows. */
    while (syscall(SYS_read, quiet[0], &byte, 1) == 1) {}
    return NULL;
}

static void in_thread(void (*confine)(void))
{
    pthread_t thread;
    CHECK_ZERO(pthread_create(&thread, NULL, of_thread, (void *)confine));
    while (!ready) sleep_ms(1);
}

static void own_uts(void)
{
    if (unshare(CLONE_NEWUTS) != 0) not_here("unshare");
}

static void strict(void) { CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0); }

static void thread_uts(void) { in_thread(own_uts); }
static void thread_strict(void) { in_thread(strict); }

/* --- a child --- */

static pid_t child;

/* Says when it is ready, or that it cannot be. */
static void in_child(void (*confine)(void), unsigned long flags)
{
    int told[2];
    char byte;
    CHECK(pipe(told) == 0);
    child = flags == 0 ? fork() : (pid_t)syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    CHECK(child >= 0);
    if (child == 0) {
        if (confine != NULL) confine();
        CHECK(write(told[1], "", 1) == 1);
        for (;;) pause();
    }
    /* With CLONE_FILES the descriptors are its, too. */
    if (flags == 0) close(told[1]);
    if (read(told[0], &byte, 1) != 1) exit(77);
}


/* In a pid namespace within another one. */
static void enter_deep(void)
{
    for (int level = 0; level < 2; level++) {
        leave(CLONE_NEWPID);
        pid_t inside = fork();
        CHECK(inside >= 0);
        if (inside > 0) {
            while (waitpid(inside, NULL, 0) != inside) {}
            _exit(0);
        }
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    }
}

static void deep(void) { in_child(enter_deep, 0); }

/* As who it is: who has no id inside may make no other one there (user_namespaces(7)). */
static void user(void) { leave_for(CLONE_NEWUSER, geteuid(), getegid()); }

/* In one below its own. */
static void nested(void)
{
    user();
    in_child(user, 0);
}

static void child_files(void) { in_child(NULL, CLONE_FILES); }

static const struct kind kinds[] = {
    {"pid", pid, NULL}, {"time", time_namespace, NULL}, {"socket", with_socket, NULL},
    {"socket_file", socket_file, NULL}, {"nested", nested, NULL}, {"deep", deep, NULL},
    {"thread_uts", thread_uts, NULL},
    {"thread_strict", thread_strict, NULL},
    {"landlock", landlock, NULL}, {"child_files", child_files, NULL}};

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 2, 15);
    CHECK(pipe(quiet) == 0);
    for (size_t i = 0; argc > 1 && i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, argv[1]) == 0) kinds[i].prepare();
    for (long round = 0; round < rounds; round++) {
        step("confined round %ld", round);
        sleep_ms(100);
    }
    if (child > 0) {
        int status;
        CHECK(waitpid(child, &status, WNOHANG) == 0);
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    }
    return pass();
}
