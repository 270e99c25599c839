/* Seccomp filters that a program installs itself: `filters KIND [ROUNDS]`
 * KIND: all (one over the other, by prctl and seccomp, all threads with TSYNC; the child of a
 * vfork has one of its own), threads (each under its own), forked
 * (children of a confined process), executed (a program that was executed under a filter), narrow (a child that may
 * make few calls, and is ended at any other), strict (a thread)
 * In each round each thread makes the calls that are forbidden to it, and those that are not. What is forbidden fails
 * with an error's number that no kernel returns, so that it is known which filter has spoken. */
#include "rounds.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, action)

enum { BY_PRCTL = 1000 };

/* Forbids a call, with an error's number of its own. */
static void forbid(long number, int error, unsigned flags)
{
    struct sock_filter code[] = {
        LOAD(arch), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0), RETURN(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        RETURN(SECCOMP_RET_ERRNO | (unsigned)error), RETURN(SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (flags == BY_PRCTL)
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
    else
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0);
    /* What was read of it is not read again. */
    memset(code, 0xff, sizeof code);
}

static long error_of(long number)
{
    errno = 0;
    return raw_call(number, -1, 0);
}

static int count_filters(void)
{
    char line[256];
    int seen = -1;
    snprintf(line, sizeof line, "/proc/self/task/%d/status", (int)syscall(SYS_gettid));
    FILE *file = fopen(line, "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) sscanf(line, "Seccomp_filters: %d", &seen);
    fclose(file);
    return seen;
}

/* Those that were there before: a container's. */
static int of_the_host;

static void check_filters(int expected) { CHECK(count_filters() == of_the_host + expected); }

/* --- threads --- */

enum { THREADS = 3, NO_CALL = -1 };
static pthread_barrier_t begin, end;
static int own_filters;

/* Which of the three calls are forbidden, by what. */
static void check_calls(int of_all, int own)
{
    CHECK(error_of(SYS_getppid) == (of_all ? -1001 : getppid()));
    CHECK(error_of(SYS_getsid) == (of_all ? -1002 : -ESRCH));
    CHECK(error_of(SYS_getpgid) == (own ? -own : -ESRCH));
}

static void *worker(void *argument)
{
    int number = (int)(intptr_t)argument, own = own_filters ? 1010 + number : 0;
    if (own) forbid(SYS_getpgid, own, number % 2 ? BY_PRCTL : SECCOMP_FILTER_FLAG_LOG);
    for (;;) {
        pthread_barrier_wait(&begin);
        check_calls(!own_filters, own);
        check_filters(own_filters ? 1 : 2);
        pthread_barrier_wait(&end);
    }
    return NULL;
}

static void make_threads(void)
{
    pthread_t thread;
    CHECK_ZERO(pthread_barrier_init(&begin, NULL, THREADS + 1));
    CHECK_ZERO(pthread_barrier_init(&end, NULL, THREADS + 1));
    for (intptr_t i = 0; i < THREADS; i++) CHECK_ZERO(pthread_create(&thread, NULL, worker, (void *)i));
}

/* The memory of such a child is its parent's, the filter is its own. */
static void in_vfork(void)
{
    int status;
    pid_t pid = vfork();
    CHECK(pid >= 0);
    if (pid == 0) {
        forbid(SYS_getpgid, 1010, BY_PRCTL);
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void all(void)
{
    in_vfork();
    forbid(SYS_getppid, 1001, BY_PRCTL);
    make_threads();
    in_vfork();
    forbid(SYS_getsid, 1002, SECCOMP_FILTER_FLAG_TSYNC);
}

static void all_round(long round)
{
    (void)round;
    pthread_barrier_wait(&begin);
    check_calls(1, 0);
    check_filters(2);
    pthread_barrier_wait(&end);
}

static void threads(void)
{
    own_filters = 1;
    make_threads();
}

static void threads_round(long round)
{
    (void)round;
    pthread_barrier_wait(&begin);
    check_calls(0, 0);
    check_filters(0);
    pthread_barrier_wait(&end);
}

/* --- children --- */

static int questions[2], answers[2];

static void child(int filters)
{
    char byte;
    while (read(questions[0], &byte, 1) == 1) {
        CHECK(error_of(SYS_getsid) == -1002 && error_of(SYS_getpgid) == (filters > 1 ? -1010 : -ESRCH));
        check_filters(filters);
        CHECK(write(answers[1], "y", 1) == 1);
    }
    _exit(0);
}

static void forked(void)
{
    CHECK(pipe(questions) == 0 && pipe(answers) == 0);
    forbid(SYS_getsid, 1002, 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        close(questions[1]);
        forbid(SYS_getpgid, 1010, 0);
        child(2);
    }
}

static void ask(long round)
{
    char byte;
    (void)round;
    CHECK(write(questions[1], "?", 1) == 1);
    CHECK(read(answers[0], &byte, 1) == 1 && byte == 'y');
}

static void forked_round(long round)
{
    CHECK(error_of(SYS_getsid) == -1002 && error_of(SYS_getpgid) == -ESRCH);
    check_filters(1);
    ask(round);
}

static void executed(void)
{
    CHECK(pipe(questions) == 0 && pipe(answers) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        close(questions[1]);
        CHECK(dup2(questions[0], 0) == 0 && dup2(answers[1], 1) == 1);
        forbid(SYS_getsid, 1002, 0);
        char host[16];
        snprintf(host, sizeof host, "%d", of_the_host);
        execl("/proc/self/exe", "filters", "child", host, NULL);
        _exit(1);
    }
}

static void ended_child(void)
{
    int status;
    close(questions[1]);
    CHECK(wait(&status) > 0 && status == 0);
}

/* Nothing but read, write, exit_group and the return from a handler: the library's own calls are forbidden, too. */
static void narrow(void)
{
    CHECK(pipe(questions) == 0 && pipe(answers) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        struct sock_filter code[] = {LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 5, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 4, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 3, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 2, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_restart_syscall, 1, 0), RETURN(SECCOMP_RET_KILL_PROCESS),
            RETURN(SECCOMP_RET_ALLOW)};
        struct sock_fprog program = {sizeof code / sizeof code[0], code};
        char byte;
        close(questions[1]);
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
        while (read(questions[0], &byte, 1) == 1)
            if (write(answers[1], "y", 1) != 1) _exit(1);
        _exit(0);
    }
}

/* --- the strict mode --- */

static void *strict_thread(void *argument)
{
    char byte;
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) == 0);
    while (syscall(SYS_read, questions[0], &byte, 1) == 1) syscall(SYS_write, answers[1], "y", 1);
    return argument;
}

static void strict(void)
{
    pthread_t thread;
    CHECK(pipe(questions) == 0 && pipe(answers) == 0);
    CHECK_ZERO(pthread_create(&thread, NULL, strict_thread, NULL));
    ask(0);
}

static const struct kind kinds[] = {{"all", all, all_round}, {"threads", threads, threads_round},
    {"forked", forked, forked_round}, {"executed", executed, ask}, {"narrow", narrow, ask},
    {"strict", strict, ask}};

int main(int argc, char **argv)
{
    of_the_host = argc > 2 && strcmp(argv[1], "child") == 0 ? atoi(argv[2]) : count_filters();
    if (argc > 1 && strcmp(argv[1], "child") == 0) {
        questions[0] = 0;
        answers[1] = 1;
        child(1);
    }
    int status = RUN_KIND(kinds);
    if (argc > 1 && strchr("fen", argv[1][0]) != NULL) ended_child();
    return status;
}
