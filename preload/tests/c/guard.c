/* What a program sees of SIGSEGV, and of guarded memory. The guard is put up by the program itself where the agent
   would do it ("arm"): tables are written by the test through the socket's process, protection by mprotect here. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "holdfast.h"

static sigjmp_buf back;
static volatile int seen;
static volatile char alt_used;
static char *alt;
#define ALT 65536

static void jump(int s) { seen++; siglongjmp(back, s); }
static void full(int s, siginfo_t *info, void *context) {
    char here;
    alt_used = &here >= alt && &here < alt + ALT;
    seen += (uintptr_t)info->si_addr == 16 && info->si_signo == SIGSEGV;
    siglongjmp(back, 1);
}
static void fix(int s, siginfo_t *info, void *context) {
    seen++;
    mprotect((void *)((uintptr_t)info->si_addr & ~4095ul), 4096, PROT_READ | PROT_WRITE);
}
static void deref(void) { *(volatile int *)16 = 1; }

static void handlers(void) {
    struct sigaction action = {0}, old;
    signal(SIGSEGV, jump);
    for (int i = 0; i < 3; i++)
        if (!sigsetjmp(back, 1)) deref();
    sigaction(SIGSEGV, NULL, &old);
    printf("jumps %d same %d flags %d\n", seen, old.sa_handler == jump, (old.sa_flags & SA_RESTART) != 0);

    alt = malloc(ALT);
    stack_t stack = {.ss_sp = alt, .ss_size = ALT};
    sigaltstack(&stack, NULL);
    action.sa_sigaction = full;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, NULL);
    seen = 0;
    if (!sigsetjmp(back, 1)) deref();
    printf("info %d on stack %d\n", seen, alt_used);

    action.sa_sigaction = fix;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, NULL);
    char *page = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    seen = 0;
    page[5] = 7;
    printf("fixed %d %d\n", seen, page[5]);

    action.sa_handler = jump;
    action.sa_flags = SA_RESETHAND;
    sigaction(SIGSEGV, &action, NULL);
    if (!sigsetjmp(back, 1)) deref();
    sigaction(SIGSEGV, NULL, &old);
    printf("reset %d\n", old.sa_handler == SIG_DFL);
}

static void masks(void) {
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGSEGV);
    printf("block %d", sigprocmask(SIG_BLOCK, &set, NULL));
    pthread_sigmask(SIG_BLOCK, NULL, &old);
    printf(" %d %d", sigismember(&old, SIGSEGV), sigismember(&old, SIGUSR1));
    unsigned long kernel = 0;
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &kernel, 8);
    printf(" kernel %d\n", (int)(kernel >> (SIGSEGV - 1) & 1));
    signal(SIGSEGV, jump);
    seen = 0;
    if (!sigsetjmp(back, 0)) {
        raise(SIGSEGV);
        printf("held %d\n", seen);
        sigprocmask(SIG_UNBLOCK, &set, NULL);
    }
    printf("sent %d\n", seen);
    sigfillset(&set);
    sigprocmask(SIG_SETMASK, &set, NULL);
    sigprocmask(SIG_SETMASK, NULL, &old);
    printf("full %d %d\n", sigismember(&old, SIGSEGV), sigismember(&old, SIGSTKFLT));
}

/* "die N": ends by a fault, in several ways; the status is the test. */
static void die(int way) {
    sigset_t set;
    sigfillset(&set);
    if (way == 1) { signal(SIGSEGV, jump); sigprocmask(SIG_SETMASK, &set, NULL); if (sigsetjmp(back, 1)) _exit(9); }
    if (way == 2) signal(SIGSEGV, SIG_IGN);
    if (way == 3) { raise(SIGSEGV); _exit(9); }
    deref();
    _exit(8);
}

/* The rest is driven by the test, which plays the agent. */
static char *region;
static size_t pages;
static void *writer(void *arg) { region[(uintptr_t)arg * 4096] = 'w'; return arg; }

static void guarded(void) {
    char line[128];
    pages = 64;
    region = holdfast_malloc_protected("region", pages * 4096);
    for (size_t i = 0; i < pages; i++) memset(region + i * 4096, 'a' + i % 20, 4096);
    printf("region %lu %d\n", (unsigned long)region, getpid());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        size_t n = 0, m = 0;
        if (!strncmp(line, "close", 5)) syscall(SYS_mprotect, region, pages * 4096, PROT_READ);
        else if (sscanf(line, "write %zu", &n) == 1) region[n * 4096] = 'w';
        else if (sscanf(line, "thread %zu", &n) == 1) {
            pthread_t t;
            pthread_create(&t, 0, writer, (void *)n);
            pthread_detach(t);
        } else if (sscanf(line, "read %zu", &n) == 1) {
            int ends[2]; pipe(ends); write(ends[1], "xyz", 3);
            printf("%zd ", read(ends[0], region + n * 4096, 3)); close(ends[0]); close(ends[1]);
        } else if (sscanf(line, "readv %zu %zu", &n, &m) == 2) {
            int ends[2]; pipe(ends); write(ends[1], "xyz", 3);
            struct iovec v[2] = {{region + n * 4096, 1}, {region + m * 4096, 2}};
            printf("%zd ", readv(ends[0], v, 2)); close(ends[0]); close(ends[1]);
        } else if (sscanf(line, "drop %zu", &n) == 1) printf("%d ", madvise(region + n * 4096, 4096, MADV_DONTNEED));
        else if (sscanf(line, "unmap %zu", &n) == 1) printf("%d ", munmap(region + n * 4096, 4096));
        else if (sscanf(line, "fork %zu", &n) == 1) {
            pid_t child = fork(); int status;
            if (!child) {
                region[n * 4096] = 'c';
                region[(n + 1) * 4096] = 'c';
                _exit(region[n * 4096] == 'c' ? 5 : 6);
            }
            waitpid(child, &status, 0); printf("%d %c ", WEXITSTATUS(status), region[n * 4096]);
        } else if (!strncmp(line, "free", 4)) printf("%d ", holdfast_free_protected(region));
        else if (sscanf(line, "get %zu", &n) == 1) printf("%c ", region[n * 4096]);
        else if (sscanf(line, "raw %zu", &n) == 1) {
            signal(SIGSEGV, jump); seen = 0;
            syscall(SYS_mprotect, region + n * 4096, 4096, PROT_READ);
            if (!sigsetjmp(back, 1)) region[n * 4096] = 'r';
            printf("%d ", seen);
        }
        printf("done\n");
        fflush(stdout);
    }
}

int main(int count, char **args) {
    setvbuf(stdout, 0, _IOLBF, 4096);
    if (!strcmp(args[1], "handlers")) handlers();
    else if (!strcmp(args[1], "masks")) masks();
    else if (!strcmp(args[1], "die")) die(atoi(args[2]));
    else guarded();
    return 0;
}
