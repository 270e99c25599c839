/* Processes without libholdfast beside some that have it: statically linked ones, and ones that were started without an
 * environment. Two of them stay, each with a child of its own; a third one executes another kind of program in every
 * round. The first process asks all of them. `tree_bare [ROUNDS]`; its static build lies beside it. */
#include "tree.h"

enum kind { WITH, STATIC, BARE, KINDS };

static char path[4096], static_path[4200], preload[4200], agent[4200];

/* Where both builds lie, and what a process with libholdfast is to find in its environment. */
static void remember(const char *own, const char *library, const char *socket)
{
    snprintf(path, sizeof path, "%s", own);
    char *end = strstr(path, "-static");
    if (end) *end = 0;
    snprintf(static_path, sizeof static_path, "%s-static", path);
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", library);
    snprintf(agent, sizeof agent, "HOLDFAST_SOCKET=%s", socket);
}

/* Executes this program anew, as one of that kind. */
static void become(enum kind kind, const char *role, int in, int out, uint64_t count)
{
    char words[3][24];
    snprintf(words[0], 24, "%d", in);
    snprintf(words[1], 24, "%d", out);
    snprintf(words[2], 24, "%lu", (unsigned long)count);
    char *library = preload + strlen("LD_PRELOAD="), *socket = agent + strlen("HOLDFAST_SOCKET=");
    char *arguments[] = {path, (char *)role, words[0], words[1], words[2], library, socket, NULL};
    /* without it they would say so of themselves in a run without Holdfast, too */
    char *whole[] = {agent, *library ? preload : NULL, NULL}, *nothing[] = {NULL};
    CHECK(fcntl(in, F_SETFD, 0) == 0 && fcntl(out, F_SETFD, 0) == 0);
    execve(kind == STATIC ? static_path : path, arguments, kind == BARE ? nothing : whole);
    CHECK(!"execve");
}

static void answer(int in, int out, uint64_t number)
{
    for (uint64_t value; hear_or_end(in, &value);) tell(out, mix(value + number));
}

/* Asks its own child what it is asked. */
static void be_relay(int in, int out, uint64_t number)
{
    CHECK(fcntl(in, F_SETFD, FD_CLOEXEC) == 0 && fcntl(out, F_SETFD, FD_CLOEXEC) == 0);
    struct child *child = fork_child(answer, number);
    CHECK(fcntl(in, F_GETFD) == FD_CLOEXEC);
    for (uint64_t value; hear_or_end(in, &value);) {
        tell(child->to, value);
        tell(out, mix(hear(child->from)));
    }
    finish(child, 0);
    exit((int)number);
}

/* One round; it lives on as another kind of program. */
static void be_changing(int in, int out, uint64_t count)
{
    uint64_t value;
    CHECK(fcntl(in, F_SETFD, FD_CLOEXEC) == 0 && fcntl(out, F_SETFD, FD_CLOEXEC) == 0);
    if (!hear_or_end(in, &value)) exit((int)(count % 100));
    CHECK(value == count);
    tell(out, mix(value));
    become(count % KINDS, "changing", in, out, count + 1);
}

static void start_static(int in, int out, uint64_t number) { become(STATIC, "relay", in, out, number); }
static void start_bare(int in, int out, uint64_t number) { become(BARE, "relay", in, out, number); }
static void start_changing(int in, int out, uint64_t number) { become(WITH, "changing", in, out, number); }

int main(int argc, char **argv)
{
    if (argc == 7) {
        remember(argv[0], argv[5], argv[6]);
        int in = atoi(argv[2]), out = atoi(argv[3]);
        uint64_t number = strtoul(argv[4], NULL, 10);
        if (strcmp(argv[1], "relay") == 0) be_relay(in, out, number);
        be_changing(in, out, number);
    }
    const char *library = getenv("LD_PRELOAD"), *socket = getenv("HOLDFAST_SOCKET");
    remember(argv[0], library ? library : "", socket ? socket : "");
    uint64_t rounds = (uint64_t)number_argument(argc, argv, 1, 60);
    struct child *fixed = fork_child(start_static, 11), *bare = fork_child(start_bare, 22);
    struct child *changing = fork_child(start_changing, 0);
    for (uint64_t round = 0; round < rounds; round++) {
        tell(fixed->to, round);
        tell(bare->to, round);
        tell(changing->to, round);
        sleep_ms(ROUND_MS);
        CHECK(hear(fixed->from) == mix(mix(round + 11)) && hear(bare->from) == mix(mix(round + 22)));
        CHECK(hear(changing->from) == mix(round) && waitpid(-1, NULL, WNOHANG) == 0);
        step("bare round %lu", (unsigned long)round);
    }
    finish(fixed, 11);
    finish(bare, 22);
    finish(changing, (int)(rounds % 100));
    return pass();
}
