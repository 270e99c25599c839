/* The rest of torture.h: how a thread's memory begins, its sum, its check, and the memory that grows by brk(2). */
#ifndef HOLDFAST_TEST_TORTURE_STATE_H
#define HOLDFAST_TEST_TORTURE_STATE_H

/* --- Which memory is mapped how --- */

struct text {
    size_t count;
    struct {
        uintptr_t start, end;
        char access[5];
    } line[20000];
};

/* Without malloc: nothing is mapped while it is looked at what is mapped. */
static struct text *maps_read(void)
{
    static struct text text;
    static char buffer[1 << 22];
    int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    ssize_t got;
    CHECK(file >= 0);
    while ((got = read(file, buffer + len, sizeof buffer - 1 - len)) > 0) len += (size_t)got;
    CHECK(got == 0 && close(file) == 0);
    buffer[len] = '\0';
    text.count = 0;
    for (char *line = buffer; *line != '\0' && text.count < 20000; line = strchr(line, '\n') + 1) {
        char *rest;
        text.line[text.count].start = strtoul(line, &rest, 16);
        text.line[text.count].end = strtoul(rest + 1, &rest, 16);
        memcpy(text.line[text.count].access, rest + 1, 4);
        text.count++;
    }
    return &text;
}

/* Engine slots takes away the right to write for as long as an image is being stored. */
static int guarded;

/* Sum over the pieces of a range that are mapped alike, however many mappings they are. */
static uint64_t maps_sum(const struct text *maps, const void *at, size_t len)
{
    uintptr_t start = (uintptr_t)at, end = start + len, next = start;
    uint64_t sum = mix(start ^ len);
    uint32_t last = 0;
    for (size_t i = 0; i < maps->count; i++) {
        uintptr_t from = maps->line[i].start, to = maps->line[i].end;
        uint32_t access;
        if (to <= start || from >= end) continue;
        if (from < start) from = start;
        if (to > end) to = end;
        memcpy(&access, maps->line[i].access, 4);
        if (guarded) access &= ~0xff00u;
        if (from != next || access != last) sum = mix(sum ^ mix(from) ^ access);
        next = to, last = access;
    }
    return mix(sum ^ next);
}

/* --- Sum and check --- */

static uint64_t area_sum(const struct area *area, int memory)
{
    uint64_t sum = mix(area->kind) ^ area->pages;
    for (size_t page = 0; page < area->pages; page++) {
        uint64_t copy[WORDS];
        const uint64_t *at = area->at + page * WORDS;
        if (area->shut == PROT_NONE && page >= area->shut_from && page < area->shut_to) {
            CHECK(pread(memory, copy, PAGE, (off_t)(uintptr_t)at) == PAGE);
            at = copy;
        }
        sum = mix(sum ^ model_hash(at));
    }
    return sum;
}

static uint64_t worker_sum(const struct worker *w, const struct text *maps, int memory)
{
    uint64_t sum = w->digest;
    for (int i = 0; i < w->area_count; i++) {
        const struct area *area = &w->areas[i];
        sum = mix(sum ^ area_sum(area, memory));
        sum = mix(sum ^ maps_sum(maps, area->at, area->pages * PAGE));
    }
    for (int g = 0; g < GONE; g++) sum = mix(sum ^ maps_sum(maps, w->gone[g].at, w->gone[g].len));
    for (int b = 0; b < BLOCKS; b++) {
        const struct block *block = &w->blocks[b];
        for (size_t i = 0; i < block->len; i++) sum = (sum ^ block->at[i]) * 0x9e3779b97f4a7c15u;
        sum = mix(sum ^ block->len);
    }
    return sum;
}

static void worker_check(struct worker *w)
{
    uint64_t digest = 0;
    for (int i = 0; i < w->area_count; i++) {
        struct area *area = &w->areas[i];
        for (size_t page = 0; page < area->limit; page++) digest ^= known_digest((uint64_t)i, page, &area->known[page]);
        open_up(area);
        check_range(area, 0, area->pages);
    }
    CHECK(digest == w->digest);
    for (int b = 0; b < BLOCKS; b++) block_check(&w->blocks[b]);
}

/* --- Beginning --- */

