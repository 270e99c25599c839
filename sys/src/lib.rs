//! Typed system calls, /proc, and the kernel probe.
//!
//! The only home of raw system calls outside `preload`. Each module is one subsystem; each function is one call, and
//! returns the kernel's error as [`std::io::Error`] so that errno is never lost. Calls go by way of `nix` where it has
//! them; the head of a module says what is by hand and why: ptrace, clone3, process memory, pagemap, System V and more.
#![deny(unsafe_code)]

pub mod at;
pub mod attributes;
pub mod cgroup;
pub mod children;
pub mod clock;
pub mod clone;
pub mod cuda;
pub mod cuda_memory;
pub mod cuda_window;
pub mod cut_guard;
pub mod elf;
pub mod environment;
pub mod errno;
pub mod fault;
pub mod fd;
pub mod fs_ids;
pub mod fuse;
pub mod ids;
pub mod inotify;
pub mod landlock;
pub mod local_addresses;
pub mod mapped_buffer;
pub mod mapped_read;
pub mod memfd;
pub mod mountinfo;
pub mod mounts;
pub mod mqueue;
pub mod namespaces;
pub mod nvcomp;
pub mod nvml;
pub mod objects;
pub mod pagemap;
pub mod poll;
pub mod probe;
pub mod proc_events;
pub mod procfs;
pub mod procmap;
pub mod procmem;
pub mod proctext;
pub mod ptrace;
pub mod sched;
pub mod scm;
pub mod seccomp;
pub mod signals;
pub mod sock_diag;
pub mod socket;
pub mod spawn;
pub mod summed_copy;
pub mod sysv_sem_msg;
pub mod sysv_shm;
pub mod tcp_buffers;
pub mod terminal;
pub mod terminal_data;
pub mod unix_socket;
pub mod userfault;

/// Turns the result of a libc call that reports errors by -1 and errno into a [`std::io::Result`].
pub(crate) fn check(result: i64) -> std::io::Result<i64> {
    if result == -1 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
}
