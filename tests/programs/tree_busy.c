/* Starts /bin/true and other short programs all the time, in every way; each must end with the status that it gives,
 * and no other one. `tree_busy [TURNS] [SPAWNERS]` */
#include "tree.h"
#include <spawn.h>

static void by_fork(char **words)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        execv(words[0], words);
        _exit(99);
    }
    ended(pid, 0);
}

static void by_vfork(char **words)
{
    pid_t pid = vfork();
    if (pid == 0) {
        execv(words[0], words);
        _exit(99);
    }
    CHECK(pid > 0);
    ended(pid, 0);
}

static void by_spawn(char **words)
{
    pid_t pid = -1;
    CHECK_ZERO(posix_spawn(&pid, words[0], NULL, NULL, words, environ));
    ended(pid, 0);
}

static void by_shell(char **words)
{
    char line[8] = "";
    FILE *stream = popen("echo word; exit 3", "r");
    (void)words;
    CHECK(stream != NULL && fgets(line, sizeof line, stream) != NULL && strcmp(line, "word\n") == 0);
    int status = pclose(stream);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    status = system("exit 5");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
}

static void spawn(uint64_t turn)
{
    char name[] = "/bin/true", *words[] = {name, NULL};
    static void (*const ways[])(char **) = {by_fork, by_spawn, by_vfork, by_spawn, by_shell};
    ways[turn % 5](words);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
}

static void spawn_on(int in, int out, uint64_t number)
{
    uint64_t turn;
    while (hear_or_end(in, &turn)) {
        for (int i = 0; i < 5; i++) spawn(turn + number);
        tell(out, turn);
    }
}

int main(int argc, char **argv)
{
    long turns = number_argument(argc, argv, 1, 200), spawners = number_argument(argc, argv, 2, 2);
    for (long i = 0; i < spawners; i++) fork_child(spawn_on, (uint64_t)i);
    for (uint64_t turn = 0; turn < (uint64_t)turns; turn++) {
        for (int i = 0; i < spawners; i++) tell(children[i].to, turn);
        for (int i = 0; i < spawners; i++) CHECK(hear(children[i].from) == turn);
        sleep_ms(5);
        step("busy turn %lu", (unsigned long)turn);
    }
    finish_all(0);
    return pass();
}
