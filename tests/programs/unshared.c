/* A thread that has for itself what threads otherwise share (unshare), and a child that has together with its parent
 * what processes otherwise have for themselves (clone): `unshared KIND [ROUNDS]`
 * KIND: folder, shared (CLONE_FS: current directory, umask), files (CLONE_FILES: descriptors) */
#include "rounds.h"
#include "tree.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static volatile int ready;

static void *own_folder(void *argument)
{
    char here[4096];
    CHECK(unshare(CLONE_FS) == 0 && mkdir("of-the-thread", 0755) == 0 && chdir("of-the-thread") == 0);
    umask(070);
    for (ready = 1;; sleep_ms(10)) {
        CHECK(getcwd(here, sizeof here) != NULL && strstr(here, "/of-the-thread") != NULL);
        CHECK(umask(070) == 070);
    }
    return argument;
}

static void *own_files(void *argument)
{
    CHECK(unshare(CLONE_FILES) == 0);
    int fd = open("of-the-thread", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && dup2(fd, 150) == 150);
    for (ready = 1;; sleep_ms(10)) CHECK(fcntl(150, F_GETFD) >= 0 && fcntl(151, F_GETFD) == -1);
    return argument;
}

static void start(void *(*life)(void *))
{
    pthread_t thread;
    CHECK_ZERO(pthread_create(&thread, NULL, life, NULL));
    while (!ready) sleep_ms(1);
}

static void folder_prepare(void)
{
    umask(022);
    start(own_folder);
}

static void folder_round(long round)
{
    char here[4096];
    (void)round;
    CHECK(getcwd(here, sizeof here) != NULL && strstr(here, "/of-the-thread") == NULL && umask(022) == 022);
}

/* Whether the directory has this name, and what the umask is; 0: it has another one. */
static mode_t mask_in(const char *name)
{
    char here[4096];
    CHECK(getcwd(here, sizeof here) != NULL);
    mode_t mask = umask(0);
    umask(mask);
    return strcmp(strrchr(here, '/') + 1, name) == 0 ? mask : 0;
}

static int down[2], up[2];

static void shared_prepare(void)
{
    CHECK(mkdir("one", 0755) == 0 && mkdir("two", 0755) == 0 && chdir("one") == 0);
    CHECK(pipe(down) == 0 && pipe(up) == 0);
    long child = raw_call(SYS_clone, CLONE_FS | SIGCHLD, 0);
    CHECK(child >= 0);
    if (child > 0) return;
    CHECK(close(down[1]) == 0);
    for (uint64_t round; hear_or_end(down[0], &round);) {
        tell(up[1], mask_in(round % 2 ? "one" : "two"));
        /* It is changed here, too. */
        CHECK(chdir(round % 2 ? "../two" : "../one") == 0);
        tell(up[1], round);
    }
    _exit(0);
}

static void shared_round(long round)
{
    CHECK(chdir(round % 2 ? "../one" : "../two") == 0);
    umask(round % 2 ? 022 : 070);
    tell(down[1], (uint64_t)round);
    CHECK(hear(up[0]) == (round % 2 ? 022 : 070) && hear(up[0]) == (uint64_t)round);
    CHECK(mask_in(round % 2 ? "two" : "one") != 0);
}

static void files_prepare(void)
{
    start(own_files);
    CHECK(dup2(0, 151) == 151);
}

static void files_round(long round)
{
    (void)round;
    CHECK(fcntl(151, F_GETFD) >= 0 && fcntl(150, F_GETFD) == -1);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"folder", folder_prepare, folder_round},
                                        {"shared", shared_prepare, shared_round},
                                        {"files", files_prepare, files_round}};
    return RUN_KIND(kinds);
}
