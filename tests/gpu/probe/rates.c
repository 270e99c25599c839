/* Question 5 of `tests/gpu/run`: rates of the hash and gather kernels, of copies over the link, cost of mapping.
 * `rates MIB PTX`
 *
 * PTX is cuda-hooks/kernels/cuda/kernels.ptx; its launches are those of cuda-hooks/kernels/src/launch.rs. */
#include "driver.h"

enum { CHUNK = 65536, RUNS = 5 };

struct range {
    uint64_t address, bytes, slot, before;
};

static char *whole_file(const char *path)
{
    FILE *file = fopen(path, "re");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) exit(2);
    long length = ftell(file);
    char *text = calloc(1, (size_t)length + 1);
    rewind(file);
    if (text == NULL || fread(text, 1, (size_t)length, file) != (size_t)length) exit(2);
    fclose(file);
    return text;
}

static device_ptr buffer(size_t bytes)
{
    device_ptr at;
    MUST(cuMemAlloc(&at, bytes));
    MUST(cuMemsetD32(at, 0, bytes / 4));
    return at;
}

/* The least time of some runs, after one that is not counted. */
static double least(int (*run)(void *), void *argument)
{
    double best = 1e9;
    for (int i = 0; i <= RUNS; i++) {
        double begun = now();
        MUST(run(argument));
        MUST(cuCtxSynchronize());
        double taken = now() - begun;
        if (i > 0 && taken < best) best = taken;
    }
    return best;
}

struct launch {
    handle function;
    unsigned grid, block;
    uint64_t values[10];
};

static int launched(void *argument)
{
    struct launch *it = argument;
    void *pointers[10];
    for (int i = 0; i < 10; i++) pointers[i] = &it->values[i];
    return cuLaunchKernel(it->function, it->grid, 1, 1, it->block, 1, 1, 0, NULL, pointers, NULL);
}

static void kernels(const char *path, size_t bytes)
{
    uint64_t chunks = bytes / CHUNK, count = 0;
    handle module, hash, list, gather;
    char *text = whole_file(path);
    MUST(TIMED("loading the kernels (JIT)", cuModuleLoadData(&module, text)));
    MUST(cuModuleGetFunction(&hash, module, "holdfast_hash"));
    MUST(cuModuleGetFunction(&list, module, "holdfast_list"));
    MUST(cuModuleGetFunction(&gather, module, "holdfast_gather"));
    device_ptr data = buffer(bytes), cache = buffer(bytes), ranges = buffer(64), states = buffer(chunks + 4),
               dirty = buffer(chunks * 4), zero = buffer(chunks * 4), counts = buffer(16);
    device_ptr previous = buffer(chunks * 16), fresh = buffer(chunks * 16);
    MUST(cuMemsetD32(data, 0x5eed5eed, bytes / 4));
    struct range range = {data, bytes, 0, 0};
    MUST(cuMemcpyHtoD(ranges, &range, sizeof range));
    unsigned grid = chunks < 4096 ? (unsigned)chunks : 4096;
    struct launch hashing = {hash, grid, 256, {ranges, 1, chunks, 1, 2, 3, 4, previous, fresh, states}};
    struct launch listing = {list, 1, 1024, {states, chunks, dirty, zero, counts}};
    struct launch gathering = {gather, grid, 256, {ranges, 1, dirty, chunks, cache}};
    double seconds = least(launched, &hashing);
    double gib = (double)bytes / (1 << 30);
    row("hash", "%.0f GB/s, %.3f ms per GiB", (double)bytes / seconds / 1e9, seconds * 1e3 / gib);
    seconds = least(launched, &listing);
    MUST(cuMemcpyDtoH(&count, counts, 8));
    row("list of the changed", "%.3f ms, %llu of %llu chunks", seconds * 1e3, (unsigned long long)count,
        (unsigned long long)chunks);
    if (count != chunks) exit(2);
    seconds = least(launched, &gathering);
    row("gather", "%.0f GB/s of data", (double)bytes / seconds / 1e9);
}

struct copy {
    device_ptr device;
    void *host;
    size_t bytes;
};

static int to_host(void *argument)
{
    struct copy *it = argument;
    return cuMemcpyDtoHAsync(it->host, it->device, it->bytes, NULL);
}

static int to_device(void *argument)
{
    struct copy *it = argument;
    return cuMemcpyHtoDAsync(it->device, it->host, it->bytes, NULL);
}

static void link_rates(size_t bytes)
{
    struct copy pinned = {buffer(bytes), NULL, bytes}, pageable = pinned;
    double begun = now();
    MUST(cuMemHostAlloc(&pinned.host, bytes, 0));
    row("pinning", "%.2f GB/s", (double)bytes / (now() - begun) / 1e9);
    row("to pinned memory", "%.1f GB/s", (double)bytes / least(to_host, &pinned) / 1e9);
    row("from pinned memory", "%.1f GB/s", (double)bytes / least(to_device, &pinned) / 1e9);
    pageable.host = malloc(bytes);
    if (pageable.host == NULL) exit(2);
    memset(pageable.host, 1, bytes);
    row("to pageable memory", "%.1f GB/s", (double)bytes / least(to_host, &pageable) / 1e9);
}

static void mapping(size_t bytes, size_t each)
{
    struct allocation kind = on_device(0);
    unsigned long long handles[1024];
    size_t count = bytes / each < 1024 ? bytes / each : 1024;
    device_ptr at = 0;
    char what[100];
    if (count == 0) return;
    MUST(cuMemAddressReserve(&at, count * each, 0, 0, 0));
    for (size_t i = 0; i < count; i++) MUST(cuMemCreate(&handles[i], each, &kind, 0));
    double begun = now();
    for (size_t i = 0; i < count; i++) MUST(cuMemMap(at + i * each, each, 0, handles[i], 0));
    double mapped = now();
    allow(at, count * each);
    double allowed = now();
    for (size_t i = 0; i < count; i++) MUST(cuMemUnmap(at + i * each, each));
    double unmapped = now();
    snprintf(what, sizeof what, "%zu handles of %zu MiB: map, allow, unmap", count, each / MIB);
    row(what, "%.3f, %.3f, %.3f ms", (mapped - begun) * 1e3, (allowed - mapped) * 1e3, (unmapped - allowed) * 1e3);
    for (size_t i = 0; i < count; i++) MUST(cuMemRelease(handles[i]));
    MUST(cuMemAddressFree(at, count * each));
}

int main(int argc, char **argv)
{
    start("5");
    size_t bytes = (argc > 1 ? (size_t)atol(argv[1]) : 64) << 20;
    if (argc > 2) kernels(argv[2], bytes);
    link_rates(bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30);
    mapping(bytes, (size_t)2 << 20);
    mapping(bytes, (size_t)1 << 30);
    return 0;
}
