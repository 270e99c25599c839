/* Question 10 of `tests/gpu/run`: what becomes of a capture that goes wrong. `captures`
 *
 * The driver's results and the stream's state: where a launch is refused in the middle, where another stream that was
 * drawn in has not come back at the end, where a stream is captured into nothing. */
#include "driver.h"

static int (*begin)(handle, int), (*end)(handle, handle *), (*is_capturing)(handle, int *);
static int (*event_create)(handle *, unsigned), (*event_record)(handle, handle);
static int (*stream_wait)(handle, handle, unsigned), (*set_async)(device_ptr, unsigned char, size_t, handle);

static void state(const char *what, handle stream)
{
    int status = -1, result = is_capturing(stream, &status);
    row(what, "cuStreamIsCapturing %d: %d (0 none, 1 active, 2 invalidated)", result, status);
}

static void finish(const char *what, handle stream)
{
    handle graph = NULL;
    char text[200];
    snprintf(text, sizeof text, "%s: cuStreamEndCapture", what);
    row(text, "%d, %s", end(stream, &graph), graph == NULL ? "no graph" : "a graph");
    snprintf(text, sizeof text, "%s: then", what);
    state(text, stream);
}

int main(void)
{
    static const char ptx[] =
        ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nothing()\n{\n\tret;\n}\n";
    start("10");
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    begin = (int (*)(handle, int))dlsym(library, "cuStreamBeginCapture_v2");
    end = (int (*)(handle, handle *))dlsym(library, "cuStreamEndCapture");
    is_capturing = (int (*)(handle, int *))dlsym(library, "cuStreamIsCapturing");
    event_create = (int (*)(handle *, unsigned))dlsym(library, "cuEventCreate");
    event_record = (int (*)(handle, handle))dlsym(library, "cuEventRecord");
    stream_wait = (int (*)(handle, handle, unsigned))dlsym(library, "cuStreamWaitEvent");
    set_async = (int (*)(device_ptr, unsigned char, size_t, handle))dlsym(library, "cuMemsetD8Async");
    handle one, two, event, module, nothing;
    device_ptr memory;
    MUST(cuStreamCreate(&one, 1));
    MUST(cuStreamCreate(&two, 1));
    MUST(event_create(&event, 2));
    MUST(cuMemAlloc(&memory, MIB));
    MUST(cuModuleLoadData(&module, ptx));
    MUST(cuModuleGetFunction(&nothing, module, "nothing"));

    MUST(begin(one, 1));
    row("a block of 4096 threads, in a capture", "cuLaunchKernel %d",
        cuLaunchKernel(nothing, 1, 1, 1, 4096, 1, 1, 0, one, NULL, NULL));
    state("after the refused launch", one);
    row("a launch after that", "%d", cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, one, NULL, NULL));
    finish("after the refused launch", one);

    MUST(begin(one, 1));
    row("a memset past the end, in a capture", "%d", set_async(memory, 1, (size_t)1 << 40, one));
    state("after the refused memset", one);
    finish("after the refused memset", one);

    MUST(begin(one, 1));
    MUST(event_record(event, one));
    MUST(stream_wait(two, event, 0));
    MUST(set_async(memory, 1, MIB, two));
    finish("unjoined", one);
    state("unjoined: the other stream", two);

    MUST(begin(one, 1));
    row("synchronised in the middle", "%d", cuStreamSynchronize(one));
    state("after that", one);
    finish("synchronised", one);
    row("another capture of the same stream", "%d", begin(one, 1));
    finish("another", one);
    return 0;
}
