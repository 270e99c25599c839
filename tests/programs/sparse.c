/* A sparse mapping of 2 GiB of which 1 % is touched. `sparse [MIB] [ROUNDS]` */
#include "common.h"
#include <sys/mman.h>

int main(int argc, char **argv)
{
    size_t bytes = (size_t)number_argument(argc, argv, 1, 2048) << 20, stride = 100 * 4096;
    long rounds = number_argument(argc, argv, 2, 30);
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(base != MAP_FAILED);
    CHECK(madvise(base, bytes, MADV_NOHUGEPAGE) == 0);
    for (size_t at = 0; at < bytes; at += stride) *(uint64_t *)(base + at) = mix(at);
    for (long round = 0; round < rounds; round++) {
        step("sparse round %ld", round);
        for (size_t at = 0; at < bytes; at += stride) {
            uint64_t *p = (uint64_t *)(base + at);
            CHECK(*p == mix(at) + (uint64_t)round && p[1] == 0);
            ++*p;
        }
        spin_ms(40);
        sleep_ms(40);
    }
    /* what was never touched is zero */
    for (size_t at = 4096 * 7; at < bytes; at += stride * 50) CHECK(*(uint64_t *)(base + at) == 0);
    return pass();
}
