/* What the kernel maps into every program for its clock: `vdso KIND [ROUNDS]`
 * KIND: gone (unmapped), moved, code (the code alone is unmapped). The kernel does not let it be cut into pieces.
 * Nothing of the C library's that leads there is called. */
#include "rounds.h"
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

struct range {
    unsigned long start, end;
};
static struct range all[4];
static int count, code = -1;

static void find(void)
{
    char line[512];
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file != NULL);
    count = 0;
    code = -1;
    while (fgets(line, sizeof line, file) != NULL) {
        if (strstr(line, "[vdso]") == NULL && strstr(line, "[vvar") == NULL) continue;
        CHECK(count < 4 && sscanf(line, "%lx-%lx", &all[count].start, &all[count].end) == 2);
        if (strstr(line, "[vdso]") != NULL) code = count;
        count++;
    }
    CHECK(fclose(file) == 0);
}

static void *at(int index) { return (void *)all[index].start; }
static size_t len(int index) { return all[index].end - all[index].start; }

static void gone(void)
{
    find();
    for (int i = 0; i < count; i++) CHECK(munmap(at(i), len(i)) == 0);
}
static void code_gone(void)
{
    find();
    CHECK(code >= 0 && munmap(at(code), len(code)) == 0);
}
static void moved(void)
{
    find();
    size_t whole = all[count - 1].end - all[0].start;
    char *to = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(to != MAP_FAILED);
    for (int i = 0; i < count; i++) {
        char *there = to + (all[i].start - all[0].start);
        CHECK(mremap(at(i), len(i), len(i), MREMAP_MAYMOVE | MREMAP_FIXED, there) == there);
    }
}
static struct range before[4];
static int had, had_code;
static void one_round(long round)
{
    find();
    if (round == 0) {
        had = count;
        had_code = code;
        memcpy(before, all, sizeof all);
    }
    CHECK(count == had && code == had_code && memcmp(before, all, sizeof all) == 0);
}

/* The frame's clock may lead to what is gone. */
static int rounds(const char *name, long last)
{
    for (long i = 0; i < last; i++) {
        struct timespec quiet = {0, 100 * 1000000};
        printf("%s round %ld\n", name, i);
        CHECK(fflush(stdout) == 0);
        one_round(i);
        syscall(SYS_nanosleep, &quiet, NULL);
    }
    return pass();
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"gone", gone, NULL}, {"moved", moved, NULL}, {"code", code_gone, NULL}};
    for (size_t i = 0; argc > 1 && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, argv[1]) != 0) continue;
        kinds[i].prepare();
        return rounds(argv[1], number_argument(argc, argv, 2, 25));
    }
    return 2;
}
