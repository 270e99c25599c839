/* Processes in a pid namespace that a child has made for its own: `inner KIND [ROUNDS]`
 * KIND: plain (unshare -pf, with a second child of who has made it, which is none of process 1), proc (with a mount
 * namespace and a /proc of it). What is seen inside: all ids, orphans, a group and a session, a child that has ended,
 * signals and descriptors of processes, ids of new ones. */
#include "apart.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* What processes inside tell in turn. */
struct word {
    pid_t pid, parent, session, group;
};

static struct word *words; /* shared: 0 the child, 1 the orphan, 2 that of the maker */
static volatile sig_atomic_t heard;
static pid_t child, orphan, leader, ended, newest, first_thread;
static volatile pid_t thread_id;
static int child_process, kinds;
static char ids_before[200];

static void hear(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    heard = info->si_pid;
}

static void tell(int place)
{
    words[place] = (struct word){getpid(), getppid(), getsid(0), getpgrp()};
}

static int place_told;

/* Tells where it is at SIGUSR1, and who has asked. */
static void answer(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    tell(place_told);
    sigqueue(info->si_pid, SIGUSR2, (union sigval){0});
}

static void live(int place)
{
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    place_told = place;
    tell(place);
    close(ask[0]), close(told[1]);
    for (;;) pause();
}

static void *thread(void *unused)
{
    (void)unused;
    for (;;) {
        thread_id = gettid();
        sleep_ms(5);
    }
    return NULL;
}

/* Both ids of this process, one outside and one inside. */
static void read_ids(char *line, size_t len)
{
    FILE *file = fopen("/proc/self/status", "re");
    CHECK(file != NULL);
    while (fgets(line, (int)len, file) != NULL && strncmp(line, "NSpid:", 6) != 0) {}
    CHECK(fclose(file) == 0 && strncmp(line, "NSpid:", 6) == 0);
}

static void wait_for(int place)
{
    while (((volatile struct word *)words)[place].pid == 0) sleep_ms(1);
}

static void begin(void)
{
    struct sigaction action = {.sa_sigaction = hear, .sa_flags = SA_SIGINFO};
    pthread_t other;
    sigset_t blocked;
    CHECK(getpid() == 1 && getppid() == 0);
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    /* Taken from the queue, so that none is missed. */
    sigemptyset(&blocked), sigaddset(&blocked, SIGUSR2);
    CHECK_ZERO(pthread_sigmask(SIG_BLOCK, &blocked, NULL));
    if (kinds & CLONE_NEWNS) {
        CHECK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
        CHECK(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0);
    }
    CHECK_ZERO(pthread_create(&other, NULL, thread, NULL));
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        CHECK(setsid() == getpid());
        live(0);
    }
    CHECK((leader = fork()) >= 0);
    if (leader == 0) {
        CHECK(setpgid(0, 0) == 0);
        if ((orphan = fork()) == 0) {
            while (getppid() != 1) sleep_ms(1);
            live(1);
        }
        _exit(0);
    }
    CHECK(waitpid(leader, NULL, 0) == leader);
    CHECK((ended = fork()) >= 0);
    if (ended == 0) _exit(7);
    wait_for(0), wait_for(1);
    orphan = words[1].pid;
    child_process = (int)syscall(SYS_pidfd_open, child, 0);
    CHECK(child_process >= 0);
    while (thread_id == 0) sleep_ms(1);
    first_thread = thread_id;
    newest = orphan > ended ? orphan : ended;
    read_ids(ids_before, sizeof ids_before);
}

static void ask_one(pid_t who, int place, struct word expected)
{
    siginfo_t info;
    sigset_t waited;
    sigemptyset(&waited), sigaddset(&waited, SIGUSR2);
    words[place] = (struct word){0};
    CHECK(kill(who, SIGUSR1) == 0);
    while (sigwaitinfo(&waited, &info) == -1) CHECK(errno == EINTR);
    CHECK(info.si_pid == who && memcmp(&words[place], &expected, sizeof expected) == 0);
}

static void look(UNUSED long round)
{
    char line[200], path[64];
    siginfo_t info = {0};
    CHECK(getpid() == 1 && gettid() == 1 && getppid() == 0);
    thread_id = 0;
    while (thread_id == 0) sleep_ms(1);
    CHECK(thread_id == first_thread);
    ask_one(child, 0, (struct word){child, 1, child, child});
    /* The leader of its group has ended. */
    ask_one(orphan, 1, (struct word){orphan, 1, getsid(0), leader});
    CHECK(syscall(SYS_pidfd_send_signal, child_process, 0, NULL, 0) == 0);
    CHECK(waitid(P_PID, (id_t)ended, &info, WEXITED | WNOWAIT) == 0 && info.si_pid == ended && info.si_status == 7);
    CHECK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0);
    read_ids(line, sizeof line);
    CHECK(strcmp(line, ids_before) == 0);
    if (kinds & CLONE_NEWNS) {
        snprintf(path, sizeof path, "/proc/%d/stat", orphan);
        CHECK(access(path, R_OK) == 0);
        CHECK(sscanf(line, "NSpid: %d", &info.si_pid) == 1 && info.si_pid == 1);
    }
    pid_t now = fork();
    CHECK(now >= 0);
    if (now == 0) _exit(getpid() == newest ? 1 : 3);
    /* None has an id that another one had. */
    CHECK(now > newest && waitpid(now, &info.si_status, 0) == now && WEXITSTATUS(info.si_status) == 3);
    newest = now;
    if (words[2].pid != 0) {
        pid_t other = words[2].pid;
        ask_one(other, 2, (struct word){other, 0, getsid(0), getpgrp()});
    }
}

/* Who makes the namespace is outside of it, and waits for its process 1. */
static void enter_as(int more, int second)
{
    int status;
    words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(words != MAP_FAILED);
    kinds = CLONE_NEWPID | more;
    leave_for(kinds, 0, 0);
    pid_t init = fork();
    CHECK(init >= 0);
    if (init > 0) {
        close(ask[0]), close(told[1]);
        if (second && fork() == 0) live(2);
        for (;;) {
            pid_t one = waitpid(-1, &status, 0);
            CHECK(one > 0 || errno == EINTR);
            if (one == init) _exit(WEXITSTATUS(status));
        }
    }
    if (second) wait_for(2);
    begin();
}

static void enter_plain(void) { enter_as(0, 1); }
static void enter_proc(void) { enter_as(CLONE_NEWNS, 0); }
static void plain(void) { make_child_in(enter_plain, look); }
static void proc(void) { make_child_in(enter_proc, look); }

int main(int argc, char **argv)
{
    static const struct kind all[] = {{"plain", plain, ask_child}, {"proc", proc, ask_child}};
    return RUN_KIND(all);
}
