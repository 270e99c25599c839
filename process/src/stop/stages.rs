//! What is known of one process at each stage of a stop.
//!
//! Plain data: made by [`crate::stop::repair`] and `capture::capture_process`, used by whoever looks at all processes.

use crate::capture::maps::{Flags, Mapped};
use crate::capture::state::{ProcessFacts, ThreadFacts};
use crate::inject::live_thread::Host;
use crate::stop::task_files::Told;
use crate::stop::threads::Thread;
use holdfast_image::attributes::MemoryPolicy;
use holdfast_image::bytes::Name;
use holdfast_image::record::PosixTimer;
use holdfast_sys::procfs::{Mapping, Status};
use holdfast_sys::procmem::ForcedMemory;
use std::collections::HashMap;

/// A process that was stopped, and is still the one that is known.
pub struct Arrival {
    pub live: i32,
    pub maps: Vec<Mapping>,
    pub status: Status,
    pub memory: ForcedMemory,
    pub tasks: HashMap<i32, Told>,
}

impl Arrival {
    /// Its children.
    pub fn children(&self) -> Vec<i32> {
        self.tasks.values().flat_map(|told| told.children.iter().copied()).collect()
    }
}

/// A process whose calls are repaired.
pub struct Stand {
    pub live: i32,
    pub maps: Vec<Mapping>,
    /// Status file.
    pub status: Status,
    /// Its id as it sees it itself.
    pub inner_pid: i32,
    /// Signals pending for the process.
    pub shared_pending: Vec<[u8; 128]>,
    /// Names of its threads.
    pub comms: HashMap<i32, Name>,
    pub memory: ForcedMemory,
}

/// What is read of a process.
pub struct Seen {
    /// Any thread of it.
    pub live: i32,
    /// Its id as it sees it itself.
    pub inner_pid: i32,
    /// Its memory.
    pub memory: ForcedMemory,
    /// The thread that runs injected calls.
    pub host: Host,
    /// All threads.
    pub threads: Vec<Thread>,
    /// What they told of themselves.
    pub facts: Vec<ThreadFacts>,
    /// What one told of the process.
    pub process: ProcessFacts,
    /// POSIX timers.
    pub timers: Vec<PosixTimer>,
    /// Signals pending for the process.
    pub shared_pending: Vec<[u8; 128]>,
    /// Mappings.
    pub mapped: Vec<Mapped>,
    /// Their flags, where they were looked at inside the stop.
    pub mapping_flags: Option<Flags>,
    /// Their memory policies, if any.
    pub policies: Vec<Option<MemoryPolicy>>,
    /// Status file.
    pub status: Status,
}

impl Seen {
    /// The signal by which job control has stopped it.
    pub fn stop_signal(&self) -> Option<i32> {
        self.threads.first().and_then(|thread| thread.stop_signal)
    }
}
