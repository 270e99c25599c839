/* An object in device memory beside one of the host: `device OPTIONS put` puts two versions, restores the first over
 * the second and compares both; `device OPTIONS again` restores the second. Prints "right", or what is not. With
 * `none` the driver is not loaded: prints the error of a put. */
#include <dlfcn.h>
#include <holdfast.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More than a piece of the copy, and no whole number of pages. */
#define BYTES ((3u << 20) + 4099)

static int (*to_device)(unsigned long long, const void *, size_t);
static int (*to_host)(void *, unsigned long long, size_t);
static unsigned long long device;
static unsigned char bytes[BYTES], own[4099];

static void *symbol(void *driver, const char *name)
{
    void *found = dlsym(driver, name);
    if (!found) printf("no %s\n", name), exit(1);
    return found;
}

static void begin(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) printf("%s\n", dlerror()), exit(1);
    int (*init)(unsigned) = symbol(driver, "cuInit");
    int (*get)(int *, int) = symbol(driver, "cuDeviceGet");
    int (*retain)(void **, int) = symbol(driver, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = symbol(driver, "cuCtxSetCurrent");
    int (*allocate)(unsigned long long *, size_t) = symbol(driver, "cuMemAlloc_v2");
    to_device = symbol(driver, "cuMemcpyHtoD_v2");
    to_host = symbol(driver, "cuMemcpyDtoH_v2");
    void *context;
    int gpu;
    if (init(0) || get(&gpu, 0) || retain(&context, gpu) || set(context) || allocate(&device, BYTES))
        printf("no memory of a device\n"), exit(1);
}

static void fill(int version)
{
    for (unsigned at = 0; at < BYTES; at++) bytes[at] = at / 7 * 31 + version;
    memset(own, version, sizeof own);
    if (to_device(device, bytes, BYTES)) printf("cuMemcpyHtoD\n"), exit(1);
}

static void compare(int version)
{
    if (to_host(bytes, device, BYTES)) printf("cuMemcpyDtoH\n"), exit(1);
    for (unsigned at = 0; at < BYTES; at++)
        if (bytes[at] != (unsigned char)(at / 7 * 31 + version)) printf("byte %u\n", at), exit(1);
    for (unsigned at = 0; at < sizeof own; at++)
        if (own[at] != version) printf("own byte %u\n", at), exit(1);
}

int main(int argc, char **argv)
{
    if (argc < 3) return 64;
    int none = strcmp(argv[2], "none") == 0;
    if (!none) begin();
    holdfast_objects *set = holdfast_open("set", 0, 1, argv[1]);
    if (!set || holdfast_region_device(set, "device", none ? 4096 : device, BYTES, 4) ||
        holdfast_region(set, "own", own, sizeof own, 1))
        printf("%s\n", holdfast_error(set)), exit(1);
    if (none) {
        if (holdfast_put(set, 1) == 0) return 1;
        printf("%s\n", holdfast_error(set));
        return 0;
    }
    for (int version = 1; version <= 2 && strcmp(argv[2], "put") == 0; version++) {
        fill(version);
        if (holdfast_put(set, version)) printf("put: %s\n", holdfast_error(set)), exit(1);
    }
    int version = strcmp(argv[2], "put") == 0 ? 1 : 2;
    if (holdfast_wait(set) || holdfast_restore(set, version))
        printf("restore: %s\n", holdfast_error(set)), exit(1);
    compare(version);
    holdfast_close(set);
    printf("right\n");
    return 0;
}
