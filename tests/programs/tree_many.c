/* Twenty workers with pipes to the first process, three requests and three answers under way for each of them.
 * `tree_many [ROUNDS] [WORKERS]` */
#include "tree.h"

#define REQUESTS 3
#define MOST 3000

/* Less than PIPE_BUF, so that it is written as one. */
struct message {
    uint64_t id, len;
    uint8_t bytes[MOST];
};

static void put(int fd, uint64_t id)
{
    struct message message = {.id = id, .len = mix(id) % MOST};
    for (uint64_t i = 0; i < message.len; i++) message.bytes[i] = (uint8_t)mix(id + i);
    ssize_t size = (ssize_t)(16 + message.len);
    CHECK(write(fd, &message, (size_t)size) == size);
}

/* 0: the end. */
static int take(int fd, uint64_t *id)
{
    struct message message;
    ssize_t got = read(fd, &message, 16);
    if (got == 0) return 0;
    CHECK(got == 16 && message.len == mix(message.id) % MOST);
    CHECK(read(fd, message.bytes, message.len) == (ssize_t)message.len);
    for (uint64_t i = 0; i < message.len; i++) CHECK(message.bytes[i] == (uint8_t)mix(message.id + i));
    *id = message.id;
    return 1;
}

static void work(int in, int out, uint64_t number)
{
    uint64_t id;
    for (uint64_t n = 0; take(in, &id); n++) {
        CHECK(id >> 32 == number && (id & 0xffffffff) == n);
        if (n % REQUESTS == 1) sleep_ms(10); /* the others stay in the pipe meanwhile */
        put(out, id ^ 0x8000000000000000);
    }
    _exit((int)number);
}

int main(int argc, char **argv)
{
    long rounds = number_argument(argc, argv, 1, 100), workers = number_argument(argc, argv, 2, 20);
    for (long i = 0; i < workers; i++) fork_child(work, (uint64_t)i);
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        for (uint64_t i = 0; i < (uint64_t)workers; i++)
            for (uint64_t n = 0; n < REQUESTS; n++) put(children[i].to, i << 32 | (round * REQUESTS + n));
        sleep_ms(ROUND_MS);
        for (uint64_t i = 0; i < (uint64_t)workers; i++) {
            for (uint64_t n = 0, id; n < REQUESTS; n++) {
                CHECK(take(children[i].from, &id));
                CHECK(id == ((i << 32 | (round * REQUESTS + n)) ^ 0x8000000000000000));
            }
        }
        step("many round %lu", (unsigned long)round);
    }
    for (int i = 0; i < workers; i++) CHECK(close(children[i].to) == 0);
    for (int i = 0; i < workers; i++) {
        uint64_t id;
        CHECK(!take(children[i].from, &id) && close(children[i].from) == 0);
        ended(children[i].pid, i);
    }
    return pass();
}
