/* A program, or a child of it, in namespaces that it has made: `apart KIND ROUNDS`
 * KIND: names (uts), objects (ipc), loopback (network), root (user: root inside), same (user: the same ids),
 * all (all four and cgroup, root inside), threads (as root, with a thread), child (all, in a child) */
#include "apart.h"
#include <grp.h>
#include <net/if.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#define HOST "apart"

static uid_t user_before;
static int apart, inside_user;

static const char *text_of(const char *path)
{
    static char text[4096];
    int file = open(path, O_RDONLY);
    CHECK(file >= 0);
    ssize_t len = read(file, text, sizeof text - 1);
    CHECK(len > 0 && close(file) == 0);
    text[len] = 0;
    return text;
}

static void switch_loopback_on(void)
{
    struct ifreq device = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int made = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(made >= 0 && ioctl(made, SIOCSIFFLAGS, &device) == 0 && close(made) == 0);
}

static void leave(int kinds, uid_t user, gid_t group)
{
    user_before = geteuid();
    apart = kinds, inside_user = leave_for(kinds, user, group);
    if (kinds & CLONE_NEWUTS) CHECK(sethostname(HOST, strlen(HOST)) == 0 && setdomainname("of", 2) == 0);
    if (kinds & CLONE_NEWNET) switch_loopback_on();
}

static void names(void) { leave(CLONE_NEWUTS, 0, 0); }
static void ipc_objects(void) { leave(CLONE_NEWIPC, 0, 0); }
static void loopback(void) { leave(CLONE_NEWNET, 0, 0); }
static void as_root(void) { leave(CLONE_NEWUSER, 0, 0); }
static void as_before(void) { leave(CLONE_NEWUSER, geteuid(), getegid()); }
static void all(void) { leave(CLONE_NEWUSER | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWCGROUP, 0, 0); }

/* What has a namespace of its own is as it was left, and what has none is the host's. */
static void look(UNUSED long round)
{
    struct utsname told;
    CHECK(uname(&told) == 0);
    CHECK((strcmp(told.nodename, HOST) == 0) == ((apart & CLONE_NEWUTS) != 0));
    CHECK((strcmp(told.domainname, "of") == 0) == ((apart & CLONE_NEWUTS) != 0));
    if (inside_user) {
        unsigned first, outside, count;
        CHECK(sscanf(text_of("/proc/self/uid_map"), "%u %u %u", &first, &outside, &count) == 3);
        CHECK(first == geteuid() && outside == user_before && count == 1);
        CHECK(setgroups(0, NULL) != 0 && errno == EPERM);
        /* All rights inside, and none outside. */
        CHECK((sethostname(HOST, strlen(HOST)) == 0) == ((apart & CLONE_NEWUTS) != 0));
    }
    if (apart & CLONE_NEWCGROUP) {
        /* In the root of all control groups. */
        const char *line = text_of("/proc/self/cgroup");
        for (const char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) CHECK(memcmp(end - 2, ":/", 2) == 0);
    }
    if (apart & CLONE_NEWNET) {
        CHECK(strstr(text_of("/proc/self/net/dev"), "lo:") != NULL);
        CHECK(strstr(text_of("/proc/self/net/fib_trie"), "127.0.0.1") != NULL);
    }
}

static void *wait_for_ever(void *unused)
{
    (void)unused;
    for (;;) pause();
    return NULL;
}

static pthread_t other;

static void threads(void)
{
    as_root();
    CHECK_ZERO(pthread_create(&other, NULL, wait_for_ever, NULL));
}

static void make_child(void)
{
    make_child_in(all, look);
}

static void child(long round)
{
    ask_child(round);
    look(round);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {
        {"names", names, look}, {"objects", ipc_objects, look}, {"loopback", loopback, look},
        {"root", as_root, look}, {"same", as_before, look}, {"all", all, look}, {"threads", threads, look},
        {"child", make_child, child}};
    return RUN_KIND(kinds);
}
