/* Files whose first name was removed after they got another one, as sem_open() makes semaphores: one process has them
 * open and mapped by the first name, another one by the second. `tree_links [ROUNDS]` */
#include "tree.h"
#include <fcntl.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/stat.h>

static char semaphore_name[64];

static long *map(int fd)
{
    long *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

/* Has opened everything by the second names. */
static void other(int in, int out, uint64_t number)
{
    int log = open("log.second", O_RDONLY | O_CLOEXEC), page = open("page.second", O_RDWR | O_CLOEXEC);
    CHECK(log >= 0 && page >= 0);
    long *at = map(page), line = 0;
    CHECK(close(page) == 0);
    sem_t *semaphore = NULL;
    while (hear_or_end(in, &number)) {
        if (semaphore == NULL) CHECK((semaphore = sem_open(semaphore_name, 0)) != SEM_FAILED);
        CHECK(at[0] == (long)number);
        at[1] = at[0] * 3;
        CHECK(sem_wait(semaphore) == 0);
        CHECK(read(log, &line, sizeof line) == sizeof line && line == (long)number);
        tell(out, number);
    }
}

/* A file that is open by a name that is gone, and has another one. */
static int linked(const char *first, const char *second)
{
    int fd = open(first, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, 0) == 0);
    CHECK(link(first, second) == 0 && unlink(first) == 0);
    return fd;
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    snprintf(semaphore_name, sizeof semaphore_name, "/holdfast-links-%d", getpid());
    int log = linked("log.first", "log.second"), page = linked("page.first", "page.second");
    CHECK(ftruncate(page, 4096) == 0);
    long *at = map(page);
    struct child *child = fork_child(other, 0); /* before there is a semaphore that it would inherit */
    sem_t *semaphore = sem_open(semaphore_name, O_CREAT | O_EXCL, 0600, 0);
    CHECK(semaphore != SEM_FAILED);
    for (long round = 0; round < rounds; round++) {
        int value;
        at[0] = round;
        CHECK(write(log, &round, sizeof round) == sizeof round);
        CHECK(sem_post(semaphore) == 0);
        sleep_ms(ROUND_MS);
        tell(child->to, (uint64_t)round);
        CHECK(hear(child->from) == (uint64_t)round);
        CHECK(at[1] == round * 3);
        CHECK(sem_getvalue(semaphore, &value) == 0 && value == 0);
        struct stat named, open;
        CHECK(stat("log.second", &named) == 0 && fstat(log, &open) == 0);
        CHECK(named.st_ino == open.st_ino && named.st_size == (round + 1) * (long)sizeof round);
        step("links round %ld", round);
    }
    finish(child, 0);
    CHECK(unlink("log.second") == 0 && unlink("page.second") == 0 && sem_unlink(semaphore_name) == 0);
    return pass();
}
