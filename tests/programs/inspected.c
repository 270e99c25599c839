/* A program that a part of itself traces for a moment, again and again, as LeakSanitizer does once at the end of a
 * program: a process that shares its memory (clone with CLONE_VM) attaches to it, looks, and ends.
 * `inspected [ROUNDS]` */
#include "rounds.h"
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define STACK 65536
#define LOOK_NS 40000000
static char stack[STACK] __attribute__((aligned(4096)));
static volatile long seized;

/* In such a process the C library must not be called: errno would be that of the maker. */
static int look(void *argument)
{
    struct timespec moment = {0, LOOK_NS}, short_moment = {0, 1000000};
    /* While a checkpoint has it another one may not. */
    while ((seized = raw_call(SYS_ptrace, PTRACE_SEIZE, (long)(intptr_t)argument)) == -EPERM
           && raw_call(SYS_getppid, 0, 0) == (long)(intptr_t)argument)
        raw_call(SYS_nanosleep, (long)&short_moment, 0);
    raw_call(SYS_nanosleep, (long)&moment, 0);
    raw_call(SYS_exit, 0, 0);
    return 0;
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 20);
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* EINVAL where there is no Yama */
    for (long round = 0; round < rounds; round++) {
        step("inspected round %ld", round);
        pid_t inspector = clone(look, stack + STACK, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_UNTRACED,
                                (void *)(intptr_t)getpid());
        CHECK(inspector > 0);
        CHECK(waitpid(inspector, NULL, __WALL) == inspector && seized == 0);
        sleep_ms(60);
    }
    return pass();
}
