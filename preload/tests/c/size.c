/* Prints what a block of 1000 bytes really has: 1000 from glibc, 1024 from jemalloc. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

void *(*volatile taken)(size_t) = malloc; /* an executable at a fixed address gets an entry of its own by this */

int main(void) {
    printf("%zu\n", malloc_usable_size(taken(1000)));
    return 0;
}
