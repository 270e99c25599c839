/* Files whose names /proc writes as it writes something else: `odd_names KIND [ROUNDS]`
 * KIND: newlines (a newline, and a backslash with the three digits that /proc/PID/maps has for one), deleted (names
 * that end as those of deleted files do). What is written by a mapping, and by a descriptor, is in the file of the
 * name. */
#include "rounds.h"
#include <fcntl.h>
#include <sys/mman.h>

#define LEN 4096
#define MOST 5

static const char *names[MOST];
static int count, files[MOST];
static long *shared[MOST];

static void prepare(void)
{
    for (int i = 0; i < count; i++) {
        CHECK((files[i] = open(names[i], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) >= 0);
        CHECK(ftruncate(files[i], LEN) == 0);
        shared[i] = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, files[i], 0);
        CHECK(shared[i] != MAP_FAILED);
        /* Only the mapping tells of the last. */
        if (i == count - 1) CHECK(close(files[i]) == 0);
    }
}

static void newlines_prepare(void)
{
    static const char *const all[MOST] = {"a\\012b", "a\nb", "\\012\n\\012", "a\\040b", "a\\134b"};
    for (count = 0; count < MOST; count++) names[count] = all[count];
    prepare();
}

static void deleted_prepare(void)
{
    names[count++] = "a (deleted)";
    names[count++] = "b (deleted)";
    prepare();
}

static void names_round(long round)
{
    for (int i = 0; i < count; i++) {
        long found[2] = {0, 0};
        *shared[i] = round + i;
        if (i < count - 1) CHECK(pwrite(files[i], &round, sizeof round, sizeof round) == sizeof round);
        int file = open(names[i], O_RDONLY | O_CLOEXEC);
        CHECK(file >= 0 && pread(file, found, sizeof found, 0) == sizeof found && close(file) == 0);
        CHECK(found[0] == round + i && found[1] == (i < count - 1 ? round : 0));
    }
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {
        {"newlines", newlines_prepare, names_round},
        {"deleted", deleted_prepare, names_round},
    };
    return RUN_KIND(kinds);
}
