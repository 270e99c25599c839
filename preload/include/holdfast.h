/* holdfast.h - what a program may say to Holdfast. Two parts, of two libraries: checkpoints of the whole program
 * (libholdfast.so), and at the end objects, which a program puts and restores itself (libholdfast-client.so).
 *
 * No program needs this: `holdfast run -- ./app` checkpoints unmodified programs. It is for programs that know the best
 * moment for a checkpoint, or which few arrays are worth keeping.
 *
 * Linking. Nothing is to be linked: the functions come with libholdfast.so, which `holdfast run` preloads. They are
 * declared weak, so the same binary runs without it; HOLDFAST_LOADED says which it is, and no function may be called
 * where it is 0. (Linking with -lholdfast works too; a program linked that way still has to be started by
 * `holdfast run`, or with LD_PRELOAD, to have an agent.)
 *
 * Without an agent (the library is there, but nobody checkpoints the program, or the agent has ended) every function
 * returns at once and does no harm; each says below what it returns then.
 *
 * Threads. Any thread may call any function at any time; no function holds a lock of the library while it waits. None
 * of them may be called in a signal handler. holdfast_restore_protected() reads the environment: no other thread may
 * call setenv() meanwhile.
 *
 * fork. A child inherits protected memory as any other memory: it has its own copy, under the same names. The child of
 * a fork is a process of its own for the agent. After exec nothing is left of protected memory.
 *
 * errno is only changed by holdfast_malloc_protected(), and there only on failure.
 *
 * All of this is of the first part; the second one says what holds for it.
 */
#ifndef HOLDFAST_H
#define HOLDFAST_H

/* Nothing that reads features.h: a program may define _GNU_SOURCE behind this header. So numbers of 64 bits are long
 * long here. */
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Errors. All are negative. */
#define HOLDFAST_E_NO_AGENT (-1)  /* nobody checkpoints this program, or the agent has ended */
#define HOLDFAST_E_BUSY (-2)      /* another thread is inside a call for a checkpoint; it may succeed */
#define HOLDFAST_E_REFUSED (-3)   /* the program holds something open that cannot be restored;
                                   * the agent's log names it */
#define HOLDFAST_E_FAILED (-4)    /* the checkpoint failed (disk full, ...); the agent's log says why;
                                   * older images are intact */
#define HOLDFAST_E_ARGUMENT (-5)  /* null pointer, empty or too long name, size 0,
                                   * memory that is not protected memory */
#define HOLDFAST_E_NO_IMAGE (-6)  /* this program was not started again from an image of protected memory */
#define HOLDFAST_E_NOT_FOUND (-7) /* that image has no region of this name */
#define HOLDFAST_E_SIZE (-8)      /* that image has this region with another size */
#define HOLDFAST_E_READ (-9)      /* the region could not be read; part of the buffer may have been overwritten */
#define HOLDFAST_E_SERVER (-10)   /* objects: no server, and none could be started, or it died or is silent */
#define HOLDFAST_E_STATE (-11)    /* objects: out of order, as an end without a begin */
#define HOLDFAST_E_FORKED (-12)   /* objects: the handle is the parent's */

/* Longest name of a protected region, bytes, without the terminating NUL. */
#define HOLDFAST_NAME_MAX 111

#define HOLDFAST_API __attribute__((weak))

/* Whether libholdfast.so is in this program. */
#define HOLDFAST_LOADED (holdfast_checkpoint != NULL)

/* Takes a checkpoint of the whole program now, and waits until the image is committed (on disk under its final name).
 * The other threads run on, but for the stop itself; most of what has changed is stored before it (engines auto and
 * copy).
 *
 * Returns
 *   0  the image is committed, and this is the program going on;
 *   1  this is the restarted program: the image was taken inside this call, which now returns a second time;
 *   HOLDFAST_E_NO_AGENT, _BUSY, _REFUSED, _FAILED: there is no new image.
 * So code after `if (holdfast_checkpoint() == 1)` is where to reopen what a restart cannot restore.
 * An image that was taken for another reason while this call was waiting (by interval, by command) counts as well:
 * restarted from it, the call returns 1. */
