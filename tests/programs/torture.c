/* Eight threads that write everywhere and in every way: heap, stacks, private mappings of a file and of a memfd, huge
 * pages, shared memory, memory of holdfast_malloc_protected(), the break; by stores and by system calls (recv, readv,
 * pread, O_DIRECT, getrandom, process_vm_writev, /proc/self/mem, io_uring); while mappings come, go, move, grow, change
 * their protection, are advised away and forked. Every page is known (model.h).
 *
 * In epochs (default): at the end of each all threads meet, deep in their stacks; one computes a checksum over all of
 * that memory and over which of it is mapped how, appends `epoch N SUM` to the log, takes a checkpoint, computes the
 * sum again and prints `verified N SUM RESTARTS`. Every other checkpoint returns at its cut, so that the next epoch
 * writes while the image is still being stored.
 * Freely (--free): nobody waits for anybody; checkpoints come from outside at any moment.
 *
 * When it notices that it was restarted it checks everything, says so and ends with status 0; with --go-on it goes on
 * until there is a file `enough`.
 *
 *   torture [--epochs N (--free: seconds)] [--seed N] [--mib N (per thread)] [--threads N] [--log FILE] [--slots]
 *           [--free] [--go-on] [--without direct,ring,fork,memfd,...]
 */
#include "torture.h"
#include "holdfast.h"
#include <pthread.h>

#define MAX_THREADS 16
#define FRAMES 48

struct frame {
    uint64_t *at;
    size_t words;
    uint64_t seed;
};

struct thread {
    struct worker worker;
    struct frame frames[FRAMES];
    int depth;
};

static struct thread *threads[MAX_THREADS];
static pthread_barrier_t barrier;
static long epochs = 12, count = 8, mib = 3, seed = 1;
static int freely, go_on, lives, enough;
static volatile int stop;
static const char *log_name = "torture.log";
static int log_file;
static struct worker broken; /* what grows by brk(2): of the main thread */

static uint64_t add(uint64_t sum, uint64_t value)
{
    return mix(sum ^ value);
}

/* Sum over the memory of all threads: call it while they stand still. */
static uint64_t sum_of_all(void)
{
    uint64_t sum = 1;
    int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    CHECK(memory >= 0);
    const struct text *maps = maps_read();
    for (long n = 0; n < count; n++) {
        sum = add(sum, worker_sum(&threads[n]->worker, maps, memory));
        for (int f = 0; f < threads[n]->depth; f++) {
            const struct frame *frame = &threads[n]->frames[f];
            for (size_t i = 0; i < frame->words; i++) sum = (sum ^ frame->at[i]) * 0x9e3779b97f4a7c15u + i;
        }
    }
    sum = add(sum, worker_sum(&broken, maps, memory));
    close(memory);
    return sum;
}

static void check_frames(const struct thread *thread)
{
    for (int f = 0; f < thread->depth; f++) {
        const struct frame *frame = &thread->frames[f];
        for (size_t i = 0; i < frame->words; i++) CHECK(frame->at[i] == mix(frame->seed + i));
    }
}

static void check_all(void)
{
    for (long n = 0; n < count; n++) {
        check_frames(threads[n]);
        worker_check(&threads[n]->worker);
    }
    worker_check(&broken);
}

/* Appended as one write: what an undisturbed reader of the file may rely on. */
static void note(const char *text)
{
    CHECK(write(log_file, text, strlen(text)) == (ssize_t)strlen(text));
}

__attribute__((noreturn)) static void end_verified(const char *what, uint64_t sum)
{
    printf("verified %s %016llx %d\n", what, (unsigned long long)sum, holdfast_restarted());
    fflush(stdout);
    _exit(0);
}

/* On a busy machine a stop may pass its deadline: the agent's log says so, and the next attempt comes through. */
static int ask(long epoch)
{
    int at_cut = epoch % 2 == 1 && holdfast_checkpoint_start != NULL, result;
    for (int attempt = 0; attempt < 4; attempt++) {
        result = at_cut ? holdfast_checkpoint_start() : holdfast_checkpoint();
        if (result != HOLDFAST_E_FAILED) break;
        sleep_ms(50);
    }
    return result;
}

/* One thread, while the others stand still. */
static void take_checkpoint(long epoch)
{
    char line[80];
    uint64_t before = sum_of_all();
    snprintf(line, sizeof line, "epoch %ld %016llx\n", epoch, (unsigned long long)before);
    note(line);
    int result = ask(epoch);
    uint64_t after = sum_of_all();
    int restarted = holdfast_restarted() > lives;
    if (after != before) {
        check_all();
        printf("FAIL epoch %ld: sum %016llx after the checkpoint, restarted %d\n", epoch, (unsigned long long)after,
            restarted);
        fflush(stdout);
        _exit(1);
    }
    if (result != restarted) {
        printf("FAIL epoch %ld: the checkpoint returned %d, restarted %d\n", epoch, result, restarted);
        fflush(stdout);
        _exit(1);
    }
    check_all();
    snprintf(line, sizeof line, "%ld", epoch);
    if (restarted && !go_on) end_verified(line, after);
    lives = holdfast_restarted();
    enough = go_on && access("enough", F_OK) == 0;
    printf("verified %s %016llx %d\n", line, (unsigned long long)after, lives);
    fflush(stdout);
}

