/* Going into namespaces of one's own, as root or as an ordinary user, who needs a user namespace for all others. */
#ifndef HOLDFAST_TEST_APART_H
#define HOLDFAST_TEST_APART_H

#include "rounds.h"
#include <fcntl.h>
#include <sched.h>

UNUSED static void write_text(const char *path, const char *text)
{
    int file = open(path, O_WRONLY);
    CHECK(file >= 0);
    CHECK(write(file, text, strlen(text)) == (ssize_t)strlen(text) && close(file) == 0);
}

/* Is that user and group inside, where a user namespace is asked for, else who it was. Whether there is one. */
UNUSED static int leave_for(int kinds, uid_t user, gid_t group)
{
    char line[64];
    uid_t user_before = geteuid();
    gid_t group_before = getegid();
    int inside_user = kinds & CLONE_NEWUSER;
    if (unshare(kinds) != 0) {
        if (unshare(kinds | CLONE_NEWUSER) != 0) not_here("unshare");
        inside_user = 1, user = user_before, group = group_before;
    }
    if (inside_user) {
        write_text("/proc/self/setgroups", "deny");
        snprintf(line, sizeof line, "%u %u 1\n", user, user_before);
        write_text("/proc/self/uid_map", line);
        snprintf(line, sizeof line, "%u %u 1\n", group, group_before);
        write_text("/proc/self/gid_map", line);
        CHECK(geteuid() == user && getegid() == group);
    }
    return inside_user != 0;
}

#endif
