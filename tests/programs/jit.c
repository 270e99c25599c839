/* Code that the program makes itself, anew in every round: `jit KIND [ROUNDS]`
 * KIND: protect (memory that is writable first, executable then), dual (a memfd mapped once to write, once to execute),
 * open (writable and executable at once) */
#include "rounds.h"
#include <sys/mman.h>

#define LEN 65536
static unsigned char *writable, *executable;
static int protects;

static void *map(int protection, int flags, int fd)
{
    void *at = mmap(NULL, LEN, protection, flags, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void prepare_protect(void)
{
    protects = 1;
    writable = executable = map(PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static void prepare_dual(void)
{
    int fd = memfd_create("code", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, LEN) == 0);
    writable = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd);
    executable = map(PROT_READ | PROT_EXEC, MAP_SHARED, fd);
    CHECK(close(fd) == 0);
}

static void prepare_open(void) {
    writable = executable = map(PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

/* mov $value, %eax; ret: 16 bytes apart */
static void make(long place, uint32_t value)
{
    unsigned char *code = writable + place * 16;
    if (protects) CHECK(mprotect(writable, LEN, PROT_READ | PROT_WRITE) == 0);
    code[0] = 0xb8;
    memcpy(code + 1, &value, 4);
    code[5] = 0xc3;
    if (protects) CHECK(mprotect(writable, LEN, PROT_READ | PROT_EXEC) == 0);
}

static uint32_t call(long place)
{
    uint32_t (*function)(void);
    void *code = executable + place * 16;
    memcpy(&function, &code, sizeof function);
    return function();
}

static void one_round(long round)
{
    for (long old = 0; old < round; old++) CHECK(call(old * 50) == (uint32_t)mix((uint64_t)old));
    make(round * 50, (uint32_t)mix((uint64_t)round));
    CHECK(call(round * 50) == (uint32_t)mix((uint64_t)round));
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {
        {"protect", prepare_protect, one_round}, {"dual", prepare_dual, one_round}, {"open", prepare_open, one_round}};
    return RUN_KIND(kinds);
}
