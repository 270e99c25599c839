/* Three processes with the same shared memory, each mapped twice. `tree_memory KIND [ROUNDS]`
 * KIND: anonymous; posix (shm_open), unlinked (the same without its name), memfd, file (MAP_SHARED) */
#include "tree.h"
#include <sys/stat.h>

#define CHILDREN 3
#define PAGES 300
#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))

static uint64_t *memory, *again;
static char name[64];
static int fd = -1;

static void open_memory(const char *kind)
{
    if (strcmp(kind, "memfd") == 0) {
        CHECK((fd = memfd_create("tree", MFD_CLOEXEC)) >= 0);
    } else if (strcmp(kind, "file") == 0) {
        CHECK((fd = open("tree_memory.file", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) >= 0);
    } else if (strcmp(kind, "anonymous") != 0) {
        snprintf(name, sizeof name, "/holdfast-memory-%d", (int)getpid());
        CHECK((fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600)) >= 0);
        if (strcmp(kind, "unlinked") == 0) CHECK(shm_unlink(name) == 0);
    }
    if (fd >= 0) CHECK(ftruncate(fd, PAGES * PAGE) == 0);
    int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
    CHECK((memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, flags, fd, 0)) != MAP_FAILED);
    CHECK((again = mremap(memory, 0, PAGES * PAGE, MREMAP_MAYMOVE)) != MAP_FAILED && again != memory);
}

/* Pages are taken in turns; what a page holds depends on its owner and the round. */
static void put(uint64_t who, uint64_t round)
{
    for (uint64_t page = who; page < PAGES; page += CHILDREN + 1)
        for (uint64_t i = 0; i < WORDS; i += 16) memory[page * WORDS + i] = mix(round * PAGES + page + i);
}

static void check(uint64_t round)
{
    for (uint64_t page = 0; page < PAGES; page++)
        for (uint64_t i = 0; i < WORDS; i += 16) {
            CHECK(memory[page * WORDS + i] == mix(round * PAGES + page + i));
            CHECK(again[page * WORDS + i] == memory[page * WORDS + i]);
        }
}

static void share(int in, int out, uint64_t number)
{
    uint64_t round;
    if (number == 1 && fd >= 0) CHECK(close(fd) == 0); /* one of them has it by its mapping alone */
    while (hear_or_end(in, &round)) {
        put(number, round);
        tell(out, round);
        hear(in);
        check(round);
        tell(out, round);
    }
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "anonymous";
    long rounds = number_argument(argc, argv, 2, 100);
    open_memory(kind);
    for (uint64_t i = 1; i <= CHILDREN; i++) fork_child(share, i);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        put(0, round);
        for (int phase = 0; phase < 2; phase++) {
            for (int i = 0; i < CHILDREN; i++) tell(children[i].to, round);
            sleep_ms(ROUND_MS / 2);
            for (int i = 0; i < CHILDREN; i++) CHECK(hear(children[i].from) == round);
        }
        check(round);
        step("%s memory round %lu", kind, (unsigned long)round);
    }
    finish_all(0);
    struct stat found;
    if (fd >= 0) CHECK(fstat(fd, &found) == 0 && found.st_size == PAGES * PAGE);
    if (strcmp(kind, "posix") == 0) CHECK(shm_unlink(name) == 0);
    return pass();
}
