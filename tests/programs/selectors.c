/* Entries of the local descriptor table (modify_ldt(2)) and a thread with a segment register that leads into it.
 * `selectors [ROUNDS]` */
#include "rounds.h"
#include <asm/ldt.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define ENTRIES 600 /* more than a page of them */
static uint32_t *low;
static pthread_barrier_t meeting;
static volatile long seen = -1;

static int is_used(long n) { return n % 3 == 0 || n == 7; }
static uint16_t selector(long n) { return (uint16_t)(n << 3 | 7); }
static uint32_t *place(long n) { return low + n * 2; }

static struct user_desc entry(long n)
{
    struct user_desc it = {.entry_number = (unsigned)n, .base_addr = (unsigned)(uintptr_t)place(n)};
    it.limit = n % 2 ? 7 : 1;
    it.limit_in_pages = n % 2 == 0;
    it.seg_32bit = 1;
    it.read_exec_only = n % 4 == 1;
    it.useable = n % 5 == 0;
    return it;
}

static int is_there(const void *one, size_t len, const uint64_t *table)
{
    (void)len;
    const struct user_desc *it = one;
    uint64_t own = table[it->entry_number];
    uint32_t base = (uint32_t)(own >> 16 & 0xffffff) | (uint32_t)(own >> 56) << 24;
    return base == it->base_addr && (own >> 52 & 1) == it->useable && (own >> 55 & 1) == it->limit_in_pages
        && (own >> 41 & 1) == !it->read_exec_only;
}

/* What a segment shows at its beginning. */
static uint32_t through(uint16_t segment)
{
    uint32_t value;
    __asm__ volatile("mov %1, %%gs; movl %%gs:0, %0; xorl %%eax, %%eax; mov %%ax, %%gs"
        : "=r"(value) : "r"((uint32_t)segment) : "eax", "memory");
    return value;
}

/* Has the register loaded all the time, through its waits, too. */
static void *looks(void *unused)
{
    (void)unused;
    __asm__ volatile("mov %0, %%gs" : : "r"((uint32_t)selector(7)));
    pthread_barrier_wait(&meeting);
    for (;;) {
        uint32_t value;
        uint16_t now;
        __asm__ volatile("movl %%gs:0, %0; mov %%gs, %1" : "=r"(value), "=r"(now) : : "memory");
        CHECK(now == selector(7));
        seen = (long)value;
        sleep_ms(2);
    }
    return NULL;
}

static void one_round(long round)
{
    static uint64_t table[8192];
    CHECK(syscall(SYS_modify_ldt, 0, table, sizeof table) == (int)sizeof table);
    for (long n = 0; n < ENTRIES; n++) {
        struct user_desc it = entry(n);
        if (is_used(n)) CHECK(is_there(&it, sizeof it, table));
        else CHECK(table[n] == 0);
    }
    for (long n = 0; n < ENTRIES; n += 3) {
        CHECK(through(selector(n)) == *place(n));
        *place(n) = (uint32_t)mix((uint64_t)(round + n));
    }
    *place(7) = (uint32_t)round;
    while (seen != round) sleep_ms(1);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    low = mmap(NULL, ENTRIES * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    CHECK(low != MAP_FAILED);
    for (long n = 0; n < ENTRIES; n++) {
        struct user_desc it = entry(n);
        if (is_used(n) && syscall(SYS_modify_ldt, 0x11, &it, sizeof it) != 0) not_here("modify_ldt");
    }
    CHECK_ZERO(pthread_barrier_init(&meeting, NULL, 2));
    CHECK_ZERO(pthread_create(&thread, NULL, looks, NULL));
    pthread_barrier_wait(&meeting);
    return run_rounds("selectors", number_argument(argc, argv, 1, 45), one_round);
}
