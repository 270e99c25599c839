/* The main thread has left by pthread_exit; the others go on and end the program. `leaderless [ROUNDS]` */
#include "common.h"
#include <pthread.h>

static long rounds;
static pthread_t main_thread;

static void *survivor(void *argument)
{
    (void)argument;
    CHECK_ZERO(pthread_join(main_thread, NULL));
    for (long round = 0; round < rounds; round++) {
        step("leaderless round %ld", round);
        spin_ms(20);
        sleep_ms(30);
    }
    exit(pass());
}

static void *sleeper(void *argument)
{
    (void)argument;
    for (;;) sleep_ms(10);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t a, b;
    rounds = number_argument(argc, argv, 1, 50);
    main_thread = pthread_self();
    CHECK_ZERO(pthread_create(&a, NULL, sleeper, NULL));
    CHECK_ZERO(pthread_create(&b, NULL, survivor, NULL));
    pthread_exit(NULL);
}
