/* What a thread of torture.c owns and does: areas of memory whose pages are known (model.h), blocks of malloc, and the
 * operations that change them. The choice follows from the thread's seed; nothing here is shared between threads but
 * the data file, which nobody writes. A thread that finds a page other than it left it ends the program and names the
 * page. */
#ifndef HOLDFAST_TEST_TORTURE_H
#define HOLDFAST_TEST_TORTURE_H

#include "holdfast.h"
#include "model.h"
#include "ring.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define FILE_PAGES 2048
#define AREAS 9
#define BLOCKS 256
#define GONE 4
#define BATCH 16 /* pages of one operation at most: what a pipe takes at once */
#define HUGE_PAGES 512
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1, include/uapi/asm-generic/mman-common.h */
#endif

enum kind { ANON, HUGE, PRIVATE_FILE, PRIVATE_MEMFD, SHARED, HEAP, PROTECTED, BREAK };
static const char *const kinds[] = {"anonymous", "huge", "file", "memfd", "shared", "heap", "protected", "break"};

struct area {
    enum kind kind;
    uint64_t *at;
    size_t pages, limit;
    uint64_t first;            /* page of the data file that page 0 maps */
    struct known *known;       /* `limit` of them */
    size_t shut_from, shut_to; /* pages that have another protection than read and write */
    int shut;
};

struct block {
    unsigned char *at;
    size_t len;
    uint64_t seed;
};

struct worker {
    struct area areas[AREAS];
    int area_count;
    struct block blocks[BLOCKS];
    struct {
        char *at;
        size_t len;
    } gone[GONE]; /* where memory was, until lately */
    int next_gone;
    int pair[2], pipe[2];
    uint64_t dice, seeds;
    uint64_t digest; /* over all `known`: they are memory that a checkpoint may lose, too */
};

/* What is not done, by name. */
enum { NO_DIRECT = 1, NO_RING = 2, NO_FORK = 4, NO_MEMFD = 8, NO_RANDOM = 16, NO_REMOTE = 32, NO_PROTECT = 64,
    NO_MAPPINGS = 128, NO_MEMORY = 256 };
static int without;
static int data_file, direct_file = -1;
static int has_ring, has_memfd;
static uint64_t fork_seldom = 1; /* in a free run: while a child lives no checkpoint can be taken */

static uint64_t throw(struct worker *w, uint64_t below)
{
    return mix(++w->dice) % below;
}

static uint64_t fresh_seed(struct worker *w)
{
    return mix(++w->seeds) % (OF_FILE - 1) + 1;
}

static uint64_t known_digest(uint64_t area, uint64_t page, const struct known *known)
{
    if (known->seed == 0 && known->patch == 0) return 0;
    return mix(mix(known->seed + area * 131) ^ mix(known->patch + page * 8191));
}

static void set(struct worker *w, struct area *area, size_t page, uint64_t seed, uint64_t patch)
{
    uint64_t number = (uint64_t)(area - w->areas);
    struct known *known = &area->known[page], now = {seed, patch};
    w->digest ^= known_digest(number, page, known) ^ known_digest(number, page, &now);
    *known = now;
}

/* What a page holds that nobody wrote. */
static uint64_t untouched(const struct area *area, size_t page)
{
    return area->kind == PRIVATE_FILE || area->kind == PRIVATE_MEMFD ? OF_FILE + area->first + page : 0;
}

static void set_untouched(struct worker *w, struct area *area, size_t from, size_t to)
{
    for (size_t page = from; page < to; page++) set(w, area, page, untouched(area, page), 0);
}

static void remember_gone(struct worker *w, void *at, size_t len)
{
    w->gone[w->next_gone].at = at;
    w->gone[w->next_gone].len = len;
    w->next_gone = (w->next_gone + 1) % GONE;
}

static void check_range(const struct area *area, size_t from, size_t to)
{
    model_check(kinds[area->kind], area->at + from * WORDS, area->known + from, to - from);
}

