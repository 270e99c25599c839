/* A program that asks for its own checkpoints: after every tenth step, when it is cheapest.
 *
 *   cc -I../preload/include -o checkpoint_api checkpoint_api.c
 *   holdfast run --name api -- ./checkpoint_api      # or just ./checkpoint_api: runs the same, without checkpoints
 *   kill it at any time, then: holdfast restart api
 *
 * Expected output: the sum after each step; after a restart it goes on behind the last "checkpoint" line. */
#include "holdfast.h"

#include <stdio.h>
#include <unistd.h>

int main(void) {
    double sum = 0;
    for (int step = 1; step <= 100; step++) {
        for (int i = 1; i <= 1000000; i++)
            sum += 1.0 / ((double)step * i);
        printf("step %3d: %.9f\n", step, sum);
        fflush(stdout);
        if (step % 10 == 0 && HOLDFAST_LOADED) {
            int outcome = holdfast_checkpoint();
            if (outcome == 1)
                printf("restarted (%d so far) after step %d\n", holdfast_restarted(), step);
            else if (outcome == 0)
                printf("checkpoint after step %d\n", step);
            else if (outcome != HOLDFAST_E_NO_AGENT)
                printf("no checkpoint after step %d: error %d\n", step, outcome);
            fflush(stdout);
        }
        usleep(100000);
    }
    return 0;
}
