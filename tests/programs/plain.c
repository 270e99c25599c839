/* Counts; also built statically, to be refused: `plain [ROUNDS] [PERIOD_MS]` */
#include "common.h"

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 60), period = number_argument(argc, argv, 2, 50);
    for (long round = 0; round < rounds; round++) {
        step("plain round %ld", round);
        sleep_ms(period);
    }
    return pass();
}
