/* Question 9 of `tests/gpu/run`: what another process sees of a process whose Restore fails. `states MIB`
 *
 * A process with MIB of device memory is locked and checkpointed by this one, which then takes the device's memory
 * itself: Restore has none. The states and results from there on; a process that never used CUDA, one that has and was
 * forked. */
#include "driver.h"
#include <signal.h>
#include <sys/prctl.h>

static unsigned lock[16] = {10000}, none[16];

static void state(const char *what, pid_t pid)
{
    int found = -1, thread = -1;
    int a = cuCheckpointProcessGetState(pid, &found), b = cuCheckpointProcessGetRestoreThreadId(pid, &thread);
    row(what, "GetState %d: %d; GetRestoreThreadId %d: %s", a, found, b, thread > 0 ? "a thread" : "none");
}

static void user(size_t bytes, int to)
{
    device_ptr memory;
    uint32_t word = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    start("9");
    MUST(cuMemAlloc(&memory, bytes));
    MUST(cuMemsetD32(memory, 0x5eed5eed, bytes / 4));
    MUST(cuCtxSynchronize());
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    if (write(to, &child, sizeof child) < 0) exit(2);
    for (;;) {
        usleep(20000);
        int result = cuMemcpyDtoH(&word, memory, 4);
        if (result != 0 || word != 0x5eed5eed) {
            printf("| 9 | the process itself | cuMemcpyDtoH %d, %x |\n", result, word);
            fflush(stdout);
            sleep(1);
        }
    }
}

int main(int argc, char **argv)
{
    size_t bytes = (argc > 1 ? (size_t)atol(argv[1]) : 1024) << 20;
    int ends[2];
    pid_t forked = 0;
    if (pipe(ends) != 0) return 2;
    pid_t pid = fork();
    if (pid == 0) user(bytes, ends[1]);
    close(ends[1]);
    pid_t other = fork();
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    if (read(ends[0], &forked, sizeof forked) != sizeof forked) return NOT_HERE;
    start("9");
    if (cuCheckpointProcessLock == NULL) return 0;
    state("a process without CUDA", other);
    state("forked from one with CUDA", forked);
    state("running", pid);
    kill(forked, SIGKILL);
    TIMED("lock", cuCheckpointProcessLock(pid, lock));
    state("locked", pid);
    TIMED("lock again", cuCheckpointProcessLock(pid, lock));
    TIMED("checkpoint", cuCheckpointProcessCheckpoint(pid, none));
    state("checkpointed", pid);
    /* All that is free, in pieces: what is left is less than what it needs. */
    size_t left = 0, total = 0, piece = (size_t)256 * MIB;
    device_ptr taken;
    MUST(cuMemGetInfo(&left, &total));
    if (left > bytes) (void)cuMemAlloc(&taken, (left - bytes / 2) / (2 * MIB) * (2 * MIB));
    for (; piece >= 2 * MIB; piece /= 2)
        while (cuMemAlloc(&taken, piece) == 0) continue;
    MUST(cuMemGetInfo(&left, &total));
    row("free on the device", "%zu MiB", left / MIB);
    TIMED("Restore without room", cuCheckpointProcessRestore(pid, none));
    state("after that", pid);
    TIMED("Unlock then", cuCheckpointProcessUnlock(pid, none));
    TIMED("Restore once more", cuCheckpointProcessRestore(pid, none));
    MUST(cuCtxSynchronize());
    /* A process of its own had better have taken it: what is freed here is free at once. */
    int (*reset)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "cuDevicePrimaryCtxReset_v2");
    if (reset == NULL) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        reset = (int (*)(int))dlsym(library, "cuDevicePrimaryCtxReset_v2");
    }
    row("the device's memory is given back", "%d", reset == NULL ? -1 : reset(0));
    state("before the next Restore", pid);
    TIMED("Restore with room", cuCheckpointProcessRestore(pid, none));
    state("after that", pid);
    TIMED("Unlock", cuCheckpointProcessUnlock(pid, none));
    state("in the end", pid);
    usleep(200000);
    kill(pid, SIGKILL);
    kill(other, SIGKILL);
    while (wait(NULL) > 0) continue;
    return 0;
}