static void meet(long epoch)
{
    int result = pthread_barrier_wait(&barrier);
    if (result == PTHREAD_BARRIER_SERIAL_THREAD && epoch >= 0) take_checkpoint(epoch);
    pthread_barrier_wait(&barrier);
}

/* Deep into the stack; at its end the meeting of epoch `epoch` (or none: -1). */
static void descend(struct thread *thread, int depth, long epoch)
{
    size_t words = 16 + throw(&thread->worker, 1500);
    uint64_t block[words], first = throw(&thread->worker, ~0ull);
    for (size_t i = 0; i < words; i++) block[i] = mix(first + i);
    thread->frames[thread->depth++] = (struct frame){block, words, first};
    if (depth > 1)
        descend(thread, depth - 1, epoch);
    else if (!freely)
        meet(epoch);
    for (size_t i = 0; i < words; i++) CHECK(block[i] == mix(first + i));
    thread->depth--;
}

/* Heavy and light epochs: from next to nothing written to nearly everything. */
static long effort(long epoch)
{
    static const long operations[] = {60, 4, 16, 1, 30};
    return operations[mix((uint64_t)seed * 977 + (uint64_t)epoch) % 5];
}

static void run_epochs(struct thread *thread, int is_main)
{
    for (long epoch = 1; go_on ? !enough : epoch <= epochs; epoch++) {
        for (long n = effort(epoch); n > 0; n--) worker_step(&thread->worker);
        if (is_main) break_step(&broken);
        descend(thread, 1 + (int)throw(&thread->worker, FRAMES), epoch);
    }
}

static void run_freely(struct thread *thread)
{
    while (!stop) {
        worker_step(&thread->worker);
        if (throw(&thread->worker, 8) == 0) descend(thread, 1 + (int)throw(&thread->worker, FRAMES), -1);
    }
}

/* A thread's own state lies on its stack. */
static void *live(void *argument)
{
    long n = (long)(intptr_t)argument;
    struct thread thread = {0};
    threads[n] = &thread;
    worker_open(&thread.worker, (uint64_t)seed * 1000 + (uint64_t)n, (size_t)mib);
    if (freely)
        run_freely(&thread);
    else
        run_epochs(&thread, n == 0);
    worker_check(&thread.worker);
    pthread_barrier_wait(&barrier);
    return NULL;
}

/* The main thread of a free run: it waits for a restart, or for the end of the time. */
static void watch(long seconds)
{
    int64_t end = now_ns() + seconds * 1000000000;
    long round = 0;
    while (now_ns() < end && holdfast_restarted() <= lives) {
        sleep_ms(5);
        break_step(&broken);
        worker_check(&broken);
        if (++round % 20 == 0) {
            printf("round %ld\n", round);
            fflush(stdout);
        }
    }
    stop = 1;
}

static void start(void)
{
    pthread_t handles[MAX_THREADS];
    pthread_attr_t attributes;
    long first = freely ? 0 : 1;
    CHECK_ZERO(pthread_barrier_init(&barrier, NULL, (unsigned)count));
    CHECK_ZERO(pthread_attr_init(&attributes));
    CHECK_ZERO(pthread_attr_setstacksize(&attributes, 4 << 20));
    for (long n = first; n < count; n++)
        CHECK_ZERO(pthread_create(&handles[n], &attributes, live, (void *)(intptr_t)n));
    if (freely)
        watch(epochs);
    else
        live((void *)0);
    for (long n = first; n < count; n++) CHECK_ZERO(pthread_join(handles[n], NULL));
    if (freely && holdfast_restarted() > lives) end_verified("freely", 0);
}

static void options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        int takes_value = 1;
        if (strcmp(argv[i], "--epochs") == 0) epochs = atol(value);
        else if (strcmp(argv[i], "--seed") == 0) seed = atol(value);
        else if (strcmp(argv[i], "--mib") == 0) mib = atol(value);
        else if (strcmp(argv[i], "--threads") == 0) count = atol(value);
        else if (strcmp(argv[i], "--log") == 0) log_name = value;
        else if (strcmp(argv[i], "--without") == 0) torture_without(value);
        else takes_value = 0;
        i += takes_value;
        if (takes_value) continue;
        if (strcmp(argv[i], "--slots") == 0) torture_for_slots();
        else if (strcmp(argv[i], "--free") == 0) freely = 1, fork_seldom = 64;
        else if (strcmp(argv[i], "--go-on") == 0) go_on = 1;
        else {
            fprintf(stderr, "torture: what is %s?\n", argv[i]);
            exit(2);
        }
    }
    CHECK(count >= 1 && count <= MAX_THREADS && mib >= 1 && epochs >= 1);
}

int main(int argc, char **argv)
{
    options(argc, argv);
    if (!HOLDFAST_LOADED) {
        fputs("torture: start it by holdfast run\n", stderr);
        return 2;
    }
    log_file = open(log_name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    CHECK(log_file >= 0);
    torture_open();
    break_open(&broken, (uint64_t)seed);
    start();
    torture_tell();
    return pass();
}
