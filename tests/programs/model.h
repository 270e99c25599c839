/* Memory of which the program knows what every page must hold.
 *
 * A page holds zeros (seed 0), or numbers that its seed determines, or (RANDOM) bytes of which only a hash is known; in
 * addition one word may be patched. What the seeds say and what the memory holds are compared by model_check(), which
 * names the first page that differs.
 */
#ifndef HOLDFAST_TEST_MODEL_H
#define HOLDFAST_TEST_MODEL_H

#include "common.h"

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))
/* Seeds from here on: the data file, page by page. */
#define OF_FILE (1ull << 40)
/* This bit: the rest is a hash of what came. */
#define RANDOM (1ull << 63)

struct known {
    uint64_t seed;
    uint64_t patch; /* 0: none; else the word `patch % WORDS` holds mix(patch) */
};

UNUSED static uint64_t model_word(const struct known *page, size_t i)
{
    if (page->patch != 0 && page->patch % WORDS == i) return mix(page->patch);
    return page->seed == 0 ? 0 : mix(page->seed * WORDS + i);
}

/* What a page of this seed holds, into any buffer. */
UNUSED static void model_fill(uint64_t *to, uint64_t seed)
{
    for (size_t i = 0; i < WORDS; i++) to[i] = seed == 0 ? 0 : mix(seed * WORDS + i);
}

UNUSED static uint64_t model_hash(const uint64_t *page)
{
    uint64_t a = 1, b = 2, c = 3, d = 4;
    for (size_t i = 0; i < WORDS; i += 4) {
        a = (a ^ page[i]) * 0x9e3779b97f4a7c15u, b = (b ^ page[i + 1]) * 0xbf58476d1ce4e5b9u;
        c = (c ^ page[i + 2]) * 0x94d049bb133111ebu, d = (d ^ page[i + 3]) * 0xff51afd7ed558ccdu;
        a ^= a >> 29, b ^= b >> 31, c ^= c >> 30, d ^= d >> 32;
    }
    return mix(a ^ mix(b ^ mix(c ^ mix(d))));
}

/* The first word of the page that is not as it must be, or WORDS. */
UNUSED static size_t model_difference(const uint64_t *page, const struct known *known)
{
    if (known->seed & RANDOM) return (model_hash(page) | RANDOM) == known->seed ? WORDS : 0;
    for (size_t i = 0; i < WORDS; i++)
        if (page[i] != model_word(known, i)) return i;
    return WORDS;
}

/* Ends the program, naming the page, if a page of the range is not as it must be. */
UNUSED static void model_check(const char *what, const uint64_t *at, const struct known *known, size_t pages)
{
    for (size_t page = 0; page < pages; page++) {
        size_t word = model_difference(at + page * WORDS, &known[page]);
        if (word == WORDS) continue;
        const uint64_t *bad = at + page * WORDS;
        size_t zeros = 0;
        for (size_t i = 0; i < WORDS; i++) zeros += bad[i] == 0;
        printf("FAIL %s: page %zu at %p: word %zu is %016llx, not %016llx "
               "(seed %llx, patch %llx; %zu of %zu words are 0)\n",
               what, page, (const void *)bad, word, (unsigned long long)bad[word],
               (unsigned long long)model_word(&known[page], word), (unsigned long long)known[page].seed,
               (unsigned long long)known[page].patch, zeros, WORDS);
        fflush(stdout);
        _exit(1);
    }
}

#endif
