/* Takes a checkpoint that returns at its cut, writes everything anew and ends at once, while the image is still being
 * stored. `farewell [MIB]`. Restarted it finds what was there at the cut, says so and ends. */
#include "common.h"
#include "holdfast.h"

int main(int argc, char **argv)
{
    size_t words = (size_t)number_argument(argc, argv, 1, 32) * (1 << 20) / sizeof(uint64_t);
    uint64_t *heap = malloc(words * sizeof *heap);
    CHECK(HOLDFAST_LOADED && heap != NULL);
    for (size_t i = 0; i < words; i++) heap[i] = mix(i);
    int result = holdfast_checkpoint_start();
    CHECK(result >= 0);
    for (size_t i = 0; i < words; i++) CHECK(heap[i] == mix(i));
    if (holdfast_restarted() > 0) puts("restarted");
    for (size_t i = 0; i < words; i += 512) heap[i] = 0;
    return pass();
}
