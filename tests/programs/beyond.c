/* A private mapping that reaches beyond the end of a file without a name, which no descriptor leads to any more: what
 * it shows is there, and beyond the end there is nothing (SIGBUS; EFAULT from a call). Where the file is mapped shared
 * as well (kind shared), pages that were not written follow it. `beyond KIND [ROUNDS]` */
#define _GNU_SOURCE
#include "rounds.h"
#include <fcntl.h>
#include <sys/mman.h>

#define PAGE 4096L

static char *whole, *part;

static void map(int fd)
{
    char page[2 * PAGE];
    memset(page, 'a', sizeof page);
    CHECK(pwrite(fd, page, sizeof page, 0) == sizeof page);
    whole = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    part = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, PAGE);
    CHECK(whole != MAP_FAILED && part != MAP_FAILED && close(fd) == 0);
    whole[0] = 'b';
}

static void map_deleted(void)
{
    int fd = open("beyond.file", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, 2 * PAGE) == 0);
    map(fd);
    CHECK(unlink("beyond.file") == 0);
}

static void map_memfd(void)
{
    int fd = memfd_create("beyond", 0);
    CHECK(fd >= 0 && ftruncate(fd, 2 * PAGE) == 0);
    map(fd);
}

static void map_anonymous(void)
{
    char *shared = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char path[80];
    CHECK(shared != MAP_FAILED);
    snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (long)shared, (long)shared + 2 * PAGE);
    int fd = open(path, O_RDWR);
    if (fd < 0) not_here(path);
    map(fd);
    CHECK(munmap(shared, 2 * PAGE) == 0);
}

static int is_there(const char *at)
{
    return !(access(at, F_OK) == -1 && errno == EFAULT);
}

static void look(long round)
{
    for (int i = 0; i < 2; i++) {
        CHECK(whole[i * PAGE] == (i == 0 ? 'b' + round % 20 : 'a'));
        CHECK(whole[i * PAGE + PAGE - 1] == 'a' && is_there(whole + i * PAGE));
    }
    CHECK(part[0] == 'a' && !is_there(whole + 2 * PAGE) && !is_there(whole + 4 * PAGE - 1));
    whole[0] = (char)('b' + (round + 1) % 20);
}

static char *shared;

static void map_shared(void)
{
    int fd = memfd_create("beyond", 0);
    CHECK(fd >= 0 && ftruncate(fd, 2 * PAGE) == 0);
    CHECK((shared = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED);
    map(fd);
}

static void look_shared(long round)
{
    look(round);
    CHECK(part[1] == 'a' + round % 20 && whole[PAGE + 1] == part[1] && shared[0] == 'a');
    shared[PAGE + 1] = (char)('a' + (round + 1) % 20);
    CHECK(part[1] == shared[PAGE + 1]);
}

static const struct kind kinds[] = {
    {"shared", map_shared, look_shared},
    {"deleted", map_deleted, look},
    {"memfd", map_memfd, look},
    {"anonymous", map_anonymous, look},
};

int main(int argc, char **argv)
{
    return RUN_KIND(kinds);
}
