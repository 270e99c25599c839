/* Who the program is, after root has changed it: `credentials KIND [ROUNDS]`; root only.
 * KIND: dropped (all ids of an ordinary user), effective (real, effective and saved ids that differ), groups
 * (supplementary ones), capabilities (a few kept, ambient and bounding sets), threads (each with ids of its own) */
#include "rounds.h"
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void dropped_prepare(void)
{
    CHECK(setgroups(0, NULL) == 0 && setresgid(1234, 1234, 1234) == 0 && setresuid(1234, 1234, 1234) == 0);
    CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
}

static void dropped_round(long round)
{
    uid_t r, e, s;
    (void)round;
    CHECK(getresuid(&r, &e, &s) == 0 && r == 1234 && e == 1234 && s == 1234);
    CHECK(getresgid(&r, &e, &s) == 0 && r == 1234 && e == 1234 && s == 1234);
    CHECK(getgroups(0, NULL) == 0 && setuid(0) == -1 && errno == EPERM);
    CHECK(prctl(PR_GET_DUMPABLE) == 1);
}

static void effective_round(long round)
{
    uid_t r, e, s;
    CHECK(getresuid(&r, &e, &s) == 0 && getresgid(&r, &r, &r) == 0 && getresuid(&r, &e, &s) == 0);
    if (round > 0) CHECK(r == 0 && e == (round % 2 ? 1000 : 0) && s == 0 && setfsuid((uid_t)-1) == (int)e);
    CHECK(seteuid(0) == 0 && seteuid(round % 2 ? 0 : 1000) == 0);
}

static void groups_round(long round)
{
    gid_t now[64], next[64];
    int count = getgroups(64, now);
    if (round > 0) CHECK(count == round % 20 + 1);
    for (int i = 0; round > 0 && i < count; i++) CHECK(now[i] == (gid_t)(500 + round - 1 + i * 3));
    for (int i = 0; i < 21; i++) next[i] = (gid_t)(500 + round + i * 3);
    CHECK(setgroups((size_t)((round + 1) % 20 + 1), next) == 0);
}

static void get(struct __user_cap_data_struct *data)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    CHECK(syscall(SYS_capget, &header, data) == 0);
}

static void capabilities_prepare(void)
{
    CHECK(prctl(PR_CAPBSET_DROP, CAP_SYS_MODULE, 0, 0, 0) == 0);
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    const uint32_t kept = 1u << CAP_CHOWN | 1u << CAP_KILL | 1u << CAP_NET_BIND_SERVICE | 1u << CAP_SETPCAP;
    struct __user_cap_data_struct data[2] = {{kept & ~(1u << CAP_KILL), kept, 1u << CAP_CHOWN}, {0, 0, 0}};
    CHECK(syscall(SYS_capset, &header, data) == 0);
    CHECK(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0) == 0);
}

static void capabilities_round(long round)
{
    struct __user_cap_data_struct data[2];
    const uint32_t kept = 1u << CAP_CHOWN | 1u << CAP_KILL | 1u << CAP_NET_BIND_SERVICE | 1u << CAP_SETPCAP;
    (void)round;
    get(data);
    CHECK(data[0].permitted == kept && data[0].effective == (kept & ~(1u << CAP_KILL))
        && data[0].inheritable == 1u << CAP_CHOWN);
    CHECK(prctl(PR_CAPBSET_READ, CAP_SYS_MODULE, 0, 0, 0) == 0 && prctl(PR_CAPBSET_READ, CAP_CHOWN, 0, 0, 0) == 1);
    CHECK(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_CHOWN, 0, 0) == 1);
}

/* Past the C library, which would give them to all threads. */
static void *other(void *argument)
{
    CHECK(syscall(SYS_setresuid, 0, 1000, 0) == 0);
    for (;; sleep_ms(10)) CHECK(syscall(SYS_geteuid) == 1000);
    return argument;
}

static void threads_prepare(void)
{
    pthread_t thread;
    CHECK_ZERO(pthread_create(&thread, NULL, other, NULL));
    sleep_ms(20);
}

static void threads_round(long round)
{
    (void)round;
    CHECK(syscall(SYS_geteuid) == 0);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"dropped", dropped_prepare, dropped_round},
                                        {"effective", NULL, effective_round},
                                        {"groups", NULL, groups_round},
                                        {"capabilities", capabilities_prepare, capabilities_round},
                                        {"threads", threads_prepare, threads_round}};
    return RUN_KIND(kinds);
}
