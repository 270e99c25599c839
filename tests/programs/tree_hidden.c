/* A daemon that its own user may not look into, as ssh-agent is one, and in which there is no libholdfast. The program
 * ends when there is a file called `enough`. `tree_hidden` */
#include "common.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

/* Begun by a child of the program that ends at once. */
static int be_daemon(void)
{
    FILE *file = fopen("daemon.pid", "we");
    CHECK(file != NULL);
    pid_t daemon = fork();
    CHECK(daemon >= 0);
    if (daemon != 0) {
        CHECK(fprintf(file, "%d\n", daemon) > 0 && fclose(file) == 0);
        return 0;
    }
    CHECK(setsid() > 0);
    for (int fd = 0; fd < 16; fd++) close(fd);
    if (prctl(PR_SET_DUMPABLE, 0) != 0) return 1;
    while (pause() != 0) {}
    return 1;
}

int main(int argc, char **argv)
{
    int status, daemon = 0;
    if (argc > 1) return be_daemon();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", argv[0], "daemon", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    FILE *file = fopen("daemon.pid", "re");
    CHECK(file != NULL && fscanf(file, "%d", &daemon) == 1 && fclose(file) == 0);
    step("round 1");
    while (access("enough", F_OK) != 0) sleep_ms(20);
    CHECK(kill(daemon, SIGKILL) == 0);
    return pass();
}
