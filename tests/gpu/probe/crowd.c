/* Takes the memory of the device but ROOM, and all of it as soon as more becomes free than that: `crowd FILE`, until
 * there is such a file. For a process that is CHECKPOINTED with room and whose Restore then has none
 * (tests/gpu/restarts.py). Without any room Checkpoint itself fails (results of 2026-11-28). */
#include "driver.h"

enum { ROOM = 1024, MORE = 128, PIECE = 1024 };

static size_t free_memory(void)
{
    size_t available = 0, total;
    cuMemGetInfo(&available, &total);
    return available;
}

/* Takes memory until no more than `left` is free, or no piece fits. */
static void take(size_t left)
{
    device_ptr taken;
    for (size_t piece = (size_t)PIECE * MIB; piece >= 2 * MIB; piece /= 2)
        while (free_memory() > left + piece && cuMemAlloc(&taken, piece) == 0) continue;
}

int main(int argc, char **argv)
{
    size_t room;
    start("-");
    if (argc < 2) return 2;
    take((size_t)ROOM * MIB);
    room = free_memory();
    puts("the device is full");
    fflush(stdout);
    while (access(argv[1], F_OK) != 0) {
        if (free_memory() > room + (size_t)MORE * MIB) {
            room = 0;
            take(0);
        }
        usleep(500);
    }
    return 0;
}
