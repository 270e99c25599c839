/* Copy on write after fork(2): four processes write different values to the same addresses, and each sees its own; what
 * nobody wrote is still what it was before. Memory, stack, data segment and a private mapping of a file.
 * `tree_heap [ROUNDS] [MIB]` */
#include "tree.h"

#define CHILDREN 3
#define WORDS 512

static uint64_t *heap, *mapped, *late, data[WORDS] = {1}, *stack;
static uint64_t pages, who;

/* Of ten pages everybody writes three, and leaves the others as they were before fork(2). */
static int is_written(uint64_t page)
{
    return page % 10 < 3;
}

static uint64_t value(uint64_t page, uint64_t owner, uint64_t round)
{
    return is_written(page) ? mix(page * 1000 + owner * 100000000 + round) : mix(page);
}

static void put(uint64_t round)
{
    for (uint64_t page = 0; page < pages; page++)
        if (is_written(page)) heap[page * WORDS + page % WORDS] = value(page, who, round);
    for (uint64_t i = 0; i < WORDS; i++) data[i] = stack[i] = mapped[i] = late[i] = mix(who * 77 + round + i);
}

static void check(uint64_t round)
{
    for (uint64_t page = 0; page < pages; page++) CHECK(heap[page * WORDS + page % WORDS] == value(page, who, round));
    for (uint64_t i = 0; i < WORDS; i++) {
        uint64_t right = mix(who * 77 + round + i);
        CHECK(data[i] == right && stack[i] == right && mapped[i] == right && late[i] == right);
    }
    for (uint64_t i = WORDS; i < 2 * WORDS; i++) CHECK(mapped[i] == mix(i));
}

static void own(int in, int out, uint64_t number)
{
    uint64_t round;
    who = number;
    CHECK((late = malloc(WORDS * 8)) != NULL); /* of this process alone */
    while (hear_or_end(in, &round)) {
        if (round > 0) check(round - 1);
        put(round);
        tell(out, mix(round + who));
    }
}

static void open_all(void)
{
    int fd = open("tree_heap.file", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && (heap = malloc(pages * WORDS * 8)) != NULL);
    for (uint64_t i = 0, word; i < 2 * WORDS; i++) {
        word = mix(i);
        CHECK(write(fd, &word, 8) == 8);
    }
    mapped = mmap(NULL, WORDS * 16, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(mapped != MAP_FAILED && close(fd) == 0);
    for (uint64_t page = 0; page < pages; page++) heap[page * WORDS + page % WORDS] = mix(page);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100);
    uint64_t on_stack[WORDS] = {0};
    pages = (uint64_t)number_argument(argc, argv, 2, 8) * 256;
    stack = on_stack;
    open_all();
    for (uint64_t i = 1; i <= CHILDREN; i++) fork_child(own, i);
    CHECK((late = malloc(WORDS * 8)) != NULL);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        for (int i = 0; i < CHILDREN; i++) tell(children[i].to, round);
        put(round);
        sleep_ms(ROUND_MS);
        check(round);
        for (uint64_t i = 0; i < CHILDREN; i++) CHECK(hear(children[i].from) == mix(round + i + 1));
        step("heap round %lu", (unsigned long)round);
    }
    finish_all(0);
    return pass();
}
