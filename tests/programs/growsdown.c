/* A mapping that grows downwards as it is touched (MAP_GROWSDOWN), by a page in every round. `growsdown [ROUNDS]` */
#include "rounds.h"
#include <sys/mman.h>

#define PAGE 4096
#define ROOM (64 << 20)
static char *top;

static void one_round(long round)
{
    for (long old = 0; old < round; old++) CHECK(*(uint64_t *)(top - (old + 1) * PAGE) == mix((uint64_t)old));
    *(uint64_t *)(top - (round + 1) * PAGE) = mix((uint64_t)round);
}

int main(int argc, char **argv)
{
    /* room that nobody else takes: the kernel keeps a distance below */
    char *room = mmap(NULL, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(room != MAP_FAILED && munmap(room, ROOM) == 0);
    top = room + ROOM;
    CHECK(mmap(top - PAGE, PAGE, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0) == top - PAGE);
    return run_rounds("growsdown", number_argument(argc, argv, 1, 45), one_round);
}
