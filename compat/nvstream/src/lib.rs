//! `libnvstream.so`: versions of a program's objects in memory, for C, C++ and Python (`include/nvs.h`).
//!
//! * `api`: the functions of the header, which says what they do;
//! * `producer`: the stream that this process writes to, and its objects;
//! * `memory`: the memory of an object, and which of its pages were written.
//!
//! Runs inside the user's program, in any of its threads. Invariants: no function panics, ends the program or changes
//! errno; a null pointer is refused. The log itself: `compat/streams`.

#![deny(unsafe_code)]

mod api;
mod memory;
mod producer;
