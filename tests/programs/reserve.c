/* Address space that is only reserved, 64 GiB of it, of which every round takes a piece into use and gives another one
 * back. `reserve [ROUNDS]` */
#include "rounds.h"
#include <sys/mman.h>

#define PIECE (1 << 20)
#define PIECES 65536L
#define USED 8
static char *room;

static char *piece(long n) { return room + (size_t)(mix((uint64_t)n) % (uint64_t)PIECES) * PIECE; }

static void one_round(long round)
{
    for (long old = round < USED ? 0 : round - USED; old < round; old++)
        for (size_t at = 0; at < PIECE; at += 4096) CHECK(*(uint64_t *)(piece(old) + at) == mix((uint64_t)old + at));
    if (round >= USED) {
        char *back = piece(round - USED);
        CHECK(mmap(back, PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == back);
    }
    char *now = piece(round);
    CHECK(mprotect(now, PIECE, PROT_READ | PROT_WRITE) == 0);
    for (size_t at = 0; at < PIECE; at += 4096) {
        CHECK(*(uint64_t *)(now + at) == 0);
        *(uint64_t *)(now + at) = mix((uint64_t)round + at);
    }
}

int main(int argc, char **argv)
{
    room = mmap(NULL, (size_t)PIECES * PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(room != MAP_FAILED);
    return run_rounds("reserve", number_argument(argc, argv, 1, 45), one_round);
}