HOLDFAST_API int holdfast_checkpoint(void);

/* The same, but returns as soon as the program may go on: its state is caught, and the image is written behind its
 * back. While an earlier image is still being written this call waits for that one first, so there is never more than
 * one.
 *
 * Returns
 *   0  the cut is made. Whether the image will be committed is not known yet: `holdfast list` and the agent's log tell
 *      of a failure, and the next image then holds all that this one would have held;
 *   1  this is the restarted program, as with holdfast_checkpoint();
 *   HOLDFAST_E_NO_AGENT, _BUSY, _REFUSED, _FAILED: there was no cut. */
HOLDFAST_API int holdfast_checkpoint_start(void);

/* How many restarts this process has behind it: 0 in a program that was never restarted, HOLDFAST_E_NO_AGENT without an
 * agent. (A program started again under --only-protected is a new process: 0.) */
HOLDFAST_API int holdfast_restarted(void);

/* Device memory of CUDA that images need not have: a cache, a workspace. From now on, and until it is freed or
 * holdfast_cuda_keep() says otherwise, checkpoints leave its content out: it stays while the program runs on, and is
 * zero after a restart or a rollback. Whole pieces of 64 KiB are left out; what is smaller, or cut at the edges, is
 * saved all the same. `holdfast show` says how much it was.
 *
 * `memory`: an address of the device, of cudaMalloc() or cuMemAlloc() (a CUdeviceptr by a cast), anywhere in one
 * allocation; `size`: bytes from there on, all of that allocation's.
 *
 * Returns 0, or
 *   HOLDFAST_E_NO_AGENT
 *   HOLDFAST_E_ARGUMENT  not within one allocation, or of memory that libholdfast does not own (`holdfast check` says
 *                        who owns it; docs/cuda.md): it is saved. Not with HOLDFAST_CUDA_DATA=keeper yet
 *   HOLDFAST_E_FAILED    there are 1024 such pieces already; it is saved
 * Waits while a checkpoint is being made, as calls of CUDA do. */
HOLDFAST_API int holdfast_cuda_discard(const void *memory, size_t size);

/* The content is saved again: the end of holdfast_cuda_discard() for this part. Memory that is freed needs none.
 * Returns 0 or HOLDFAST_E_NO_AGENT. */
HOLDFAST_API int holdfast_cuda_keep(const void *memory, size_t size);

/* Gives out `size` bytes of zeroed memory under a name, rounded up to whole pages and page-aligned.
 *
 * It differs from other memory in this: it is always tracked, it is the first to be flushed after a checkpoint, and
 * with `holdfast run --only-protected` the image holds nothing but these regions, by name: it is then as small as what
 * the program declares, and the program starts from its beginning and brings its regions back by
 * holdfast_restore_protected(). Without --only-protected it is part of the image like all memory, comes back at the
 * same address, and needs no call.
 *
 * `name`: 1 to HOLDFAST_NAME_MAX bytes, any but NUL; unique among the regions that exist. It is copied.
 * At most 1024 regions exist at a time.
 *
 * Returns the memory, or NULL and errno:
 *   EINVAL  the name is NULL, empty or too long, or `size` is 0
 *   EEXIST  there is a region of this name (of two threads that ask for one new name at the same time both may get
 *           this)
 *   ENOSPC  1024 regions exist
 *   ENOMEM  no memory
 * Without an agent it gives out memory all the same, so that the program runs; nobody saves it. */
HOLDFAST_API void *holdfast_malloc_protected(const char *name, size_t size);

/* Ends a region: its memory is unmapped, its name free again. Images taken before keep it.
 * Returns 0, or HOLDFAST_E_ARGUMENT if `memory` is not the start of a protected region. */
