/* System V shared memory: one segment that was removed and is still attached, one with a key, and one without that is
 * attached twice, in part, read-only, and anew by its id in each round. `segments [ROUNDS]` */
#include "common.h"
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>

#define PAGE 4096
#define LEN (8 * PAGE)

static int removed, kept, named;
static key_t key;
static char *gone, *whole, *part, *read_only, *by_key;

static char *attach(int id, int flags)
{
    char *at = shmat(id, NULL, flags);
    CHECK(at != (char *)-1);
    return at;
}

static void open_all(void)
{
    CHECK((removed = shmget(IPC_PRIVATE, LEN - 100, IPC_CREAT | 0600)) >= 0);
    gone = attach(removed, 0);
    CHECK(shmctl(removed, IPC_RMID, NULL) == 0);
    CHECK((kept = shmget(IPC_PRIVATE, LEN, IPC_CREAT | 0640)) >= 0);
    whole = attach(kept, 0);
    part = attach(kept, 0);
    CHECK(munmap(part, LEN / 2) == 0 && mprotect(part + LEN / 2, PAGE, PROT_READ) == 0);
    read_only = attach(kept, SHM_RDONLY);
    key = (key_t)(0x48000000u | (unsigned)getpid());
    CHECK((named = shmget(key, LEN, IPC_CREAT | IPC_EXCL | 0600)) >= 0);
    by_key = attach(named, 0);
}

static void advance(long round)
{
    for (int i = 0; i < LEN / PAGE; i++) {
        *(long *)(gone + i * PAGE) = round * i;
        *(long *)(whole + i * PAGE) = round + i;
        /* pages become zero again, and other ones anew */
        memset(by_key + i * PAGE, (round + i) % 3 == 0 ? 0 : (int)round, PAGE);
    }
}

static void check_kept(long round)
{
    whole[LEN - 1] = (char)round;
    CHECK(part[LEN - 1] == (char)round && read_only[LEN - 1] == (char)round);
    char *again = attach(kept, 0);
    CHECK(again[LEN - 1] == (char)round && shmdt(again) == 0);
    struct shmid_ds facts;
    CHECK(shmctl(kept, IPC_STAT, &facts) == 0 && facts.shm_segsz == LEN && (facts.shm_perm.mode & 0777) == 0640);
    CHECK(shmget(key, LEN, 0) == named);
    CHECK(mprotect(read_only, LEN, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
    CHECK(mprotect(part + LEN / 2, PAGE, PROT_READ | PROT_WRITE) == 0);
    CHECK(mprotect(part + LEN / 2, PAGE, PROT_READ) == 0);
}

static void check_all(long round)
{
    for (int i = 0; i < LEN / PAGE; i++) {
        CHECK(*(long *)(gone + i * PAGE) == round * i && *(long *)(whole + i * PAGE) == round + i);
        CHECK(*(long *)(read_only + i * PAGE) == round + i);
        if (i >= LEN / PAGE / 2) CHECK(*(long *)(part + i * PAGE) == round + i);
        char expected = (round + i) % 3 == 0 ? 0 : (char)round;
        CHECK(by_key[i * PAGE] == expected && by_key[(i + 1) * PAGE - 1] == expected);
    }
    check_kept(round);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 60);
    open_all();
    advance(0);
    for (long round = 0; round < rounds; round++) {
        step("segments round %ld", round);
        check_all(round);
        advance(round + 1);
        sleep_ms(30);
    }
    /* by the address of the attachment, of which the first half is gone */
    CHECK(shmdt(part) == 0 && shmdt(gone) == 0 && shmdt(whole) == 0 && shmdt(read_only) == 0);
    CHECK(shmctl(named, IPC_RMID, NULL) == 0 && shmctl(kept, IPC_RMID, NULL) == 0);
    return pass();
}
