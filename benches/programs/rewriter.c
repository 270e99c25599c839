/* A heap that is written all the time, for measurements of the pre-copy. Run by benches/precopy.py.
 *
 * `rewriter MIB PATTERN MB`. It fills the heap with noise, and a thread goes on writing one word in one page after the
 * other, MB megabytes of pages in a second (0: as fast as it can), by PATTERN:
 *   sweep   in the order of their addresses, over and over again
 *   random  any page
 *   hot     nine times of ten a page of one tenth of the heap, else any page
 * It prints `ready`, and then obeys lines on standard input, each answered by `done`:
 *   cut     asks for a checkpoint and waits for its cut alone, so that there is no pre-copy
 *   end     ends */
#include "common.h"
#include "holdfast.h"

#include <pthread.h>
#include <sys/mman.h>

#define PAGE 4096

static unsigned char *heap;
static size_t pages;
static const char *pattern;
static uint64_t pages_a_second;

static size_t next_page(uint64_t count)
{
    if (strcmp(pattern, "sweep") == 0) return count % pages;
    uint64_t random = mix(count);
    if (strcmp(pattern, "hot") == 0 && random % 10 != 0) return pages / 10 * 4 + (random >> 8) % (pages / 10);
    return (random >> 8) % pages;
}

static void *write_on(void *nothing)
{
    struct timespec pause = timespec_of_ns(1000000);
    int64_t begun = now_ns();
    for (uint64_t count = 0;; count++) {
        while (pages_a_second != 0 && count * 1000000000 / pages_a_second > (uint64_t)(now_ns() - begun))
            nanosleep(&pause, NULL);
        *(volatile uint64_t *)(heap + next_page(count) * PAGE) = mix(count);
    }
    return nothing;
}

int main(int argc, char **argv)
{
    pages = (size_t)number_argument(argc, argv, 1, 1024) * 256;
    pattern = argc > 2 ? argv[2] : "sweep";
    pages_a_second = number_argument(argc, argv, 3, 0) * 1000000 / PAGE;
    heap = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(heap != MAP_FAILED && madvise(heap, pages * PAGE, MADV_NOHUGEPAGE) == 0);
    for (size_t at = 0; at < pages * PAGE; at += 8) *(uint64_t *)(heap + at) = mix(at);
    pthread_t writer;
    CHECK_ZERO(pthread_create(&writer, NULL, write_on, NULL));
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL && strncmp(line, "end", 3) != 0) {
        if (strncmp(line, "cut", 3) == 0) CHECK(HOLDFAST_LOADED && holdfast_checkpoint_start() == 0);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
