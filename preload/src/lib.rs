//! `libholdfast.so`: the part of Holdfast that lives inside the user's program.
//!
//! Rules of the place, for every file of this crate:
//! 1. The host comes first. If something of ours does not work, the program runs on without checkpoints.
//! 2. No heap of our own making (no `alloc`, no `std`: the compiler sees to it), no lock held over a call, no thread,
//!    but the one of `cuda-hooks/src/service/`, where the program has device memory.
//! 3. `errno` and the table of open files are as we found them when a function of ours returns.
//! 4. No output, except one line on standard error when `HOLDFAST_DEBUG=1`.
//! 5. No panic: `tests/exports.rs` checks that no path to the panic handler is left in the finished library.
//! 6. What runs in a fork handler or a signal handler makes raw system calls only ([`sys`]).
//!
//! | module | what it is |
//! | --- | --- |
//! | [`malloc`], [`bootstrap`] | the allocator behind `malloc`; who serves which call |
//! | [`dlopen`] | `dlopen`, so that libraries use that allocator, too |
//! | [`dlsym`], [`cuda`] | the way to the wrappers of `cuda-hooks/`, and theirs to the agent |
//! | [`lifecycle`], [`fork`] | constructor, fork handlers, `setsid`, `daemon`, `sigaltstack` |
//! | [`area`], [`shared`] | memory that belongs to the agent, and the page of shared variables |
//! | [`agent`], [`message`], [`launch`] | the control socket, what is said over it, starting the agent |
//! | [`api`], [`protected`] | the C API of `include/holdfast.h` |
//! | [`trigger`] | checkpoint by signal |
//! | [`ids`], [`segments`] | ids of processes and of shared memory that differ from the kernel's after some restarts |
//! | [`addresses`] | addresses of hosts that differ from the kernel's after a restart elsewhere |
//! | [`watches`] | where the program has put watches (inotify) |
//! | [`ipc`], [`sysv`], [`undo`] | semaphores and message queues: which are used, their ids, SEM_UNDO |
//! | [`advice`], [`maps`] | `madvise` and `mremap` of memory that a lazy restart mapped from the image |
//! | [`io_uring`] | io_uring, absent; Linux AIO, if that is asked for |
//! | [`filters`] | seccomp filters of the program: noted, and asked before calls of our own |
//! | [`landlock`] | Landlock rule sets and the domain of the program: noted |
//! | [`attributes`] | settings that the agent cannot see from outside |
//! | [`guard`] | engine `slots`: copy-on-write by page |
//! | [`thread_block`] | thread-local storage by hand, of `filters` and `guard` |
//! | [`sys`], [`host`] | the doors to the kernel and to the C library |
// Only the unit tests unwind (they link the test harness, hence std), and lints; the library itself never does.
#![cfg_attr(panic = "abort", no_std)]
#![deny(unsafe_code)]
#![cfg_attr(test, allow(dead_code))]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod addresses;
mod advice;
mod agent;
mod aio;
mod api;
mod area;
mod attributes;
mod bootstrap;
mod cuda;
mod dlopen;
mod dlsym;
mod filters;
mod fork;
mod guard;
mod host;
mod ids;
mod io_uring;
mod ipc;
mod landlock;
mod launch;
mod lifecycle;
mod malloc;
mod maps;
mod message;
mod protected;
mod segments;
mod shared;
mod sys;
mod sysv;
mod thread_block;
mod trigger;
mod undo;
mod watches;

/// Required by the language, never reached (rule 5).
#[cfg(panic = "abort")]
#[panic_handler]
fn never(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::trap()
}
