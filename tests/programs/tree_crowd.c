/* Twenty busy processes, each of which checks itself all the time: none may ever see an error, EINTR, a wait that ends
 * early, or a SIGCHLD or an exit code that it would not see otherwise. It goes on until there is a file `enough`, or
 * for as many rounds as asked. `tree_crowd [ROUNDS]`
 *
 * The first process prints `round N` whenever all others have got on. */
#include "tree_crowd.h"
#include <spawn.h>

static struct table *table; /* shared by all */
static int messages[4][2];  /* pipes, in pairs of there and back */
static int stream[2];
static volatile sig_atomic_t children_ended;

static void count(int number, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    children_ended += number == SIGCHLD;
}

/* Rewrites a tenth of its memory and checks all of it. */
static void compute(uint64_t number, uint64_t turn)
{
    static uint64_t *words, *right;
    enum { WORDS = 1 << 15 };
    if (words == NULL) {
        CHECK((words = calloc(WORDS, 8)) != NULL && (right = calloc(10, 8)) != NULL);
        for (uint64_t i = 0; i < WORDS; i++) words[i] = mix(i);
    }
    right[turn % 10] = mix(turn + number);
    for (uint64_t i = turn % 10; i < WORDS; i += 10) words[i] = mix(right[turn % 10] + i);
    for (uint64_t i = 0; i < WORDS; i += 3) CHECK(words[i] == mix(right[i % 10] + i));
    sleep_ms(1);
}

static void message(uint8_t *bytes, uint64_t turn, size_t size)
{
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)mix(turn + i);
}

/* Messages by pipe, there and back; several are under way. */
static void ping(uint64_t pair, uint64_t turn)
{
    uint8_t bytes[4000], back[4000];
    size_t size = 1 + mix(turn) % sizeof bytes;
    for (uint64_t n = 0; n < 3; n++) {
        message(bytes, turn * 3 + n, size);
        CHECK(write(messages[pair * 2][1], bytes, size) == (ssize_t)size);
    }
    for (uint64_t n = 0; n < 3; n++) {
        message(bytes, turn * 3 + n, size);
        read_all(messages[pair * 2 + 1][0], back, size);
        CHECK(memcmp(bytes, back, size) == 0);
    }
}

static void pong(uint64_t pair, uint64_t turn)
{
    uint8_t bytes[4000];
    size_t size = 1 + mix(turn) % sizeof bytes;
    for (int n = 0; n < 3; n++) {
        read_all(messages[pair * 2][0], bytes, size);
        CHECK(write(messages[pair * 2 + 1][1], bytes, size) == (ssize_t)size);
    }
}

/* Forks; every end of a child is heard of once. */
static void fork_on(uint64_t number, uint64_t turn)
{
    pid_t pids[2];
    handle(SIGCHLD, count, SA_RESTART);
    sigset_t mask, blocked = set_of(SIGCHLD);
    CHECK(sigprocmask(SIG_BLOCK, &blocked, &mask) == 0);
    for (int i = 0; i < 2; i++) {
        CHECK((pids[i] = fork()) >= 0);
        if (pids[i] == 0) {
            struct timespec pause = {0, (long)(mix(turn) % 3000000)};
            CHECK(nanosleep(&pause, NULL) == 0);
            _exit((int)((turn + number) % 100));
        }
        int before = children_ended;
        while (children_ended == before) CHECK(sigsuspend(&mask) == -1 && errno == EINTR);
        CHECK(children_ended == before + 1);
        ended(pids[i], (int)((turn + number) % 100));
    }
    CHECK(wait(NULL) == -1 && errno == ECHILD && children_ended == (int)(turn + 1) * 2);
    CHECK(sigprocmask(SIG_SETMASK, &mask, NULL) == 0);
    sleep_ms(20); /* a SIGCHLD would end it early */
}

static void spawn_on(uint64_t number, uint64_t turn)
{
    char path[] = "/bin/true", *words[] = {path, NULL};
    pid_t pid;
    (void)number;
    (void)turn;
    CHECK_ZERO(posix_spawn(&pid, path, NULL, NULL, words, environ));
    ended(pid, 0);
    sleep_ms(30);
}

/* Three take turns by a mutex and a condition variable in shared memory. */
static void take_turns(uint64_t number, uint64_t turn)
{
    CHECK_ZERO(pthread_mutex_lock(&table->mutex));
    while (table->token % 3 != number) CHECK_ZERO(pthread_cond_wait(&table->cond, &table->mutex));
    CHECK(table->token == turn * 3 + number && table->sum == table->token * 5);
    table->token++;
    table->sum += 5;
    CHECK_ZERO(pthread_cond_broadcast(&table->cond));
    CHECK_ZERO(pthread_mutex_unlock(&table->mutex));
    sleep_ms(1);
}

/* Two send each other values by signal: the one waits for it, the other has a handler. */
static void ask_by_signal(uint64_t number, uint64_t turn)
{
    sigset_t set = set_of(SIGRTMIN + 1);
    siginfo_t info;
    if (turn == 0) block(SIGRTMIN + 1);
    while (table->listens == 0) sleep_ms(1);
    (void)number;
    CHECK(sigqueue(table->listens, SIGRTMIN + 2, (union sigval){.sival_int = (int)turn}) == 0);
    CHECK(sigwaitinfo(&set, &info) == SIGRTMIN + 1);
    CHECK(info.si_pid == table->listens && info.si_value.sival_int == (int)turn + 1);
    sleep_ms(1);
}

static volatile sig_atomic_t value = -1;

