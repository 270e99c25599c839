/* What the kernel says of a mapping: VmFlags of /proc/self/smaps (proc_pid_smaps(5)). */
#ifndef HOLDFAST_TEST_SMAPS_H
#define HOLDFAST_TEST_SMAPS_H

#include "common.h"

/* Whether the mapping that starts at or holds `at` carries a flag of the VmFlags line; -1: the text has no such
 * mapping. */
static int look_for_flag(const char *at, const char *flag)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[1024];
    int inside = 0, found = -1;
    CHECK(f != NULL);
    while (found < 0 && fgets(line, sizeof line, f) != NULL) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            inside = (unsigned long)at >= start && (unsigned long)at < end;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line + 8, flag) != NULL;
    }
    CHECK(fclose(f) == 0);
    return found;
}

/* The kernel makes the text while it is read: one that a restart falls into is of two processes, so it is read
 * again. */
static int has_flag(const char *at, const char *flag)
{
    int found = look_for_flag(at, flag);
    for (int again = 0; found < 0 && again < 3; again++) found = look_for_flag(at, flag);
    CHECK(found >= 0);
    return found;
}

#endif
