/* Another library that is preloaded and intercepts: what it finds behind itself must not be itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

typedef unsigned (*init)(unsigned);

unsigned cuInit(unsigned flags) {
    init next = (init)dlsym(RTLD_NEXT, "cuInit");
    printf("shim: cuInit, next %d\n", next && next != cuInit);
    fflush(stdout);
    return next ? next(flags) : 34;
}
int puts(const char *text) {
    int (*next)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "puts");
    printf("shim: ");
    return next(text);
}
