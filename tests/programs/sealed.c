/* Memory that may not be mapped, unmapped or protected otherwise any more (mseal(2)): its content, its protection, and
 * that it stays so. Every round seals one more. `sealed [ROUNDS]` */
#include "rounds.h"
#include "smaps.h"
#include <sys/mman.h>
#include <sys/syscall.h>

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#define PAGES 100L
#define LEN ((size_t)PAGES * 4096)
#define KEPT 8
static char *sealed[KEPT];

/* Read-only, written before; writable; of which nothing was touched; executable. */
static int protection(long n)
{
    return (int[]){PROT_READ, PROT_READ | PROT_WRITE, PROT_NONE, PROT_READ | PROT_EXEC}[n % 4];
}

static void check(long n)
{
    char *at = sealed[n % KEPT];
    CHECK(mprotect(at, LEN, PROT_READ | PROT_WRITE) == -1 && errno == EPERM);
    CHECK(munmap(at + 4096, 4096) == -1 && errno == EPERM);
    CHECK(mmap(at, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EPERM);
    CHECK(mremap(at, LEN, 4096, 0) == MAP_FAILED && errno == EPERM);
    CHECK(has_flag(at, " sl"));
    if (protection(n) == PROT_NONE) return;
    for (long page = 0; page < PAGES; page += 7) CHECK(*(uint64_t *)(at + page * 4096) == mix((uint64_t)(n + page)));
    if (protection(n) & PROT_WRITE) *(uint64_t *)(at + 8) += 1;
}

static void one_round(long round)
{
    for (long n = 0; n < round && n < KEPT; n++) check(n);
    if (round >= KEPT) return;
    char *at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    for (long page = 0; page < PAGES && protection(round) != PROT_NONE; page += 7)
        *(uint64_t *)(at + page * 4096) = mix((uint64_t)(round + page));
    CHECK(mprotect(at, LEN, protection(round)) == 0);
    if (syscall(SYS_mseal, at, LEN, 0ul) != 0) not_here("mseal");
    sealed[round] = at;
}

int main(int argc, char **argv) { return run_rounds("sealed", number_argument(argc, argv, 1, 45), one_round); }
