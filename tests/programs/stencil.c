/* A five-point stencil with OpenMP, 4 threads; the sum is printed exactly. `stencil [SIDE] [SWEEPS] [EVERY]` */
#include "common.h"
#include <omp.h>

int main(int argc, char **argv)
{
    long side = number_argument(argc, argv, 1, 700), sweeps = number_argument(argc, argv, 2, 10000);
    long every = number_argument(argc, argv, 3, 200);
    double *now = malloc(sizeof(double) * (size_t)(side * side)),
        *next = malloc(sizeof(double) * (size_t)(side * side));
    CHECK(now != NULL && next != NULL);
    for (long i = 0; i < side * side; i++) now[i] = next[i] = (double)(mix((uint64_t)i) >> 11) / 9007199254740992.0;
    omp_set_num_threads(4);
    for (long sweep = 0; sweep < sweeps; sweep++) {
#pragma omp parallel for schedule(static)
        for (long y = 1; y < side - 1; y++)
            for (long x = 1; x < side - 1; x++) {
                const double *c = now + y * side + x;
                next[y * side + x] = 0.2 * (c[0] + c[-1] + c[1] + c[-side] + c[side]);
            }
        double *swap = now;
        now = next;
        next = swap;
        if (sweep % every == every - 1) {
            double sum = 0;
            for (long i = 0; i < side * side; i++) sum += now[i];
            step("sweep %ld sum %a", sweep + 1, sum);
        }
    }
    return pass();
}
