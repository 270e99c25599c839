/* Takes all memory of the device that is free, again and again: `crowd FILE`, until there is such a file. For a process
 * whose Restore then has no room (tests/gpu/restarts.py). */
#include "driver.h"

int main(int argc, char **argv)
{
    device_ptr taken;
    start("-");
    if (argc < 2) return 2;
    for (int first = 1; access(argv[1], F_OK) != 0; first = 0) {
        for (size_t piece = (size_t)1024 * MIB; piece >= 2 * MIB; piece /= 2)
            while (cuMemAlloc(&taken, piece) == 0) continue;
        if (first) {
            puts("the device is full");
            fflush(stdout);
        }
        usleep(500);
    }
    return 0;
}
