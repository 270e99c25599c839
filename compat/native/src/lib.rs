//! `libholdfast-client.so`: programs put named memory into a store as versions, and take it back.
//!
//! * `handle`: what a handle has: a client, registered regions;
//! * `device`: regions that are memory of a CUDA device;
//! * `options`: the text that says store, tiers and how many versions are kept;
//! * `api`: the functions of the part "Objects" of `preload/include/holdfast.h`, which says what they do.
//!
//! Runs inside the user's program, in any of its threads. Invariants: no function panics, ends the program, changes
//! errno or waits without a bound; a null pointer is refused.

#![deny(unsafe_code)]

mod api;
mod device;
mod handle;
mod options;
