/* veloc/defs.h - numbers of VELOC's interface, for programs that are relinked with Holdfast. */
#ifndef HOLDFAST_VELOC_DEFS_H
#define HOLDFAST_VELOC_DEFS_H

#define VELOC_SUCCESS (0)
#define VELOC_FAILURE (-1)

/* Room for a path of VELOC_Route_file, bytes. */
#define VELOC_MAX_NAME (1024)

/* Which regions: all; those of the ids; all but those. */
#define VELOC_CKPT_ALL (0)
#define VELOC_CKPT_SOME (1)
#define VELOC_CKPT_REST (2)
#define VELOC_RECOVER_ALL (0)
#define VELOC_RECOVER_SOME (1)
#define VELOC_RECOVER_REST (2)

/* Of veloc.hpp: an observer is called when a checkpoint has ended. */
#define VELOC_OBSERVE_CKPT_END (0)

#endif
