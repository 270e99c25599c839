/* A program that names what is worth keeping, and restores itself: an image of a few KiB, whatever else it uses.
 *
 *   cc -I../preload/include -o protected protected.c
 *   holdfast run --name small --only-protected --every 2s -- ./protected
 *   kill it at any time, then: holdfast restart small
 *
 * Expected output: one line per step. `holdfast restart` starts it from main() again; it finds its state and goes on
 * with the step after the last image. */
#include "holdfast.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CELLS = 1000, STEPS = 100 };

/* An image may be taken between any two instructions. So step n reads one half of the state, writes the other, and is
 * counted last, by one store: whatever the image holds is the state after a whole number of steps. */
struct state {
    volatile int steps_done;
    double cells[2][CELLS];
};

int main(void) {
    struct state *state = NULL;
    if (HOLDFAST_LOADED)
        state = holdfast_malloc_protected("state", sizeof *state);
    if (state == NULL)
        state = calloc(1, sizeof *state); /* not under holdfast: ordinary memory does as well */
    if (state == NULL)
        return 1;

    int outcome = HOLDFAST_LOADED ? holdfast_restore_protected("state", state, sizeof *state) : HOLDFAST_E_NO_IMAGE;
    if (outcome == 0)
        printf("going on after step %d\n", state->steps_done);
    else if (outcome == HOLDFAST_E_NO_IMAGE)
        state->cells[0][0] = 1.0; /* a first start */
    else {
        fprintf(stderr, "the image does not fit this program: error %d\n", outcome);
        return 1;
    }

    while (state->steps_done < STEPS) {
        int step = state->steps_done + 1;
        const double *before = state->cells[(step - 1) % 2];
        double *after = state->cells[step % 2];
        for (int i = 0; i < CELLS; i++)
            after[i] = 0.5 * before[i] + 0.5 * before[(i + CELLS - 1) % CELLS];
        state->steps_done = step;
        printf("step %3d: %.12f\n", step, after[step / 2]);
        fflush(stdout);
        usleep(100000);
    }
    return 0;
}
