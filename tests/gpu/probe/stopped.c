/* Question 11 of `tests/gpu/run`: does the driver checkpoint and restore a process all of whose threads but its own are
 * stopped? `stopped MIB [all]`: "all": its own too.
 *
 * CRIU does so (plugins/cuda): what the driver leaves of the addresses nobody can take then. */
#include "driver.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

static unsigned lock[16] = {10000}, none[16];

static void user(size_t bytes, int to)
{
    device_ptr memory;
    uint32_t word = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    start("11");
    MUST(cuMemAlloc(&memory, bytes));
    MUST(cuMemsetD32(memory, 0x5eed5eed, bytes / 4));
    MUST(cuCtxSynchronize());
    if (write(to, &word, 1) < 0) exit(2);
    for (;;) {
        usleep(1000);
        int result = cuMemcpyDtoH(&word, memory, 4);
        if (result != 0 || word != 0x5eed5eed) _exit(3);
    }
}

int main(int argc, char **argv)
{
    size_t bytes = (argc > 1 ? (size_t)atol(argv[1]) : 64) << 20;
    int ends[2], thread = 0, stopped = 0, status = 0;
    char path[100], byte;
    pid_t tids[1000];
    if (pipe(ends) != 0) return 2;
    pid_t pid = fork();
    if (pid == 0) user(bytes, ends[1]);
    close(ends[1]);
    if (read(ends[0], &byte, 1) != 1) return NOT_HERE;
    start("11");
    if (cuCheckpointProcessLock == NULL) return 0;
    TIMED("lock", cuCheckpointProcessLock(pid, lock));
    MUST(cuCheckpointProcessGetRestoreThreadId(pid, &thread));
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        int tid = atoi(entry->d_name);
        if (tid <= 0 || (tid == thread && argc < 3)) continue;
        if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0 || ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0) continue;
        waitpid(tid, &status, __WALL);
        tids[stopped++] = tid;
    }
    if (folder != NULL) closedir(folder);
    row("threads that are stopped", "%d%s", stopped, argc < 3 ? ", all but the one that answers" : "");
    int result = TIMED("checkpoint", cuCheckpointProcessCheckpoint(pid, none)), state = -1;
    if (cuCheckpointProcessGetState(pid, &state) == 0) row("state", "%d", state);
    if (result == 0) result = TIMED("restore", cuCheckpointProcessRestore(pid, none));
    for (int i = 0; i < stopped; i++) ptrace(PTRACE_DETACH, tids[i], NULL, NULL);
    TIMED("unlock", cuCheckpointProcessUnlock(pid, none));
    usleep(300000);
    row("afterwards", waitpid(pid, &status, WNOHANG) == 0 ? "it goes on" : "IT HAS ENDED: %x", status);
    kill(pid, SIGKILL);
    return 0;
}