HOLDFAST_API int holdfast_free_protected(void *memory);

/* Brings back the content that region `name` had in the image from which this program was started again.
 *
 * For `holdfast restart` of an image taken under `run --only-protected`: the program is started afresh with its command
 * line, in its working directory, and the environment variable HOLDFAST_PROTECTED_DIR names a folder with one file per
 * region: its content, under the region's name in lower-case hexadecimal ("field" is 6669656c64). This function reads
 * that file into `buffer`, which may be any memory, in most cases that of holdfast_malloc_protected().
 * It does not create the region: call holdfast_malloc_protected() for that, so that the next image has it too.
 * `size` must be the size that the region had, give or take the rounding to whole pages.
 * It may be called again, for the same content.
 *
 * Returns 0, or
 *   HOLDFAST_E_NO_IMAGE   HOLDFAST_PROTECTED_DIR is not set: a first start, or a restart that needs no help
 *   HOLDFAST_E_NOT_FOUND  no region of this name in the image
 *   HOLDFAST_E_SIZE       another size; nothing was read
 *   HOLDFAST_E_READ       the file could not be opened or read
 *   HOLDFAST_E_ARGUMENT   a null pointer, a bad name, or size 0
 * It needs no agent. */
HOLDFAST_API int holdfast_restore_protected(const char *name, void *buffer, size_t size);

/* ---- Objects ----
 *
 * For programs that checkpoint themselves: memory that the program names (its objects) is put into a store as
 * versions, and restored from there, by another process, after any end. Nothing else of the program is kept.
 * `holdfast run` is not needed.
 *
 * Linking. cc app.c -lholdfast-client. Nothing has to run: the first program that opens a store starts its server
 * (`holdfast serve`, as an ordinary process of the same user), which ends with the last one. The binary `holdfast` is
 * looked for beside the library and in PATH; HOLDFAST_BIN says another one.
 *
 * A set of objects has a name, and one or more ranks, each a handle of its own. A version is a number that the program
 * chooses; it is whole when all ranks have put theirs, and only whole versions are offered (holdfast_newest). All ranks
 * of a set are on one machine.
 *
 * A put copies memory, and returns: compression, the disk, lower tiers and old versions are the server's. What was put
 * is kept when the program dies at once (kill -9). When the machine dies, what has reached the disk is kept:
 * holdfast_wait().
 *
 * Errors. A function returns 0, or what it says below; a negative number is one of HOLDFAST_E_*, and holdfast_error()
 * has the text. E_FAILED: the server says why. An error leaves versions that are there as they are.
 *
 * Threads. Any thread may use a handle; calls of one handle wait for each other. None in a signal handler.
 * No other thread writes to memory that is being put. A child of fork may only close a handle: all else is
 * HOLDFAST_E_FORKED. No function changes errno.
 *
 *     holdfast_objects *set = holdfast_open("heat", rank, ranks, "store=/scratch/me;tier=dir=/pfs/me");
 *     holdfast_region(set, "field", field, bytes, sizeof(double));
 *     long long version = holdfast_newest(set, HOLDFAST_ANY);
 *     if (version >= 0 && holdfast_restore(set, version) != 0)
 *         errx(1, "%s", holdfast_error(set));
 */
typedef struct holdfast_objects holdfast_objects;

/* Any version: no upper bound. Versions are 0 to LLONG_MAX. */
#define HOLDFAST_ANY (~0ULL)

/* Opens a set. `name`: 1 to 100 letters, digits, '_', '-' and '.', not '.' first. `rank`: 0 to ranks - 1.
 * `options`: NULL, or texts NAME=VALUE with ';' between them:
 *   store=DIR      where versions are [HOLDFAST_STORE, else the user's default store]
 *   tier=ADDRESS   a lower tier, as `holdfast run --tier` has it (dir=PATH,keep=N); the fastest one first
 *   keep=N         so many of the newest whole versions stay in the store [all]
 *   holdfast=PATH  the binary
 * Returns NULL on error: holdfast_error(NULL) says why. */
