/* The break grows step by step with content, and goes back. No malloc here: the C library's own allocator would move
 * the break too. `break [ROUNDS]` */
#include "common.h"

#define STEP 65536

int main(int argc, char **argv)
{
    static char buffer[1024];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    long rounds = number_argument(argc, argv, 1, 50);
    char *start = sbrk(0);
    CHECK(start != (char *)-1);
    for (long round = 0; round < rounds; round++) {
        step("break round %ld", round);
        char *block = sbrk(STEP);
        CHECK(block == start + round * STEP);
        memset(block, (int)(round + 1), STEP);
        for (long i = 0; i <= round; i++)
            CHECK(start[i * STEP] == (char)(i + 1) && start[(i + 1) * STEP - 1] == (char)(i + 1));
        CHECK((char *)sbrk(0) == block + STEP);
        spin_ms(20);
        sleep_ms(25);
    }
    CHECK(brk(start) == 0 && sbrk(0) == start);
    return pass();
}
