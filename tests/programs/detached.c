/* System V shared memory that is attached for moments only: what is in it while nobody has it attached.
 * `detached KIND [ROUNDS]`
 * KIND: moments (Perl's shmread and shmwrite), keyed (one with a key, found anew in each round), children (only they
 * attach it), untouched (made, and not attached before the end), sparse (32 MiB of which three pages are used) */
#include "rounds.h"
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/wait.h>

#define PAGE 4096L
static int id;
static key_t key;
static size_t len = 3 * PAGE;

static int make(key_t with) { return shmget(with, len, IPC_CREAT | 0600); }

static long *attach(void)
{
    long *at = shmat(id, NULL, 0);
    CHECK(at != (long *)-1);
    return at;
}

static long sum(long round) { return round * (round + 1) / 2; }

/* Adds to the first page, makes another one zero every other time. */
static void add(long round)
{
    long *at = attach();
    CHECK(at[0] == sum(round) && at[PAGE / 8 * 2 + 5] == (round % 2 ? 0 : round));
    at[0] += round + 1;
    at[PAGE / 8 * 2 + 5] = round % 2 ? round + 1 : 0;
    long *last = at + len / 8 - 1;
    if (len > 3 * (size_t)PAGE) CHECK(*last == round);
    *last = round + 1;
    CHECK(shmdt(at) == 0);
}

static void make_private(void) { CHECK((id = make(IPC_PRIVATE)) >= 0); }
static void make_large(void)
{
    len = 32 << 20;
    make_private();
}
static void make_keyed(void)
{
    key = (key_t)(0x49000000u | (unsigned)getpid());
    CHECK((id = shmget(key, len, IPC_CREAT | IPC_EXCL | 0600)) >= 0);
}

static void find_and_add(long round)
{
    int found = shmget(key, len, 0);
    CHECK(found == id);
    add(round);
}

static void add_in_child(long round)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        add(round);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void look(long round)
{
    struct shmid_ds facts;
    (void)round;
    CHECK(shmctl(id, IPC_STAT, &facts) == 0 && facts.shm_segsz == len && facts.shm_nattch == 0);
}

static const struct kind kinds[] = {{"moments", make_private, add}, {"keyed", make_keyed, find_and_add},
    {"children", make_private, add_in_child}, {"untouched", make_private, look}, {"sparse", make_large, add}};

int main(int argc, char **argv)
{
    int status = RUN_KIND(kinds);
    if (status == 0) CHECK(shmctl(id, IPC_RMID, NULL) == 0);
    return status;
}
