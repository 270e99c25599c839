/* Settings that a process has asked the kernel for, one kind at a time: `personal KIND [ROUNDS]`
 * KIND: personality, memory_errors (PR_MCE_KILL), speculation (PR_SET_SPECULATION_CTRL), no_new_privileges, timestamps
 * (PR_SET_TSC), cpuid (ARCH_SET_CPUID), dispatch (PR_SET_SYSCALL_USER_DISPATCH), process_keys, thread_keys */
#include "rounds.h"
#include <asm/prctl.h>
#include <linux/keyctl.h>
#include <linux/prctl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void personality_round(long round)
{
    static const unsigned long sets[] = {0, ADDR_NO_RANDOMIZE, UNAME26, STICKY_TIMEOUTS | ADDR_COMPAT_LAYOUT};
    if (round > 0) CHECK((unsigned long)personality(0xffffffff) == sets[(round - 1) % 4]);
    CHECK(personality(sets[round % 4]) >= 0);
}

static void memory_errors_round(long round)
{
    static const int policies[] = {PR_MCE_KILL_EARLY, PR_MCE_KILL_LATE, PR_MCE_KILL_DEFAULT};
    if (round > 0) CHECK(prctl(PR_MCE_KILL_GET, 0, 0, 0, 0) == policies[(round - 1) % 3]);
    CHECK(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, policies[round % 3], 0, 0) == 0);
}

static void speculation_prepare(void)
{
    int now = prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0);
    if (now < 0 || (now & PR_SPEC_PRCTL) == 0) not_here("PR_SPEC_STORE_BYPASS");
}

static void speculation_round(long round)
{
    const unsigned long before = (round - 1) % 2 ? PR_SPEC_ENABLE : PR_SPEC_DISABLE;
    if (round > 0)
        CHECK(prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0) == (int)(PR_SPEC_PRCTL | before));
    CHECK(prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, round % 2 ? PR_SPEC_ENABLE : PR_SPEC_DISABLE, 0,
        0) == 0);
}

static void privileges_round(long round)
{
    CHECK(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == (round > 10));
    if (round >= 10) CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
}

static void timestamps_round(long round)
{
    int now = 0;
    CHECK(prctl(PR_GET_TSC, &now) == 0);
    if (round > 0) CHECK(now == ((round - 1) % 2 ? PR_TSC_ENABLE : PR_TSC_SIGSEGV));
    /* the C library reads the time with this instruction: only the kernel is asked while it is forbidden */
    CHECK(prctl(PR_SET_TSC, round % 2 ? PR_TSC_ENABLE : PR_TSC_SIGSEGV) == 0);
}

static void cpuid_prepare(void)
{
    if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1) != 0) not_here("ARCH_SET_CPUID");
}

static void cpuid_round(long round)
{
    if (round > 0) CHECK(syscall(SYS_arch_prctl, ARCH_GET_CPUID, 0) == (round - 1) % 2);
    CHECK(syscall(SYS_arch_prctl, ARCH_SET_CPUID, round % 2) == 0);
}

/* While the selector says so, calls from the program's text end in a signal instead. */
static volatile char selector;
static volatile sig_atomic_t caught;
static void dispatched(int number, siginfo_t *info, void *context)
{
    (void)context;
    selector = SYSCALL_DISPATCH_FILTER_ALLOW;
    caught = number == SIGSYS && info->si_syscall == SYS_getpid;
}

static void dispatch_prepare(void)
{
    struct sigaction action = {.sa_sigaction = dispatched, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSYS, &action, NULL) == 0);
    if (prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &selector) != 0)
        not_here("PR_SET_SYSCALL_USER_DISPATCH");
}

static void dispatch_round(long round)
{
    long result = SYS_getpid;
    (void)round;
    caught = 0;
    selector = SYSCALL_DISPATCH_FILTER_BLOCK;
    __asm__ volatile("syscall" : "+a"(result) : : "rcx", "r11", "memory");
    selector = SYSCALL_DISPATCH_FILTER_ALLOW;
    CHECK(caught == 1);
}

/* A key that only this process has, or only a thread of it. */
static int add_own_key(int keyring)
{
    int key = (int)syscall(SYS_add_key, "user", "holdfast", "secret", 6, keyring);
    if (key < 0) not_here("add_key");
    return key;
}

static void read_own_key(int key)
{
    char content[16];
    CHECK(syscall(SYS_keyctl, KEYCTL_READ, key, content, sizeof content) == 6 && memcmp(content, "secret", 6) == 0);
}

static int process_key;
static void process_keys_prepare(void) { process_key = add_own_key(KEY_SPEC_PROCESS_KEYRING); }
static void process_keys_round(long round)
{
    (void)round;
    read_own_key(process_key);
}

static sem_t asked, answered;
static void *key_thread(void *unused)
{
    int key = add_own_key(KEY_SPEC_THREAD_KEYRING);
    for (;;) {
        sem_post(&answered);
        while (sem_wait(&asked) != 0) CHECK(errno == EINTR);
        read_own_key(key);
    }
    return unused;
}

static void thread_keys_round(long round)
{
    (void)round;
    CHECK(sem_post(&asked) == 0);
    while (sem_wait(&answered) != 0) CHECK(errno == EINTR);
}

static void thread_keys_prepare(void)
{
    pthread_t thread;
    CHECK(sem_init(&asked, 0, 0) == 0 && sem_init(&answered, 0, 0) == 0);
    CHECK_ZERO(pthread_create(&thread, NULL, key_thread, NULL));
    while (sem_wait(&answered) != 0) CHECK(errno == EINTR);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"personality", NULL, personality_round},
                                        {"memory_errors", NULL, memory_errors_round},
                                        {"speculation", speculation_prepare, speculation_round},
                                        {"no_new_privileges", NULL, privileges_round},
                                        {"timestamps", NULL, timestamps_round},
                                        {"cpuid", cpuid_prepare, cpuid_round},
                                        {"dispatch", dispatch_prepare, dispatch_round},
                                        {"process_keys", process_keys_prepare, process_keys_round},
                                        {"thread_keys", thread_keys_prepare, thread_keys_round}};
    return RUN_KIND(kinds);
}
