/* Many signals in a queue, in the order in which they were sent, for the process and for a thread: 400 of a real-time
 * signal wait across rounds, some are taken, others added. `queued [ROUNDS]` */
#include "rounds.h"
#include <pthread.h>
#include <signal.h>

#define WAITING 400
#define TURN 50
static sigset_t both;
static int taken[2], sent[2];

static void send(int which)
{
    union sigval value = {.sival_int = sent[which]++};
    if (which == 0) CHECK(sigqueue(getpid(), SIGRTMIN + 6, value) == 0);
    else CHECK_ZERO(pthread_sigqueue(pthread_self(), SIGRTMIN + 7, value));
}

static void take(int which)
{
    siginfo_t info;
    sigset_t one;
    struct timespec none = {0, 0};
    sigemptyset(&one);
    sigaddset(&one, SIGRTMIN + 6 + which);
    CHECK(sigtimedwait(&one, &info, &none) == SIGRTMIN + 6 + which);
    CHECK(info.si_value.sival_int == taken[which]++ && info.si_code == SI_QUEUE && info.si_pid == getpid());
}

static void one_round(long round)
{
    (void)round;
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < TURN; i++) {
            take(which);
            send(which);
        }
}

int main(int argc, char **argv)
{
    sigemptyset(&both);
    sigaddset(&both, SIGRTMIN + 6);
    sigaddset(&both, SIGRTMIN + 7);
    CHECK_ZERO(pthread_sigmask(SIG_BLOCK, &both, NULL));
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < WAITING; i++) send(which);
    return run_rounds("queued", number_argument(argc, argv, 1, 45), one_round);
}
