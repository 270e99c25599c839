/* Memory seen through files of /proc that stay open: written and read by /proc/self/mem, listed by /proc/self/maps.
 * `mirror [STEPS]` */
#include "common.h"
#include <fcntl.h>
#include <unistd.h>

static volatile uint64_t word;

/* Whether the list says that `address` is mapped. */
static int lists(int maps, const void *address)
{
    static char text[1 << 20];
    size_t len = 0;
    CHECK(lseek(maps, 0, SEEK_SET) == 0);
    for (ssize_t got; (got = read(maps, text + len, sizeof text - 1 - len)) != 0; len += (size_t)got) CHECK(got > 0);
    text[len] = 0;
    for (char *line = text; line != NULL && *line != 0; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        unsigned long start, end;
        CHECK(sscanf(line, "%lx-%lx", &start, &end) == 2);
        if (start <= (uintptr_t)address && (uintptr_t)address < end) return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    long steps = number_argument(argc, argv, 1, 60);
    int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC), again = dup(memory);
    int maps = open("/proc/self/maps", O_RDONLY);
    CHECK(memory >= 0 && again >= 0 && maps >= 0);
    for (long n = 0; n < steps; n++) {
        uint64_t value = mix((uint64_t)n), found = 0;
        CHECK(pwrite(memory, &value, sizeof value, (off_t)(uintptr_t)&word) == sizeof value);
        CHECK(word == value);
        CHECK(pread(again, &found, sizeof found, (off_t)(uintptr_t)&word) == sizeof found && found == value);
        CHECK(lists(maps, (const void *)&word) && lists(maps, &found) && !lists(maps, NULL));
        CHECK((fcntl(memory, F_GETFD) & FD_CLOEXEC) != 0 && (fcntl(again, F_GETFD) & FD_CLOEXEC) == 0);
        /* The two share an offset. */
        CHECK(lseek(memory, 4096 + n, SEEK_SET) == 4096 + n && lseek(again, 0, SEEK_CUR) == 4096 + n);
        step("word %016llx", (unsigned long long)word);
        sleep_ms(20);
        CHECK(lseek(again, 0, SEEK_CUR) == 4096 + n);
    }
    return pass();
}
