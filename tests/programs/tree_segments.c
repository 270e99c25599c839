/* Four processes with the same System V shared memory: a segment that was removed, one with a key, and one that only a
 * child has. One child attaches the second itself by its key, one has it read-only, one has it twice and in part.
 * `tree_segments KIND [ROUNDS]`, and until HOLDFAST_TEST_STAY; KIND: kept; removed (the second is too, once all have
 * it, and only its id is used). */
#include "tree.h"
#include <sys/ipc.h>
#include <sys/shm.h>

#define CHILDREN 3
#define PAGES 40
#define PAGE 4096
#define LEN (PAGES * PAGE)
#define WORDS (PAGE / sizeof(uint64_t))

static int named;
static key_t key;
static uint64_t *gone, *shared;

static uint64_t *attach(int id, int flags)
{
    uint64_t *at = shmat(id, NULL, flags);
    CHECK(at != (uint64_t *)-1);
    return at;
}

/* Pages are taken in turns; what a page holds depends on its owner and the round. Some become zero again. */
static uint64_t word(uint64_t round, uint64_t page)
{
    return (round + page) % 5 == 0 ? 0 : mix(round * PAGES + page);
}

static void put(uint64_t *memory, uint64_t who, uint64_t round)
{
    for (uint64_t page = who; page < PAGES; page += CHILDREN + 1)
        for (uint64_t i = 0; i < WORDS; i++) memory[page * WORDS + i] = word(round, page);
}

static void check(const uint64_t *memory, uint64_t first, uint64_t round)
{
    for (uint64_t page = first; page < PAGES; page++)
        for (uint64_t i = 0; i < WORDS; i++) CHECK(memory[page * WORDS + i] == word(round, page));
}

static void count(int id, uint64_t least)
{
    struct shmid_ds facts;
    CHECK(shmctl(id, IPC_STAT, &facts) == 0 && facts.shm_nattch == least);
    CHECK(facts.shm_segsz == LEN && (facts.shm_perm.mode & 0777) == 0600);
}

static void share(int in, int out, uint64_t number)
{
    uint64_t round, *own = shared, *again = NULL, *read_only = NULL;
    int alone = -1;
    if (number == 1) { /* not the mapping that it was born with */
        CHECK(shmdt(shared) == 0 && shmget(key, LEN, 0) == named);
        own = attach(named, 0);
        CHECK((alone = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600)) >= 0);
        again = attach(alone, 0);
        CHECK(shmctl(alone, IPC_RMID, NULL) == 0);
    }
    if (number == 2) read_only = attach(named, SHM_RDONLY);
    if (number == 3) {
        again = attach(named, 0);
        CHECK(munmap(again, LEN / 2) == 0);
    }
    if (number == 1) *again = 0;
    tell(out, 0);
    while (hear_or_end(in, &round)) {
        put(gone, number, round);
        put(own, number, round);
        if (number == 1) CHECK((*again)++ == round);
        tell(out, round);
        hear(in);
        check(gone, 0, round);
        check(own, 0, round);
        if (number == 2) {
            check(read_only, 0, round);
            CHECK(mprotect(read_only, PAGE, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
        }
        if (number == 3) check(again, PAGES / 2, round);
        tell(out, round);
    }
}

static void open_all(void)
{
    int removed = shmget(IPC_PRIVATE, LEN, IPC_CREAT | 0600);
    CHECK(removed >= 0);
    gone = attach(removed, 0);
    CHECK(shmctl(removed, IPC_RMID, NULL) == 0);
    key = (key_t)(0x49000000u | (unsigned)getpid());
    CHECK((named = shmget(key, LEN, IPC_CREAT | IPC_EXCL | 0600)) >= 0);
    shared = attach(named, 0);
}

int main(int argc, char **argv)
{
    int is_kept = argc <= 1 || strcmp(argv[1], "removed") != 0;
    long rounds = number_argument(argc, argv, 2, 100);
    open_all();
    for (uint64_t i = 1; i <= CHILDREN; i++) fork_child(share, i);
    for (int i = 0; i < CHILDREN; i++) hear(children[i].from);
    if (!is_kept) CHECK(shmctl(named, IPC_RMID, NULL) == 0);
    for (uint64_t round = 0; round < (uint64_t)rounds || has_to_stay(); round++) {
        put(gone, 0, round);
        put(shared, 0, round);
        for (int phase = 0; phase < 2; phase++) {
            for (int i = 0; i < CHILDREN; i++) tell(children[i].to, round);
            sleep_ms(ROUND_MS / 2);
            for (int i = 0; i < CHILDREN; i++) CHECK(hear(children[i].from) == round);
        }
        check(gone, 0, round);
        check(shared, 0, round);
        /* each has one, one of them two more, of which one is half gone */
        count(named, 1 + CHILDREN + 2);
        step("%s segments round %lu", is_kept ? "kept" : "removed", (unsigned long)round);
    }
    finish_all(0);
    count(named, 1);
    if (is_kept) CHECK(shmctl(named, IPC_RMID, NULL) == 0);
    return pass();
}
