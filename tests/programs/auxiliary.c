/* What the kernel has told the program at its start: the auxiliary vector, in memory and in /proc, the random bytes,
 * the place of the vdso. `auxiliary [ROUNDS]` */
#include "rounds.h"
#include <elf.h>
#include <fcntl.h>
#include <sys/auxv.h>

static unsigned long before[64];
static unsigned char bytes[16], told[2048], again[2048];

static ssize_t read_all(unsigned char *to)
{
    int fd = open("/proc/self/auxv", O_RDONLY | O_CLOEXEC);
    ssize_t len = read(fd, to, sizeof told);
    CHECK(fd >= 0 && len > 0 && close(fd) == 0);
    return len;
}

static ssize_t length;
static void one_round(long round)
{
    (void)round;
    for (unsigned long type = 0; type < 64; type++) CHECK(getauxval(type) == before[type]);
    CHECK(memcmp((void *)getauxval(AT_RANDOM), bytes, sizeof bytes) == 0);
    CHECK(memcmp((void *)getauxval(AT_SYSINFO_EHDR), ELFMAG, SELFMAG) == 0);
    CHECK(strcmp((char *)getauxval(AT_PLATFORM), "x86_64") == 0);
    CHECK(read_all(again) == length && memcmp(told, again, (size_t)length) == 0);
}

int main(int argc, char **argv)
{
    for (unsigned long type = 0; type < 64; type++) before[type] = getauxval(type);
    memcpy(bytes, (void *)getauxval(AT_RANDOM), sizeof bytes);
    length = read_all(told);
    return run_rounds("auxiliary", number_argument(argc, argv, 1, 45), one_round);
}
