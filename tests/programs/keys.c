/* Protection keys: memory that some threads may read, others write, and nobody forgets. `keys [ROUNDS]` */
#include "rounds.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

static char *pages[3];
static int keys[3];
static sigjmp_buf back;

static void fault(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    siglongjmp(back, info->si_code == SEGV_PKUERR ? 1 : 2);
}

static unsigned rights_of_all(void)
{
    unsigned low, high;
    __asm__ volatile("rdpkru" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* 0: allowed; 1: the key forbids it. A handler has rights of its own, and the jump out of it keeps them. */
static int try(char *at, int write)
{
    volatile unsigned before = rights_of_all();
    int result = sigsetjmp(back, 1);
    if (result != 0) {
        __asm__ volatile("wrpkru" : : "a"(before), "c"(0), "d"(0));
        return result;
    }
    if (write) *(volatile char *)at = 1;
    else (void)*(volatile char *)at;
    return 0;
}

static void one_round(long round)
{
    static const int rights[] = {0, PKEY_DISABLE_WRITE, PKEY_DISABLE_ACCESS};
    for (int i = 0; i < 3; i++) {
        int now = round > 0 ? rights[(round - 1 + i) % 3] : 0;
        CHECK(pkey_get(keys[i]) == now);
        CHECK(try(pages[i], 0) == (now == PKEY_DISABLE_ACCESS) && try(pages[i], 1) == (now != 0));
        CHECK(pkey_set(keys[i], (unsigned)rights[(round + i) % 3]) == 0);
    }
    int fresh = pkey_alloc(0, 0); /* none of those that are in use */
    CHECK(fresh > 0 && fresh != keys[0] && fresh != keys[1] && fresh != keys[2] && pkey_free(fresh) == 0);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    for (int i = 0; i < 3; i++) {
        if ((keys[i] = pkey_alloc(0, 0)) < 0) not_here("pkey_alloc");
        pages[i] = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(pages[i] != MAP_FAILED && pkey_mprotect(pages[i], 4096, PROT_READ | PROT_WRITE, keys[i]) == 0);
    }
    return run_rounds("keys", number_argument(argc, argv, 1, 45), one_round);
}