holdfast_objects *holdfast_open(const char *name, unsigned int rank, unsigned int ranks, const char *options);

/* Closes it; NULL is allowed. Versions stay; one that was begun and not ended is not there. It does not wait. */
void holdfast_close(holdfast_objects *set);

/* Why the last call of this thread that failed has failed, of whatever handle (`set` may be NULL). The text is there
 * until the next one that fails. */
const char *holdfast_error(holdfast_objects *set);

/* Registers memory as the object `key` (1 to 255 bytes, UTF-8), in place of what had that key. It must be there until
 * it is unregistered. `element`: size of one of its elements, by which it is compressed better; 0: not known. */
int holdfast_region(holdfast_objects *set, const char *key, void *memory, size_t bytes, size_t element);

/* The same for memory of a CUDA device (`memory`: a CUdeviceptr). It is copied by the driver that the program has
 * loaded, in the thread that puts or restores, which has a current context: what the device is to write there is done
 * before (cuMemcpyDtoH() waits for the default stream, not for non-blocking ones). */
int holdfast_region_device(holdfast_objects *set, const char *key, unsigned long long memory, size_t bytes,
                           size_t element);
int holdfast_unregister(holdfast_objects *set, const char *key);

/* Puts all registered memory as a version. One that is there already is replaced. */
int holdfast_put(holdfast_objects *set, unsigned long long version);

/* The same in parts: begin, then some objects and the rest in any order, end. Memory is copied by put_some and
 * put_rest, and may be changed after them. Without an end, or with abandon, there is no version. */
int holdfast_begin(holdfast_objects *set, unsigned long long version);
int holdfast_put_some(holdfast_objects *set, const char *const *keys, size_t count);
int holdfast_put_rest(holdfast_objects *set);
int holdfast_end(holdfast_objects *set);
int holdfast_abandon(holdfast_objects *set);

/* Waits until all that this rank has put is in the store, on disk. Negative: something is not; told once. */
int holdfast_wait(holdfast_objects *set);

/* 1: holdfast_wait() would return at once; 0: it would not. */
int holdfast_finished(holdfast_objects *set);

/* The newest version that is whole on all ranks, below this one (HOLDFAST_ANY: of all).
 * HOLDFAST_E_NOT_FOUND: there is none. Ranks that ask at different times may get different answers: the smallest
 * one is whole. */
long long holdfast_newest(holdfast_objects *set, unsigned long long below);

/* Bytes of an object of a version. HOLDFAST_E_NOT_FOUND: there is no such version of this rank, or object in it. */
long long holdfast_size(holdfast_objects *set, unsigned long long version, const char *key);

/* Copies a version into all registered memory. HOLDFAST_E_NOT_FOUND: the version, or an object of it, is not there;
 * HOLDFAST_E_SIZE: registered memory is smaller than its object. Nothing was copied then. */
int holdfast_restore(holdfast_objects *set, unsigned long long version);

/* Copies one object into this memory, registered or not. */
int holdfast_restore_into(holdfast_objects *set, unsigned long long version, const char *key, void *memory,
                          size_t bytes);

/* After holdfast_size() and holdfast_restore_into(): the version is not needed at hand any more. The next one that is
 * put or restored says so, too. */
int holdfast_restored(holdfast_objects *set);

/* Hints. They cost nothing, and nothing goes wrong when they turn out wrong.
 * will_restore: this version will be restored, after those that were hinted at before. start: what was hinted at may be
 * fetched from now on. discard: this version is not needed once it was restored, and need not reach the store. */
int holdfast_will_restore(holdfast_objects *set, unsigned long long version);
int holdfast_start(holdfast_objects *set);
int holdfast_discard(holdfast_objects *set, unsigned long long version);

/* All versions of this rank go. */
int holdfast_drop(holdfast_objects *set);

#ifdef __cplusplus
}
#endif

#endif
