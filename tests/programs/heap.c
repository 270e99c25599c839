/* malloc, calloc, realloc, aligned_alloc and free, sizes from 1 byte to 4 MiB, each block checked before it goes.
 * `heap [ROUNDS] [IDLE_MS]`; without idling it measures the allocator. */
#include "common.h"
#include <malloc.h>

#define SLOTS 2000

static struct {
    uint8_t *at;
    size_t len;
    uint8_t fill;
} slots[SLOTS];

static void churn(uint64_t *seed, long count)
{
    for (long i = 0; i < count; i++) {
        uint64_t r = mix(++*seed);
        size_t slot = r % SLOTS;
        if (slots[slot].at != NULL) {
            size_t len = slots[slot].len;
            for (size_t k = 0; k < len; k += len < 5000 ? 1 : 4093) CHECK(slots[slot].at[k] == slots[slot].fill);
        }
        size_t len = 1 + (r >> 16) % (r % 50 == 0 ? 4u << 20 : r % 3 == 0 ? 40000 : 300);
        switch (r >> 60) {
        case 0:
        case 1:
            free(slots[slot].at);
            CHECK((slots[slot].at = aligned_alloc(4096, (len + 4095) & ~(size_t)4095)) != NULL);
            CHECK(((uintptr_t)slots[slot].at & 4095) == 0);
            break;
        case 2:
        case 3:
            free(slots[slot].at);
            CHECK((slots[slot].at = calloc(1, len)) != NULL);
            CHECK(slots[slot].at[len - 1] == 0 && slots[slot].at[len / 2] == 0);
            break;
        case 4:
            free(slots[slot].at);
            slots[slot].at = NULL;
            slots[slot].len = 0;
            continue;
        default:
            CHECK((slots[slot].at = realloc(slots[slot].at, len)) != NULL);
        }
        CHECK(malloc_usable_size(slots[slot].at) >= len);
        slots[slot].len = len;
        slots[slot].fill = (uint8_t)r;
        memset(slots[slot].at, slots[slot].fill, len);
    }
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 40), idle = number_argument(argc, argv, 2, 40);
    uint64_t seed = 1;
    for (long round = 0; round < rounds; round++) {
        step("heap round %ld", round);
        churn(&seed, 1000);
        spin_ms(idle / 3);
        sleep_ms(idle - idle / 3);
    }
    return pass();
}
