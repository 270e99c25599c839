/* A thread that has for itself what threads otherwise share (unshare): `unshared KIND [ROUNDS]`
 * KIND: folder (CLONE_FS: current directory, umask), files (CLONE_FILES: descriptors) */
#include "rounds.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>

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
                                        {"files", files_prepare, files_round}};
    return RUN_KIND(kinds);
}
