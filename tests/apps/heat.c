/* Heat in a plate, which checkpoints itself by VELOC's interface: the rows are spread over the ranks (-DRANKS: by MPI).
 * Started again it goes on with the newest version.
 * `heat MODE STEPS CONFIGURATION`: MODE memory, some (by ids, in two parts), region (memory with a name) or file.
 * Prints one line, that of rank 0: a sum of all bits of the result; "from N" and "put N" on standard error. */
#ifdef RANKS
#include <mpi.h>
#endif
#include <veloc.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROWS 60
#define WIDTH 128
#define EVERY 10
#define NAME "heat"

static int rank, ranks = 1, step, rows;
static double *now, *next;
static const char *mode;

static void must(int done, const char *what)
{
    if (done == VELOC_SUCCESS) return;
    fprintf(stderr, "FAIL rank %d step %d: %s\n", rank, step, what);
    exit(3);
}

/* The rows above and below, from the neighbours. */
static void exchange(void)
{
#ifdef RANKS
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    MPI_Sendrecv(now + WIDTH, WIDTH, MPI_DOUBLE, up, 1, now + (rows + 1) * WIDTH, WIDTH, MPI_DOUBLE, down, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(now + rows * WIDTH, WIDTH, MPI_DOUBLE, down, 2, now, WIDTH, MPI_DOUBLE, up, 2, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
#endif
}

static void work(void)
{
    exchange();
    for (int row = 1; row <= rows; row++) {
        for (int column = 1; column < WIDTH - 1; column++) {
            double *at = now + row * WIDTH + column;
            next[row * WIDTH + column] = 0.25 * (at[-1] + at[1] + at[-WIDTH] + at[WIDTH]);
        }
    }
    memcpy(now + WIDTH, next + WIDTH, sizeof(double) * rows * WIDTH);
    usleep(2000);
}

static void protect(void)
{
    size_t all = (size_t)(rows + 2) * WIDTH;
    const char *name = strcmp(mode, "region") ? NULL : NAME;
    if (name) {
        static int other = 7;
        must(VELOC_Mem_protect(0, &other, 1, sizeof other), "protect of what is not meant");
        must(VELOC_Region_protect(0, &step, 1, sizeof step, name), "protect");
        must(VELOC_Region_protect(1, now, all, sizeof *now, name), "protect");
        must(VELOC_Region_protect(2, next, all, sizeof *next, name), "protect");
        return;
    }
    must(VELOC_Mem_protect(0, &step, 1, sizeof step), "protect");
    must(VELOC_Mem_protect(1, now, all, sizeof *now), "protect");
    must(VELOC_Mem_protect(2, next, all, sizeof *next), "protect");
}

/* The program's own file. */
static void as_file(int version, int reads)
{
    char original[64], path[VELOC_MAX_NAME];
    size_t all = (size_t)(rows + 2) * WIDTH;
    snprintf(original, sizeof original, "heat-%d-%d.dat", rank, version);
    must(VELOC_Route_file(original, path), "route");
    FILE *file = fopen(path, reads ? "rb" : "wb");
    must(file ? 0 : -1, "open");
    size_t done = reads ? fread(&step, sizeof step, 1, file) + fread(now, sizeof *now, all, file)
                        : fwrite(&step, sizeof step, 1, file) + fwrite(now, sizeof *now, all, file);
    must(done == all + 1 && fclose(file) == 0 ? 0 : -1, "content of the file");
}

static void checkpoint(int version)
{
    int most[] = {0, 2};
    if (!strcmp(mode, "memory") || !strcmp(mode, "region")) {
        must(VELOC_Checkpoint(NAME, version), "checkpoint");
        return;
    }
    must(VELOC_Checkpoint_begin(NAME, version), "begin");
    if (!strcmp(mode, "file")) {
        as_file(version, 0);
    } else {
        must(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, most, 2), "some");
        must(VELOC_Checkpoint_selective(VELOC_CKPT_REST, most, 2), "rest");
    }
    must(VELOC_Checkpoint_end(1), "end");
    /* One that the program does not want. */
    must(VELOC_Checkpoint_begin(NAME, version + 1), "begin");
    must(VELOC_Checkpoint_end(0), "end without success");
}

static void restart(int version)
{
    int some[] = {1};
    must(VELOC_Restart_begin(NAME, version), "restart");
    if (!strcmp(mode, "file")) {
        as_file(version, 1);
    } else if (!strcmp(mode, "some")) {
        must(VELOC_Recover_size(1) == (int)sizeof(double) * (rows + 2) * WIDTH ? 0 : -1, "size");
        must(VELOC_Recover_size(9) == -1 ? 0 : -1, "size of what is not there");
        must(VELOC_Recover_selective(VELOC_RECOVER_SOME, some, 1), "recover some");
        must(VELOC_Recover_selective(VELOC_RECOVER_REST, some, 1), "recover the rest");
    } else {
        must(VELOC_Recover_mem(), "recover");
    }
    must(VELOC_Restart_end(1), "end of restart");
    must(step == version ? 0 : -1, "the step of the version");
}

static void print_result(void)
{
    unsigned long long sum = 0, all = 0;
    for (int i = WIDTH; i < (rows + 1) * WIDTH; i++) {
        unsigned long long bits;
        memcpy(&bits, &now[i], sizeof bits);
        sum = sum * 31 + bits;
    }
    sum *= rank + 1;
    all = sum;
#ifdef RANKS
    MPI_Reduce(&sum, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
#endif
    if (rank == 0) printf("%d steps of %d ranks: %llx\n", step, ranks, all);
}

int main(int argc, char **argv)
{
    if (argc < 4) return 64;
    mode = argv[1];
    int steps = atoi(argv[2]);
#ifdef RANKS
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    must(VELOC_Init(MPI_COMM_WORLD, argv[3]), "init");
#else
    must(VELOC_Init_single(0, argv[3]), "init");
#endif
    rows = ROWS / ranks;
    now = calloc((size_t)(rows + 2) * WIDTH, sizeof *now);
    next = calloc((size_t)(rows + 2) * WIDTH, sizeof *next);
    for (int i = 0; i < (rows + 2) * WIDTH; i++) now[i] = ((rank + 1) * 7919 + i * 31) % 1009;
    protect();
    int version = VELOC_Restart_test(NAME, 0);
    if (version >= 0) restart(version);
    if (rank == 0) fprintf(stderr, "from %d\n", step);
    while (step < steps) {
        if (step > 0 && step % EVERY == 0 && step != version) {
            checkpoint(step);
            if (rank == 0) fprintf(stderr, "put %d\n", step);
        }
        work();
        step++;
    }
    must(VELOC_Checkpoint_wait(), "wait");
    must(VELOC_Checkpoint_finished() == 1 ? 0 : -1, "finished");
    print_result();
    must(VELOC_Finalize(1), "finalize");
#ifdef RANKS
    MPI_Finalize();
#endif
    return 0;
}
