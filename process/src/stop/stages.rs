//! What is known of one process at each stage of a stop.
//!
//! Plain data: made by [`crate::stop::repair`] and `capture::capture_process`, used by what looks at all processes.

use crate::capture::cwd::Folder;
use crate::capture::identity::SharedFiles;
use crate::capture::made_namespaces::Made;
use crate::capture::maps::{Flags, Mapped};
use crate::capture::mounts::Insides;
use crate::capture::pid_namespaces::PidNamespaces;
use crate::capture::state::{Around, ProcessFacts, ThreadFacts};
use crate::inject::live_thread::LiveThread;
use crate::stop::task_files::Told;
use crate::stop::threads::Thread;
use holdfast_image::aio::AioContext;
use holdfast_image::attributes::MemoryPolicy;
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::confinement::FilterRecord;
use holdfast_image::landlock::LandlockLayer;
use holdfast_image::record::{Inside, LayoutRecord, Limit, PosixTimer, ProcessFlags, RootFolder, Within};
use holdfast_sys::procfs::{Mapping, Status};
use holdfast_sys::procmem::ForcedMemory;
use std::collections::HashMap;

/// A process that was stopped, and is still the one that is known.
pub struct Inspected {
    /// Any thread of it.
    pub live: i32,
    /// As the kernel prints them.
    pub maps: Vec<Mapping>,
    /// Status file.
    pub status: Status,
    /// Its memory.
    pub memory: ForcedMemory,
    /// Names and children of its threads.
    pub tasks: HashMap<i32, Told>,
}

impl Inspected {
    /// Its children.
    pub fn children(&self) -> Vec<i32> {
        self.tasks.values().flat_map(|told| told.children.iter().copied()).collect()
    }
}

/// A process whose calls are repaired.
pub struct Repaired {
    /// Any thread of it.
    pub live: i32,
    /// As the kernel prints them.
    pub maps: Vec<Mapping>,
    /// Its children, as they were when all processes were stopped.
    pub children: Vec<i32>,
    /// Status file.
    pub status: Status,
    /// Its id as it sees it itself.
    pub inner_pid: i32,
    /// Signals pending for the process.
    pub shared_pending: Vec<[u8; 128]>,
    /// Names of its threads.
    pub comms: HashMap<i32, Name>,
    /// Its memory.
    pub memory: ForcedMemory,
}

/// What is read of a process.
pub struct Seen {
    /// Any thread of it.
    pub live: i32,
    /// Its id as it sees it itself.
    pub inner_pid: i32,
    /// Its id as the job has it.
    pub job_pid: i32,
    /// See [`crate::namespaces::Namespaces::depth`].
    pub job_depth: usize,
    /// Where it is in a pid namespace that a program of the job has made.
    pub pid_namespaces: PidNamespaces,
    /// Its memory.
    pub memory: ForcedMemory,
    /// The thread that runs injected calls.
    pub host: LiveThread,
    /// All threads.
    pub threads: Vec<Thread>,
    /// What they told of themselves.
    pub facts: Vec<ThreadFacts>,
    /// What one told of the process.
    pub process: ProcessFacts,
    /// Seccomp filters of its own.
    pub filters: Vec<FilterRecord>,
    /// The Landlock domain that it has made.
    pub domain: Vec<LandlockLayer>,
    /// Its local descriptor table.
    pub ldt: Blob,
    /// Its contexts of Linux AIO.
    pub aio: Vec<AioContext>,
    /// Namespaces that it is in and that are not the job's.
    pub namespaces: Vec<Made>,
    /// POSIX timers.
    pub timers: Vec<PosixTimer>,
    /// Signals pending for the process.
    pub shared_pending: Vec<[u8; 128]>,
    /// Mappings.
    pub mapped: Vec<Mapped>,
    /// What their files are called in its mount namespace.
    pub insides: Insides,
    /// Their flags, where they were looked at inside the stop.
    pub mapping_flags: Option<Flags>,
    /// Their memory policies, if any.
    pub policies: Vec<Option<MemoryPolicy>>,
    /// Status file.
    pub status: Status,
}

impl Seen {
    /// The id that another process of the job has for it.
    pub fn known_to(&self, other: &Seen) -> i32 {
        if other.pid_namespaces.own.is_some() { self.inner_pid } else { self.job_pid }
    }

    /// The id of a thread of it as the job has it, if the thread knows itself by another one.
    pub fn job_tid(&self, thread: &Thread) -> Option<i32> {
        self.pid_namespaces.own?;
        if self.job_depth == 1 { Some(thread.tid) } else { thread.below }
    }

    /// The same of its main thread, which may have ended.
    pub fn job_main(&self) -> Option<i32> {
        self.pid_namespaces.own.map(|_| self.job_pid)
    }

    /// The signal by which job control has stopped it.
    pub fn stop_signal(&self) -> Option<i32> {
        self.threads.first().and_then(|thread| thread.stop_signal)
    }
}

/// What can be seen of a stopped process without tracing it, or knowing more of it than its threads.
pub struct Surroundings {
    /// Of its threads.
    pub around: Vec<Around>,
    /// Resource limits.
    pub limits: Vec<Limit>,
    /// Executable.
    pub exe: Vec<u8>,
    /// What it is called in its mount namespace, if it is on a mount of that.
    pub exe_inside: Option<Inside>,
    /// Current directory.
    pub cwd: Folder,
    /// The same of that.
    pub cwd_within: Option<Within>,
    /// It is that of its parent, too.
    pub shares_folder: bool,
    /// Root directory, if it is not the job's.
    pub root: Option<RootFolder>,
    /// Number of libholdfast's own connection.
    pub own: Option<i32>,
}

/// What can be seen of a stopped process without tracing it.
pub struct Scenery {
    /// Layout of the address space.
    pub layout: LayoutRecord,
    /// Flags of the process.
    pub flags: ProcessFlags,
    /// Bytes of the vdso.
    pub vdso: Vec<u8>,
    /// Files that are mapped shared.
    pub shared_files: SharedFiles,
    /// CLOCK_REALTIME.
    pub realtime_ns: u64,
}

/// A process of which everything was read but open files and memory.
pub struct Observed {
    /// What it told, and its tracer.
    pub seen: Seen,
    /// What /proc tells.
    pub surroundings: Surroundings,
}
