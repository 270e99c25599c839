/* Whom the audit system takes for logged in, set by the program itself, in a thread, too. `login [ROUNDS]` */
#include "rounds.h"
#include <fcntl.h>
#include <pthread.h>

static char wanted[32];

static void check(const char *path)
{
    char text[32] = "";
    int file = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0 && strcmp(text, wanted) == 0 && close(file) == 0);
}

static void *stays(void *unused)
{
    (void)unused;
    for (;;) sleep_ms(20);
    return NULL;
}

static int other;
static void *begins(void *unused)
{
    other = gettid();
    return stays(unused);
}

static void one_round(long round)
{
    char path[64];
    (void)round;
    check("/proc/self/loginuid");
    snprintf(path, sizeof path, "/proc/self/task/%d/loginuid", other);
    check(path);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    char before[32] = "";
    snprintf(wanted, sizeof wanted, "%u", getuid() == 0 ? 4711 : getuid());
    int file = open("/proc/self/loginuid", O_RDWR | O_CLOEXEC);
    if (file < 0) not_here("/proc/self/loginuid");
    CHECK(pread(file, before, sizeof before - 1, 0) > 0);
    if (strcmp(before, wanted) != 0 && write(file, wanted, strlen(wanted)) < 0) not_here("write");
    CHECK(close(file) == 0);
    CHECK_ZERO(pthread_create(&thread, NULL, begins, NULL));
    while (*(volatile int *)&other == 0) sleep_ms(1);
    return run_rounds("login", number_argument(argc, argv, 1, 45), one_round);
}
