/* 10 000 mappings: pages of alternating protection, each with its own content. `mappings [COUNT] [ROUNDS]` */
#include "common.h"
#include <sys/mman.h>

int main(int argc, char **argv)
{
    long count = number_argument(argc, argv, 1, 10000), rounds = number_argument(argc, argv, 2, 12);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t *base = mmap(NULL, (size_t)count * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED);
    size_t words = page / 8;
    for (long i = 0; i < count; i++) {
        base[(size_t)i * words + 3] = mix((uint64_t)i);
        if (i & 1) CHECK(mprotect(base + (size_t)i * words, page, PROT_READ) == 0);
    }
    for (long round = 0; round < rounds; round++) {
        step("mappings round %ld", round);
        for (long i = 0; i < count; i++) {
            uint64_t *p = base + (size_t)i * words;
            CHECK(p[3] == mix((uint64_t)i) + ((i & 1) ? 0 : (uint64_t)round) && p[4] == 0);
            if (!(i & 1)) p[3]++;
        }
        /* every protection still is what it was: swap it and back */
        for (long i = 0; i < count; i += 97) {
            CHECK(mprotect(base + (size_t)i * words, page, PROT_NONE) == 0);
            CHECK(mprotect(base + (size_t)i * words, page, (i & 1) ? PROT_READ : PROT_READ | PROT_WRITE) == 0);
        }
        spin_ms(100);
        sleep_ms(100);
    }
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps != NULL);
    long lines = 0;
    for (int c; (c = getc(maps)) != EOF;) lines += c == '\n';
    CHECK(fclose(maps) == 0 && lines >= count);
    return pass();
}
