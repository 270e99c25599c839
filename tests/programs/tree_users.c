/* Processes that root has made and that became somebody else; root only. `tree_users KIND [ROUNDS]`
 * KIND: servants (three children, each with other ids; their parent stays root and may signal them, they may not signal
 * it), families (a child gives up its ids and forks in every round), heirs (their parent gives up its ids first) */
#include "tree.h"
#include <grp.h>

static int forks, heirs;

static void become(uid_t id)
{
    gid_t group = id + 1;
    CHECK(setgroups(1, &group) == 0 && setresgid(id, id, id) == 0 && setresuid(id, id, id) == 0);
}

static void check_ids(uid_t id)
{
    uid_t r, e, s;
    gid_t groups[8];
    CHECK(getresuid(&r, &e, &s) == 0 && r == id && e == id && s == id);
    CHECK(getresgid(&r, &e, &s) == 0 && r == id && e == id && s == id);
    CHECK(getgroups(8, groups) == 1 && groups[0] == id + 1);
    CHECK(heirs ? kill(getppid(), 0) == 0 : kill(getppid(), 0) == -1 && errno == EPERM);
}

static void serve(int in, int out, uint64_t number)
{
    uid_t id = (uid_t)(2000 + (heirs ? 0 : number));
    uint64_t round;
    if (!heirs) become(id);
    while (hear_or_end(in, &round)) {
        check_ids(id);
        if (forks) {
            pid_t pid = fork();
            CHECK(pid >= 0);
            if (pid == 0) _exit(getuid() == id ? 7 : 8);
            ended(pid, 7);
        }
        tell(out, round + number);
    }
    _exit(4);
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    forks = strcmp(argv[1], "families") == 0;
    heirs = strcmp(argv[1], "heirs") == 0;
    if (heirs) become(2000);
    long rounds = number_argument(argc, argv, 2, 60);
    for (uint64_t i = 0; i < 3; i++) fork_child(serve, i);
    for (long round = 0; round < rounds; round++) {
        step("%s round %ld", argv[1], round);
        for (int i = 0; i < 3; i++) tell(children[i].to, (uint64_t)round);
        for (int i = 0; i < 3; i++)
            CHECK(hear(children[i].from) == (uint64_t)(round + i) && kill(children[i].pid, 0) == 0);
        CHECK(getuid() == (heirs ? 2000 : 0));
        sleep_ms(ROUND_MS);
    }
    finish_all(4);
    return pass();
}
