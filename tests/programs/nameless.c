/* Files without a name: `nameless KIND [ROUNDS]`
 * KIND: unnamed (O_TMPFILE, named at the end), twins (two open descriptions of one deleted file), replaced (deleted,
 * and another file has its name), holes (a deleted sparse file), mapped (a deleted file that is mapped privately and
 * shared) */
#include "rounds.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

static int one, two;
static char *shared, *private;

static int made(const char *name)
{
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
    CHECK(fd >= 0);
    return fd;
}

static nlink_t links(int fd)
{
    struct stat s;
    CHECK(fstat(fd, &s) == 0);
    return s.st_nlink;
}

static void append(int fd, long round)
{
    uint64_t value;
    CHECK(lseek(fd, 0, SEEK_CUR) == round * 8);
    for (long old = 0; old < round; old++) CHECK(pread(fd, &value, 8, old * 8) == 8 && value == mix((uint64_t)old));
    value = mix((uint64_t)round);
    CHECK(write(fd, &value, 8) == 8);
}

static void unnamed_prepare(void)
{
    one = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0640);
    if (one < 0) not_here("O_TMPFILE");
}

static void unnamed_round(long round)
{
    struct stat s;
    CHECK(links(one) == 0 && fstat(one, &s) == 0 && (s.st_mode & 0777) == 0640);
    append(one, round);
}

static void twins_prepare(void)
{
    one = made("twins");
    CHECK((two = open("twins", O_RDONLY | O_CLOEXEC)) >= 0 && unlink("twins") == 0);
}

static void twins_round(long round)
{
    uint64_t value;
    append(one, round);
    CHECK(links(two) == 0 && lseek(two, 0, SEEK_CUR) == round * 8);
    CHECK(read(two, &value, 8) == 8 && value == mix((uint64_t)round));
    CHECK((fcntl(two, F_GETFL) & O_ACCMODE) == O_RDONLY);
}

static void replaced_prepare(void)
{
    one = made("replaced");
    CHECK(unlink("replaced") == 0);
    two = made("replaced");
    CHECK(write(two, "the other", 9) == 9);
}

static void replaced_round(long round)
{
    char text[16] = "";
    append(one, round);
    CHECK(links(one) == 0 && links(two) == 1 && pread(two, text, sizeof text, 0) == 9
        && strcmp(text, "the other") == 0);
}

static void holes_prepare(void)
{
    one = made("holes");
    CHECK(unlink("holes") == 0 && ftruncate(one, (off_t)10 << 30) == 0);
}

static void holes_round(long round)
{
    uint64_t value;
    struct stat s;
    for (long old = 0; old < round; old++)
        CHECK(pread(one, &value, 8, (off_t)old * 200 << 20) == 8 && value == mix((uint64_t)old));
    value = mix((uint64_t)round);
    CHECK(pwrite(one, &value, 8, (off_t)round * 200 << 20) == 8);
    CHECK(fstat(one, &s) == 0 && s.st_size == (off_t)10 << 30 && s.st_blocks < 10000);
}

static void mapped_prepare(void)
{
    one = made("mapped");
    CHECK(ftruncate(one, 1 << 16) == 0 && pwrite(one, "content", 8, 4096) == 8);
    shared = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, one, 0);
    private = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE, one, 0);
    CHECK(shared != MAP_FAILED && private != MAP_FAILED && unlink("mapped") == 0);
    private[0] = 'p';
}

static void mapped_round(long round)
{
    long value;
    if (round > 0) CHECK(pread(one, &value, sizeof value, 8192) == sizeof value && value == round - 1);
    *(long *)(shared + 8192) = round;
    CHECK(*(long *)(private + 8192) == round && strcmp(private + 4096, "content") == 0);
    CHECK(private[0] == 'p' && shared[0] == 0);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"unnamed", unnamed_prepare, unnamed_round},
                                        {"twins", twins_prepare, twins_round},
                                        {"replaced", replaced_prepare, replaced_round},
                                        {"holes", holes_prepare, holes_round},
                                        {"mapped", mapped_prepare, mapped_round}};
    return RUN_KIND(kinds);
}
