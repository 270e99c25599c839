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

static int ask[2], told[2];

/* A child that goes into namespaces of its own, and looks there when it is asked. */
UNUSED static void make_child_in(void (*enter)(void), void (*look)(long))
{
    long round;
    CHECK(pipe(ask) == 0 && pipe(told) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) {
        close(told[1]);
        CHECK(read(told[0], &round, sizeof round) == sizeof round || (puts("not here"), exit(77), 0));
        return;
    }
    close(ask[1]);
    enter();
    CHECK(write(told[1], &round, sizeof round) == sizeof round);
    while (read(ask[0], &round, sizeof round) == sizeof round) {
        look(round);
        CHECK(write(told[1], &round, sizeof round) == sizeof round);
    }
    _exit(0);
}

/* Has it look. */
UNUSED static void ask_child(long round)
{
    long answer;
    CHECK(write(ask[1], &round, sizeof round) == sizeof round);
    CHECK(read(told[0], &answer, sizeof answer) == sizeof answer && answer == round);
}

#endif
