/* Shared memory of more than a GiB of which few pages were touched: without a name, memfds with a descriptor and
 * without, a System V segment, a deleted file of /dev/shm. Pages are written through mappings, by a child that has
 * ended, and by pwrite(2); others are given back. No more pages are there than were written.
 * `shared_sparse [ROUNDS]` */
#include "rounds.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define PAGE 4096ul
#define PAGES ((1100ul << 20) / PAGE)
#define LEN (PAGES * PAGE)
/* So many pages there are of each, and so many more a look at its end, or a rollback (zeros), may have made. */
#define KEPT 8
#define MORE 24
#define OBJECTS 5

static char *at[OBJECTS];
static int kept_open;
static unsigned char told[PAGES];

static char *map_shared(int fd, int flags)
{
    char *start = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0);
    if (start == MAP_FAILED) not_here("more than a GiB of shared memory");
    /* Huge pages would be more than what is written. */
    madvise(start, LEN, MADV_NOHUGEPAGE);
    return start;
}

static char *map_file(int fd, int keep)
{
    CHECK(fd >= 0 && ftruncate(fd, LEN) == 0);
    char *start = map_shared(fd, 0);
    if (!keep) CHECK(close(fd) == 0);
    return start;
}

static void prepare(void)
{
    at[0] = map_shared(-1, MAP_ANONYMOUS | MAP_NORESERVE);
    at[1] = map_file(kept_open = memfd_create("kept", 0), 1);
    at[2] = map_file(memfd_create("closed", 0), 0);
    int segment = shmget(IPC_PRIVATE, LEN, IPC_CREAT | SHM_NORESERVE | 0600);
    CHECK(segment >= 0);
    at[3] = shmat(segment, NULL, 0);
    CHECK(at[3] != (char *)-1 && shmctl(segment, IPC_RMID, NULL) == 0);
    char name[64];
    snprintf(name, sizeof name, "/holdfast-sparse-%d", getpid());
    at[4] = map_file(shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600), 0);
    CHECK(shm_unlink(name) == 0);
}

/* Where the page of a round is: all over the object, its first and its last page among them. */
static unsigned long place(long round)
{
    return round % 40 == 3 ? 0 : round % 40 == 5 ? PAGES - 1 : (unsigned long)(round + 1) * 65537 % PAGES;
}

static void put(int object, long round)
{
    *(long *)(at[object] + place(round) * PAGE + 8) = round * 10 + object + 1;
}

static void by_child(long round)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < OBJECTS; i++) put(i, round);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static long there(int object)
{
    long count = 0;
    CHECK(mincore(at[object], LEN, told) == 0);
    for (unsigned long i = 0; i < PAGES; i++) count += told[i] & 1;
    return count;
}

static void check(long round, int object)
{
    long first = round < KEPT ? 0 : round - KEPT;
    for (long i = first; i < round; i++) {
        CHECK(*(long *)(at[object] + place(i) * PAGE + 8) == i * 10 + object + 1);
    }
    if (round % 5 != 0) return;
    long pages = there(object);
    CHECK(pages >= round - first && pages <= round - first + MORE);
    struct stat facts;
    CHECK(fstat(kept_open, &facts) == 0 && facts.st_size == (off_t)LEN);
}

static void round_of(long round)
{
    for (int i = 0; i < OBJECTS; i++) check(round, i);
    if (round % 3 == 0) {
        by_child(round);
    } else {
        for (int i = 0; i < OBJECTS; i++) put(i, round);
    }
    if (round % 4 == 1) {
        long value = round * 10 + 2;
        CHECK(madvise(at[1] + place(round) * PAGE, PAGE, MADV_REMOVE) == 0);
        CHECK(pwrite(kept_open, &value, sizeof value, (off_t)(place(round) * PAGE + 8)) == sizeof value);
    }
    if (round < KEPT) return;
    for (int i = 0; i < OBJECTS; i++) {
        CHECK(madvise(at[i] + place(round - KEPT) * PAGE, PAGE, MADV_REMOVE) == 0);
    }
}

int main(int argc, char **argv)
{
    prepare();
    return run_rounds("shared_sparse", number_argument(argc, argv, 1, 45), round_of);
}
