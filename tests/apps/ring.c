/* A self-checking MPI program: messages round a ring, large and small, reductions, a broadcast, an exchange of all with
 * all. Rank 0 prints one line per turn, and at half of them waits for FILE, if there is to be one.
 * `ring [TURNS [FILE]]` */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LARGE 200000

static int rank, size;

static void check(int right, const char *what, int turn)
{
    if (right) return;
    printf("FAIL rank %d turn %d: %s\n", rank, turn, what);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void round_the_ring(int turn)
{
    static double out[LARGE], in[LARGE];
    int left = (rank + size - 1) % size, right = (rank + 1) % size, count = turn % 2 == 0 ? LARGE : 7;
    MPI_Request requests[2];
    for (int i = 0; i < count; i++) out[i] = rank * 1000.0 + turn + i;
    MPI_Irecv(in, count, MPI_DOUBLE, left, turn, MPI_COMM_WORLD, &requests[0]);
    usleep(5000);
    MPI_Isend(out, count, MPI_DOUBLE, right, turn, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < count; i++) check(in[i] == left * 1000.0 + turn + i, "ring", turn);
}

static long reduce(int turn)
{
    long own = (long)turn * (rank + 1), sum = 0, word = rank == turn % size ? turn * 7 : -1, all[64], back[64];
    MPI_Allreduce(&own, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    check(sum == (long)turn * size * (size + 1) / 2, "allreduce", turn);
    MPI_Bcast(&word, 1, MPI_LONG, turn % size, MPI_COMM_WORLD);
    check(word == turn * 7, "broadcast", turn);
    for (int i = 0; i < size; i++) all[i] = rank * 100 + i + turn;
    MPI_Alltoall(all, 1, MPI_LONG, back, 1, MPI_LONG, MPI_COMM_WORLD);
    for (int i = 0; i < size; i++) check(back[i] == i * 100 + rank + turn, "alltoall", turn);
    MPI_Barrier(MPI_COMM_WORLD);
    return sum;
}

int main(int argc, char **argv)
{
    int turns = argc > 1 ? atoi(argv[1]) : 100;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    check(size <= 64, "size", 0);
    for (int turn = 0; turn < turns; turn++) {
        while (rank == 0 && turn == turns / 2 && argc > 2 && access(argv[2], F_OK) != 0) usleep(10000);
        round_the_ring(turn);
        long sum = reduce(turn);
        if (rank != 0) continue;
        printf("%d of %d: %ld\n", turn, size, sum);
        fflush(stdout);
    }
    MPI_Finalize();
    if (rank == 0) puts("PASS");
    return 0;
}
