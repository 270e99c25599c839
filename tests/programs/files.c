/* Files and the small things that the kernel keeps per process: offsets, O_APPEND, descriptors shared by dup, close on
 * exec, deleted files, directory, umask, limits, nice, thread names. `files [ROUNDS]`; works in a folder of its own. */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

static int plain, shared, append, reader, gone, null, zero, folder;
static char home[4096];

static void open_all(void)
{
    CHECK(mkdir("files.d", 0755) == 0 || errno == EEXIST);
    CHECK(chdir("files.d") == 0 && getcwd(home, sizeof home) != NULL);
    umask(027);
    CHECK((plain = open("plain", O_RDWR | O_CREAT | O_TRUNC, 0666)) >= 0);
    CHECK((shared = dup2(plain, 77)) == 77);
    CHECK((append = open("append", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666)) >= 0);
    CHECK((reader = open("plain", O_RDONLY)) >= 0);
    CHECK((gone = open("gone", O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600)) >= 0);
    CHECK(write(gone, "deleted, but open", 17) == 17 && unlink("gone") == 0);
    CHECK((null = open("/dev/null", O_WRONLY | O_CLOEXEC)) >= 0 && (zero = open("/dev/zero", O_RDONLY)) >= 0);
    CHECK((folder = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
    CHECK(lseek(null, 0, SEEK_SET) == 0);
}

static void check_process(void)
{
    struct rlimit limit;
    char name[32], where[4096];
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == 256);
    CHECK(getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur == 0);
    CHECK(getrlimit(RLIMIT_DATA, &limit) == 0 && limit.rlim_cur == (rlim_t)3 << 30);
    CHECK(getpriority(PRIO_PROCESS, 0) == 5);
    CHECK(prctl(PR_GET_NAME, name) == 0 && strcmp(name, "files: main") == 0);
    CHECK(getcwd(where, sizeof where) != NULL && strcmp(where, home) == 0);
    mode_t mask = umask(027);
    CHECK(mask == 027);
    CHECK(prctl(PR_GET_TIMERSLACK) == 123456);
}

static void check_descriptors(long round)
{
    CHECK((fcntl(plain, F_GETFD) & FD_CLOEXEC) == 0 && (fcntl(shared, F_GETFD) & FD_CLOEXEC) == 0);
    CHECK((fcntl(append, F_GETFD) & FD_CLOEXEC) != 0 && (fcntl(gone, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK((fcntl(append, F_GETFL) & O_APPEND) != 0 && (fcntl(append, F_GETFL) & O_ACCMODE) == O_WRONLY);
    CHECK((fcntl(reader, F_GETFL) & O_ACCMODE) == O_RDONLY);
    /* one offset behind `plain` and `shared`, another behind `reader` */
    CHECK(lseek(plain, 0, SEEK_CUR) == round * 20 && lseek(shared, 0, SEEK_CUR) == round * 20);
    CHECK(lseek(reader, 0, SEEK_CUR) == round * 20);
    struct stat s;
    CHECK(fstat(gone, &s) == 0 && s.st_nlink == 0);
    char text[32] = "";
    CHECK(pread(gone, text, sizeof text, 0) == 17 && strcmp(text, "deleted, but open") == 0);
    CHECK(lseek(gone, 0, SEEK_CUR) == 17);
    CHECK(fcntl(200, F_GETFD) == -1 && errno == EBADF);
}

static void write_records(long round)
{
    char line[32], back[32] = "";
    CHECK(snprintf(line, sizeof line, "record %012ld\n", round) == 20);
    CHECK(write(round & 1 ? shared : plain, line, 20) == 20);
    CHECK(read(reader, back, 20) == 20 && memcmp(line, back, 20) == 0);
    CHECK(lseek(append, 0, SEEK_SET) == 0 && write(append, line, 20) == 20);
    CHECK(lseek(append, 0, SEEK_CUR) == (round + 1) * 20);
    CHECK(write(null, line, 20) == 20 && read(zero, back, 20) == 20 && back[19] == 0);
    CHECK(faccessat(folder, "plain", R_OK, 0) == 0);
}

static void check_contents(long rounds)
{
    static const char *const names[] = {"plain", "append"};
    for (int i = 0; i < 2; i++) {
        struct stat s;
        CHECK(stat(names[i], &s) == 0 && s.st_size == rounds * 20 && (s.st_mode & 0777) == 0640);
        FILE *f = fopen(names[i], "re");
        CHECK(f != NULL);
        char line[64];
        for (long k = 0; k < rounds; k++) {
            char expected[32];
            snprintf(expected, sizeof expected, "record %012ld\n", k);
            CHECK(fgets(line, sizeof line, f) != NULL && strcmp(line, expected) == 0);
        }
        CHECK(fclose(f) == 0);
    }
}

static volatile int finished;
static void *named(void *argument)
{
    char name[32];
    (void)argument;
    CHECK_ZERO(pthread_setname_np(pthread_self(), "files: second"));
    while (!finished) {
        sleep_ms(10);
        CHECK(prctl(PR_GET_NAME, name) == 0 && strcmp(name, "files: second") == 0);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 50);
    pthread_t thread;
    open_all();
    struct rlimit files = {256, 256}, core = {0, 0}, data = {(rlim_t)3 << 30, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0 && setrlimit(RLIMIT_CORE, &core) == 0);
    CHECK(setrlimit(RLIMIT_DATA, &data) == 0);
    CHECK(setpriority(PRIO_PROCESS, 0, 5) == 0);
    CHECK(prctl(PR_SET_TIMERSLACK, 123456) == 0);
    CHECK_ZERO(pthread_setname_np(pthread_self(), "files: main"));
    CHECK_ZERO(pthread_create(&thread, NULL, named, NULL));
    for (long round = 0; round < rounds; round++) {
        step("files round %ld", round);
        check_process();
        check_descriptors(round);
        write_records(round);
        sleep_ms(40);
    }
    finished = 1;
    CHECK_ZERO(pthread_join(thread, NULL));
    check_contents(rounds);
    return pass();
}
