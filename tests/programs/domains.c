/* Landlock domains that a program makes itself: `domains KIND [ROUNDS]`
 * KIND: own (two layers: files and folders, ports; with a thread), child (of one in a domain, with a layer more)
 * In each round each of them does what is allowed, and is forbidden the rest. */
#include "apart.h"
#include <arpa/inet.h>
#include <linux/landlock.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* Of kernels since 6.7, whose headers not all have. */
#define CONNECT_TCP (1 << 1)
#define RULE_NET_PORT 2
#define ALLOWED_PORT 9

static int layers, with_ports;

static int new_rules(uint64_t files, uint64_t network)
{
    uint64_t handled[] = {files, network};
    return (int)syscall(SYS_landlock_create_ruleset, handled, network ? sizeof handled : sizeof *handled, 0);
}

static void allow(int rules, uint64_t access, const char *path)
{
    struct landlock_path_beneath_attr beneath = {access, open(path, O_PATH | O_CLOEXEC)};
    CHECK(beneath.parent_fd >= 0);
    CHECK(syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0) == 0);
    CHECK(close(beneath.parent_fd) == 0);
}

static void enter(int rules)
{
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_landlock_restrict_self, rules, 0) == 0 && close(rules) == 0);
    layers++;
}

/* Files are made in one folder only; then folders are read below two only, and one port is left. */
static void two_layers(void)
{
    int rules = new_rules(LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_WRITE_FILE, 0);
    if (rules < 0) not_here("landlock_create_ruleset");
    CHECK(mkdir("domains.allowed", 0755) == 0 || errno == EEXIST);
    allow(rules, LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_WRITE_FILE, "domains.allowed");
    allow(rules, LANDLOCK_ACCESS_FS_WRITE_FILE, "/dev/null");
    enter(rules);
    rules = new_rules(LANDLOCK_ACCESS_FS_READ_DIR, CONNECT_TCP);
    with_ports = rules >= 0;
    if (!with_ports) CHECK((rules = new_rules(LANDLOCK_ACCESS_FS_READ_DIR, 0)) >= 0);
    allow(rules, LANDLOCK_ACCESS_FS_READ_DIR, "/usr");
    allow(rules, LANDLOCK_ACCESS_FS_READ_DIR, "/proc");
    uint64_t port[] = {CONNECT_TCP, ALLOWED_PORT};
    if (with_ports) CHECK(syscall(SYS_landlock_add_rule, rules, RULE_NET_PORT, port, 0) == 0);
    enter(rules);
}

static int error_of_open(const char *path, int flags)
{
    int file = open(path, flags | O_CLOEXEC, 0600);
    if (file >= 0) CHECK(close(file) == 0);
    return file >= 0 ? 0 : errno;
}

static int error_of_connect(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    int error = connect(fd, (struct sockaddr *)&to, sizeof to) == 0 ? 0 : errno;
    CHECK(close(fd) == 0);
    return error;
}

static void check_domain(void)
{
    CHECK(error_of_open("domains.allowed/file", O_WRONLY | O_CREAT) == 0);
    CHECK(error_of_open("domains.forbidden", O_WRONLY | O_CREAT) == EACCES);
    CHECK(error_of_open("/dev/null", O_WRONLY) == 0);
    CHECK(error_of_open("/usr", O_RDONLY | O_DIRECTORY) == 0);
    CHECK(error_of_open("/proc/self", O_RDONLY | O_DIRECTORY) == 0);
    CHECK(error_of_open("/etc", O_RDONLY | O_DIRECTORY) == EACCES);
    CHECK(error_of_open("/usr/bin/env", O_RDONLY) == (layers > 2 ? EACCES : 0));
    if (with_ports) CHECK(error_of_connect(ALLOWED_PORT) != EACCES && error_of_connect(ALLOWED_PORT + 1) == EACCES);
    CHECK(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
}

static int questions[2], answers[2];

static void *in_thread(void *unused)
{
    char byte;
    (void)unused;
    while (read(questions[0], &byte, 1) == 1) {
        check_domain();
        CHECK(write(answers[1], &byte, 1) == 1);
    }
    return NULL;
}

static void own(void)
{
    pthread_t thread;
    two_layers();
    CHECK(pipe(questions) == 0 && pipe(answers) == 0);
    CHECK_ZERO(pthread_create(&thread, NULL, in_thread, NULL));
}

static void round_own(UNUSED long round)
{
    char byte = 0;
    check_domain();
    CHECK(write(questions[1], &byte, 1) == 1 && read(answers[0], &byte, 1) == 1);
}

static void third_layer(void)
{
    int rules = new_rules(LANDLOCK_ACCESS_FS_READ_FILE, 0);
    CHECK(rules >= 0);
    allow(rules, LANDLOCK_ACCESS_FS_READ_FILE, "/proc");
    enter(rules);
}

static void look(UNUSED long round) { check_domain(); }

static void child(void)
{
    two_layers();
    make_child_in(third_layer, look);
}

static void round_child(long round)
{
    check_domain();
    ask_child(round);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {{"own", own, round_own}, {"child", child, round_child}};
    return RUN_KIND(kinds);
}
