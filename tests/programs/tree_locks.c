/* Locks on files, held by several processes: each its own ranges of one file, a flock shared over fork(2), a process
 * that sleeps until it gets a lock. `tree_locks [ROUNDS]` */
#include "tree.h"
#include <sys/file.h>

#define CHILDREN 3
#define LEN 10

static int file, flocked;

static int lock(int fd, int command, short type, off_t start)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = LEN};
    return fcntl(fd, command, &lock);
}

/* Who keeps this process from locking the range; 0: nobody. */
static pid_t in_the_way(off_t start)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = LEN};
    CHECK(fcntl(file, F_GETLK, &lock) == 0);
    if (lock.l_type == F_UNLCK) return 0;
    CHECK(lock.l_type == F_WRLCK && lock.l_start == start && lock.l_len == LEN);
    return lock.l_pid;
}

static int made(const char *name)
{
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    return fd;
}

/* Holds a range; sees the parent's; shares its flock; waits in turn for the range of the round. */
static void hold(int in, int out, uint64_t number)
{
    uint64_t round;
    pid_t parent = getppid();
    int other = made("tree_locks.two");
    CHECK(lock(file, F_SETLK, F_WRLCK, (off_t)number * 100) == 0);
    tell(out, number);
    while (hear_or_end(in, &round)) {
        CHECK(in_the_way(0) == parent && in_the_way((off_t)number * 100) == 0);
        CHECK(flock(other, LOCK_SH | LOCK_NB) == -1 && errno == EWOULDBLOCK);
        CHECK(flock(flocked, LOCK_EX | LOCK_NB) == 0); /* it has it already */
        if (round % CHILDREN == number - 1) {
            CHECK(lock(file, F_SETLKW, F_WRLCK, 5000) == 0); /* sleeps: the parent has it */
            CHECK(lock(file, F_SETLK, F_UNLCK, 5000) == 0);
        }
        tell(out, round);
    }
    if (number == 1) CHECK(flock(flocked, LOCK_UN) == 0); /* for all who share it */
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    file = made("tree_locks.one");
    flocked = made("tree_locks.two");
    CHECK(lock(file, F_SETLK, F_WRLCK, 0) == 0 && flock(flocked, LOCK_EX) == 0);
    for (uint64_t i = 1; i <= CHILDREN; i++) {
        fork_child(hold, i);
        CHECK(hear(children[i - 1].from) == i);
    }
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        CHECK(lock(file, F_SETLKW, F_WRLCK, 5000) == 0);
        for (int i = 0; i < CHILDREN; i++) tell(children[i].to, round);
        sleep_ms(ROUND_MS);
        for (int i = 0; i < CHILDREN; i++) CHECK(in_the_way((i + 1) * 100) == children[i].pid);
        CHECK(lock(file, F_SETLK, F_UNLCK, 5000) == 0);
        for (int i = 0; i < CHILDREN; i++) CHECK(hear(children[i].from) == round);
        step("locks round %lu", (unsigned long)round);
    }
    int other = made("tree_locks.two");
    for (int i = CHILDREN; i-- > 0;) {
        CHECK(flock(other, LOCK_SH | LOCK_NB) == -1 && errno == EWOULDBLOCK);
        finish(&children[i], 0);
        CHECK(in_the_way((i + 1) * 100) == 0);
    }
    CHECK(flock(other, LOCK_EX | LOCK_NB) == 0);
    CHECK(unlink("tree_locks.one") == 0 && unlink("tree_locks.two") == 0);
    return pass();
}
