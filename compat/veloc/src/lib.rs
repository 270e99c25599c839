//! `libveloc-client.so`: VELOC's interface in C over the objects of Holdfast, so that programs relink unchanged.
//!
//! * `api`: the functions of `include/veloc.h`, which says what they do;
//! * `session`: what they do it with: clients by name, registered memory, a checkpoint or restart under way;
//! * `routed`: files of the program's own (VELOC_Route_file), which become objects;
//! * `config`: VELOC's configuration file;
//! * `mpi`: the few calls of MPI, found at run time in whatever MPI the program has.
//!
//! Runs inside the user's program. Invariants: no function panics, ends the program, changes errno or waits without a
//! bound; MPI is not linked. What differs from VELOC: `docs/veloc.md`.

#![deny(unsafe_code)]

mod api;
mod config;
mod mpi;
mod routed;
mod session;