/* Read and write for the whole area again. */
static void open_up(struct area *area)
{
    if (area->shut_to > area->shut_from)
        CHECK(mprotect(area->at + area->shut_from * WORDS, (area->shut_to - area->shut_from) * PAGE,
            PROT_READ | PROT_WRITE) == 0);
    area->shut_from = area->shut_to = 0;
}

/* --- How bytes come into memory --- */

enum method { STORE, RECV, READV, PREAD, PREADV, DIRECT, RING, REMOTE, MEMORY, RANDOMLY, METHODS };

static int from_file(enum method method)
{
    return method == PREAD || method == PREADV || method == DIRECT || method == RING;
}

static int possible(enum method method, const struct area *area)
{
    if (method == DIRECT) return !(without & NO_DIRECT) && direct_file >= 0 && ((uintptr_t)area->at & (PAGE - 1)) == 0;
    if (method == RING) return !(without & NO_RING) && has_ring;
    if (method == REMOTE) return !(without & NO_REMOTE);
    if (method == MEMORY) return !(without & NO_MEMORY);
    if (method == RANDOMLY) return !(without & NO_RANDOM);
    return 1;
}

/* Pages `from` of the data file into memory. */
static void load(enum method method, uint64_t *to, uint64_t from, size_t pages)
{
    off_t offset = (off_t)from * PAGE;
    ssize_t len = (ssize_t)pages * PAGE;
    size_t half = pages / 2 * WORDS;
    struct iovec two[2] = {{to, half * 8}, {to + half, (size_t)len - half * 8}};
    if (method == PREAD) CHECK(pread(data_file, to, (size_t)len, offset) == len);
    if (method == PREADV) CHECK(preadv(data_file, two, 2, offset) == len);
    if (method == DIRECT) CHECK(pread(direct_file, to, (size_t)len, offset) == len);
    if (method == RING) CHECK(ring_read(data_file, to, (size_t)len, offset) == len);
}

/* Opened each time: a descriptor of it belongs to the memory of one life. */
static void write_own_memory(void *to, const void *from, size_t len)
{
    int file = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    CHECK(file >= 0);
    CHECK(pwrite(file, from, len, (off_t)(uintptr_t)to) == (ssize_t)len);
    CHECK(close(file) == 0);
}

/* A whole batch from the thread's own buffer into memory. */
static void deliver(struct worker *w, enum method method, uint64_t *to, const uint64_t *buffer, size_t pages)
{
    size_t len = pages * PAGE, third = len / 3;
    struct iovec local = {(void *)(uintptr_t)buffer, len}, remote = {to, len};
    struct iovec two[2] = {{to, third}, {(char *)to + third, len - third}};
    switch (method) {
    case RECV:
        CHECK(send(w->pair[0], buffer, len, 0) == (ssize_t)len);
        CHECK(recv(w->pair[1], to, len, MSG_WAITALL) == (ssize_t)len);
        break;
    case READV:
        CHECK(write(w->pipe[1], buffer, len) == (ssize_t)len);
        CHECK(readv(w->pipe[0], two, 2) == (ssize_t)len);
        break;
    case REMOTE:
        CHECK(process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)len);
        break;
    case MEMORY:
        write_own_memory(to, buffer, len);
        break;
    default:
        memcpy(to, buffer, len);
    }
}

/* The end of a ring is work that the kernel does in this thread: a long getrandom(2) is cut short by it. */
static void get_random(char *to, size_t len)
{
    while (len > 0) {
        ssize_t got = getrandom(to, len, 0);
        CHECK(got > 0 || errno == EINTR);
        if (got > 0) to += got, len -= (size_t)got;
    }
}

