/* A launcher that ends when its server is ready, as pg_ctl does. The server leads a session of its own and has a worker
 * by then; both check that they remain each other's parent and child, in their groups and sessions. The server writes
 * its lines to FILE, some before HOLDFAST_TEST_STAY allows it to go on, some after that.
 * `tree_launcher KIND FILE [UID]` KIND: plain, group (the worker leads a group), session (the worker leads a session)
 * UID: whom all of them become at first; root only */
#include "tree.h"
#include <grp.h>

#define ROUNDS 4

static const char *kind;
static int ready[2];

static void work(int in, int out, uint64_t number)
{
    (void)number;
    pid_t parent = getppid(), session = getsid(0);
    uint64_t round;
    if (strcmp(kind, "group") == 0) CHECK(setpgid(0, 0) == 0);
    if (strcmp(kind, "session") == 0) session = setsid();
    pid_t group = getpgid(0);
    CHECK(write(ready[1], "x", 1) == 1 && close(ready[1]) == 0);
    while (hear_or_end(in, &round)) {
        CHECK(getppid() == parent && getsid(0) == session && getpgid(0) == group);
        tell(out, mix(round));
    }
    _exit(6);
}

static void ask(uint64_t round)
{
    int status;
    CHECK(getsid(0) == getpid() && waitpid(children[0].pid, &status, WNOHANG) == 0);
    tell(children[0].to, round);
    CHECK(hear(children[0].from) == mix(round));
}

static int serve(const char *path)
{
    const char *awaited = getenv("HOLDFAST_TEST_STAY");
    uint64_t round = 0;
    CHECK(setsid() == getpid() && freopen(path, "w", stdout) != NULL);
    fork_child(work, 0);
    CHECK(close(ready[1]) == 0);
    for (; round < ROUNDS; round++) {
        ask(round);
        step("%s round %lu", kind, (unsigned long)round);
    }
    for (; awaited != NULL && access(awaited, F_OK) != 0; sleep_ms(2)) ask(round);
    for (; round < 2 * ROUNDS; round++) {
        ask(round);
        step("%s round %lu", kind, (unsigned long)round);
    }
    finish_all(6);
    return pass();
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    kind = argv[1];
    if (argc > 3) {
        uid_t id = (uid_t)atoi(argv[3]);
        CHECK(setgroups(0, NULL) == 0 && setgid(id) == 0 && setuid(id) == 0);
    }
    CHECK(pipe2(ready, O_CLOEXEC) == 0);
    pid_t server = fork();
    CHECK(server >= 0);
    if (server == 0) {
        CHECK(close(ready[0]) == 0);
        return serve(argv[2]);
    }
    char byte;
    CHECK(close(ready[1]) == 0 && read(ready[0], &byte, 1) == 1);
    puts("server started");
    return 0;
}
