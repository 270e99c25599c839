/* Memory without a name: memfds with holes, seals and several descriptions, mapped shared and privately, open and
 * closed; a file in /dev/shm that was unlinked. `memfds [ROUNDS]` */
#include "common.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define PAGE 4096
#define LEN (16 * PAGE)

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif

static int plain, reader, sealed, future, gone, odd;
static char *both, *again, *kept, *orphan, *read_only, *future_map, *private_map, *shm, *hidden, *locked, *tail;

static char *map(int fd, size_t len, int protection, int flags, off_t offset)
{
    char *at = mmap(NULL, len, protection, flags, fd, offset);
    CHECK(at != MAP_FAILED);
    return at;
}

static void put(int fd, off_t at, uint64_t from)
{
    uint64_t words[PAGE / 8];
    for (size_t i = 0; i < PAGE / 8; i++) words[i] = mix(from + i);
    CHECK(pwrite(fd, words, PAGE, at) == PAGE);
}

static void check_words(const void *bytes, uint64_t from)
{
    const uint64_t *words = bytes;
    for (size_t i = 0; i < PAGE / 8; i++) CHECK(words[i] == mix(from + i));
}

static void check_page(int fd, off_t at, uint64_t from)
{
    uint64_t words[PAGE / 8];
    CHECK(pread(fd, words, PAGE, at) == PAGE);
    check_words(words, from);
}

static int memfd(const char *name, unsigned flags, off_t len)
{
    int fd = memfd_create(name, flags);
    CHECK(fd >= 0 && ftruncate(fd, len) == 0);
    return fd;
}

