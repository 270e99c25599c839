/* Shared memory without a name that something else than its shared mapping leads to: `followers KIND [ROUNDS]`
 * KIND: open (a descriptor of it, from /proc/self/map_files), private (a private mapping: what it has not written
 * follows the shared memory), both, child (the private mapping is a child's) */
#include "rounds.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define PAGE 4096
#define PAGES 6
static char *shared, *private;
static int fd = -1;
static volatile long *asked, *answered;

static void lead(void)
{
    char path[128];
    shared = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (long)shared, (long)shared + PAGES * PAGE);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) not_here(path);
}

/* From the second page on; its own second page is written. */
static void map_privately(void)
{
    private = mmap(NULL, (PAGES - 1) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, PAGE);
    CHECK(private != MAP_FAILED);
    private[PAGE] = 42;
}

static void prepare_open(void) { lead(); }
static void prepare_both(void) { lead(); map_privately(); }
static void prepare_private(void)
{
    prepare_both();
    CHECK(close(fd) == 0);
    fd = -1;
}

static int follows(long round)
{
    for (long page = 1; page < PAGES; page++) {
        char expected = page == 2 ? 42 : (char)(round + page);
        if (private[(page - 1) * PAGE] != expected) return 0;
    }
    return 1;
}

static void prepare_child(void)
{
    lead();
    asked = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(asked != MAP_FAILED);
    answered = asked + 1;
    *asked = *answered = -1;
    if (fork() == 0) {
        map_privately();
        CHECK(close(fd) == 0 && munmap(shared, PAGES * PAGE) == 0);
        for (;;) {
            if (*asked == -2) _exit(0);
            if (*answered != *asked) {
                CHECK(follows(*asked));
                *answered = *asked;
            }
            sleep_ms(1);
        }
    }
    CHECK(close(fd) == 0);
    fd = -1;
}

static void write_shared(long round)
{
    for (long page = 0; page < PAGES; page++) shared[page * PAGE] = (char)(round + page);
}

static void one_round(long round)
{
    if (round > 0 && private != NULL) CHECK(follows(round - 1));
    if (round > 0 && fd >= 0)
        for (long page = 0; page < PAGES; page++) {
            char byte;
            CHECK(pread(fd, &byte, 1, page * PAGE) == 1 && byte == (char)(round - 1 + page));
        }
    write_shared(round);
    if (private != NULL) CHECK(follows(round));
    if (fd >= 0) {
        char byte = (char)-round;
        CHECK(pwrite(fd, &byte, 1, 9) == 1 && shared[9] == byte);
    }
    if (asked != NULL) {
        *asked = round;
        while (*answered != round) {
            CHECK(waitpid(-1, NULL, WNOHANG) == 0);
            sleep_ms(1);
        }
    }
}

static const struct kind kinds[] = {{"open", prepare_open, one_round}, {"private", prepare_private, one_round},
    {"both", prepare_both, one_round}, {"child", prepare_child, one_round}};

int main(int argc, char **argv)
{
    int status = RUN_KIND(kinds);
    if (asked != NULL) *asked = -2;
    return status;
}