static void open_area(struct worker *w, enum kind kind, size_t pages, uint64_t number)
{
    struct area *area = &w->areas[w->area_count++];
    *area = (struct area){.kind = kind, .pages = pages, .limit = pages};
    CHECK((area->known = calloc(pages, sizeof *area->known)) != NULL);
    CHECK(pages < FILE_PAGES);
    area->first = throw(w, FILE_PAGES - pages);
    const int rw = PROT_READ | PROT_WRITE;
    char name[40];
    snprintf(name, sizeof name, "torture %llx", (unsigned long long)number);
    if (kind == PROTECTED) {
        area->at = holdfast_malloc_protected(name, pages * PAGE);
        CHECK(area->at != NULL);
    } else if (kind == HEAP) {
        CHECK((area->at = calloc(pages, PAGE)) != NULL);
    } else if (kind == SHARED) {
        area->at = mmap(NULL, pages * PAGE, rw, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    } else if (kind == PRIVATE_MEMFD) {
        int file = memfd_create(name, MFD_CLOEXEC);
        char page[PAGE];
        CHECK(file >= 0);
        for (size_t i = 0; i < pages; i++) {
            model_fill((uint64_t *)page, OF_FILE + area->first + i);
            CHECK(write(file, page, PAGE) == PAGE);
        }
        area->at = mmap(NULL, pages * PAGE, rw, MAP_PRIVATE, file, 0);
        CHECK(close(file) == 0);
    } else if (kind == HUGE) {
        char *at = mmap(NULL, (pages + HUGE_PAGES) * PAGE, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at != MAP_FAILED);
        area->at = (uint64_t *)(((uintptr_t)at + HUGE_PAGES * PAGE - 1) & ~(uintptr_t)(HUGE_PAGES * PAGE - 1));
        CHECK(madvise(area->at, pages * PAGE, MADV_HUGEPAGE) == 0);
    } else {
        area->at = map_area(area, NULL, 0);
    }
    CHECK(area->at != MAP_FAILED);
    set_untouched(w, area, 0, pages);
}

static void worker_open(struct worker *w, uint64_t seed, size_t mib)
{
    size_t unit = mib * 256 / 8; /* pages of an eighth */
    w->dice = mix(seed);
    w->seeds = mix(seed + 77);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, w->pair) == 0 && pipe2(w->pipe, O_CLOEXEC) == 0);
    open_area(w, HEAP, unit, seed);
    open_area(w, HEAP, 2 * unit, seed);
    open_area(w, PROTECTED, unit, seed);
    if (!(without & NO_MAPPINGS)) {
        open_area(w, ANON, unit, seed);
        open_area(w, ANON, unit, seed);
        open_area(w, PRIVATE_FILE, unit, seed);
        if (has_memfd) open_area(w, PRIVATE_MEMFD, unit / 2, seed);
        open_area(w, SHARED, unit / 2, seed);
        open_area(w, HUGE, HUGE_PAGES, seed);
    }
    for (int i = 0; i < w->area_count; i++)
        for (int n = 0; n < 4; n++) fill(w, &w->areas[i]);
}

/* What all threads share. */
static void torture_open(void)
{
    uint64_t page[WORDS];
    int file = open("torture.data", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    for (uint64_t i = 0; i < FILE_PAGES; i++) {
        model_fill(page, OF_FILE + i);
        CHECK(write(file, page, PAGE) == PAGE);
    }
    CHECK(close(file) == 0);
    CHECK((data_file = open("torture.data", O_RDONLY | O_CLOEXEC)) >= 0);
    /* Not every file system has it. */
    if (!(without & NO_DIRECT)) direct_file = open("torture.data", O_RDONLY | O_CLOEXEC | O_DIRECT);
    has_ring = !(without & NO_RING) && ring_allowed();
    has_memfd = !(without & NO_MEMFD);
}

static void torture_tell(void)
{
    printf("O_DIRECT %s, io_uring %s, memfd %s\n", direct_file >= 0 ? "used" : "not used",
           has_ring ? "used" : "not used", has_memfd ? "used" : "not used");
}

static void torture_without(const char *names)
{
    static const char *const all[] = {"direct", "ring", "fork", "memfd", "random", "remote", "protect", "mappings",
                                      "memory"};
    char list[200], *rest = list, *name;
    snprintf(list, sizeof list, "%s", names);
    while ((name = strsep(&rest, ",")) != NULL)
        for (int i = 0; i < 9; i++)
            if (strcmp(name, all[i]) == 0) without |= 1 << i;
}

/* What the engine that protects pages supports: heap and protected memory, calls by way of libc. */
static void torture_for_slots(void)
{
    guarded = 1;
    torture_without("direct,ring,remote,memory,protect,mappings");
}

/* --- The break --- */

#define BREAK_PAGES 512

static void break_open(struct worker *w, uint64_t seed)
{
    w->dice = mix(seed + 5);
    w->seeds = mix(seed + 78);
    w->area_count = 1;
    CHECK(pipe2(w->pipe, O_CLOEXEC) == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, w->pair) == 0);
    struct area *area = &w->areas[0];
    *area = (struct area){.kind = BREAK, .limit = BREAK_PAGES};
    CHECK((area->known = calloc(BREAK_PAGES, sizeof *area->known)) != NULL);
}

/* Grows, or shrinks, and writes. If the allocator moved the break as well, a new piece begins behind it. */
static void break_step(struct worker *w)
{
    struct area *area = &w->areas[0];
    char *now = sbrk(0), *end = (char *)(area->at + area->pages * WORDS);
    size_t more = 1 + throw(w, 40);
    CHECK(now != (void *)-1);
    if (area->pages > 0) check_range(area, 0, area->pages);
    if (now == end && area->pages + more > BREAK_PAGES) {
        size_t less = 1 + throw(w, area->pages);
        CHECK(sbrk(-(intptr_t)(less * PAGE)) == end);
        for (size_t page = area->pages - less; page < area->pages; page++) set(w, area, page, 0, 0);
        area->pages -= less;
    } else {
        if (now != end) {
            for (size_t page = 0; page < area->pages; page++) set(w, area, page, 0, 0);
            size_t odd = (PAGE - (uintptr_t)now % PAGE) % PAGE;
            CHECK(sbrk((intptr_t)odd) == now);
            area->at = (uint64_t *)(now + odd);
            area->pages = 0;
        }
        if (area->pages + more <= BREAK_PAGES) {
            CHECK(sbrk((intptr_t)(more * PAGE)) == (char *)(area->at + area->pages * WORDS));
            area->pages += more;
        }
    }
    if (area->pages > 0) fill(w, area);
}

#endif
