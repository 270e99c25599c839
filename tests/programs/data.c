/* The segments of the program's own file: initialised, zero and read-only data, of which every round changes a part.
 * `data [ROUNDS]` */
#include "rounds.h"

#define WORDS (1 << 17)
static uint64_t initialised[WORDS] = {[0] = 1, [WORDS - 1] = 2};
static uint64_t zero[WORDS];
static const char constant[] = "a constant";
static const char *const relocated[] = {constant, constant + 2}; /* written by the loader, then read-only */
static char *text = "a string";

static uint64_t expected(uint64_t *of, long word, long round)
{
    /* the last round that changed it */
    long last = round - (round - word % 16 + 16) % 16;
    if (last < 0) return of == zero ? 0 : word == 0 ? 1 : word == WORDS - 1 ? 2 : 0;
    return mix((uint64_t)(last * WORDS + word) + (of == zero));
}

static void one_round(long round)
{
    uint64_t *const both[] = {initialised, zero};
    for (int i = 0; i < 2; i++) {
        for (long word = 0; word < WORDS; word++) CHECK(both[i][word] == expected(both[i], word, round - 1));
        for (long word = round % 16; word < WORDS; word += 16) both[i][word] = expected(both[i], word, round);
    }
    CHECK(relocated[0] == constant && strcmp(relocated[1], "constant") == 0 && strcmp(text, "a string") == 0);
}

int main(int argc, char **argv) { return run_rounds("data", number_argument(argc, argv, 1, 50), one_round); }