static void overwrite(struct worker *w, struct area *area, size_t from, size_t pages, enum method method)
{
    uint64_t buffer[BATCH * WORDS], *to = area->at + from * WORDS;
    uint64_t first = throw(w, FILE_PAGES - BATCH);
    check_range(area, from, from + pages);
    if (from_file(method)) {
        load(method, to, first, pages);
        for (size_t i = 0; i < pages; i++) set(w, area, from + i, OF_FILE + first + i, 0);
    } else if (method == RANDOMLY) {
        get_random((char *)to, pages * PAGE);
        for (size_t i = 0; i < pages; i++) set(w, area, from + i, model_hash(to + i * WORDS) | RANDOM, 0);
    } else {
        uint64_t seeds[BATCH];
        for (size_t i = 0; i < pages; i++)
            model_fill(buffer + i * WORDS, seeds[i] = throw(w, 8) == 0 ? 0 : fresh_seed(w));
        deliver(w, method, to, buffer, pages);
        for (size_t i = 0; i < pages; i++) set(w, area, from + i, seeds[i], 0);
    }
    check_range(area, from, from + pages);
}

/* --- The operations. Each gets an area that is open. --- */

/* A few batches, next to each other or not. */
static void fill(struct worker *w, struct area *area)
{
    enum method method = throw(w, METHODS);
    if (!possible(method, area)) method = STORE;
    for (uint64_t n = 1 + throw(w, 6); n > 0 && area->pages > 0; n--) {
        size_t from = throw(w, area->pages), pages = 1 + throw(w, BATCH);
        if (pages > area->pages - from) pages = area->pages - from;
        overwrite(w, area, from, pages, method);
    }
}

/* One word here and there, by a store or by read(2). */
static void patch(struct worker *w, struct area *area)
{
    for (uint64_t n = 1 + throw(w, 64); n > 0; n--) {
        size_t page = throw(w, area->pages);
        struct known *known = &area->known[page];
        uint64_t *at = area->at + page * WORDS, value = fresh_seed(w), word = mix(value);
        check_range(area, page, page + 1);
        if (known->seed & RANDOM) continue;
        if (known->patch != 0) {
            struct known bare = {known->seed, 0};
            at[known->patch % WORDS] = model_word(&bare, known->patch % WORDS);
        }
        if (n % 3 == 0) {
            CHECK(write(w->pipe[1], &word, sizeof word) == sizeof word);
            CHECK(read(w->pipe[0], &at[value % WORDS], sizeof word) == sizeof word);
        } else {
            at[value % WORDS] = word;
        }
        set(w, area, page, known->seed, value);
    }
}

/* The same bytes once more. */
static void rewrite(struct worker *w, struct area *area)
{
    size_t from = throw(w, area->pages), pages = 1 + throw(w, area->pages - from);
    for (size_t page = from; page < from + pages; page++) {
        volatile uint64_t *at = area->at + page * WORDS;
        for (size_t i = 0; i < WORDS; i += 1 + throw(w, 64)) at[i] = at[i];
    }
    check_range(area, from, from + pages);
}

static void advise_away(struct worker *w, struct area *area)
{
    /* A restart has no memfd any more: what it brings back is memory without a file. */
    if (area->kind == HEAP || area->kind == BREAK || area->kind == PRIVATE_MEMFD) return fill(w, area);
    size_t from = throw(w, area->pages), pages = 1 + throw(w, area->pages - from);
    int advice = area->kind == SHARED ? MADV_REMOVE : MADV_DONTNEED;
    check_range(area, from, from + pages);
    CHECK(madvise(area->at + from * WORDS, pages * PAGE, advice) == 0);
    set_untouched(w, area, from, from + pages);
    if (throw(w, 2) == 0) check_range(area, from, from + pages);
}

/* After MADV_FREE a page holds what it held or zeros: it is written again at once. */
static void advise_free(struct worker *w, struct area *area)
{
    if (area->kind != ANON && area->kind != HUGE) return patch(w, area);
    size_t from = throw(w, area->pages), pages = 1 + throw(w, area->pages - from);
    check_range(area, from, from + pages);
    CHECK(madvise(area->at + from * WORDS, pages * PAGE, MADV_FREE) == 0);
    for (size_t page = from; page < from + pages; page++) {
        uint64_t seed = fresh_seed(w);
        model_fill(area->at + page * WORDS, seed);
        set(w, area, page, seed, 0);
    }
}

