/* A CUDA driver of two devices that has nothing but contexts and virtual memory management, for what libholdfast does
 * with it: what is mapped where, and who may reach it, is in a table that the tests read. Layouts and numbers are those
 * of cuda.h of CUDA 13.0. */
#include <stddef.h>

typedef unsigned long long u64;
enum { MOST = 1 << 16 };
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2 };

struct mapping {
    u64 at, bytes, handle, readers;
} mappings[MOST];
static u64 sizes[MOST];
volatile u64 handles, used, waits, settled, peers, refuse_access, next_address = 0x600000000000;
static __thread u64 stack[8];
static __thread int depth;

unsigned cuInit(unsigned flags) { return OK; }
unsigned cuDriverGetVersion(int *out) { return *out = 13000, OK; }
unsigned cuDeviceGetCount(int *out) { return *out = 2, OK; }
unsigned cuDeviceTotalMem_v2(size_t *out, int device) { return *out = (size_t)1 << 30, OK; }
unsigned cuDeviceGetAttribute(int *out, int attribute, int device)
{
    return *out = attribute == 14 ? 512 : attribute == 102, OK;
}

/* Contexts are 0x1000 and the device. */
unsigned cuDevicePrimaryCtxRetain(u64 *out, int device) { return *out = 0x1000 + device, OK; }
unsigned cuDevicePrimaryCtxReset_v2(int device) { return OK; }
unsigned cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { return *flags = 0, *active = 1, OK; }
unsigned cuCtxGetCurrent(u64 *out) { return *out = stack[depth], OK; }
unsigned cuCtxSetCurrent(u64 context) { return stack[depth] = context, OK; }
unsigned cuCtxPushCurrent_v2(u64 context) { return stack[++depth] = context, OK; }
unsigned cuCtxPopCurrent_v2(u64 *out) { return *out = stack[depth--], OK; }
unsigned cuCtxGetDevice(int *out) { return *out = (int)(stack[depth] - 0x1000), OK; }
unsigned cuCtxSynchronize(void) { return waits++, OK; }
unsigned cuCtxEnablePeerAccess(u64 context, unsigned flags) { return peers++, OK; }
unsigned cuCtxDisablePeerAccess(u64 context) { return peers--, OK; }
unsigned cuStreamQuery(u64 stream) { return OK; }
unsigned cuStreamSynchronize(u64 stream) { return settled = settled * 10 + stream, OK; }
unsigned cuMemsetD8_v2(u64 at, unsigned char value, size_t count) { return OK; }
unsigned cuMemsetD8_v2_ptds(u64 at, unsigned char value, size_t count) { return OK; }
unsigned cuPointerSetAttribute(const void *value, int attribute, u64 at) { return INVALID_VALUE; }
unsigned cuMemAlloc_v2(u64 *out, size_t bytes) { return OUT_OF_MEMORY; }
unsigned cuIpcGetMemHandle(void *out, u64 at) { return INVALID_VALUE; }
unsigned cuMemFree_v2(u64 at) { return INVALID_VALUE; }

unsigned cuMemGetAllocationGranularity(size_t *out, const void *properties, unsigned which)
{
    return *out = 2 << 20, OK;
}
unsigned cuMemAddressReserve(u64 *out, size_t bytes, size_t alignment, u64 near, u64 flags)
{
    *out = next_address;
    next_address += bytes;
    return OK;
}
unsigned cuMemCreate(u64 *out, size_t bytes, const int *properties, u64 flags)
{
    if (properties[2] != 1 || used + bytes > (u64)1 << 30) return OUT_OF_MEMORY;
    for (u64 i = 1; i < MOST; i++) {
        if (sizes[i] != 0) continue;
        sizes[i] = bytes;
        used += bytes;
        handles++;
        *out = i;
        return OK;
    }
    return OUT_OF_MEMORY;
}
static struct mapping *find(u64 at)
{
    return &mappings[(at - 0x600000000000) >> 21];
}
unsigned cuMemRelease(u64 handle)
{
    used -= sizes[handle];
    sizes[handle] = 0;
    return handles--, OK;
}
unsigned cuMemMap(u64 at, size_t bytes, size_t offset, u64 handle, u64 flags)
{
    if (at % (2 << 20) != 0 || find(at)->at != 0 || sizes[handle] != bytes) return INVALID_VALUE;
    *find(at) = (struct mapping){at, bytes, handle, 0};
    return OK;
}
unsigned cuMemUnmap(u64 at, size_t bytes)
{
    if (find(at)->at != at || find(at)->bytes != bytes) return INVALID_VALUE;
    find(at)->at = 0;
    return OK;
}
unsigned cuMemSetAccess(u64 at, size_t bytes, const int *access, size_t count)
{
    struct mapping *it = find(at);
    if (refuse_access || count != 1 || it->at != at || it->bytes != bytes) return OUT_OF_MEMORY;
    u64 bit = (u64)1 << access[1];
    it->readers = access[2] == 3 ? it->readers | bit : it->readers & ~bit;
    return OK;
}
/* Of the block that an address is in: who may reach it; nothing is mapped there: -1. */
u64 readers_of(u64 at)
{
    for (at &= -(u64)(2 << 20); at >= 0x600000000000; at -= 2 << 20) {
        if (find(at)->at != 0) return find(at)->readers;
    }
    return -1;
}
u64 mapped(void)
{
    u64 count = 0;
    for (int i = 0; i < MOST; i++) count += mappings[i].at != 0;
    return count;
}
