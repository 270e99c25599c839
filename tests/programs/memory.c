/* Kinds of memory: PROT_NONE pages with content, shared anonymous, shared and private mappings of a file, and the
 * advice that must stay (DONTFORK, WIPEONFORK, DONTDUMP, NOHUGEPAGE). `memory [ROUNDS]` */
#include "common.h"
#include "smaps.h"
#include <fcntl.h>
#include <sys/mman.h>

#define LEN 65536

static char *hidden, *shared, *shared_file, *private_file, *fork_less, *wiped, *dump_less, *flat, *reserved, *down;
static int file;

static char *map(int protection, int flags, int fd)
{
    char *at = mmap(NULL, LEN, protection, flags, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void map_all(void)
{
    const int rw = PROT_READ | PROT_WRITE, anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    char page[4096];
    CHECK((file = open("memory.file", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) >= 0);
    for (int i = 0; i < LEN / 4096; i++) {
        memset(page, 'a' + i, sizeof page);
        CHECK(write(file, page, sizeof page) == sizeof page);
    }
    hidden = map(rw, anonymous, -1);
    memset(hidden, 'h', LEN);
    CHECK(mprotect(hidden, LEN, PROT_NONE) == 0);
    shared = map(rw, MAP_SHARED | MAP_ANONYMOUS, -1);
    shared_file = map(rw, MAP_SHARED, file);
    private_file = map(rw, MAP_PRIVATE, file);
    CHECK((fork_less = map(rw, anonymous, -1)) && madvise(fork_less, LEN, MADV_DONTFORK) == 0);
    CHECK((wiped = map(rw, anonymous, -1)) && madvise(wiped, LEN, MADV_WIPEONFORK) == 0);
    CHECK((dump_less = map(rw, anonymous, -1)) && madvise(dump_less, LEN, MADV_DONTDUMP) == 0);
    CHECK((flat = map(rw, anonymous, -1)) && madvise(flat, LEN, MADV_NOHUGEPAGE) == 0);
    reserved = map(PROT_NONE, anonymous | MAP_NORESERVE, -1);
    down = map(rw, anonymous | MAP_GROWSDOWN, -1);
    memset(fork_less, 'f', LEN);
    memset(wiped, 'w', LEN);
    memset(dump_less, 'd', LEN);
    memset(flat, 'n', LEN);
    memset(down, 'g', LEN);
}

static void check_all_bytes(const char *at, char value)
{
    for (size_t i = 0; i < LEN; i++) CHECK(at[i] == value);
}

static void check_advice(void)
{
    CHECK(has_flag(fork_less, " dc") && !has_flag(wiped, " dc") && !has_flag(flat, " dc"));
    CHECK(has_flag(wiped, " wf") && !has_flag(fork_less, " wf"));
    CHECK(has_flag(dump_less, " dd") && !has_flag(wiped, " dd"));
    CHECK(has_flag(flat, " nh"));
    CHECK(has_flag(reserved, " nr"));
    CHECK(has_flag(down, " gd"));
    CHECK(has_flag(shared, " sh") && has_flag(shared_file, " sh") && !has_flag(private_file, " sh"));
}

static void check_contents(long round)
{
    check_all_bytes(fork_less, 'f');
    check_all_bytes(wiped, 'w');
    check_all_bytes(dump_less, 'd');
    check_all_bytes(flat, 'n');
    check_all_bytes(down, 'g');
    CHECK(mprotect(hidden, LEN, PROT_READ) == 0);
    check_all_bytes(hidden, 'h');
    CHECK(mprotect(hidden, LEN, PROT_NONE) == 0);
    for (int i = 0; i < LEN / 4096; i++) {
        CHECK(*(long *)(shared + i * 4096) == round * i);
        CHECK(*(long *)(shared_file + i * 4096 + 8) == round + i);
        /* private pages: the even ones were written, the odd ones still show the file */
        CHECK(private_file[i * 4096 + 100] == (i % 2 ? 'a' + i : 'Z') && private_file[i * 4096 + 200] == 'a' + i);
    }
}

static void advance(long round)
{
    for (int i = 0; i < LEN / 4096; i++) {
        *(long *)(shared + i * 4096) = (round + 1) * i;
        *(long *)(shared_file + i * 4096 + 8) = round + 1 + i;
        long back;
        CHECK(pread(file, &back, sizeof back, i * 4096 + 8) == sizeof back && back == round + 1 + i);
    }
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 50);
    map_all();
    advance(-1);
    for (int i = 0; i < LEN / 4096; i += 2) private_file[i * 4096 + 100] = 'Z';
    for (long round = 0; round < rounds; round++) {
        step("memory round %ld", round);
        check_contents(round);
        check_advice();
        advance(round);
        sleep_ms(40);
    }
    CHECK(munmap(reserved, LEN) == 0);
    return pass();
}
