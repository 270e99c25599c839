/* A libcuda for the tests of checkpoint and restart: one device with a little memory, and the checkpoint API.
 *
 * What it does as NVIDIA's driver does ("CUDA Driver API", CUDA Checkpointing; README of cuda-checkpoint): the four
 * states and what leads from one to the next, ILLEGAL_STATE for all else; a process that is locked waits in its next
 * call; after a checkpoint no device is open or mapped, and its memory is in the process's own; a thread of the process
 * itself answers the caller, and must run for that; a caller is any process of the same user.
 * What is its own: a device is a memfd called nvidia0. Questions and answers are files of FAKE_CUDA_DIR, named by the
 * pid namespace and the id of the process in it, so that nothing is open while nothing is asked. A file
 * `fault-OPERATION` there makes the caller's function fail: a code, or `hang`, or `die`; `once` behind it: one time
 * only. `after-OPERATION`: the same, when the operation has been carried out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, OPERATING_SYSTEM = 304, ILLEGAL_STATE = 401, NOT_FOUND = 500,
       NOT_READY = 600 };
enum { RUNNING, LOCKED, CHECKPOINTED };

#define DEVICE_MEMORY ((char *)0x7e0000000000)
#define DEVICE_SIZE (1 << 20)
#define EXPORTED __attribute__((visibility("default")))

static char folder[512];
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static int state, device = -1, initialised;
static size_t used;
static char *saved;

static void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* "NAMESPACE-ID" of a process, as both it and its callers see it; the process itself: "self". */
static int key_of(const char *process, long inner, char *key, size_t size)
{
    char path[64], namespace[64];
    snprintf(path, sizeof(path), "/proc/%s/ns/pid", process);
    ssize_t length = readlink(path, namespace, sizeof(namespace) - 1);
    if (length < 0) return -1;
    namespace[length] = 0;
    long number = strtol(strchr(namespace, '[') + 1, NULL, 10);
    snprintf(key, size, "%ld-%ld", number, inner);
    return 0;
}

/* The id of a process as it sees it itself. */
static long inner_id(int pid)
{
    char path[64], line[512];
    long inner = -1;
    snprintf(path, sizeof(path), "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "NSpid:", 6) == 0) inner = strtol(strrchr(line, '\t'), NULL, 10);
    }
    fclose(file);
    return inner;
}

static int put(const char *name, const char *ending, const char *text)
{
    char path[700], fresh[720];
    snprintf(path, sizeof(path), "%s/%s%s", folder, name, ending);
    snprintf(fresh, sizeof(fresh), "%s.%ld", path, syscall(SYS_gettid));
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return -1;
    ssize_t written = write(fd, text, strlen(text));
    close(fd);
    return written < 0 ? -1 : rename(fresh, path);
}

/* Takes a file away, and what is in it. */
static int take(const char *name, const char *ending, char *text, size_t size, int keep)
{
    char path[700];
    snprintf(path, sizeof(path), "%s/%s%s", folder, name, ending);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t length = read(fd, text, size - 1);
    close(fd);
    text[length < 0 ? 0 : length] = 0;
    if (!keep) unlink(path);
    return 0;
}

static void *map_device(void)
{
    device = (int)syscall(SYS_memfd_create, "nvidia0", MFD_CLOEXEC);
    if (device < 0 || ftruncate(device, DEVICE_SIZE) != 0) return MAP_FAILED;
    return mmap(DEVICE_MEMORY, DEVICE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, device, 0);
}

static int lock_calls(unsigned timeout_ms)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += timeout_ms / 1000;
    end.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
    return timeout_ms == 0 ? pthread_mutex_lock(&gate) : pthread_mutex_timedlock(&gate, &end);
}

