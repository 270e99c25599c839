/* Locks on files, of every kind: they are there after a restart, for this program and for others. `locks [ROUNDS]` */
#include "common.h"
#include <fcntl.h>
#include <sys/file.h>

static int flocked, posix, described, leased, others[3];

static void put_lock(int fd, int command, short type, off_t start, off_t len)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    CHECK(fcntl(fd, command, &lock) == 0);
}

/* What keeps somebody else from locking a byte for writing: the type, or F_UNLCK. */
static short in_the_way(int fd, off_t at, off_t *start, off_t *len)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    CHECK(fcntl(fd, F_OFD_GETLK, &lock) == 0);
    *start = lock.l_start;
    *len = lock.l_len;
    return lock.l_type;
}

static int made(const char *name, int flags)
{
    int fd = open(name, flags | O_CREAT, 0600);
    CHECK(fd >= 0);
    return fd;
}

static void open_all(void)
{
    flocked = made("lock.one", O_RDWR | O_CLOEXEC);
    posix = made("lock.two", O_RDWR);
    described = made("lock.three", O_RDWR);
    close(made("lock.four", O_RDWR));
    CHECK((leased = open("lock.four", O_RDONLY)) >= 0);
    others[0] = made("lock.one", O_RDWR);
    others[1] = made("lock.two", O_RDWR);
    others[2] = made("lock.three", O_RDWR);
    CHECK(flock(flocked, LOCK_EX) == 0);
    put_lock(posix, F_SETLK, F_WRLCK, 100, 50);
    put_lock(posix, F_SETLK, F_RDLCK, 1000, 0);
    put_lock(described, F_OFD_SETLK, F_RDLCK, 7, 1);
    CHECK(fcntl(leased, F_SETLEASE, F_RDLCK) == 0);
}

static void check(uint64_t round)
{
    off_t start, len;
    CHECK(flock(others[0], LOCK_SH | LOCK_NB) == -1 && errno == EWOULDBLOCK);
    CHECK(in_the_way(others[1], 120, &start, &len) == F_WRLCK && start == 100 && len == 50);
    CHECK(in_the_way(others[1], 99, &start, &len) == F_UNLCK);
    CHECK(in_the_way(others[1], 5000, &start, &len) == F_RDLCK && start == 1000 && len == 0);
    CHECK(in_the_way(others[2], 7, &start, &len) == F_RDLCK && start == 7 && len == 1);
    CHECK(fcntl(leased, F_GETLEASE) == F_RDLCK);
    /* it moves */
    off_t at = (off_t)(2000000 + round * 10);
    if (round > 0) CHECK(in_the_way(others[2], at - 10, &start, &len) == F_WRLCK && len == 3);
    if (round > 0) put_lock(described, F_OFD_SETLK, F_UNLCK, at - 10, 3);
    put_lock(described, F_OFD_SETLK, F_WRLCK, at, 3);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 60);
    open_all();
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        check(round);
        sleep_ms(25);
        step("locks round %lu", (unsigned long)round);
    }
    for (int i = 1; i <= 4; i++) unlink((const char *[]){"", "lock.one", "lock.two", "lock.three", "lock.four"}[i]);
    return pass();
}
