/* Linked with the driver library; some names it lacks. */
#include <stdio.h>

typedef unsigned long word;
unsigned cuInit(unsigned);
unsigned cuMemAlloc_v2(word *, word);
unsigned cuMemFree_v2(word);
unsigned cuDeviceGetCount(int *);
unsigned cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);
__attribute__((weak)) unsigned cuMemAllocManaged(word *, word, unsigned);

int main(void) {
    word address = 0;
    int count = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("init %u\n", cuInit(0));
    printf("count %u %d\n", cuDeviceGetCount(&count), count);
    printf("alloc %u %lx\n", cuMemAlloc_v2(&address, 64), address);
    printf("launch %u\n", cuLaunchKernel(0, 11, 0, 0, 0, 0, 0, 22, 0, 0, (void **)33));
    printf("free %u\n", cuMemFree_v2(address));
    if (cuMemAllocManaged)
        printf("managed %u\n", cuMemAllocManaged(&address, 64, 1));
    return 0;
}