static int checkpoint_here(void)
{
    saved = mmap(NULL, DEVICE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (saved == MAP_FAILED) return OUT_OF_MEMORY;
    memcpy(saved, DEVICE_MEMORY, DEVICE_SIZE);
    mmap(DEVICE_MEMORY, DEVICE_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    close(device);
    state = CHECKPOINTED;
    return SUCCESS;
}

static int restore_here(void)
{
    munmap(DEVICE_MEMORY, DEVICE_SIZE);
    if (map_device() == MAP_FAILED) return OUT_OF_MEMORY;
    memcpy(DEVICE_MEMORY, saved, DEVICE_SIZE);
    munmap(saved, DEVICE_SIZE);
    state = LOCKED;
    return SUCCESS;
}

static int carry_out(const char *operation, unsigned timeout_ms, long *value)
{
    if (strcmp(operation, "state") == 0) return *value = state, SUCCESS;
    if (strcmp(operation, "thread") == 0) return *value = syscall(SYS_gettid), SUCCESS;
    if (strcmp(operation, "lock") == 0 && state == RUNNING) {
        if (lock_calls(timeout_ms) != 0) return NOT_READY;
        state = LOCKED;
        return SUCCESS;
    }
    if (strcmp(operation, "checkpoint") == 0 && state == LOCKED) return checkpoint_here();
    if (strcmp(operation, "restore") == 0 && state == CHECKPOINTED) return restore_here();
    if (strcmp(operation, "unlock") == 0 && state == LOCKED) {
        state = RUNNING;
        pthread_mutex_unlock(&gate);
        return SUCCESS;
    }
    return ILLEGAL_STATE;
}

/* The thread that answers callers. Its process may be another one by now, with its memory: so it looks who it is. */
static void *answer(void *unused)
{
    char key[128], known[128] = "", text[128], operation[32];
    for (;; pause_ms(1)) {
        if (key_of("self", syscall(SYS_getpid), key, sizeof(key)) != 0) continue;
        if (strcmp(key, known) != 0) {
            put(key, ".here", "");
            strcpy(known, key);
        }
        unsigned timeout_ms = 0;
        if (take(key, ".ask", text, sizeof(text), 0) != 0) continue;
        if (sscanf(text, "%31s %u", operation, &timeout_ms) < 1) continue;
        long value = 0;
        int code = carry_out(operation, timeout_ms, &value);
        snprintf(text, sizeof(text), "%d %ld\n", code, value);
        put(key, ".answer", text);
    }
    return unused;
}

/* What a test wants to go wrong. */
static int fault(const char *when, const char *operation)
{
    char name[64], text[64], *rest = text;
    snprintf(name, sizeof(name), "%s-%s", when, operation);
    if (take(name, "", text, sizeof(text), 1) != 0) return SUCCESS;
    if (strstr(text, "once") != NULL) take(name, "", text, sizeof(text), 0);
    if (strncmp(text, "die", 3) == 0) kill(getpid(), SIGKILL);
    for (int hangs = strncmp(text, "hang", 4) == 0; hangs;) pause();
    return (int)strtol(rest, NULL, 10);
}

static int call(int pid, const char *operation, unsigned timeout_ms, long *value)
{
    char key[128], process[16], text[128];
    int failed = fault("fault", operation);
    if (failed != SUCCESS) return failed;
    snprintf(process, sizeof(process), "%d", pid);
    long inner = inner_id(pid);
    if (inner < 0 || key_of(process, inner, key, sizeof(key)) != 0) return INVALID_VALUE;
    char here[700];
    snprintf(here, sizeof(here), "%s/%s.here", folder, key);
    /* One that was just restarted has not looked yet who it is. */
    for (int tries = strcmp(operation, "restore") == 0 ? 30000 : 0; access(here, F_OK) != 0; tries--) {
        if (tries <= 0) return INVALID_VALUE;
        pause_ms(1);
    }
    take(key, ".answer", text, sizeof(text), 0);
    snprintf(text, sizeof(text), "%s %u\n", operation, timeout_ms);
    if (put(key, ".ask", text) != 0) return OPERATING_SYSTEM;
    while (take(key, ".answer", text, sizeof(text), 0) != 0) {
        if (kill(pid, 0) != 0 && errno == ESRCH) return OPERATING_SYSTEM;
        pause_ms(1);
    }
    int code = OPERATING_SYSTEM;
    sscanf(text, "%d %ld", &code, value);
    failed = fault("after", operation);
    return failed != SUCCESS ? failed : code;
}

static int act_lock(int pid, unsigned *arguments)
{
    long value;
    return call(pid, "lock", arguments == NULL ? 0 : arguments[0], &value);
}

static int act_checkpoint(int pid, void *arguments)
{
    long value;
    return arguments != NULL ? call(pid, "checkpoint", 0, &value) : INVALID_VALUE;
}

static int act_restore(int pid, void *arguments)
{
    long value;
    return arguments != NULL ? call(pid, "restore", 0, &value) : INVALID_VALUE;
}

static int act_unlock(int pid, void *arguments)
{
    long value;
    return arguments != NULL ? call(pid, "unlock", 0, &value) : INVALID_VALUE;
}

static int ask_state(int pid, int *value)
{
    long state_of = 0;
    int code = call(pid, "state", 0, &state_of);
    *value = (int)state_of;
    return code;
}

static int ask_thread(int pid, int *value)
{
    long thread = 0;
    int code = call(pid, "thread", 0, &thread);
    *value = (int)thread;
    return code;
}

EXPORTED int cuInit(unsigned flags)
{
    pthread_t thread;
    const char *given = getenv("FAKE_CUDA_DIR");
    if (flags != 0 || given == NULL || strlen(given) >= sizeof(folder)) return INVALID_VALUE;
    if (initialised) return SUCCESS;
    strcpy(folder, given);
    if (map_device() == MAP_FAILED) return OUT_OF_MEMORY;
    initialised = 1;
    /* Whoever has initialised it is known, whether or not the thread has looked around yet. */
    char key[128];
    if (key_of("self", syscall(SYS_getpid), key, sizeof(key)) != 0) return OPERATING_SYSTEM;
    if (put(key, ".here", "") != 0) return OPERATING_SYSTEM;
    return pthread_create(&thread, NULL, answer, NULL) == 0 ? SUCCESS : OPERATING_SYSTEM;
}

EXPORTED int cuDriverGetVersion(int *version)
{
    const char *given = getenv("FAKE_CUDA_VERSION");
    *version = given != NULL ? atoi(given) : 13000;
    return SUCCESS;
}

EXPORTED int cuDeviceGetCount(int *count)
{
    *count = 1;
    return SUCCESS;
}

EXPORTED int cuDeviceGet(int *found, int number)
{
    *found = number;
    return number == 0 ? SUCCESS : INVALID_VALUE;
}

EXPORTED int cuDeviceGetUuid(char *uuid, int number)
{
    for (int i = 0; i < 16; i++) uuid[i] = (char)(i * 17);
    return number == 0 ? SUCCESS : INVALID_VALUE;
}

EXPORTED int cuDeviceGetName(char *name, int size, int number)
{
    snprintf(name, (size_t)size, "Memfd");
    return number == 0 ? SUCCESS : INVALID_VALUE;
}

EXPORTED int cuMemAlloc_v2(uint64_t *address, size_t size)
{
    pthread_mutex_lock(&gate);
    int fits = size <= DEVICE_SIZE - used;
    *address = (uint64_t)(uintptr_t)DEVICE_MEMORY + used;
    used += fits ? (size + 511) / 512 * 512 : 0;
    pthread_mutex_unlock(&gate);
    return fits ? SUCCESS : OUT_OF_MEMORY;
}

EXPORTED int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size)
{
    pthread_mutex_lock(&gate);
    memcpy((void *)(uintptr_t)to, from, size);
    pthread_mutex_unlock(&gate);
    return SUCCESS;
}

EXPORTED int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size)
{
    pthread_mutex_lock(&gate);
    memcpy(to, (const void *)(uintptr_t)from, size);
    pthread_mutex_unlock(&gate);
    return SUCCESS;
}

