/* Heat in a plate whose rows are spread over the ranks of MPI, which checkpoints itself by VELOC's interface: how long
 * its processes are blocked by a checkpoint, and by a restart. `benches/veloc.py` builds it for VELOC's own library and
 * for ours.
 *
 * usage: plate MB CHECKPOINTS PERIOD_MS CONFIGURATION
 * CHECKPOINTS 0: a restart alone. Each time is that of the slowest rank. Prints one line of JSON. */
#include <mpi.h>
#include <veloc.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WIDTH 4096
#define MOST 1000

static int rank, ranks, rows, step;
static double *now, *next;

static void must(int done, const char *what) {
    if (done == VELOC_SUCCESS) return;
    fprintf(stderr, "rank %d step %d: %s failed\n", rank, step, what);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

/* What the slowest rank needed since `begin`, ms. */
static double slowest(double begin) {
    double own = (MPI_Wtime() - begin) * 1e3, all;
    MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

static void work(void) {
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    MPI_Sendrecv(now + WIDTH, WIDTH, MPI_DOUBLE, up, 1, now + (size_t)(rows + 1) * WIDTH, WIDTH, MPI_DOUBLE, down, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(now + (size_t)rows * WIDTH, WIDTH, MPI_DOUBLE, down, 2, now, WIDTH, MPI_DOUBLE, up, 2, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    for (int row = 1; row <= rows; row++) {
        for (int column = 1; column < WIDTH - 1; column++) {
            double *at = now + (size_t)row * WIDTH + column;
            next[(size_t)row * WIDTH + column] = 0.25 * (at[-1] + at[1] + at[-WIDTH] + at[WIDTH]);
        }
    }
    memcpy(now + WIDTH, next + WIDTH, sizeof(double) * rows * WIDTH);
}

static unsigned long long sum(void) {
    unsigned long long own = 0, all;
    for (size_t i = WIDTH; i < (size_t)(rows + 1) * WIDTH; i++) {
        unsigned long long bits;
        memcpy(&bits, &now[i], sizeof bits);
        own = own * 31 + bits;
    }
    own *= rank + 1;
    MPI_Allreduce(&own, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void checkpoints(int count, double period) {
    double times[MOST] = {0}, start = MPI_Wtime();
    for (step = 1; step <= count; step++) {
        work();
        double left = start + step * period / 1e3 - MPI_Wtime();
        if (left > 0) usleep(left * 1e6);
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        must(VELOC_Checkpoint("plate", step), "checkpoint");
        times[step - 1] = slowest(begin);
    }
    step = count;
    double begin = MPI_Wtime();
    must(VELOC_Checkpoint_wait(), "wait");
    double wait = slowest(begin);
    qsort(times, count, sizeof *times, by_size);
    unsigned long long all = sum();
    if (rank == 0) {
        printf("{\"blocked_ms\": %.2f, \"most_ms\": %.2f, \"wait_ms\": %.1f, \"sum\": \"%llx\"}\n", times[count / 2],
               times[count - 1], wait, all);
    }
}

static void restart(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    int version = VELOC_Restart_test("plate", 0);
    must(version < 0 ? VELOC_FAILURE : VELOC_SUCCESS, "restart test");
    must(VELOC_Restart("plate", version), "restart");
    double took = slowest(begin);
    unsigned long long all = sum();
    if (rank == 0) printf("{\"restart_ms\": %.2f, \"version\": %d, \"sum\": \"%llx\"}\n", took, version, all);
}

int main(int argc, char **argv) {
    if (argc != 5) return 64;
    int count = atoi(argv[2]);
    if (count >= MOST) return 64;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    rows = atof(argv[1]) * 1e6 / sizeof(double) / WIDTH - 2;
    size_t all = (size_t)(rows + 2) * WIDTH;
    now = calloc(all, sizeof *now);
    next = calloc(all, sizeof *next);
    for (size_t i = 0; i < all && count > 0; i++) now[i] = (rank + 1) * 7919 % 1009 + i % 613 * 0.37;
    must(VELOC_Init(MPI_COMM_WORLD, argv[4]), "init");
    must(VELOC_Mem_protect(0, &step, 1, sizeof step), "protect");
    must(VELOC_Mem_protect(1, now, all, sizeof *now), "protect");
    if (count > 0) {
        checkpoints(count, atof(argv[3]));
    } else {
        restart();
    }
    must(VELOC_Finalize(1), "finalize");
    MPI_Finalize();
    return 0;
}
