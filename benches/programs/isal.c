/* Reed-Solomon by Intel's ISA-L, for the comparison of benches/reed_solomon, which builds it (libisal-dev).
 *
 * `isal DATA PARITY BYTES`: prints the bytes of data a second of processor time, of one thread: `memcpy RATE encode
 * RATE decode RATE`. Pieces of BYTES; decoded are the first PARITY pieces of data, of what is left and all parity. */
#include "common.h"

#include <isa-l/erasure_code.h>
#include <time.h>

#define MOST 32
/* Each is repeated until it took so long, and the best of three counts. */
#define LONG_S 0.1

static int data, parity, lost;
static size_t len;
static unsigned char *pieces[MOST], *copies[MOST], *restored[MOST], *left[MOST];
static unsigned char encode_tables[32 * MOST * MOST], decode_tables[32 * MOST * MOST];

static double processor_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void copy(void)
{
    for (int i = 0; i < data; i++) memcpy(copies[i], pieces[i], len);
    __asm__ volatile("" ::: "memory");
}

static void encode(void) { ec_encode_data(len, data, parity, encode_tables, pieces, pieces + data); }

static void decode(void) { ec_encode_data(len, data, lost, decode_tables, left, restored); }

static double rate(void (*work)(void))
{
    double best = 0;
    work();
    for (int turn = 0; turn < 3; turn++) {
        double begun = processor_s(), now = begun;
        int times = 0;
        for (; now < begun + LONG_S; now = processor_s()) {
            work();
            times++;
        }
        double reached = (double)times * data * len / (now - begun);
        if (reached > best) best = reached;
    }
    return best;
}

int main(int count, char **words)
{
    if (count < 4) return 2;
    data = atoi(words[1]), parity = atoi(words[2]), len = strtoul(words[3], NULL, 10);
    lost = parity < data ? parity : data;
    CHECK(data + parity <= MOST);
    for (int i = 0; i < data + parity; i++) {
        CHECK_ZERO(posix_memalign((void **)&pieces[i], 64, len) || posix_memalign((void **)&copies[i], 64, len));
        CHECK_ZERO(posix_memalign((void **)&restored[i], 64, len));
        memset(copies[i], 0, len), memset(restored[i], 0, len);
        for (size_t word = 0; word < len / 8; word++) ((uint64_t *)pieces[i])[word] = mix(i * len + word);
    }
    unsigned char matrix[MOST * MOST], rows[MOST * MOST], inverse[MOST * MOST];
    gf_gen_cauchy1_matrix(matrix, data + parity, data);
    ec_init_tables(data, parity, matrix + data * data, encode_tables);
    double copied = rate(copy), encoded = rate(encode);
    /* What is left: all but the first `lost`, as many as there are data. */
    for (int i = 0; i < data; i++) {
        left[i] = pieces[lost + i];
        memcpy(rows + i * data, matrix + (lost + i) * data, data);
    }
    CHECK_ZERO(gf_invert_matrix(rows, inverse, data));
    ec_init_tables(data, lost, inverse, decode_tables);
    double decoded = rate(decode);
    for (int i = 0; i < lost; i++) CHECK_ZERO(memcmp(restored[i], pieces[i], len));
    printf("memcpy %.0f encode %.0f decode %.0f\n", copied, encoded, decoded);
    return 0;
}