/* The checkpoint API is found in no other way, so that an old driver can be played. */
EXPORTED int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{
    static const struct {
        const char *name;
        int since;
        void *function;
    } all[] = {
        {"cuInit", 2000, (void *)cuInit},
        {"cuDriverGetVersion", 2020, (void *)cuDriverGetVersion},
        {"cuDeviceGetCount", 2000, (void *)cuDeviceGetCount},
        {"cuDeviceGet", 2000, (void *)cuDeviceGet},
        {"cuDeviceGetUuid", 11040, (void *)cuDeviceGetUuid},
        {"cuDeviceGetName", 2000, (void *)cuDeviceGetName},
        {"cuCheckpointProcessLock", 12080, (void *)act_lock},
        {"cuCheckpointProcessCheckpoint", 12080, (void *)act_checkpoint},
        {"cuCheckpointProcessRestore", 12080, (void *)act_restore},
        {"cuCheckpointProcessUnlock", 12080, (void *)act_unlock},
        {"cuCheckpointProcessGetState", 12080, (void *)ask_state},
        {"cuCheckpointProcessGetRestoreThreadId", 12080, (void *)ask_thread},
    };
    int own;
    (void)flags;
    cuDriverGetVersion(&own);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (strcmp(all[i].name, name) != 0 || all[i].since > version || all[i].since > own) continue;
        *found = all[i].function;
        if (status != NULL) *status = 0;
        return SUCCESS;
    }
    *found = NULL;
    if (status != NULL) *status = 1;
    return NOT_FOUND;
}
