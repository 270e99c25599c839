/* Programs that are orphans from their first instruction on: whoever starts one ends at once, before libholdfast is
 * loaded in it; and they execute another program twice. Each says one thing by a pipe, after at most NAP_MS, and none
 * may be lost. `tree_daemons [ROUNDS [NAP_MS]]` */
#include "tree.h"
#include <poll.h>
#include <spawn.h>

#define EACH 2

static int answers[2];
static long nap_ms;

/* What a daemon does. */
static int serve(uint64_t number)
{
    struct timespec pause = {0, (long)(mix(number) % 1000000) * nap_ms};
    CHECK(nanosleep(&pause, NULL) == 0);
    tell(answers[1], mix(number));
    return 0;
}

static void start(const char *self, uint64_t number)
{
    char text[24], in[12], out[12], nap[12], *words[] = {"tree_daemons", "0", text, in, out, nap, NULL};
    snprintf(text, sizeof text, "%lu", (unsigned long)number);
    snprintf(in, sizeof in, "%d", answers[0]);
    snprintf(out, sizeof out, "%d", answers[1]);
    snprintf(nap, sizeof nap, "%ld", nap_ms);
    pid_t pid = fork(), daemon;
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK_ZERO(posix_spawn(&daemon, self, NULL, NULL, words, environ));
        _exit(3);
    }
    ended(pid, 3);
}

static uint64_t next_answer(void)
{
    struct pollfd readable = {answers[0], POLLIN, 0};
    CHECK(poll(&readable, 1, 20000) == 1);
    return hear(answers[0]);
}

int main(int argc, char **argv)
{
    char self[4096] = "";
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    if (argc == 6) {
        answers[0] = atoi(argv[3]);
        answers[1] = atoi(argv[4]);
        nap_ms = atoi(argv[5]);
        if (argv[1][0]++ < '2') CHECK(execv(self, argv) == 0);
        return serve(strtoul(argv[2], NULL, 10));
    }
    uint64_t rounds = (uint64_t)number_argument(argc, argv, 1, 200);
    nap_ms = number_argument(argc, argv, 2, 1);
    CHECK(pipe(answers) == 0);
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t expected = 0, found = 0;
        for (uint64_t i = round * EACH; i < (round + 1) * EACH; i++) {
            start(self, i);
            expected += mix(i);
        }
        for (int i = 0; i < EACH; i++) found += next_answer();
        CHECK(found == expected);
        sleep_ms(1);
        step("daemons round %lu", (unsigned long)round);
    }
    return pass();
}