/* Open, with holes, an offset of its own for each description, and a length that is no multiple of a page. */
static void make_plain(void)
{
    char path[64];
    plain = memfd("plain memory", MFD_ALLOW_SEALING, 100 * LEN + 77);
    put(plain, 0, 1);
    put(plain, 50 * LEN, 2);
    CHECK(pwrite(plain, "the end", 7, 100 * LEN + 70) == 7);
    snprintf(path, sizeof path, "/proc/self/fd/%d", plain);
    CHECK((reader = open(path, O_RDONLY | O_CLOEXEC)) >= 0 && lseek(reader, 100 * LEN + 70, SEEK_SET) > 0);
    CHECK(fchmod(plain, 0640) == 0 && lseek(plain, 4321, SEEK_SET) == 4321);
    CHECK(fcntl(plain, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    odd = memfd("odd", 0, 3 * PAGE + 5); /* mapped beyond its end, and twice by descriptors */
    tail = map(odd, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    memcpy(tail + 3 * PAGE, "tail!", 5);
}

static void make_sealed(void)
{
    sealed = memfd("sealed", MFD_ALLOW_SEALING | MFD_CLOEXEC, LEN);
    for (int i = 0; i < LEN / PAGE; i++) put(sealed, i * PAGE, 100u * (unsigned)i);
    CHECK(fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0);
    read_only = map(sealed, LEN, PROT_READ, MAP_PRIVATE, 0);
    future = memfd("future", MFD_ALLOW_SEALING, LEN);
    future_map = map(future, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    CHECK(fcntl(future, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0);
}

static void make_mapped(void)
{
    const int rw = PROT_READ | PROT_WRITE;
    int fd = memfd("both", 0, LEN);
    both = map(fd, LEN, rw, MAP_SHARED, 0);
    again = map(fd, LEN / 2, PROT_READ, MAP_SHARED, LEN / 2);
    private_map = map(plain, LEN, rw, MAP_PRIVATE, 50 * LEN);
    memset(private_map + PAGE, 'p', PAGE);
    CHECK(close(fd) == 0);
    fd = memfd("orphan", 0, LEN - PAGE); /* mapped beyond its end; the descriptor is closed */
    orphan = map(fd, LEN, rw, MAP_SHARED, 0);
    hidden = map(fd, PAGE, PROT_NONE, MAP_SHARED, 0);
    CHECK(close(fd) == 0);
    fd = memfd("kept", 0, 4 * LEN);
    kept = map(fd, LEN, rw, MAP_SHARED, LEN); /* the rest is only known by the descriptor */
    put(fd, 0, 7);
    put(fd, 3 * LEN, 8);
    gone = fd;
    fd = memfd("locked", MFD_ALLOW_SEALING, LEN);
    put(fd, 0, 9);
    locked = map(fd, LEN, PROT_READ, MAP_SHARED, 0);
    CHECK(close(fd) == 0);
}

static void make_unlinked(void)
{
    char name[64];
    snprintf(name, sizeof name, "/dev/shm/holdfast-test-%d", (int)getpid());
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && unlink(name) == 0 && ftruncate(fd, LEN) == 0);
    shm = map(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    CHECK(close(fd) == 0);
}

static void advance(long round)
{
    for (int i = 0; i < LEN / PAGE - 1; i++) {
        *(long *)(both + i * PAGE) = round * i;
        *(long *)(orphan + i * PAGE) = round + i;
        *(long *)(future_map + i * PAGE) = round - i;
        *(long *)(kept + i * PAGE + 8) = round ^ i;
        *(long *)(shm + i * PAGE) = round + 2 * i;
    }
    *(long *)(both + LEN - PAGE) = round;
}

static void check_mapped(long round)
{
    for (int i = 0; i < LEN / PAGE - 1; i++) {
        long in_file;
        CHECK(*(long *)(both + i * PAGE) == round * i && *(long *)(orphan + i * PAGE) == round + i);
        CHECK(*(long *)(future_map + i * PAGE) == round - i && *(long *)(shm + i * PAGE) == round + 2 * i);
        CHECK(pread(future, &in_file, sizeof in_file, i * PAGE) == sizeof in_file && in_file == round - i);
        CHECK(pread(gone, &in_file, sizeof in_file, LEN + i * PAGE + 8) == sizeof in_file && in_file == (round ^ i));
        if (i >= LEN / PAGE / 2) CHECK(*(long *)(again + i * PAGE - LEN / 2) == round * i);
    }
    CHECK(*(long *)(again + LEN / 2 - PAGE) == round);
    both[LEN - 8] = (char)round;
    CHECK(again[LEN / 2 - 8] == (char)round);
    check_words(locked, 9);
    CHECK(mprotect(hidden, PAGE, PROT_READ) == 0 && *(long *)hidden == round && mprotect(hidden, PAGE, PROT_NONE) == 0);
}

static void check_open(void)
{
    struct stat status;
    char word[8] = "", path[64], link[64] = "";
    CHECK(fstat(plain, &status) == 0 && status.st_size == 100 * LEN + 77 && (status.st_mode & 0777) == 0640);
    CHECK(status.st_blocks * 512 <= 8 * LEN); /* holes */
    CHECK(lseek(plain, 0, SEEK_CUR) == 4321 && fcntl(plain, F_GET_SEALS) == F_SEAL_SHRINK);
    CHECK(read(reader, word, sizeof word) == 7 && strcmp(word, "the end") == 0 && lseek(reader, -7, SEEK_CUR) > 0);
    CHECK((fcntl(reader, F_GETFL) & O_ACCMODE) == O_RDONLY && write(reader, word, 1) == -1);
    check_page(plain, 0, 1);
    check_page(plain, 50 * LEN, 2);
    snprintf(path, sizeof path, "/proc/self/fd/%d", plain);
    CHECK(readlink(path, link, sizeof link - 1) > 0 && strcmp(link, "/memfd:plain memory (deleted)") == 0);
    CHECK(ftruncate(plain, LEN) == -1 && errno == EPERM);
    CHECK(memcmp(tail + 3 * PAGE, "tail!", 5) == 0 && fstat(odd, &status) == 0 && status.st_size == 3 * PAGE + 5);
    check_page(gone, 0, 7);
    check_page(gone, 3 * LEN, 8);
}

static void check_sealed(void)
{
    CHECK(fcntl(sealed, F_GET_SEALS) == (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL));
    for (int i = 0; i < LEN / PAGE; i++) check_words(read_only + i * PAGE, 100u * (unsigned)i);
    CHECK(pwrite(sealed, "x", 1, 0) == -1 && errno == EPERM);
    CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, sealed, 0) == MAP_FAILED);
    CHECK(fcntl(future, F_GET_SEALS) == (F_SEAL_FUTURE_WRITE | F_SEAL_SEAL));
    CHECK(pwrite(future, "x", 1, 0) == -1 && errno == EPERM);
}

/* Pages that were not written show the memfd, and do so again when they are given back. */
static void check_private(long round)
{
    check_words(private_map, 2);
    CHECK(private_map[PAGE] == 'p' && private_map[2 * PAGE] == 0);
    put(plain, 50 * LEN + 3 * PAGE, (uint64_t)round);
    check_words(private_map + 3 * PAGE, (uint64_t)round);
    if (round % 3 == 2) {
        CHECK(madvise(private_map, 2 * PAGE, MADV_DONTNEED) == 0);
        check_words(private_map, 2);
        CHECK(private_map[PAGE] == 0);
        memset(private_map + PAGE, 'p', PAGE);
    }
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 60);
    make_plain();
    make_sealed();
    make_mapped();
    make_unlinked();
    advance(0);
    for (long round = 0; round < rounds; round++) {
        step("memfds round %ld", round);
        check_mapped(round);
        check_open();
        check_sealed();
        check_private(round);
        advance(round + 1);
        sleep_ms(30);
    }
    return pass();
}
