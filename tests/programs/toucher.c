/* Touches MIB of heap, then prints a counter every PERIOD_MS, dirtying DIRTY_MIB between two lines and checking what it
 * wrote the time before. `toucher MIB LINES [PERIOD_MS] [DIRTY_MIB]` */
#include "common.h"

int main(int argc, char **argv)
{
    size_t bytes = (size_t)number_argument(argc, argv, 1, 1024) << 20;
    long lines = number_argument(argc, argv, 2, 50), period = number_argument(argc, argv, 3, 100);
    size_t dirty = (size_t)number_argument(argc, argv, 4, 8) << 20, at = 0;
    char *heap = malloc(bytes);
    CHECK(heap != NULL && dirty <= bytes);
    for (size_t i = 0; i < bytes; i += 8) *(uint64_t *)(heap + i) = mix(i);
    for (long line = 0; line < lines; line++) {
        step("counter %ld", line);
        for (size_t i = 0; i < dirty; i += 4096) {
            size_t place = (at + i) % bytes;
            uint64_t *word = (uint64_t *)(heap + place), old = *word;
            CHECK(old >= mix(place) && old - mix(place) <= (uint64_t)lines);
            ++*word;
        }
        at = (at + dirty) % bytes;
        sleep_ms(period);
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i += 8) sum += *(uint64_t *)(heap + i);
    step("sum %016llx", (unsigned long long)sum);
    return pass();
}
