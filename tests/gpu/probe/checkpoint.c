/* Questions 1 and 4 of `tests/gpu/run`: the driver's checkpoint API called by the process itself. `checkpoint MIB`
 *
 * How long each call takes with so much device memory, what is left of the device, where the bytes are meanwhile, and
 * whether a child of fork(2) in CHECKPOINTED sees what an image needs while the parent goes on. */
#include "driver.h"

int main(int argc, char **argv)
{
    int version = start("1");
    size_t bytes = (argc > 1 ? (size_t)atol(argv[1]) : 64) << 20, total = 0, left = 0;
    char name[100] = "";
    MUST(cuDeviceGetName(name, sizeof name, 0));
    MUST(cuMemGetInfo(&left, &total));
    row("device", "%s, %zu MiB, API %d", name, total / MIB, version);
    if (bytes > left / 10 * 9) {
        row("device memory", "%zu MiB are not free", bytes / MIB);
        return 0;
    }
    row("device memory", "%zu MiB", bytes / MIB);
    device_ptr memory;
    MUST(cuMemAlloc(&memory, bytes));
    MUST(cuMemsetD32(memory, 0x5eed5eed, bytes / 4));
    uint32_t first = 1, last = 2;
    MUST(cuMemcpyHtoD(memory + bytes - 4, &last, 4));
    MUST(cuCtxSynchronize());
    traces("running");
    long before = anonymous_kb();
    if (!checkpointed()) return 0;
    row("anonymous memory more", "%ld MiB", (anonymous_kb() - before) / 1024);
    traces("checkpointed");
    /* Whoever writes an image in a child has the same memory and no device. */
    int status = -1;
    double begun = now();
    pid_t child = fork();
    if (child == 0) {
        traces("checkpointed, child of fork");
        _exit(0);
    }
    row("fork", "%.2f ms", (now() - begun) * 1e3);
    waitpid(child, &status, 0);
    question = "4";
    row("the child of fork", status == 0 ? "lives and ends well" : "status %d", status);
    question = "1";
    restored();
    traces("restored");
    MUST(cuMemcpyDtoH(&first, memory, 4));
    MUST(cuMemcpyDtoH(&last, memory + bytes - 4, 4));
    row("content", first == 0x5eed5eed && last == 2 ? "as it was" : "CHANGED: %x %x", first, last);
    return 0;
}
