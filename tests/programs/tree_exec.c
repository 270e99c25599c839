/* Programs that become another one while they have relatives: the child executes itself anew in every round and keeps
 * its pipes; the first process does so once, in the middle, and still has its children. `tree_exec [ROUNDS]` */
#include "tree.h"

static const char *own_path;

static void become(const char *role, int in, int out, uint64_t count)
{
    char words[4][24], path[4096], name[24];
    snprintf(words[0], 24, "%d", in);
    snprintf(words[1], 24, "%d", out);
    snprintf(words[2], 24, "%lu", (unsigned long)count);
    snprintf(words[3], 24, "%d", (int)getpid());
    snprintf(path, sizeof path, "%s", own_path);
    snprintf(name, sizeof name, "%s", role);
    CHECK(fcntl(in, F_SETFD, 0) == 0 && fcntl(out, F_SETFD, 0) == 0);
    execv(path, (char *[]){path, name, words[0], words[1], words[2], words[3], NULL});
    CHECK(!"execv");
}

/* One round of the child; it lives on in the next program. */
static void be_child(int in, int out, uint64_t count)
{
    uint64_t round;
    CHECK(fcntl(in, F_SETFD, FD_CLOEXEC) == 0 && fcntl(out, F_SETFD, FD_CLOEXEC) == 0);
    if (!hear_or_end(in, &round)) _exit((int)(count % 100));
    CHECK(round == count);
    tell(out, mix(round));
    become("child", in, out, count + 1);
}

static void be_first(struct child *child, uint64_t from, uint64_t to)
{
    for (uint64_t round = from; round < to; round++) {
        tell(child->to, round);
        sleep_ms(ROUND_MS);
        CHECK(hear(child->from) == mix(round) && waitpid(-1, NULL, WNOHANG) == 0);
        step("exec round %lu", (unsigned long)round);
    }
}

int main(int argc, char **argv)
{
    own_path = argv[0];
    if (argc > 5 && strcmp(argv[1], "child") == 0) {
        CHECK(atoi(argv[5]) == getpid());
        be_child(atoi(argv[2]), atoi(argv[3]), strtoul(argv[4], NULL, 10));
    }
    if (argc > 5 && strcmp(argv[1], "second") == 0) { /* the first process, in its second life */
        uint64_t half = strtoul(argv[4], NULL, 10);
        CHECK(atoi(argv[5]) == getpid());
        struct child child = {(pid_t)hear(atoi(argv[3])), atoi(argv[2]), atoi(argv[3])};
        CHECK(fcntl(child.to, F_SETFD, FD_CLOEXEC) == 0 && fcntl(child.from, F_SETFD, FD_CLOEXEC) == 0);
        step_number = (int)half;
        be_first(&child, half, 2 * half);
        finish(&child, (int)(2 * half % 100));
        return pass();
    }
    uint64_t half = (uint64_t)number_argument(argc, argv, 1, 100) / 2;
    int down[2], up[2];
    CHECK(pipe(down) == 0 && pipe(up) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(close(down[1]) == 0 && close(up[0]) == 0);
        be_child(down[0], up[1], 0);
    }
    struct child child = {pid, down[1], up[0]};
    CHECK(close(down[0]) == 0);
    be_first(&child, 0, half);
    tell(up[1], (uint64_t)pid); /* its child's id, for the program that it becomes */
    CHECK(close(up[1]) == 0);
    become("second", child.to, child.from, half);
}
