/* What the kernel keeps of ranges of memory besides their content: locks, also on memory to come (mlockall), hints
 * about access, NUMA policies (mbind) and names; changed every round. `ranges [ROUNDS]` */
#include "common.h"
#include "smaps.h"
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define LEN (4 * 4096)
#define AREAS 5
#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif
#ifndef MCL_ONFAULT
#define MCL_ONFAULT 4
#endif

static char *areas[AREAS];
static int all_may_be_locked, names_known, policies_known;

static int is_named(const char *at, const char *name)
{
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512], text[64];
    int found = 0;
    CHECK(f != NULL);
    snprintf(text, sizeof text, "[anon:%s]", name);
    while (fgets(line, sizeof line, f) != NULL) {
        unsigned long start, end;
        CHECK(sscanf(line, "%lx-%lx ", &start, &end) == 2);
        if ((unsigned long)at >= start && (unsigned long)at < end) found = strstr(line, text) != NULL;
    }
    CHECK(fclose(f) == 0);
    return found;
}

/* --- areas 0 to 3: 0 not locked, 1 locked, 2 locked on fault; 0 no hint, 1 sequential, 2 random --- */

static int lock_of(long round, int area) { return (int)((round + area) % 3); }
static int hint_of(long round, int area) { return (int)((round / 2 + area) % 3); }
static int policy_of(long round, int area) { return (int[]){0, 2, 3, 1}[(round + area) % 4]; }

static void name_of(long round, int area, char name[64])
{
    snprintf(name, 64, "area %d round %ld", area, round);
}

static void set_area(long round, int area)
{
    char *at = areas[area], name[64];
    int lock = lock_of(round, area), hint = hint_of(round, area), policy = policy_of(round, area);
    CHECK(munlock(at, LEN) == 0);
    if (lock) CHECK(syscall(SYS_mlock2, at, (size_t)LEN, lock == 2 ? MLOCK_ONFAULT : 0) == 0);
    CHECK(madvise(at, LEN, (int[]){MADV_NORMAL, MADV_SEQUENTIAL, MADV_RANDOM}[hint]) == 0);
    unsigned long node = 1;
    if (policies_known) CHECK(syscall(SYS_mbind, at, LEN, policy, policy ? &node : NULL, policy ? 64ul : 0ul, 0) == 0);
    name_of(round, area, name);
    if (names_known) CHECK(prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, at, LEN, name) == 0);
}

static void check_area(long round, int area)
{
    char *at = areas[area], name[64];
    int lock = lock_of(round, area), hint = hint_of(round, area), mode = -1;
    for (size_t i = 0; i < LEN; i++) CHECK(at[i] == (char)(area + 1));
    CHECK(has_flag(at, " lo") == (lock > 0) && has_flag(at, " lf") == (lock == 2));
    CHECK(has_flag(at, " sr") == (hint == 1) && has_flag(at, " rr") == (hint == 2));
    unsigned long nodes[16] = {0};
    if (policies_known) {
        CHECK(syscall(SYS_get_mempolicy, &mode, nodes, 1024ul, at, 2ul) == 0);
        CHECK(mode == policy_of(round, area) && nodes[0] == (unsigned long)(mode != 0));
    }
    name_of(round, area, name);
    if (names_known) CHECK(is_named(at, name));
}

/* --- memory to come: 0 as ever, 1 locked, 2 locked on fault --- */

static int future_of(long round) { return all_may_be_locked ? (int)(round / 2 % 3) : 0; }

static void set_future(long round)
{
    int future = future_of(round);
    if (future == 0) {
        CHECK(munlockall() == 0);
        for (int area = 0; area < AREAS - 1; area++) set_area(round, area); /* it unlocks what is there too */
    } else {
        CHECK(mlockall(MCL_FUTURE | (future == 2 ? MCL_ONFAULT : 0)) == 0);
    }
}

static void check_future(long round)
{
    char *fresh = mmap(NULL, LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(fresh != MAP_FAILED);
    CHECK(has_flag(fresh, " lo") == (future_of(round) > 0) && has_flag(fresh, " lf") == (future_of(round) == 2));
    CHECK(munmap(fresh, LEN) == 0);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 24);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    /* other allocations of this program are locked then, too */
    all_may_be_locked = getuid() == 0 || limit.rlim_cur >= 256u << 20;
    for (int area = 0; area < AREAS; area++) {
        /* a page that cannot be touched keeps neighbours from becoming one mapping */
        char *at = mmap(NULL, LEN + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at != MAP_FAILED && mprotect(at, LEN, PROT_READ | PROT_WRITE) == 0);
        memset(areas[area] = at, area + 1, LEN);
    }
    names_known = prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, areas[AREAS - 1], LEN, "never changed") == 0;
    policies_known = syscall(SYS_mbind, areas[AREAS - 1], LEN, 0, NULL, 0ul, 0) == 0;
    for (long round = 0; round < rounds; round++) {
        step("ranges round %ld", round);
        for (int area = 0; area < AREAS - 1; area++) set_area(round, area);
        set_future(round);
        for (int look = 0; look < 3; look++) {
            sleep_ms(30);
            for (int area = 0; area < AREAS - 1; area++) check_area(round, area);
            check_future(round);
        }
        if (names_known) CHECK(is_named(areas[AREAS - 1], "never changed"));
    }
    return pass();
}
