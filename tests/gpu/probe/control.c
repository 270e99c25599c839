/* Question 2 of `tests/gpu/run`: what the driver's checkpoint costs when no data is left in it. `control MIB`
 *
 * So much memory lies in an arena of virtual memory management; before the checkpoint it is unmapped and released, the
 * reservation stays; after the restore it is created and mapped at the same address. */
#include "driver.h"

int main(int argc, char **argv)
{
    start("2");
    size_t bytes = (argc > 1 ? (size_t)atol(argv[1]) : 64) << 20, grain = 0;
    struct allocation kind = on_device(0);
    MUST(cuMemGetAllocationGranularity(&grain, &kind, 0));
    row("granularity", "%zu KiB", grain / 1024);
    bytes = (bytes + grain - 1) / grain * grain;
    row("bare context", "below");
    if (!checkpointed()) return 0;
    restored();
    device_ptr at = 0;
    unsigned long long memory;
    MUST(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    MUST(cuMemCreate(&memory, bytes, &kind, 0));
    MUST(cuMemMap(at, bytes, 0, memory, 0));
    allow(at, bytes);
    MUST(cuMemsetD32(at, 7, bytes / 4));
    MUST(cuCtxSynchronize());
    row("arena", "%zu MiB at %#llx, one handle", bytes / MIB, (unsigned long long)at);
    TIMED("unmap", cuMemUnmap(at, bytes));
    TIMED("release", cuMemRelease(memory));
    long before = anonymous_kb();
    if (!checkpointed()) return 0;
    row("anonymous memory more", "%ld MiB", (anonymous_kb() - before) / 1024);
    restored();
    TIMED("create", cuMemCreate(&memory, bytes, &kind, 0));
    int mapped = TIMED("map at the same address", cuMemMap(at, bytes, 0, memory, 0));
    row("the reservation", mapped == 0 ? "is still there" : "is gone");
    if (mapped != 0) return 0;
    allow(at, bytes);
    MUST(cuMemsetD32(at, 9, bytes / 4));
    MUST(cuCtxSynchronize());
    row("memory after it", "works");
    return 0;
}
