/* Something else that checkpoints CUDA programs: `cuda_other PID`. It locks and checkpoints the process, says "has it",
 * waits for a file `go` in its folder, restores and unlocks it, and ends. */
#include "common.h"

#include <dlfcn.h>

int main(int argc, char **argv)
{
    static unsigned lock[16] = {10000}, none[16];
    CHECK(argc == 2);
    int pid = atoi(argv[1]);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return 77;
#define CALL(name, types, ...) CHECK_ZERO(((int (*) types)dlsym(library, #name))(__VA_ARGS__))
    CALL(cuInit, (unsigned), 0);
    CALL(cuCheckpointProcessLock, (int, void *), pid, lock);
    CALL(cuCheckpointProcessCheckpoint, (int, void *), pid, none);
    puts("has it");
    fflush(stdout);
    struct timespec pause = timespec_of_ns(5000000);
    while (access("go", F_OK) != 0) nanosleep(&pause, NULL);
    CALL(cuCheckpointProcessRestore, (int, void *), pid, none);
    CALL(cuCheckpointProcessUnlock, (int, void *), pid, none);
    return 0;
}
