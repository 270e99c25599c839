/* One file in memory at several places: `twice KIND [ROUNDS]`
 * KIND: shared (two shared mappings of the same pages, one of the middle that grows by mremap; a change at one is seen
 * at the others, and in the file), private (a private mapping besides, some pages of which were written), removed
 * (mapped in every other round and removed in the next: what was mapped at a checkpoint is gone at the restart) */
#include "rounds.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define PAGE 4096L
#define PAGES 64L
static char *first, *second, *own, *middle;
static long middle_pages = 1;
static int file;

static char *map(int protection, int flags, long pages, long from)
{
    char *at = mmap(NULL, (size_t)(pages * PAGE), protection, flags, file, from * PAGE);
    CHECK(at != MAP_FAILED);
    return at;
}

static void one_round(long round)
{
    long value;
    for (long page = 0; page < PAGES; page++) {
        long last = page < round ? page : -1;
        CHECK(*(long *)(first + page * PAGE) == last + 1 && *(long *)(second + page * PAGE) == last + 1);
        if (own != NULL) CHECK(*(long *)(own + page * PAGE) == (page % 2 ? last + 1 : -page));
        CHECK(pread(file, &value, sizeof value, page * PAGE) == sizeof value && value == last + 1);
    }
    CHECK(*(long *)(middle + (middle_pages - 1) * PAGE) == *(long *)(first + (8 + middle_pages - 1) * PAGE));
    *(long *)((round % 2 ? first : second) + round * PAGE) = round + 1;
    if (middle_pages < 40) {
        middle = mremap(middle, (size_t)(middle_pages * PAGE), (size_t)((middle_pages + 1) * PAGE), MREMAP_MAYMOVE);
        CHECK(middle != MAP_FAILED);
        middle_pages++;
    }
}

static void shared_prepare(void)
{
    CHECK((file = open("twice.file", O_RDWR | O_CREAT | O_CLOEXEC, 0600)) >= 0 && ftruncate(file, PAGES * PAGE) == 0);
    first = map(PROT_READ | PROT_WRITE, MAP_SHARED, PAGES, 0);
    second = map(PROT_READ | PROT_WRITE, MAP_SHARED, PAGES, 0);
    middle = map(PROT_READ | PROT_WRITE, MAP_SHARED, 1, 8);
}

static void private_prepare(void)
{
    shared_prepare();
    own = map(PROT_READ | PROT_WRITE, MAP_PRIVATE, PAGES, 0);
    for (long page = 0; page < PAGES; page += 2) *(long *)(own + page * PAGE) = -page;
}

static void removed_round(long round)
{
    const char *name = "twice.removed";
    long value;
    if (round % 2 == 0) {
        unlink(name); /* of an earlier life */
        mode_t mask = umask(0);
        CHECK((file = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0646)) >= 0
            && ftruncate(file, PAGES * PAGE) == 0);
        umask(mask);
        first = map(PROT_READ | PROT_WRITE, MAP_SHARED, PAGES, 0);
        CHECK(close(file) == 0);
        for (long page = 0; page < PAGES; page++) *(long *)(first + page * PAGE) = round + page;
        return;
    }
    struct stat found;
    CHECK(stat(name, &found) == 0);
    CHECK(found.st_size == PAGES * PAGE && (found.st_mode & 07777) == 0646);
    CHECK((file = open(name, O_RDONLY | O_CLOEXEC)) >= 0);
    for (long page = 0; page < PAGES; page++) {
        CHECK(*(long *)(first + page * PAGE) == round - 1 + page);
        CHECK(pread(file, &value, sizeof value, page * PAGE) == sizeof value && value == round - 1 + page);
    }
    /* first, while it is mapped: what is neither open nor mapped is in no image */
    CHECK(unlink(name) == 0);
    CHECK(close(file) == 0 && munmap(first, (size_t)(PAGES * PAGE)) == 0);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {
        {"shared", shared_prepare, one_round}, {"private", private_prepare, one_round},
        {"removed", NULL, removed_round}};
    return RUN_KIND(kinds);
}
