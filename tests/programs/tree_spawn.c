/* Starts itself with other arguments, by fork + exec, vfork + exec and posix_spawn in turn; what it started works a
 * while, answers on descriptor 7 and ends with a code. `tree_spawn [ROUNDS]`; `tree_spawn worker N` is what it
 * starts. */
#include "tree.h"
#include <spawn.h>

#define ANSWERS 7
#define HOW 3

static int work(int argc, char **argv)
{
    CHECK(argc == 3);
    long number = strtol(argv[2], NULL, 10);
    const char *told = getenv("TREE_SPAWN");
    CHECK(told != NULL && strcmp(told, argv[2]) == 0);
    CHECK(fcntl(ANSWERS, F_GETFD) == 0 && fcntl(ANSWERS + 1, F_GETFD) == -1);
    sleep_ms(ROUND_MS);
    tell(ANSWERS, mix((uint64_t)number));
    return (int)(number % 100);
}

static pid_t by_fork(char **words, int out)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid != 0) return pid;
    CHECK(dup2(out, ANSWERS) == ANSWERS);
    execv(words[0], words);
    _exit(99);
}

static pid_t by_vfork(char **words, int out)
{
    pid_t pid = vfork();
    if (pid == 0) {
        if (dup2(out, ANSWERS) == ANSWERS) execv(words[0], words);
        _exit(99);
    }
    CHECK(pid > 0);
    return pid;
}

static pid_t by_spawn(char **words, int out)
{
    posix_spawn_file_actions_t actions;
    pid_t pid = -1;
    CHECK_ZERO(posix_spawn_file_actions_init(&actions));
    CHECK_ZERO(posix_spawn_file_actions_adddup2(&actions, out, ANSWERS));
    CHECK_ZERO(posix_spawn(&pid, words[0], &actions, NULL, words, environ));
    CHECK_ZERO(posix_spawn_file_actions_destroy(&actions));
    return pid;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "worker") == 0) return work(argc, argv);
    long rounds = number_argument(argc, argv, 1, 100);
    pid_t (*const ways[HOW])(char **, int) = {by_fork, by_vfork, by_spawn};
    for (long round = 0; round < rounds; round++) {
        char number[24], worker[] = "worker", *words[] = {argv[0], worker, number, NULL};
        int ends[2];
        snprintf(number, sizeof number, "%ld", round);
        CHECK(setenv("TREE_SPAWN", number, 1) == 0 && pipe2(ends, O_CLOEXEC) == 0);
        pid_t pid = ways[round % HOW](words, ends[1]);
        CHECK(close(ends[1]) == 0);
        CHECK(hear(ends[0]) == mix((uint64_t)round));
        ended(pid, (int)(round % 100));
        CHECK(read(ends[0], number, 1) == 0 && close(ends[0]) == 0);
        step("spawn round %ld", round);
    }
    return pass();
}
