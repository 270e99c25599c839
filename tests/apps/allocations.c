/* 8000 allocations of noise, freed when the file `go` is there: a sanitizer gives their pages back to the kernel, and
 * at the end looks for allocations in all it has. `allocations` */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 8000, WORDS = 499 };

static uint64_t *allocations[COUNT];

int main(void)
{
    uint64_t noise = 88172645463325252u;
    for (int i = 0; i < COUNT; i++) {
        allocations[i] = malloc(WORDS * sizeof(uint64_t));
        if (allocations[i] == NULL) return 2;
        for (int j = 0; j < WORDS; j++) {
            noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
            allocations[i][j] = noise;
        }
    }
    puts("ready");
    fflush(stdout);
    while (access("go", F_OK) != 0) usleep(5000);
    for (int i = 0; i < COUNT; i++) {
        free(allocations[i]);
        allocations[i] = NULL;
    }
    puts("PASS");
    return 0;
}
