/* Much memory that can be compressed, with pages that were never written in it. `untouched MIB`: it says that it is
 * ready, waits for a file `go` in its folder, and checks all of it, from the middle on, by write(2) too. */
#include "common.h"

#include <fcntl.h>
#include <sys/mman.h>

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))
#define HOLE 9

static uint64_t word(long page, size_t i)
{
    return page % HOLE == 0 ? 0 : (uint64_t)page * 3 + i % 7;
}

int main(int argc, char **argv)
{
    long pages = number_argument(argc, argv, 1, 24) * (1 << 20) / PAGE;
    uint64_t *area = mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    CHECK(area != MAP_FAILED);
    /* Like much of a heap it would be huge pages else, without holes. */
    (void)madvise(area, (size_t)pages * PAGE, MADV_NOHUGEPAGE);
    for (long page = 0; page < pages; page++)
        for (size_t i = 0; i < WORDS && page % HOLE != 0; i++) area[page * (long)WORDS + (long)i] = word(page, i);
    step("ready");
    while (access("go", F_OK) != 0) sleep_ms(5);
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    CHECK(null >= 0);
    for (long n = 0; n < pages; n++) {
        long page = (n + pages / 2) % pages;
        uint64_t *at = area + page * (long)WORDS;
        /* The kernel reads it first. */
        if (n % 5 == 0) CHECK(write(null, at, PAGE) == PAGE);
        for (size_t i = 0; i < WORDS; i++) CHECK(at[i] == word(page, i));
        if (n % 3 == 0) at[1] = 1;
    }
    for (long n = 0; n < pages; n++) {
        long page = (n + pages / 2) % pages;
        CHECK(area[page * (long)WORDS + 1] == (n % 3 == 0 ? 1 : word(page, 1)));
    }
    step("all as it was");
    puts("PASS");
    return 0;
}
