/* A file of noise on each rank, which SCR's redset protects and rebuilds, for the comparison of benches/scr.py, which
 * builds it with redset's own sources.
 *
 * `redset FOLDER xor|rs LOSSES MIB ENCODES`. Rank K keeps what it has in FOLDER/K; so many are written to and read back
 * for each of ENCODES (a set is removed before the next one is made). Then ranks 1 to LOSSES lose all that they have,
 * and the set is rebuilt; the bytes are compared by a sum. Each time is that of the slowest rank. Prints `encode S` for
 * each and `rebuild S`. */
#include "common.h"

#include <dirent.h>
#include <mpi.h>
#include <redset.h>

static int rank;

static void must(int is_right, const char *what)
{
    if (is_right) return;
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

/* The seconds of the slowest rank since `begun`. */
static double slowest(double begun)
{
    double own = MPI_Wtime() - begun, all;
    MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

static void write_noise(const char *path, size_t mib)
{
    static uint64_t piece[1 << 17];
    FILE *file = fopen(path, "w");
    must(file != NULL, "no file can be made");
    for (size_t i = 0; i < mib; i++) {
        for (size_t word = 0; word < 1 << 17; word++)
            piece[word] = mix(((uint64_t)rank << 40) + (i << 17) + word);
        must(fwrite(piece, sizeof piece, 1, file) == 1, "the file cannot be written");
    }
    must(fclose(file) == 0, "the file cannot be written");
}

static uint64_t sum_of(const char *path)
{
    static uint64_t piece[1 << 17];
    uint64_t sum = 0;
    FILE *file = fopen(path, "r");
    must(file != NULL, "the file is not there");
    for (size_t read; (read = fread(piece, 8, 1 << 17, file)) > 0;)
        for (size_t word = 0; word < read; word++) sum = (sum << 1 | sum >> 63) ^ piece[word];
    fclose(file);
    return sum;
}

/* What a rank has is gone. */
static void lose(const char *folder)
{
    char path[4096];
    DIR *all = opendir(folder);
    must(all != NULL, "no folder");
    for (struct dirent *one; (one = readdir(all)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, one->d_name);
        if (one->d_name[0] != '.') must(unlink(path) == 0, "a file cannot be removed");
    }
    closedir(all);
}

int main(int count, char **words)
{
    MPI_Init(&count, &words);
    if (count < 6) return 2;
    int ranks, losses = atoi(words[3]), encodes = atoi(words[5]);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char folder[1024], data[2048], prefix[2048], host[256];
    snprintf(folder, sizeof folder, "%s/%d", words[1], rank);
    snprintf(data, sizeof data, "%s/data", folder);
    snprintf(prefix, sizeof prefix, "%s/", folder);
    snprintf(host, sizeof host, "host%d", rank);
    write_noise(data, strtoul(words[4], NULL, 10));
    uint64_t sum = sum_of(data);
    const char *files[] = {data};

    redset set;
    must(redset_init() == REDSET_SUCCESS, "redset_init");
    int made = strcmp(words[2], "xor") == 0 ? redset_create_xor(MPI_COMM_WORLD, host, ranks, &set)
                                            : redset_create_rs(MPI_COMM_WORLD, host, ranks, losses, &set);
    must(made == REDSET_SUCCESS, "the set is refused");
    for (int i = 0; i < encodes; i++) {
        if (i > 0) must(redset_unapply(prefix, set) == REDSET_SUCCESS, "redset_unapply");
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        must(redset_apply(1, files, prefix, set) == REDSET_SUCCESS, "redset_apply");
        double took = slowest(begun);
        if (rank == 0) printf("encode %.6f\n", took);
    }
    must(redset_delete(&set) == REDSET_SUCCESS, "redset_delete");
    if (rank >= 1 && rank <= losses) lose(folder);
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    must(redset_recover(MPI_COMM_WORLD, prefix, &set) == REDSET_SUCCESS, "redset_recover");
    double took = slowest(begun);
    must(sum_of(data) == sum, "what was rebuilt is not what was there");
    if (rank == 0) printf("rebuild %.6f\n", took);
    redset_delete(&set);
    redset_finalize();
    MPI_Finalize();
    return 0;
}