static void heard(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    if (info->si_value.sival_int != value + 1) _exit(1);
    value = info->si_value.sival_int;
    if (sigqueue(info->si_pid, SIGRTMIN + 1, (union sigval){.sival_int = value + 1}) != 0) _exit(1);
}

static void listen_for_signals(uint64_t number, uint64_t turn)
{
    sigset_t mask, set = set_of(SIGRTMIN + 2);
    (void)number;
    CHECK(sigprocmask(SIG_BLOCK, &set, &mask) == 0 && sigdelset(&mask, SIGRTMIN + 2) == 0);
    if (turn == 0) handle(SIGRTMIN + 2, heard, 0);
    table->listens = getpid();
    while (value < (int)turn) CHECK(sigsuspend(&mask) == -1 && errno == EINTR);
    CHECK(value == (int)turn);
}

/* More than fits into the socket, by one call that sleeps meanwhile. */
static void send_much(uint64_t number, uint64_t turn)
{
    static uint8_t bytes[400000];
    (void)number;
    memset(bytes, (int)(turn % 251), sizeof bytes);
    ssize_t sent = write(stream[1], bytes, sizeof bytes);
    if (sent != sizeof bytes) printf("FAIL sent %zd\n", sent);
    CHECK(sent == sizeof bytes);
}

static void receive_much(uint64_t number, uint64_t turn)
{
    static uint8_t bytes[400000];
    (void)number;
    for (size_t done = 0; done < sizeof bytes; done += 50000) {
        sleep_ms(1);
        read_all(stream[0], bytes + done, 50000);
    }
    for (size_t i = 0; i < sizeof bytes; i += 97) CHECK(bytes[i] == turn % 251);
}

/* Two wait for each other's lock on a file, and one of them appends to it. */
static void lock_in_turn(uint64_t number, uint64_t turn)
{
    static int fd = -1;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 5};
    if (fd < 0) CHECK((fd = open("tree_crowd.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600)) >= 0);
    CHECK(fcntl(fd, F_SETLKW, &lock) == 0);
    CHECK(table->owner == 0);
    table->owner = getpid();
    sleep_ms(1);
    CHECK(table->owner == getpid());
    table->owner = 0;
    lock.l_type = F_UNLCK;
    CHECK(fcntl(fd, F_SETLK, &lock) == 0);
    if (number == 0) append_line(turn);
    sleep_ms(1);
}

static const struct role {
    void (*turn)(uint64_t number, uint64_t turn);
    uint64_t number;
} roles[ROLES] = {
    {compute, 0}, {compute, 1}, {ping, 0}, {pong, 0}, {ping, 1}, {pong, 1}, {fork_on, 0}, {fork_on, 1}, {spawn_on, 0},
    {take_turns, 0}, {take_turns, 1}, {take_turns, 2}, {ask_by_signal, 0}, {listen_for_signals, 0}, {send_much, 0},
    {receive_much, 0}, {lock_in_turn, 0}, {lock_in_turn, 1}, {wait_in_every_way, 0},
};

static void play(int in, int out, uint64_t role)
{
    (void)in;
    (void)out;
    for (uint64_t turn = 0;; turn++) {
        roles[role].turn(roles[role].number, turn);
        table->turns[role]++;
    }
}

/* What a process and its children are doing, for a failure. */
static void tell_of(pid_t pid)
{
    static const char *const names[] = {"syscall", "wchan", "children"};
    char path[64], text[200];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "/proc/%d/task/%d/%s", (int)pid, (int)pid, names[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
        if (fd >= 0) close(fd);
        text[got > 0 ? got : 0] = 0;
        printf("FAIL process %d, %s: %s\n", (int)pid, names[i], text);
        for (char *next = text, *rest; i == 2 && (pid = (pid_t)strtol(next, &rest, 10)) > 0; next = rest) tell_of(pid);
    }
}

/* Until everybody has got on; nobody may end. Not by a clock: it goes on between a checkpoint and a restart. */
static void wait_for_all(void)
{
    uint64_t before[ROLES];
    int looks = 0;
    for (int i = 0; i < ROLES; i++) before[i] = table->turns[i];
    for (int i = 0; i < ROLES; i++) {
        for (; table->turns[i] == before[i]; sleep_ms(5)) {
            int status = 0;
            pid_t pid = waitpid(-1, &status, WNOHANG);
            if (pid != 0) printf("FAIL process %d ended, status %x\n", (int)pid, (unsigned)status);
            if (++looks > 6000) {
                printf("FAIL role %d does not get on\n", i);
                tell_of(children[i].pid);
            }
            CHECK(pid == 0 && looks <= 6000);
        }
    }
    CHECK(children_ended == 0);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 1000000);
    table = table_open();
    for (int i = 0; i < 4; i++) CHECK(pipe2(messages[i], O_CLOEXEC) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stream) == 0);
    for (uint64_t i = 0; i < ROLES; i++) fork_child(play, i);
    handle(SIGCHLD, count, SA_RESTART);
    for (long round = 0; round < rounds && access("enough", F_OK) != 0; round++) {
        wait_for_all();
        sleep_ms(20);
        step("round %ld", round);
    }
    block(SIGCHLD);
    /* All stand before the first dies: what one of them leaves half done is not for the others to see. */
    for (int i = 0; i < ROLES; i++) CHECK(kill(children[i].pid, SIGSTOP) == 0);
    for (int i = 0; i < ROLES; i++) CHECK(kill(children[i].pid, SIGKILL) == 0);
    for (int i = 0; i < ROLES; i++) killed(children[i].pid, SIGKILL);
    CHECK(wait(NULL) == -1 && errno == ECHILD);
    return pass();
}
