/* What /proc says of the program: its executable, its mappings by name, its descriptors, its status; files of it that
 * stay open. `mirrors [ROUNDS]` */
#include "rounds.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>

static char executable[4096], *memory;
static int status, folder, plain;

static void expect_link(const char *name, const char *expected)
{
    char link[4096] = "";
    CHECK(readlink(name, link, sizeof link - 1) > 0 && strcmp(link, expected) == 0);
}

static int has_line(int fd, const char *start, const char *word)
{
    static char text[1 << 16];
    ssize_t len = pread(fd, text, sizeof text - 1, 0);
    CHECK(len > 0);
    text[len] = 0;
    char *line = strstr(text, start);
    return line != NULL && memmem(line, strcspn(line, "\n"), word, strlen(word)) != NULL;
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    CHECK(all != NULL);
    for (struct dirent *entry; (entry = readdir(all)) != NULL;)
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(all) && atoi(entry->d_name) < 100) count++;
    CHECK(closedir(all) == 0);
    return count;
}

static void one_round(long round)
{
    static int descriptors;
    char start[64], own[64];
    expect_link("/proc/self/exe", executable);
    snprintf(own, sizeof own, "/proc/%d/exe", getpid());
    expect_link(own, executable);
    snprintf(own, sizeof own, "/proc/self/fd/%d", plain);
    CHECK(faccessat(AT_FDCWD, own, R_OK, 0) == 0);
    CHECK(has_line(status, "Name:", "mirrors") && has_line(status, "State:", "R"));
    snprintf(start, sizeof start, "Pid:\t%d", getpid());
    CHECK(has_line(status, start, "Pid"));
    int limits = openat(folder, "limits", O_RDONLY | O_CLOEXEC);
    CHECK(limits >= 0 && has_line(limits, "Max open files", "files") && close(limits) == 0);
    snprintf(start, sizeof start, "%lx-%lx ", (unsigned long)memory, (unsigned long)memory + 8192);
    int maps = openat(folder, "maps", O_RDONLY | O_CLOEXEC);
    static char text[1 << 18];
    size_t got = 0;
    for (ssize_t len; (len = read(maps, text + got, sizeof text - 1 - got)) > 0;) got += (size_t)len;
    text[got] = 0;
    CHECK(maps >= 0 && close(maps) == 0 && strstr(text, start) != NULL && strstr(text, "[stack]")
        && strstr(text, "[heap]") && strstr(text, "[vdso]"));
    int now = count_descriptors();
    CHECK(round == 0 || now == descriptors);
    descriptors = now;
}

int main(int argc, char **argv)
{
    CHECK(readlink("/proc/self/exe", executable, sizeof executable - 1) > 0);
    CHECK((status = open("/proc/self/status", O_RDONLY | O_CLOEXEC)) >= 0);
    CHECK((folder = open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
    CHECK((plain = open("mirrors.file", O_RDWR | O_CREAT | O_CLOEXEC, 0600)) >= 0);
    char *room = mmap(NULL, 4 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED && mprotect(room + 4096, 2 * 4096, PROT_READ) == 0);
    memory = room + 4096;
    CHECK(sbrk(4096) != (void *)-1);
    return run_rounds("mirrors", number_argument(argc, argv, 1, 45), one_round);
}
