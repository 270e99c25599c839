/* veloc.h - VELOC's interface in C, over the objects of Holdfast (libveloc-client.so).
 *
 * Programs that were written for VELOC 1.8 are compiled and linked as before: cc app.c -lveloc-client. What differs is
 * in docs/veloc.md. All calls return VELOC_SUCCESS or VELOC_FAILURE unless said; why one has failed is on standard
 * error. VELOC_Init, VELOC_Restart_test, VELOC_Restart_begin and VELOC_Restart are calls of all ranks together.
 */
#ifndef HOLDFAST_VELOC_H
#define HOLDFAST_VELOC_H

#include <stddef.h>
#include <stdint.h>

#include "veloc/defs.h"

/* VELOC_Init needs MPI's header; programs of one process need neither. */
#if !defined(MPI_VERSION) && defined(__has_include)
#if __has_include(<mpi.h>)
#include <mpi.h>
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Begins: all ranks of a communicator, or one process alone under an id of its own. `cfg_file`: an INI file; each of
 * its keys may be an environment variable VELOC_KEY instead, and then NULL is possible. */
#ifdef MPI_VERSION
int VELOC_Init(MPI_Comm comm, const char *cfg_file);
#endif
int VELOC_Init_single(unsigned int id, const char *cfg_file);

/* Ends. `drain`: not before all checkpoints are on disk; without that they get there behind the program's back. */
int VELOC_Finalize(int drain);

/* Memory of a checkpoint: `count` elements of `base_size` bytes, in place of what had this id. Memory with a name is
 * that of the checkpoints of this name, in place of memory without a name. */
int VELOC_Mem_protect(int id, void *ptr, size_t count, size_t base_size);
int VELOC_Region_protect(int id, void *ptr, size_t count, size_t base_size, const char *name);
int VELOC_Mem_unprotect(int id);
int VELOC_Region_unprotect(int id, const char *name);
int VELOC_Mem_clear(void);
int VELOC_Region_clear(const char *name);

/* Between begin and end of a checkpoint or a restart: the path at which the program writes, or finds, what it calls
 * `original`. `routed`: VELOC_MAX_NAME bytes. */
int VELOC_Route_file(const char *original, char *routed);

/* Checkpoints of this name are not needed any more. */
int VELOC_Cleanup(const char *name);

/* A checkpoint: begin, memory (all, or by ids), end. `success` 0: there is none. */
int VELOC_Checkpoint_begin(const char *name, int version);
int VELOC_Checkpoint_selective(int mode, int *ids, int id_count);
int VELOC_Checkpoint_mem(void);
int VELOC_Checkpoint_end(int success);

/* Waits until all checkpoints are on disk; the result. */
int VELOC_Checkpoint_wait(void);
/* 0: one is not on disk yet; 1: all are. */
int VELOC_Checkpoint_finished(void);
/* Begin, all memory, end. */
int VELOC_Checkpoint(const char *name, int version);

/* The newest version that all ranks have, below this one (0: of all); VELOC_FAILURE: there is none. */
int VELOC_Restart_test(const char *name, int version);

/* A restart: begin, memory (all, or by ids), end. */
int VELOC_Restart_begin(const char *name, int version);
int VELOC_Recover_selective(int mode, int *ids, int id_count);
/* Bytes that the checkpoint has of this id. -1: none, or more than an int can say: then by the other one. */
int VELOC_Recover_size(int id);
int64_t HOLDFAST_recover_size(int id);
int VELOC_Recover_mem(void);
int VELOC_Restart_end(int success);
/* Begin, all memory, end. */
int VELOC_Restart(const char *name, int version);

/* Hints for many restarts of one program, in the order in which they will come; from start on they may be fetched. */
int VELOC_Prefetch_enqueue(const char *name, int version);
int VELOC_Prefetch_start(void);

#ifdef __cplusplus
}
#endif

#endif
