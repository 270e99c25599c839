/* Versions of a program's objects in memory, after NVStream (P. Fernando and others, HPDC'18): a producer puts them
 * into a log, consumers read them beside it. Link with -lnvstream. How it works: docs/streams.md.
 *
 * One producer of a stream at a time, in one thread or several: calls wait for each other. Sizes are in bytes.
 * Functions that return int give 0, one of the numbers below, or what is said there; nvs_error() has the words. errno
 * stays. */
#ifndef NVS_H
#define NVS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NVS_FAILED (-4)    /* a system call, a full log, damage: nvs_error() */
#define NVS_ARGUMENT (-5)  /* what was asked for cannot be */
#define NVS_NOT_FOUND (-7) /* no such stream, version or object */
#define NVS_SIZE (-8)      /* the object has another size */
#define NVS_STATE (-11)    /* nvs_init() has not been called, or twice */
#define NVS_FORKED (-12)   /* the parent of this process has opened it */

/* ---- Producer ---- */

/* Opens the stream "NAME/RANK", or makes it. What an earlier process has put is there still.
 * HOLDFAST_STREAMS: folder of the logs (default /dev/shm/holdfast-streams-UID; a file system of persistent memory with
 * DAX: versions outlive the host). HOLDFAST_STREAM_SIZE: size of a new log (default 1G). HOLDFAST_STREAM_FULL: what
 * happens when it is full: "drop" (default) lets the oldest versions go that no consumer holds, "keep" fails.
 * HOLDFAST_STREAM_WAIT: for how many seconds a put waits for a consumer that holds the oldest version (default 0).
 * HOLDFAST_STREAM_DELTAS: "auto" (default), or "always": written pages are noted even where a copy costs less.
 * NVS_ARGUMENT: one of them says what it cannot. */
int nvs_init(const char *store_id);

/* Zeroed memory for an object, at a multiple of the page size, until nvs_free_obj(). NULL: nvs_error(). What the stream
 * has of an object of that name is not copied into it: nvs_get() does that. */
void *nvs_create_obj(const char *key, size_t size);

/* A new version, in which this object is as it is now, and all others are as they were. Only pages that were written
 * since its last put are copied, where that is less than all of it twice. No other thread may write to it meanwhile. */
int nvs_put(const char *key);

/* A new version of all objects that there are, committed at once. */
int nvs_snapshot(void);

/* Number of the newest version of this stream; 0: it has none. */
uint64_t nvs_version(void);

/* Copies an object of a version (0: the newest) into memory that has room for it. */
int nvs_get(const char *key, uint64_t version, void *into, size_t size);

/* Bytes of an object of a version (0: the newest); negative: one of the numbers above. */
int64_t nvs_size(const char *key, uint64_t version);

/* The newest version that all ranks 0..ranks-1 of the stream NAME have; NVS_NOT_FOUND: there is none. */
int nvs_newest_whole(const char *name, unsigned ranks, uint64_t *version);

/* Its memory goes, and from the next version on it is no more. */
int nvs_free_obj(const char *key);

/* Memory of all objects goes; the versions stay. */
int nvs_finalize(void);

/* ---- Consumer: any other process of the same user ---- */

typedef struct nvs_reader nvs_reader;

/* Opens a stream for reading, before its oldest version. It holds what it may still read: see HOLDFAST_STREAM_WAIT.
 * NULL: nvs_error(). */
nvs_reader *nvs_open(const char *store_id);

/* Steps to the next version; waits for one to come for so many milliseconds (negative: for ever). 1: it stands there,
 * and *version has its number; 0: none has come. What nvs_map() gave before is not to be used any more. */
int nvs_next(nvs_reader *reader, int timeout_ms, uint64_t *version);

/* Goes to a version (0: the newest) that there is. */
int nvs_seek(nvs_reader *reader, uint64_t version);

/* Number of the version at which it stands; 0: before the oldest one. */
uint64_t nvs_at(nvs_reader *reader);

/* The bytes of an object at this version: in the log itself where they are there in one piece, else composed. They stay
 * as they are until the reader moves or is closed. NULL: nvs_error(). */
const void *nvs_map(nvs_reader *reader, const char *key, size_t *size);

/* Name and bytes of the object with this index at this version, in order of names; NVS_NOT_FOUND: there are fewer. The
 * name is there until the next call. */
int nvs_object(nvs_reader *reader, size_t index, const char **key, size_t *size);

/* 1: a producer has the stream open. */
int nvs_has_producer(nvs_reader *reader);

void nvs_close(nvs_reader *reader);

/* What went wrong last in this thread; "": nothing yet. */
const char *nvs_error(void);

#ifdef __cplusplus
}
#endif
#endif
