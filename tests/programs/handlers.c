/* What happens at each of the 64 signals: handler, flags, mask, ignored or default, another set in every round; one
 * that is reset after its first signal. `handlers [ROUNDS]` */
#include "rounds.h"
#include <signal.h>

static volatile sig_atomic_t seen, resets;
static void one(int number) { seen = number; }
static void two(int number, siginfo_t *info, void *context)
{
    (void)context;
    seen = number + 100;
    if (info->si_signo != number) _exit(3);
}
static void once(int number)
{
    (void)number;
    resets++;
}

/* Not those of the C library, not those that cannot be caught, not those that Holdfast and the rounds need. */
static int is_free(int number)
{
    return number != SIGKILL && number != SIGSTOP && number != 32 && number != 33 && number != SIGURG
        && number != SIGWINCH && number != SIGUSR1;
}

static struct sigaction made(long round, int number)
{
    long v = (long)(mix((uint64_t)(round * 100 + number)) >> 8);
    struct sigaction action = {0};
    sigemptyset(&action.sa_mask);
    switch (v % 4) {
    case 0: action.sa_handler = SIG_DFL; break;
    case 1: action.sa_handler = SIG_IGN; break;
    case 2: action.sa_handler = one; break;
    default: action.sa_sigaction = two; action.sa_flags = SA_SIGINFO;
    }
    v /= 4;
    action.sa_flags |= (v % 2 ? SA_RESTART : 0) | (v % 3 ? SA_NODEFER : 0) | (v % 5 ? SA_ONSTACK : 0)
        | (v % 7 ? 0 : SA_RESETHAND);
    if (number == SIGCHLD) action.sa_flags |= (v % 2 ? SA_NOCLDSTOP : 0) | (v % 3 ? SA_NOCLDWAIT : 0);
    for (int other = 1; other < 65; other++)
        if (is_free(other) && (v >> other % 40) % 3 == 0) sigaddset(&action.sa_mask, other);
    return action;
}

static void one_round(long round)
{
    for (int number = 1; number < 65; number++) {
        struct sigaction now, before = made(round - 1, number), next = made(round, number);
        if (!is_free(number)) continue;
        CHECK(sigaction(number, NULL, &now) == 0);
        if (round > 0) {
            CHECK(now.sa_handler == before.sa_handler);
            /* flags of the default action mean nothing, but for the ends of children */
            int means = now.sa_handler == SIG_DFL && number != SIGCHLD ? 0 : ~0x04000000;
            CHECK((now.sa_flags & means) == (before.sa_flags & means));
            for (int other = 1; means && other < 65; other++)
                CHECK(sigismember(&now.sa_mask, other) == sigismember(&before.sa_mask, other));
            if ((before.sa_flags & SA_RESETHAND) == 0 && before.sa_handler == one) {
                CHECK(raise(number) == 0 && seen == number);
            } else if ((before.sa_flags & (SA_RESETHAND | SA_SIGINFO)) == SA_SIGINFO) {
                CHECK(raise(number) == 0 && seen == number + 100);
            }
        }
        CHECK(sigaction(number, &next, NULL) == 0);
    }
    struct sigaction now, reset = {.sa_handler = once, .sa_flags = SA_RESETHAND};
    CHECK(sigaction(SIGUSR1, NULL, &now) == 0);
    CHECK(now.sa_handler == (round % 2 ? once : SIG_DFL));
    if (round % 2) CHECK(raise(SIGUSR1) == 0 && resets == (round + 1) / 2);
    else CHECK(sigaction(SIGUSR1, &reset, NULL) == 0);
}

int main(int argc, char **argv) { return run_rounds("handlers", number_argument(argc, argv, 1, 45), one_round); }
