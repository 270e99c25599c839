/* Walks through what the library follows; the test listens. Usage: life WHAT */
#define _GNU_SOURCE
#include "holdfast.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sched.h>
#include <unistd.h>

extern char **environ;

/* Numbers of open descriptors and threads, as the kernel counts them. */
static void list(const char *folder) {
    DIR *entries = opendir(folder);
    int own = dirfd(entries);
    for (struct dirent *entry; (entry = readdir(entries));)
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != own)
            printf(strcmp(folder, "/proc/self/fd") == 0 ? "fd %s\n" : "thread\n", entry->d_name);
    closedir(entries);
}

static void *in_thread(void *nothing) {
    static char stack[65536];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack}, old;
    errno = 5;
    int set = sigaltstack(&alternate, NULL), asked = sigaltstack(NULL, &old), kept = errno;
    alternate.ss_flags = 99;
    int wrong = sigaltstack(&alternate, NULL);
    printf("altstack %d %d %d %d %d\n", set, asked, old.ss_sp == stack, kept, wrong == -1 && errno == EINVAL);
    return nothing;
}

static void *api_in_thread(void *nothing) {
    printf("second %d\n", holdfast_checkpoint());
    return nothing;
}

static void ids(void) {
    pid_t pid = getpid();
    printf("ids %d %d %d\n", pid == syscall(SYS_getpid), gettid() == syscall(SYS_gettid),
        getppid() == syscall(SYS_getppid));
    errno = 0;
    int none = kill(0x7ffffff0, 0);
    printf("kill %d %d %d\n", kill(pid, 0), none, errno == ESRCH);
    errno = 0;
    long closed = syscall(SYS_close, -1);
    printf("syscall %ld %d\n", closed, errno == EBADF);
    long sixth = syscall(SYS_mmap, 0L, 4096L, 1L, 0x22L, -1L, 0L); /* the sixth argument comes from the stack */
    printf("mmap %d\n", sixth > 0);
    setpriority(PRIO_PROCESS, 0, 5);
    errno = 0;
    int nice = getpriority(PRIO_PROCESS, pid);
    printf("nice %d %d\n", nice, errno);
    cpu_set_t set;
    memset(&set, 0xff, sizeof set);
    int asked = sched_getaffinity(pid, sizeof set, &set);
    printf("affinity %d %d\n", asked, CPU_COUNT(&set) == sysconf(_SC_NPROCESSORS_ONLN));
    printf("set affinity %d\n", sched_setaffinity(0, sizeof set, &set));
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    siginfo_t info;
    union sigval value = {.sival_int = 4711};
    printf("sigqueue %d\n", sigqueue(pid, SIGRTMIN, value));
    sigwaitinfo(&mask, &info);
    printf("siginfo %d %d %d %d\n", info.si_value.sival_int, info.si_pid == pid, info.si_uid == getuid(),
        info.si_code == SI_QUEUE);
    pid_t child = syscall(SYS_fork);
    if (child == 0)
        _exit(7);
    int status;
    waitpid(child, &status, 0);
    printf("raw fork %d\n", WEXITSTATUS(status));
}

int main(int count, char **arguments) {
    int start_errno = errno;
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *what = count > 1 ? arguments[1] : "";
    if (strcmp(what, "list") == 0) {
        printf("errno %d\n", start_errno);
        list("/proc/self/fd");
        list("/proc/self/task");
    } else if (strcmp(what, "fork") == 0) {
        errno = 12;
        pid_t child = fork();
        if (child == 0) {
            printf("child errno %d\n", errno);
            list("/proc/self/fd");
            _exit(0);
        }
        waitpid(child, NULL, 0);
        posix_spawnp(&child, "true", NULL, NULL, (char *[]){"true", NULL}, environ);
        waitpid(child, NULL, 0);
    } else if (strcmp(what, "setsid") == 0) {
        if (fork() == 0)
            _exit(setsid() != getpid() || (setsid() != -1 || errno != EPERM));
        int status;
        wait(&status);
        printf("setsid %d\n", status);
    } else if (strcmp(what, "daemon") == 0) {
        printf("daemon\n");
        return daemon(1, 1);
    } else if (strcmp(what, "altstack") == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, in_thread, NULL);
        pthread_join(thread, NULL);
    } else if (strcmp(what, "ids") == 0) {
        ids();
    } else if (strcmp(what, "checkpoint") == 0) {
        printf("first %d\n", holdfast_checkpoint());
        printf("second %d\n", holdfast_checkpoint());
        printf("third %d\n", holdfast_checkpoint());
        printf("restarted %d\n", holdfast_restarted());
        list("/proc/self/fd");
    } else if (strcmp(what, "start") == 0) {
        printf("first %d\n", holdfast_checkpoint_start());
        printf("second %d\n", holdfast_checkpoint_start());
        list("/proc/self/fd");
    } else if (strcmp(what, "two threads") == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, api_in_thread, NULL);
        pthread_join(thread, NULL);
        printf("first %d\n", holdfast_checkpoint());
    } else if (strcmp(what, "busy") == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, api_in_thread, NULL);
        usleep(300000);
        printf("first %d\n", holdfast_checkpoint());
        pthread_join(thread, NULL);
    } else if (strcmp(what, "signal") == 0) {
        errno = 9;
        raise(atoi(arguments[2]));
        printf("after the signal, errno %d\n", errno);
        list("/proc/self/fd");
    } else if (strcmp(what, "restore") == 0) {
        char data[16] = "", wrong[8192];
        printf("restore %d", holdfast_restore_protected("field", data, 13));
        printf(" %s\n", data);
        printf("size %d\n", holdfast_restore_protected("field", wrong, 8192));
        printf("not found %d\n", holdfast_restore_protected("other", wrong, 1));
    } else if (strcmp(what, "virtual") == 0) {
        puts("ready");
        getchar();
        ids();
        printf("known %d %d\n", getpid(), setsid() == getpid());
        errno = 0;
        int wrong = kill(atoi(arguments[2]), 0);
        printf("unknown %d\n", wrong);
        printf("tgkill %d\n", tgkill(getpid(), gettid(), 0));
        printf("groups %d %d\n", getpgid(0) == getpid(), kill(-getpid(), 0));
        raise(SIGCONT);
    } else if (strcmp(what, "environment") == 0) {
        const char *socket = getenv("HOLDFAST_SOCKET");
        printf("%s\n", socket ? socket : "none");
        setenv("ANOTHER", "1", 1);
        system("echo $HOLDFAST_SOCKET $ANOTHER");
        list("/proc/self/fd");
        printf("children %d\n", wait(NULL) == -1 && errno == ECHILD);
    }
    return 0;
}
