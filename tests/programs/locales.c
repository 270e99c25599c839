/* What the C library has loaded for a language: locale, conversions in the middle of a text, time zone, buffered
 * streams, a scan of the users. `locales [ROUNDS]` */
#include "rounds.h"
#include <iconv.h>
#include <locale.h>
#include <pwd.h>
#include <wchar.h>

static iconv_t conversion;
static locale_t own;
static FILE *stream, *in_memory;
static char *memory;
static size_t memory_len;

/* Three characters, of which every call gets a byte; the conversion knows what it has seen. */
static void convert(long round)
{
    static const char *text = "\xe4\xb8\xad\xe6\x96\x87\xc3\xa9";
    char in[9], out[64], *from = in, *to = out;
    size_t left = 8, room = sizeof out;
    memcpy(in, text, 9);
    CHECK(iconv(conversion, &from, &left, &to, &room) == 0 && left == 0);
    /* the first one begins with a mark */
    CHECK(sizeof out - room == (round == 0 ? 8 : 6));
}

static void one_round(long round)
{
    wchar_t wide[8];
    char text[64];
    struct tm t;
    time_t noon = 1700000000 + round * 86400;
    convert(round);
    CHECK(mbstowcs(wide, "\xc3\xa4z", 8) == 2 && wide[0] == 0xe4 && MB_CUR_MAX > 1);
    CHECK(localtime_r(&noon, &t) != NULL && t.tm_hour == 3 && t.tm_gmtoff == 5 * 3600);
    CHECK(strftime(text, sizeof text, "%Z", &t) > 0 && strcmp(text, "XYZ") == 0);
    CHECK(strcmp(setlocale(LC_CTYPE, NULL), "C.UTF-8") == 0 && strcmp(localeconv()->decimal_point, ".") == 0);
    CHECK(uselocale((locale_t)0) == own);
    /* what was put into streams and not written yet */
    CHECK(fprintf(stream, "line %ld\n", round) > 0 && fprintf(in_memory, "%ld,", round) > 0);
    struct passwd *user = getpwuid(0);
    CHECK(user != NULL && strcmp(user->pw_name, "root") == 0);
}

static void at_end(long rounds)
{
    long seen = 0, value;
    CHECK(fflush(stream) == 0 && fseek(stream, 0, SEEK_SET) == 0);
    while (fscanf(stream, "line %ld\n", &value) == 1) CHECK(value == seen++);
    CHECK(seen == rounds && fclose(in_memory) == 0);
    char *at = memory;
    for (long i = 0; i < rounds; i++, at++) CHECK(strtol(at, &at, 10) == i);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 45);
    CHECK(setenv("TZ", "XYZ-5", 1) == 0);
    tzset();
    CHECK(setlocale(LC_ALL, "C.UTF-8") != NULL && (own = newlocale(LC_ALL_MASK, "C.UTF-8", (locale_t)0))
        && uselocale(own));
    CHECK((conversion = iconv_open("UTF-16", "UTF-8")) != (iconv_t)-1);
    CHECK((stream = fopen("locales.file", "w+e")) != NULL && setvbuf(stream, NULL, _IOFBF, 1 << 16) == 0);
    CHECK((in_memory = open_memstream(&memory, &memory_len)) != NULL);
    for (long round = 0; round < rounds; round++) {
        step("locales round %ld", round);
        one_round(round);
        sleep_ms(QUIET_MS);
    }
    at_end(rounds);
    return pass();
}
