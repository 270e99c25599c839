/* Heat in a plate whose rows are spread over MPI ranks; knows nothing of Holdfast. `stencil STEPS WIDTH
 * [PAUSE]`: all bits of the plate are in the sum that rank 0 prints every 20 steps; microseconds to wait after each. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROWS 60

/* Waits for communication as MPI does, or, if the code waits after each step anyway, without using a processor. */
static void finish(int count, MPI_Request *requests, long pause_us)
{
    if (pause_us == 0) {
        MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
        return;
    }
    for (int done = 0; !done;) {
        MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
        if (!done) usleep(1000);
    }
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 3) MPI_Abort(MPI_COMM_WORLD, 64);
    long steps = atol(argv[1]), width = atol(argv[2]), pause_us = argc > 3 ? atol(argv[3]) : 0;
    double *now = calloc((ROWS + 2) * width, sizeof *now), *next = calloc((ROWS + 2) * width, sizeof *next);
    if (now == NULL || next == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    for (long i = 0; i < ROWS * width; i++) now[width + i] = (double)((i * 7919 + rank * 104729) % 1000);
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    for (long step = 1; step <= steps; step++) {
        MPI_Request requests[4];
        MPI_Irecv(now, (int)width, MPI_DOUBLE, up, 1, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(now + (ROWS + 1) * width, (int)width, MPI_DOUBLE, down, 2, MPI_COMM_WORLD, &requests[1]);
        MPI_Isend(now + width, (int)width, MPI_DOUBLE, up, 2, MPI_COMM_WORLD, &requests[2]);
        MPI_Isend(now + ROWS * width, (int)width, MPI_DOUBLE, down, 1, MPI_COMM_WORLD, &requests[3]);
        finish(4, requests, pause_us);
        for (long row = 1; row <= ROWS; row++)
            for (long column = 1; column < width - 1; column++) {
                const double *at = now + row * width + column;
                next[row * width + column] = 0.25 * (at[-1] + at[1] + at[-width] + at[width]);
            }
        memcpy(now + width, next + width, sizeof *now * ROWS * width);
        if (pause_us > 0) usleep((useconds_t)pause_us);
        if (step % 20 != 0) continue;
        uint64_t own = 0, sum = 0;
        for (long i = width; i < (ROWS + 1) * width; i++) {
            uint64_t bits;
            memcpy(&bits, now + i, sizeof bits);
            own = own * 31 + bits;
        }
        MPI_Ireduce(&own, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD, &requests[0]);
        finish(1, requests, pause_us);
        if (rank == 0) {
            printf("step %ld: %016llx\n", step, (unsigned long long)sum);
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return 0;
}
