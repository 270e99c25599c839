/* Regular files in use: `regular KIND [ROUNDS]`
 * KIND: far (a sparse file of 100 GiB), shrinks (every round makes it longer or shorter), changed (in place: holes come
 * and go), streams (stdio in the middle of a line), direct (O_DIRECT), vectors (preadv, pwritev) */
#include "rounds.h"
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <sys/uio.h>

static int file;
static FILE *in, *out;

static void make(int flags) { CHECK((file = open("regular.file", O_RDWR | O_CREAT | O_CLOEXEC | flags, 0600)) >= 0); }
static void plain_prepare(void) { make(0); }

static off_t size(void)
{
    struct stat s;
    CHECK(fstat(file, &s) == 0);
    return s.st_size;
}

static void far_round(long round)
{
    uint64_t value;
    off_t at = ((off_t)100 << 30) + round * 8;
    if (round > 0) CHECK(lseek(file, 0, SEEK_CUR) == at && size() == at);
    for (long old = 0; old < round; old++)
        CHECK(pread(file, &value, 8, at - (round - old) * 8) == 8 && value == mix((uint64_t)old));
    value = mix((uint64_t)round);
    CHECK(lseek(file, at, SEEK_SET) == at && write(file, &value, 8) == 8);
    CHECK(pread(file, &value, 8, at / 2) == 8 && value == 0);
}

static off_t length(long round) { return (off_t)(mix((uint64_t)round) % 20000) + 100; }
/* What was written at a place that is gone comes back as zeros or not at all, so only the end is looked at. */
static void shrinks_round(long round)
{
    uint64_t value;
    if (round > 0) CHECK(size() == length(round - 1));
    value = mix((uint64_t)round);
    CHECK(ftruncate(file, length(round)) == 0 && size() == length(round));
    CHECK(pwrite(file, &value, 8, length(round) - 8) == 8 && lseek(file, -8, SEEK_END) == length(round) - 8);
    CHECK(read(file, &value, 8) == 8 && value == mix((uint64_t)round) && read(file, &value, 8) == 0);
}

static void changed_prepare(void)
{
    char page[4096];
    make(0);
    memset(page, 'p', sizeof page);
    for (int i = 0; i < 64; i++) CHECK(write(file, page, sizeof page) == sizeof page);
}

static void changed_round(long round)
{
    char page[4096];
    for (long i = 0; i < 64; i++) {
        CHECK(pread(file, page, sizeof page, i * 4096) == sizeof page);
        long turn = round - 1 - i; /* the rounds since its turn */
        CHECK(page[7] == (turn >= 0 && turn < 5 ? 0 : 'p'));
    }
    CHECK(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, round % 64 * 4096, 4096) == 0);
    memset(page, 'p', sizeof page);
    if (round >= 5) CHECK(pwrite(file, page, sizeof page, (round - 5) % 64 * 4096) == sizeof page);
}

static void streams_prepare(void)
{
    CHECK((out = fopen("streams.file", "we")) && (in = fopen("streams.file", "re")));
    CHECK(setvbuf(out, NULL, _IOLBF, 4096) == 0);
}

static void streams_round(long round)
{
    char line[64], expected[64];
    CHECK(fprintf(out, " ends %ld\nround %ld", round - 1, round) > 0);
    CHECK(fgets(line, sizeof line, in) != NULL);
    if (round == 0) snprintf(expected, sizeof expected, " ends -1\n");
    else snprintf(expected, sizeof expected, "round %ld ends %ld\n", round - 1, round - 1);
    CHECK(strcmp(line, expected) == 0);
    CHECK(ungetc('u', in) == 'u' && getc(in) == 'u' && ftell(out) > 0);
}

static void direct_prepare(void)
{
    file = open("regular.file", O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600);
    if (file < 0) not_here("O_DIRECT");
}

static void direct_round(long round)
{
    static char block[8192] __attribute__((aligned(4096)));
    CHECK((fcntl(file, F_GETFL) & O_DIRECT) != 0);
    for (long old = 0; old < round; old++) {
        CHECK(pread(file, block, 4096, old * 4096) == 4096 && block[5] == (char)(old + 1)
            && block[4095] == (char)(old + 1));
    }
    CHECK(lseek(file, 0, SEEK_CUR) == round * 4096);
    memset(block, (int)round + 1, 4096);
    CHECK(write(file, block, 4096) == 4096);
}

static void vectors_round(long round)
{
    uint64_t words[3] = {mix((uint64_t)round), (uint64_t)round, 7}, back[3];
    struct iovec to[3] = {{&words[0], 8}, {&words[1], 8}, {&words[2], 8}}, from[2] = {{&back[0], 16}, {&back[2], 8}};
    CHECK(pwritev(file, to, 3, round * 24) == 24);
    for (long old = 0; old <= round; old++) {
        CHECK(preadv(file, from, 2, old * 24) == 24);
        CHECK(back[0] == mix((uint64_t)old) && back[1] == (uint64_t)old && back[2] == 7);
    }
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"far", plain_prepare, far_round},
                                        {"shrinks", plain_prepare, shrinks_round},
                                        {"changed", changed_prepare, changed_round},
                                        {"streams", streams_prepare, streams_round},
                                        {"direct", direct_prepare, direct_round},
                                        {"vectors", plain_prepare, vectors_round}};
    return RUN_KIND(kinds);
}
