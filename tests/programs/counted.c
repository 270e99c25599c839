/* Whether the kernel counts private memory (VmFlags ac, nr; vm.overcommit_memory), and what hangs on it: memory that is
 * mapped beside old memory is one mapping with it, which mremap(2) needs. `counted [ROUNDS]` */
#include "rounds.h"
#include "smaps.h"
#include <sys/mman.h>

#define PAGE 4096L
#define MOST 200
static char *writable, *reserved, *given_up, *quiet, *grown;
static long pages = 1;

static char *fresh(size_t len, int prot, int flags)
{
    char *at = mmap(NULL, len, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void flags(const char *at, int counted, int uncounted)
{
    CHECK(has_flag(at, " ac") == counted && has_flag(at, " nr") == uncounted);
}

static void one_round(long round)
{
    (void)round;
    flags(writable, 1, 0);
    flags(reserved, 0, 1);
    flags(given_up, 1, 0);
    flags(quiet, 0, 0);
    CHECK(*writable == 7 && *reserved == 8 && *given_up == 9 && *grown == 5);
    if (pages + 2 > MOST) return;
    /* One page more behind, of the same kind: they are one mapping, and only such a one can grow. */
    char *behind = grown + pages * PAGE;
    CHECK(munmap(behind, 2 * PAGE) == 0);
    CHECK(mmap(behind, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == behind);
    size_t len = (size_t)(pages + 1) * PAGE;
    CHECK(mremap(grown, len, len + PAGE, 0) == grown);
    for (long page = 0; page < pages; page++) CHECK(grown[page * PAGE + 1] == (char)page);
    for (; pages * PAGE < (long)(len + PAGE); pages++) grown[pages * PAGE + 1] = (char)pages;
}

int main(int argc, char **argv)
{
    size_t len = 300 * PAGE; /* longer than what is written past its protection */
    writable = fresh(len, PROT_READ | PROT_WRITE, 0);
    reserved = fresh(len, PROT_READ | PROT_WRITE, MAP_NORESERVE);
    given_up = fresh(len, PROT_READ | PROT_WRITE, 0);
    quiet = fresh(len, PROT_READ, 0);
    grown = fresh((MOST + 2) * PAGE, PROT_NONE, 0);
    CHECK(mprotect(grown, (size_t)PAGE, PROT_READ | PROT_WRITE) == 0);
    memset(writable, 7, len);
    memset(reserved, 8, len);
    memset(given_up, 9, len);
    CHECK(mprotect(given_up, len, PROT_READ) == 0);
    grown[0] = 5;
    CHECK(*quiet == 0);
    if (!has_flag(writable, " ac") || !has_flag(reserved, " nr")) {
        puts("vm.overcommit_memory: all is counted here");
        return 77;
    }
    return run_rounds("counted", number_argument(argc, argv, 1, 45), one_round);
}
