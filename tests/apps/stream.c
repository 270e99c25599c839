/* A producer of a stream whose contents follow from the number of the version, and a consumer that checks them.
 *
 *   stream put [LAST]      goes on after the newest version, which it checks first; prints each number
 *   stream check [FIRST]   steps from the oldest version to the newest, and checks each: prints how many
 *   stream errors          what is refused */
#include <nvs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGES = 40, PAGE = 4096 };

static void fail(const char *what, uint64_t version)
{
    printf("wrong: %s at version %llu: %s\n", what, (unsigned long long)version, nvs_error());
    exit(1);
}

/* The version that wrote a page last: the first one wrote all, then a quarter each, but every seventh none. */
static uint64_t writer_of(unsigned page, uint64_t version)
{
    for (uint64_t v = version; v > 1; v--)
        if (v % 7 != 0 && (v + page) % 4 == 0)
            return v;
    return 1;
}

static void write_pages(unsigned char *field, uint64_t version)
{
    for (unsigned page = 0; page < PAGES; page++)
        if (writer_of(page, version) == version)
            memset(field + page * PAGE, (int)(version % 251 + page), PAGE);
}

static void check_pages(const unsigned char *field, uint64_t version)
{
    for (unsigned page = 0; page < PAGES; page++) {
        unsigned char is = (unsigned char)(writer_of(page, version) % 251 + page);
        for (unsigned i = 0; i < PAGE; i++)
            if (field[page * PAGE + i] != is)
                fail("a page", version);
    }
}

static int put(uint64_t last)
{
    if (nvs_init("sim/0") != 0)
        fail("nvs_init", 0);
    unsigned char *field = nvs_create_obj("field", PAGES * PAGE);
    uint64_t *step = nvs_create_obj("step", sizeof *step);
    if (!field || !step)
        fail("nvs_create_obj", 0);
    uint64_t version = nvs_version();
    if (version > 0) {
        if (nvs_get("field", 0, field, PAGES * PAGE) != 0 || nvs_get("step", version, step, sizeof *step) != 0)
            fail("nvs_get", version);
        if (*step != version || nvs_size("field", 0) != PAGES * PAGE)
            fail("the step", version);
        check_pages(field, version);
    }
    while (version < last) {
        write_pages(field, *step = ++version);
        int done = version % 7 == 0 ? nvs_put("step") : nvs_snapshot();
        if (done != 0 || nvs_version() != version)
            fail("a put", version);
        printf("%llu\n", (unsigned long long)version);
        fflush(stdout);
    }
    return nvs_finalize();
}

static int check(void)
{
    nvs_reader *reader = nvs_open("sim/0");
    if (!reader)
        fail("nvs_open", 0);
    uint64_t version = 0, count = 0, before = 0, newest = 0;
    while (nvs_next(reader, 0, &version) == 1) {
        size_t bytes = 0;
        const uint64_t *step = nvs_map(reader, "step", &bytes);
        if (!step || bytes != sizeof *step || *step != version || (before && version != before + 1))
            fail("the step", version);
        const unsigned char *field = nvs_map(reader, "field", &bytes);
        if (!field || bytes != PAGES * PAGE)
            fail("the field", version);
        check_pages(field, version);
        before = version;
        count++;
    }
    if (count && (nvs_newest_whole("sim", 1, &newest) != 0 || newest != version))
        fail("the newest whole version", version);
    nvs_close(reader);
    printf("right %llu to %llu\n", (unsigned long long)(version - count + (count > 0)), (unsigned long long)version);
    return 0;
}

static void say(int code)
{
    printf("%d %s\n", code, code ? nvs_error() : "");
}

static int errors(void)
{
    char byte;
    say(nvs_snapshot());
    say(nvs_init("../sim"));
    say(nvs_open("none/0") ? 1 : -7);
    nvs_init("other/3");
    say(nvs_create_obj("a", 10) ? 0 : -1);
    say(nvs_create_obj("a", 10) ? 0 : -5);
    say(nvs_put("b"));
    say(nvs_put("a"));
    say(nvs_get("a", 9, &byte, 1));
    say(nvs_get("a", 1, &byte, 1));
    say(nvs_init("other/3"));
    say(nvs_free_obj("a"));
    say(nvs_put("a"));
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "put"))
        return put(argc > 2 ? strtoull(argv[2], 0, 10) : UINT64_MAX);
    return !strcmp(what, "check") ? check() : errors();
}
