/* Question 8 of `tests/gpu/run`: what becomes of the addresses of the driver's mappings. `ranges MIB`
 *
 * Which places are free while CHECKPOINTED, and where the mappings are afterwards; whether Restore takes addresses that
 * are reserved meanwhile, and those where the program has memory of its own: libcuda is said to map with MAP_FIXED
 * (google/gvisor#14776), which would replace it. The threads that the driver has, by name. */
#include "driver.h"
#include <sys/mman.h>

struct range {
    unsigned long long start, end;
    char perms[8], name[200];
};
struct maps {
    struct range all[4096];
    int count;
};
static struct maps running, away, back;

static void look(struct maps *maps)
{
    char line[1000];
    FILE *file = fopen("/proc/self/maps", "re");
    maps->count = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL && maps->count < 4096) {
        struct range *one = &maps->all[maps->count++];
        one->name[0] = 0;
        sscanf(line, "%llx-%llx %7s %*s %*s %*s %199[^\n]", &one->start, &one->end, one->perms, one->name);
    }
    if (file != NULL) fclose(file);
}

static const struct range *at(const struct maps *maps, unsigned long long address)
{
    for (int i = 0; i < maps->count; i++)
        if (maps->all[i].start <= address && address < maps->all[i].end) return &maps->all[i];
    return NULL;
}

static int is_device(const struct range *one)
{
    return strstr(one->name, "/dev/nvidia") != NULL || strstr(one->name, "memfd:nvidia") != NULL;
}

/* The mappings as they are, into the folder MAPS, if there is one. */
static void keep(const char *when)
{
    char path[400], command[900];
    if (getenv("MAPS") == NULL) return;
    snprintf(path, sizeof path, "%s/ranges-%s.txt", getenv("MAPS"), when);
    snprintf(command, sizeof command, "cat /proc/%d/maps > '%s'", getpid(), path);
    if (system(command) != 0) row("maps", "not kept");
}

static void threads(const char *when)
{
    char path[300], names[2000] = "";
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        char name[40] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "re");
        if (file == NULL) continue;
        if (fgets(name, sizeof name, file) != NULL) name[strcspn(name, "\n")] = 0;
        fclose(file);
        int restore = 0;
        if (cuCheckpointProcessGetRestoreThreadId != NULL)
            cuCheckpointProcessGetRestoreThreadId(getpid(), &restore);
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s%s", names[0] ? ", " : "", name,
            restore == atoi(entry->d_name) ? " (answers)" : "");
    }
    if (folder != NULL) closedir(folder);
    snprintf(path, sizeof path, "threads, %s", when);
    row(path, "%s", names);
}

/* One checkpoint; `mine`: 0: nothing; 1: the free places are reserved; 2: memory of the program is at the first. */
static int once(const char *name, int mine, device_ptr memory)
{
    unsigned lock[16] = {10000}, none[16] = {0};
    char what[200];
    look(&running);
    if (mine == 0) {
        threads("running");
        keep("running");
    }
    MUST(cuCheckpointProcessLock(getpid(), lock));
    MUST(cuCheckpointProcessCheckpoint(getpid(), none));
    look(&away);
    if (mine == 0) {
        threads("checkpointed");
        keep("checkpointed");
    }
    int devices = 0, free_places = 0, covered = 0, others = 0, taken = 0;
    unsigned long long first = 0, bytes = 0, other_bytes = 0;
    for (int i = 0; i < running.count; i++) {
        const struct range *one = &running.all[i], *there = at(&away, one->start);
        if (there == NULL && !is_device(one)) {
            others++;
            other_bytes += one->end - one->start;
            if (others <= 6)
                row("gone, and no device", "%llx-%llx %s %s", one->start, one->end, one->perms, one->name);
        }
        if (there != NULL && is_device(one)) {
            if (covered++ < 3)
                row("of a device, then", "%llx-%llx %s: %llx-%llx %s %s", one->start, one->end, one->name,
                    there->start, there->end, there->perms, there->name);
        }
        devices += is_device(one);
        if (there != NULL) continue;
        free_places += is_device(one);
        bytes += one->end - one->start;
        if (mine >= 1) {
            void *place = mmap((void *)(uintptr_t)one->start, one->end - one->start, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
            taken += place == (void *)(uintptr_t)one->start;
        }
        if (first == 0 && is_device(one)) first = one->start;
    }
    snprintf(what, sizeof what, "%s: mappings of devices", name);
    row(what, "%d; %d leave their places free, %d are covered; %d others gone (%llu KiB); %llu KiB in all", devices,
        free_places, covered, others, other_bytes >> 10, bytes >> 10);
    if (mine >= 1) row(name, "%d places reserved", taken);
    volatile char *own = NULL;
    if (mine == 2 && first != 0) {
        own = mmap((void *)(uintptr_t)first, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
            -1, 0);
        if (own == MAP_FAILED) own = NULL;
        if (own != NULL) *own = 0x5a;
    }
    int result = TIMED(name, cuCheckpointProcessRestore(getpid(), none)), state = -1;
    MUST(cuCheckpointProcessGetState(getpid(), &state));
    look(&back);
    if (mine == 0) keep("restored");
    int same = 0, elsewhere = 0;
    for (int i = 0; i < running.count; i++)
        if (is_device(&running.all[i])) {
            const struct range *there = at(&back, running.all[i].start);
            if (there != NULL && is_device(there) && there->start == running.all[i].start) same++;
            else elsewhere++;
        }
    snprintf(what, sizeof what, "%s: Restore, state", name);
    row(what, "%d, %d; mappings at the same place %d, not there %d", result, state, same, elsewhere);
    if (own != NULL) {
        const struct range *there = at(&back, first);
        row("the program's page at a place of the driver's", "%s %s: %s", there == NULL ? "gone" : there->perms,
            there == NULL ? "" : there->name,
            there != NULL && !is_device(there) && there->perms[0] == 'r' && *own == 0x5a ? "as it was" : "REPLACED");
        if (result != 0) {
            munmap((void *)own, 4096);
            result = TIMED("Restore again without that page", cuCheckpointProcessRestore(getpid(), none));
        }
    }
    if (result != 0) return 0;
    MUST(cuCheckpointProcessUnlock(getpid(), none));
    uint32_t word = 0;
    int read = cuMemcpyDtoH(&word, memory, 4);
    snprintf(what, sizeof what, "%s: content", name);
    row(what, read == 0 && word == 0x5eed5eed ? "as it was" : "CHANGED: error %d, %x", read, word);
    return read == 0;
}

int main(int argc, char **argv)
{
    start("8");
    size_t bytes = (argc > 1 ? (size_t)atol(argv[1]) : 64) << 20;
    device_ptr memory;
    handle stream;
    void *pinned;
    MUST(cuMemAlloc(&memory, bytes));
    MUST(cuMemsetD32(memory, 0x5eed5eed, bytes / 4));
    MUST(cuMemHostAlloc(&pinned, 2 * MIB, 0));
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuMemcpyDtoHAsync(pinned, memory, 2 * MIB, stream));
    MUST(cuCtxSynchronize());
    if (cuCheckpointProcessLock == NULL) return 0;
    (void)(once("plain", 0, memory) && once("reserved", 1, memory) && once("taken", 2, memory));
    return 0;
}
