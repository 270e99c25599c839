/* Reaches the driver's functions in the ways that programs do. Usage: cuda WHAT */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long word;
typedef unsigned (*init)(unsigned);
typedef unsigned (*alloc)(word *, word);
typedef unsigned (*release)(word);
typedef unsigned (*resolve)(const char *, void **, int, word, int *);

/* In which object an address is: "program", "libc", "libcuda", "holdfast" or the file's name. */
static const char *where(void *address) {
    Dl_info info;
    if (!address)
        return "nowhere";
    if (!dladdr(address, &info))
        return "unknown";
    const char *name = strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
    if (strstr(name, "libholdfast"))
        return "holdfast";
    if (strstr(name, "libcuda"))
        return "libcuda";
    return strstr(name, "libc.so") ? "libc" : name;
}

static void look(const char *what, void *address) { printf("%s: %s\n", what, where(address)); }

/* Without a driver library: nothing of it is there, and all else is as ever. */
static void without(void) {
    look("default cuInit", dlsym(RTLD_DEFAULT, "cuInit"));
    printf("dlerror %d\n", dlerror() != NULL);
    look("next cuInit", dlsym(RTLD_NEXT, "cuInit"));
    printf("dlerror %d\n", dlerror() != NULL);
    void *program = dlopen(NULL, RTLD_LAZY);
    look("program cuMemAlloc_v2", dlsym(program, "cuMemAlloc_v2"));
    look("version cuInit", dlvsym(RTLD_DEFAULT, "cuInit", "GLIBC_2.2.5"));
    look("default cuNothing", dlsym(RTLD_DEFAULT, "cuNothing"));
    look("default cu", dlsym(RTLD_DEFAULT, "cu"));
    dlerror();
    errno = 7;
    look("default puts", dlsym(RTLD_DEFAULT, "puts"));
    look("next puts", dlsym(RTLD_NEXT, "puts"));
    look("version puts", dlvsym(RTLD_NEXT, "puts", "GLIBC_2.2.5"));
    printf("dlerror %d errno %d\n", dlerror() != NULL, errno);
    printf("load %d\n", dlopen("libcuda.so.1", RTLD_LAZY) != NULL);
}

/* With one, that it loads for itself. */
static void with(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    look("handle cuInit", dlsym(driver, "cuInit"));
    printf("dlerror %d\n", dlerror() != NULL);
    look("handle cuDeviceGetCount", dlsym(driver, "cuDeviceGetCount"));
    look("handle cuNothing", dlsym(driver, "cuNothing"));
    look("handle cuMemAllocAsync", dlsym(driver, "cuMemAllocAsync"));
    printf("dlerror %d\n", dlerror() != NULL);
    resolve get = (resolve)dlsym(driver, "cuGetProcAddress_v2");
    void *found = NULL;
    int status = 9;
    printf("get %u", get("cuMemAlloc", &found, 13000, 0, &status));
    printf(" %d %s\n", status, where(found));
    printf("get %u", get("cuNothing", &found, 13000, 0, &status));
    printf(" %d %s\n", status, where(found));
    word address = 0;
    printf("init %u\n", ((init)dlsym(driver, "cuInit"))(0));
    printf("alloc %u", ((alloc)dlsym(driver, "cuMemAlloc_v2"))(&address, 4096));
    printf(" %lx\n", address);
}

/* Allocates, and waits to be told to go on. */
static void wait_here(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    word address = 0;
    ((init)dlsym(driver, "cuInit"))(0);
    ((alloc)dlsym(driver, "cuMemAlloc_v2"))(&address, 4096);
    release free_it = (release)dlsym(driver, "cuMemFree_v2");
    printf("ready\n");
    fflush(stdout);
    for (char byte; read(0, &byte, 1) == 1;) {
        if (byte == 'f')
            printf("free %u\n", free_it(address));
        if (byte == 'c' && fork() == 0) {
            printf("child %u\n", free_it(address));
            fflush(stdout);
            _exit(0);
        }
        wait4(-1, NULL, 0, NULL);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "without"))
        without();
    else if (!strcmp(what, "with"))
        with();
    else if (!strcmp(what, "wait"))
        wait_here();
    return 0;
}
