/* Who ignores SIGCHLD, or asks for no zombies, gets none: wait(2) sleeps until the last child has ended, and says
 * ECHILD. `tree_ignored [ROUNDS]` */
#include "tree.h"

static volatile sig_atomic_t counted;

static void count(int number, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    counted += number == SIGCHLD;
}

static void choose(long round)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    if (round % 2 == 0)
        CHECK(sigaction(SIGCHLD, &ignore, NULL) == 0);
    else
        handle(SIGCHLD, count, SA_RESTART | SA_NOCLDWAIT);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    pid_t pids[3];
    for (long round = 0; round < rounds; round++) {
        int before = counted;
        choose(round);
        for (int i = 0; i < 3; i++) {
            CHECK((pids[i] = fork()) >= 0);
            if (pids[i] != 0) continue;
            sleep_ms(ROUND_MS / (i + 1));
            _exit(i);
        }
        CHECK(waitpid(pids[0], NULL, 0) == -1 && errno == ECHILD);
        CHECK(wait(NULL) == -1 && errno == ECHILD);
        /* their ids are given back a little later, and may be those of somebody else at once */
        for (int i = 0; i < 3; i++)
            while (getpgid(pids[i]) == getpgrp()) usleep(100);
        /* the three ends may come as fewer signals, but not as more */
        CHECK(round % 2 == 0 ? counted == before : counted > before && counted <= before + 3);
        step("ignored round %ld", round);
    }
    return pass();
}
