/* A simulation that knows nothing of Holdfast: its variables are looked at in its images (`holdfast cat --image`).
 *
 * All of a grid has the number of its step, from the front on: in any instant a part at the front has the newest
 * number, and the rest the one before. `grid` goes on until it is killed; `grid N` for N steps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define CELLS 8192

double grid[CELLS];
/* Never written: they are in the file alone. */
const int primes[] = {2, 3, 5, 7, 11, 13};
int table[4096] = {17, 4};
char zeros[100000];
long step;
double *field;
int *shared;

int main(int argc, char **argv)
{
    long steps = argc > 1 ? atol(argv[1]) : -1;
    const struct timespec moment = {0, 2000000};
    field = calloc(CELLS, sizeof *field);
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (field == NULL || shared == MAP_FAILED) return 1;
    while (step != steps) {
        step++;
        for (int i = 0; i < CELLS; i++) {
            grid[i] = (double)step;
            field[i] = (double)(2 * step);
        }
        *shared = (int)step;
        printf("step %ld of %d %d %d\n", step, primes[0], table[0], zeros[0]);
        fflush(stdout);
        nanosleep(&moment, NULL);
    }
    return 0;
}
