/* A program with an allocator of its own, of which reallocarray and malloc_usable_size are not part: the blocks that it
 * hands out must never reach another allocator. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char room[1 << 20];
static size_t used;

void *malloc(size_t size) {
    size_t *block = (size_t *)(room + used);
    used += (size + 16 + 15) / 16 * 16;
    block[0] = size;
    return block + 2;
}
void free(void *block) {
    if (block && ((char *)block < room || (char *)block >= room + sizeof room))
        abort();
}
void *calloc(size_t count, size_t size) { return memset(malloc(count * size), 0, count * size); }
void *realloc(void *block, size_t size) {
    void *new = malloc(size);
    if (block) {
        free(block);
        memcpy(new, block, ((size_t *)block)[-2] < size ? ((size_t *)block)[-2] : size);
    }
    return new;
}

int main(void) {
    char *text = reallocarray(strdup("own"), 10, 10);
    puts(text);
    free(text);
    return 0;
}