static void advise_huge(struct worker *w, struct area *area)
{
    static const int advices[] = {MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLLAPSE, MADV_COLLAPSE};
    if (area->kind != HUGE) return fill(w, area);
    /* without a free huge page, or where the kernel does not collapse, nothing happens */
    (void)madvise(area->at, area->pages * PAGE, advices[throw(w, 4)]);
    check_range(area, 0, area->pages);
}

static void *map_area(const struct area *area, void *place, int flags)
{
    int rw = PROT_READ | PROT_WRITE;
    if (area->kind == PRIVATE_FILE)
        return mmap(place, area->pages * PAGE, rw, MAP_PRIVATE | flags, data_file, (off_t)area->first * PAGE);
    return mmap(place, area->pages * PAGE, rw, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

static int maps(const struct area *area)
{
    return (area->kind == ANON || area->kind == PRIVATE_FILE) && !(without & NO_MAPPINGS);
}

/* Away, and new memory in the same place, unless another thread took it in between. */
static void renew(struct worker *w, struct area *area)
{
    if (!maps(area)) return fill(w, area);
    check_range(area, 0, area->pages);
    uint64_t *old = area->at;
    CHECK(munmap(old, area->pages * PAGE) == 0);
    if (area->kind == PRIVATE_FILE) area->first = throw(w, FILE_PAGES - area->limit);
    area->at = map_area(area, old, MAP_FIXED_NOREPLACE);
    if (area->at == MAP_FAILED) area->at = map_area(area, NULL, 0);
    CHECK(area->at != MAP_FAILED);
    set_untouched(w, area, 0, area->pages);
    if (throw(w, 2) == 0) check_range(area, 0, area->pages);
}

/* How many mappings there are in a range, and, for a call on it that failed, what they are. */
static int mappings(const char *call, const void *start, size_t len)
{
    int error = errno, inside = 0, count = 0;
    unsigned long from, to;
    char line[512];
    if (call != NULL) printf("%s(%p, %zu): errno %d; mappings:\n", call, start, len, error);
    FILE *smaps = fopen("/proc/self/smaps", "re");
    CHECK(smaps != NULL);
    while (fgets(line, sizeof line, smaps) != NULL) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            count += inside = from < (uintptr_t)start + len && (uintptr_t)start < to;
        if (call != NULL && inside
            && (strchr(line, '-') != NULL || strncmp(line, "Rss", 3) == 0 || strncmp(line, "VmFlags", 7) == 0))
            fputs(line, stdout);
    }
    fclose(smaps);
    fflush(stdout);
    errno = error;
    return count;
}

/* To a new place, or to one where memory was lately. */
static void move(struct worker *w, struct area *area)
{
    if (!maps(area)) return patch(w, area);
    size_t len = area->pages * PAGE;
    int g = (int)throw(w, GONE);
    void *place = MAP_FAILED;
    if (w->gone[g].len >= len)
        place = mmap(w->gone[g].at, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (place == MAP_FAILED) place = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    void *at = mremap(area->at, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    if (at == MAP_FAILED) mappings("mremap to a place", area->at, len);
    CHECK(at == place);
    remember_gone(w, area->at, len);
    area->at = place;
    check_range(area, 0, area->pages);
}

static void resize(struct worker *w, struct area *area)
{
    if (!maps(area)) return fill(w, area);
    size_t old = area->pages, pages = area->limit / 4 + throw(w, area->limit * 3 / 4);
    void *at = mremap(area->at, old * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    /* A file's pages that had another protection before they were written stay mappings of their own (mm/vma.c), which
     * Linux does not resize as one. */
    if (at == MAP_FAILED && errno == EFAULT && area->kind == PRIVATE_FILE && mappings(NULL, area->at, old * PAGE) > 1)
        return patch(w, area);
    if (at == MAP_FAILED) mappings("mremap", area->at, old * PAGE);
    CHECK(at != MAP_FAILED);
    if (at != area->at) remember_gone(w, area->at, old * PAGE);
    area->at = at;
    area->pages = pages;
    if (pages > old) set_untouched(w, area, old, pages);
    for (size_t page = pages; page < old; page++) set(w, area, page, 0, 0);
    check_range(area, 0, pages);
}

/* Some pages for reading only, or for nothing, until the next operation here. */
static void protect(struct worker *w, struct area *area)
{
    if (without & NO_PROTECT || area->kind == HEAP || area->kind == BREAK) return rewrite(w, area);
    area->shut_from = throw(w, area->pages);
    area->shut_to = area->shut_from + 1 + throw(w, area->pages - area->shut_from);
    area->shut = throw(w, 2) == 0 ? PROT_READ : PROT_NONE;
    CHECK(mprotect(area->at + area->shut_from * WORDS, (area->shut_to - area->shut_from) * PAGE, area->shut) == 0);
}

/* Another block in place of a large one: of zeros, or with what the old one held. */
static void reallocate(struct worker *w, struct area *area)
{
    if (area->kind != HEAP) return patch(w, area);
    size_t old = area->pages, pages = area->limit / 4 + throw(w, area->limit * 3 / 4), keep = 0;
    check_range(area, 0, old);
    if (throw(w, 2) == 0) {
        free(area->at);
        area->at = calloc(pages, PAGE);
    } else {
        area->at = realloc(area->at, pages * PAGE);
        keep = old < pages ? old : pages;
        if (pages > keep) memset(area->at + keep * WORDS, 0, (pages - keep) * PAGE);
    }
    CHECK(area->at != NULL);
    area->pages = pages;
    for (size_t page = keep; page < (old > pages ? old : pages); page++) set(w, area, page, 0, 0);
    check_range(area, 0, pages);
}

/* A child that writes to all it has and ends, while the parent writes as well. */
static void split(struct worker *w, struct area *area)
{
    if (without & NO_FORK) return patch(w, area);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < w->area_count; i++) {
            struct area *mine = &w->areas[i];
            if (mine->kind == SHARED) continue;
            open_up(mine);
            check_range(mine, 0, mine->pages);
            for (size_t page = 0; page < mine->pages; page += 3) mine->at[page * WORDS] = 0;
        }
        _exit(0);
    }
    patch(w, area);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        printf("FAIL the child of a fork ended with wait status %#x\n", status);
        fflush(stdout);
        _exit(1);
    }
    for (int i = 0; i < w->area_count; i++)
        if (w->areas[i].shut_from == w->areas[i].shut_to) check_range(&w->areas[i], 0, w->areas[i].pages);
}

static void block_check(const struct block *block)
{
    for (size_t i = 0; i < block->len; i++) CHECK(block->at[i] == (unsigned char)mix(block->seed + i));
}

static void blocks(struct worker *w)
{
    for (int n = 0; n < 32; n++) {
        struct block *block = &w->blocks[throw(w, BLOCKS)];
        block_check(block);
        size_t len = 1 + throw(w, throw(w, 8) == 0 ? 3000 : 200);
        if (throw(w, 3) == 0) {
            block->at = realloc(block->at, len);
        } else {
            free(block->at);
            block->at = malloc(len);
        }
        CHECK(block->at != NULL);
        block->len = len;
        block->seed = fresh_seed(w);
        for (size_t i = 0; i < len; i++) block->at[i] = (unsigned char)mix(block->seed + i);
    }
}

static void worker_step(struct worker *w)
{
    static void (*const operations[])(struct worker *, struct area *) = {
        fill, fill, fill, fill, patch, patch, patch, rewrite, advise_away, advise_free, advise_huge,
        renew, move, resize, protect, reallocate,
    };
    struct area *area = &w->areas[throw(w, (uint64_t)w->area_count)];
    open_up(area);
    uint64_t choice = throw(w, 64);
    if (choice == 0 && throw(w, fork_seldom) == 0)
        split(w, area);
    else if (choice < 8)
        blocks(w);
    else
        operations[choice % (sizeof operations / sizeof *operations)](w, area);
}

#include "torture_state.h"

#endif
