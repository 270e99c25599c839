/* Writes the even pages of a region in an order of its own while the region is flushed: many at once, and then one
 * after the other. `ordered PAGES`
 * Takes three images: of little, of the region, and of the even pages, while nothing is written: the order of the last
 * one depends on nothing but how the writes during the one before went. Says where the region is. */
#include "common.h"
#include "holdfast.h"

#define PAGE 4096

static unsigned char *region;
static long pages;

/* The even page that is written as number `number`: 5 is prime to the number of them. */
static long even(long number) { return number * 5 % (pages / 2) * 2; }

static void put(long page, long round)
{
    *(volatile uint64_t *)(region + page * PAGE) = mix((uint64_t)(round << 32 | page));
}

int main(int argc, char **argv)
{
    pages = number_argument(argc, argv, 1, 512);
    CHECK(HOLDFAST_LOADED && pages % 4 == 0 && pages / 2 % 5 != 0);
    CHECK((region = holdfast_malloc_protected("region", (size_t)pages * PAGE)) != NULL);
    CHECK(holdfast_checkpoint() == 0);
    for (long word = 0; word < pages * PAGE / 8; word++) ((uint64_t *)region)[word] = mix((uint64_t)word);
    CHECK(holdfast_checkpoint_start() == 0);
    /* The first use up the copies, the others are waited for. */
    long number = 0;
    while (number < pages / 4) put(even(number++), 1);
    while (number < pages / 2) {
        put(even(number++), 1);
        sleep_ms(2);
    }
    /* Waits for the flush, and for one of its own. */
    CHECK(holdfast_checkpoint() == 0);
    printf("region %p\n", (void *)region);
    return pass();
}
