/* Question 6 of `tests/gpu/run`: a checkpoint of device memory into managed memory that the driver moves to the host
 * (UVM), beside one into a cache on the device that is copied to the host through a pinned ring. `uvm MIB`
 *
 * What HPDC'23 compares: how long until the program may go on, and until all bytes are on the host. */
#include "driver.h"

enum { PIECE = 16 * MIB, PIECES = 4, MANAGED_GLOBAL = 1, TO_HOST = -1 };

#define MORE(X) \
    X(cuMemAllocManaged, 6000, (device_ptr *, size_t, unsigned)) \
    X(cuMemPrefetchAsync, 8000, (device_ptr, size_t, int, handle))
MORE(DECLARE)

static void find_more(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*find)(const char *, void **, int, uint64_t, int *) =
        (int (*)(const char *, void **, int, uint64_t, int *))dlsym(library, "cuGetProcAddress_v2");
    MORE(FIND)
}

static void figures(const char *what, size_t bytes, double held, double all)
{
    row(what, "%.2f ms until the program may go on, %.2f ms until all is on the host (%.2f GB/s)", held * 1e3,
        all * 1e3, (double)bytes / all / 1e9);
}

static void by_cache(device_ptr data, size_t bytes, handle stream)
{
    device_ptr cache;
    char *ring, *copy = calloc(1, bytes);
    if (cuMemAlloc(&cache, bytes) != 0 || copy == NULL) {
        row("cache and ring", "no memory");
        return;
    }
    MUST(cuMemHostAlloc((void **)&ring, (size_t)PIECE * PIECES, 0));
    memset(copy, 1, bytes);
    double begun = now();
    MUST(cuMemcpyDtoDAsync(cache, data, bytes, stream));
    MUST(cuStreamSynchronize(stream));
    double held = now() - begun;
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t part = bytes - at < PIECE ? bytes - at : PIECE;
        char *slot = ring + at / PIECE % PIECES * PIECE;
        MUST(cuMemcpyDtoHAsync(slot, cache + at, part, stream));
        MUST(cuStreamSynchronize(stream));
        memcpy(copy + at, slot, part);
    }
    figures("cache and ring", bytes, held, now() - begun);
    MUST(cuMemFree(cache));
    free(copy);
}

static void by_uvm(device_ptr data, size_t bytes, handle stream)
{
    device_ptr managed;
    int refused = cuMemAllocManaged == NULL || cuMemPrefetchAsync == NULL
        ? -1 : cuMemAllocManaged(&managed, bytes, MANAGED_GLOBAL);
    if (refused != 0) {
        row("managed memory", "refused: error %d", refused);
        return;
    }
    double begun = now();
    MUST(cuMemcpyDtoDAsync(managed, data, bytes, stream));
    MUST(cuStreamSynchronize(stream));
    double held = now() - begun;
    if (cuMemPrefetchAsync(managed, bytes, TO_HOST, stream) != 0 || cuStreamSynchronize(stream) != 0) {
        row("managed memory", "cannot be moved to the host");
        return;
    }
    figures("managed memory", bytes, held, now() - begun);
    MUST(cuMemFree(managed));
}

int main(int argc, char **argv)
{
    size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) * MIB;
    start("6");
    find_more();
    device_ptr data;
    handle stream;
    if (cuMemAlloc(&data, bytes) != 0) {
        row("memory", "%zu MiB are not free", bytes / MIB);
        return 0;
    }
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuMemsetD32(data, 0x5a5a5a5a, bytes / 4));
    MUST(cuCtxSynchronize());
    by_cache(data, bytes, stream);
    by_uvm(data, bytes, stream);
    return 0;
}
