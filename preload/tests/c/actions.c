/* What a program sets for the signal of HOLDFAST_ON_STOP, and is told of it. Usage: actions HOW, and lines on stdin
 * have it go on; the signal is 15. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int calls, has_context;

static void one(int signal) { calls += signal; }

static void three(int signal, siginfo_t *info, void *context) {
    calls += signal;
    has_context = info->si_signo == signal && context != NULL;
}

static void set(void (*handler)(int), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGTERM, &action, NULL);
}

static void tell(const char *what) {
    struct sigaction action;
    sigaction(SIGTERM, NULL, &action);
    const char *is = action.sa_handler == SIG_DFL ? "default" : action.sa_handler == SIG_IGN ? "ignored"
        : action.sa_handler == one ? "one" : action.sa_sigaction == three ? "three" : "another";
    printf("%s: %s %x %d, %d calls\n", what, is, action.sa_flags & ~0x04000000 /* SA_RESTORER */,
        sigismember(&action.sa_mask, SIGUSR2), calls / SIGTERM);
}

int main(void) {
    char line[16];
    setvbuf(stdout, NULL, _IOLBF, 0);
    tell("start");
    set(one, SA_RESTART);
    tell("set");
    pid_t child = vfork();
    if (child == 0) {
        signal(SIGTERM, SIG_DFL);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    tell("vfork");
    printf("old %d\n", signal(SIGTERM, one) == one);
    puts("ready");
    fgets(line, sizeof line, stdin); /* the signal, with an agent */
    tell("asked");
    fgets(line, sizeof line, stdin); /* the agent has gone */
    raise(SIGTERM);
    tell("alone");
    set((void (*)(int))three, SA_SIGINFO | SA_RESETHAND);
    tell("once");
    raise(SIGTERM);
    printf("context %d\n", has_context);
    tell("after");
    set(SIG_IGN, 0);
    raise(SIGTERM);
    tell("ignores");
    signal(SIGTERM, SIG_DFL);
    tell("default");
    raise(SIGTERM);
    return 0;
}
