/* The least that a restart can take which fills memory: `fillfloor 4k|huge FILE...` reads the files, piece by piece,
 * into fresh private memory with a thread for each processor, checks nothing, and prints the milliseconds. Run by
 * benches/restart.py. */
#include "common.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define PIECE (1u << 20)
#define MANY 1024

struct part {
    int fd;
    off_t size;
    unsigned char *at;
};

static struct part parts[MANY];
static int count;
static _Atomic int64_t next_piece;

static int64_t pieces_of(const struct part *part)
{
    return (part->size + PIECE - 1) / PIECE;
}

/* Reads piece after piece of all files, until none is left. */
static void *fill(void *nothing)
{
    for (;;) {
        int64_t piece = atomic_fetch_add(&next_piece, 1);
        int n = 0;
        for (; n < count && piece >= pieces_of(&parts[n]); n++) piece -= pieces_of(&parts[n]);
        if (n == count) return nothing;
        off_t from = piece * PIECE, len = parts[n].size - from;
        if (len > PIECE) len = PIECE;
        CHECK(pread(parts[n].fd, parts[n].at + from, (size_t)len, from) == len);
    }
}

int main(int argc, char **argv)
{
    size_t bytes = 0, align = 2u << 20;
    CHECK(argc > 2);
    for (int n = 2; n < argc && count < MANY; n++) {
        struct stat is;
        CHECK((parts[count].fd = open(argv[n], O_RDONLY | O_CLOEXEC)) >= 0 && fstat(parts[count].fd, &is) == 0);
        parts[count].size = is.st_size;
        bytes += (size_t)pieces_of(&parts[count++]) * PIECE;
    }
    unsigned char *area = mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1, 0);
    CHECK(area != MAP_FAILED);
    area += (align - (uintptr_t)area % align) % align;
    CHECK(madvise(area, bytes, strcmp(argv[1], "huge") == 0 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0);
    for (int n = 0; n < count; n++) {
        parts[n].at = area;
        area += (size_t)pieces_of(&parts[n]) * PIECE;
    }
    long threads = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t thread[64];
    if (threads > 64) threads = 64;
    int64_t begun = now_ns();
    for (long n = 1; n < threads; n++) CHECK_ZERO(pthread_create(&thread[n], NULL, fill, NULL));
    fill(NULL);
    for (long n = 1; n < threads; n++) CHECK_ZERO(pthread_join(thread[n], NULL));
    printf("%.2f\n", (double)(now_ns() - begun) / 1e6);
    return 0;
}
