//! Messages between libholdfast, the agent and the commands: one JSON object per message over `agent.sock`
//! (SOCK_SEQPACKET: message boundaries are kept, one message is at most [`MAX_MESSAGE`] bytes).
//!
//! Both ends check the peer's uid (SO_PEERCRED). A message that cannot be decoded is answered by [`Reply::Error`] and
//! changes nothing. The library's side is written without an allocator and builds its few messages by hand
//! (`preload`); the tests of this module freeze their text.

use crate::Epoch;
use crate::record::InjectArea;
use crate::refusal::Checked;
use serde::{Deserialize, Serialize};

/// Longest message, bytes.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// Environment variable with the path of the agent's socket.
pub const ENV_SOCKET: &str = "HOLDFAST_SOCKET";

/// Environment variable of the program that says which engine it was started for; only `slots` means something to
/// libholdfast.
pub const ENV_ENGINE: &str = "HOLDFAST_ENGINE";

/// A request to the agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// From libholdfast, when it was loaded (`event: "load"`), or its process was forked or became a session leader.
    /// A userfaultfd may come with it as SCM_RIGHTS. No reply.
    Hello {
        /// "load", "fork" or "setsid".
        event: String,
        /// Version of the library.
        version: String,
        /// Where the agent may work in this process.
        area: InjectArea,
    },
    /// Make an image now.
    Checkpoint {
        /// End the program once the image is committed; it does not run on in between.
        stop: bool,
        /// Answer only when the image is committed (otherwise as soon as the program runs again).
        wait: bool,
        /// What is to be done otherwise than the job's settings say, this time.
        #[serde(default, skip_serializing_if = "Wishes::is_none")]
        wishes: Wishes,
    },
    /// What of the program could not be checkpointed now? It runs on undisturbed.
    Check,
    /// How are things?
    Status,
    /// End the agent; the program goes on without it.
    Quit,
    /// From the C API: ranges of protected memory were added or removed.
    Protect {
        /// Identifier given by the program.
        name: String,
        /// First byte.
        start: u64,
        /// Length, bytes; 0 removes the range.
        len: u64,
    },
}

/// How one checkpoint is to differ from the settings of its job, in the words of the command line.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Wishes {
    /// `--engine`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// `--order`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// `--cow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cow: Option<String>,
}

impl Wishes {
    /// Whether the settings of the job hold as they are.
    pub fn is_none(&self) -> bool {
        *self == Wishes::default()
    }
}

/// The agent's answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The request was carried out.
    Ok,
    /// A checkpoint was taken (or its cut was, when not waited for).
    Checkpointed {
        /// The image's number.
        epoch: Epoch,
        /// Stop time, nanoseconds.
        stop_ns: u64,
        /// Whether the image is committed already.
        committed: bool,
    },
    /// State of the job.
    Status(JobStatus),
    /// What a look at the program found.
    Checked(Checked),
    /// The checkpoint could not be taken because of objects that are not supported.
    Refused {
        /// One line per object.
        reasons: Vec<String>,
    },
    /// It failed.
    Error {
        /// What, on what, and what to do.
        message: String,
    },
}

/// State of a running job.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct JobStatus {
    /// Name of the job.
    pub job: String,
    /// Pid of the program as seen from the agent; `None` before its first hello.
    pub pid: Option<i32>,
    /// Pid of the agent.
    pub agent_pid: i32,
    /// Number of the newest committed image.
    pub newest: Option<Epoch>,
    /// A flush is under way for this image.
    pub flushing: Option<Epoch>,
    /// Bytes stored so far by that flush.
    pub flushed_bytes: u64,
    /// Bytes that it has to read.
    pub flush_total_bytes: u64,
    /// Last failure, if the last checkpoint failed.
    pub last_error: Option<String>,
}

/// Layout of the library's page of shared variables (offsets in bytes; all little-endian u64 unless said).
///
/// The agent reads it with process_vm_readv, and writes it only while the program is stopped or being rebuilt.
pub struct SharedPage;

impl SharedPage {
    /// Magic: "HOLDFAST" as bytes.
    pub const MAGIC: usize = 0;
    /// Number of restarts that this process has behind it; `holdfast_restarted()` returns it.
    pub const RESTARTS: usize = 8;
    /// Bumped by the library when any thread calls, through libc, `sigaltstack` or what else changes facts that only the
    /// thread itself can tell (`prctl`, `set_mempolicy`).
    pub const FACT_GENERATION: usize = 16;
    /// Number + 1 of a descriptor that the library itself holds open while it waits for the agent; 0: none.
    pub const OWN_FD: usize = 32;
    /// 1: ids are virtual, and the table below is in force.
    pub const VIRTUAL_IDS: usize = 24;
    /// Path of the agent's socket, NUL-terminated, 512 bytes at most: changes at a restart.
    pub const SOCKET_PATH: usize = 64;
    /// Room for the socket path.
    pub const SOCKET_PATH_LEN: usize = 512;
    /// Address of the area of engine `slots`; 0: the program was not started with it. See [`GuardArea`].
    pub const GUARD_AREA: usize = 576;
    /// Number of entries of the id table.
    pub const ID_COUNT: usize = 1024;
    /// Id table: pairs of i32 (id that the program knows, id of the kernel).
    pub const ID_TABLE: usize = 1032;
    /// Most entries of the id table.
    pub const ID_MAX: usize = 4096;
    /// Number of entries of the table of segments.
    pub const SEGMENT_COUNT: usize = 34816;
    /// Pairs of i32 (id of System V shared memory that the program knows, id of the kernel), where they differ.
    pub const SEGMENT_TABLE: usize = 34824;
    /// Most of them.
    pub const SEGMENT_MAX: usize = 512;
    /// Number of entries of the table of semaphore sets; more than [`SharedPage::IPC_MAX`]: some are not in it.
    pub const SEMAPHORE_COUNT: usize = 38_920;
    /// Pairs of i32: id that the program knows, id of the kernel with its highest bit set ([`SharedPage::IPC_VALID`]) when the
    /// entry is in force. All that were used.
    pub const SEMAPHORE_TABLE: usize = 38_928;
    /// The same of message queues.
    pub const QUEUE_COUNT: usize = 39_936;
    /// See [`SharedPage::SEMAPHORE_TABLE`].
    pub const QUEUE_TABLE: usize = 39_944;
    /// Most entries of each.
    pub const IPC_MAX: usize = 126;
    /// Of the second number of a pair.
    pub const IPC_VALID: u32 = 1 << 31;
    /// Number of protected regions in the table after the ids.
    pub const PROTECTED_COUNT: usize = 40960;
    /// Entries of 128 bytes: start u64, length u64, NUL-terminated name of at most 111 bytes.
    pub const PROTECTED_TABLE: usize = 40968;
    /// Bytes of one entry.
    pub const PROTECTED_ENTRY: usize = 128;
    /// Most protected regions.
    pub const PROTECTED_MAX: usize = 1024;
    /// Number of threads of the program that have a descriptor of the library's open for an instant: no image now.
    pub const WALKERS: usize = 40;
    /// `MCL_FUTURE` and `MCL_ONFAULT`, as the last `mlockall` or `munlockall` left them.
    pub const LOCK_FUTURE: usize = 48;
    /// Number of calls of `mbind`: as long as it is 0, no range of memory has a policy of its own.
    pub const BOUND: usize = 56;
    /// Number of ranges where memory may be mapped from segments; 0 after an eager restart.
    pub const LAZY_COUNT: usize = 176_128;
    /// Pairs of u64 (first byte, first byte after); the library adds to them when it moves memory.
    pub const LAZY_TABLE: usize = 176_136;
    /// Most ranges.
    pub const LAZY_MAX: usize = 1024;
    /// Number of mapped segment files.
    pub const LAZY_FILE_COUNT: usize = 192_520;
    /// Pairs of u64 (device as major << 32 | minor, inode), as `/proc/PID/maps` shows them.
    pub const LAZY_FILES: usize = 192_528;
    /// Most segment files.
    pub const LAZY_FILE_MAX: usize = 255;
    /// Length of the whole area, bytes.
    pub const LEN: usize = 192 * 1024;
}

/// Value of [`ENV_ENGINE`] that makes libholdfast ready for engine `slots` when it is loaded.
pub const ENGINE_SLOTS: &str = "slots";

/// Layout of the area of engine `slots` in the program (offsets in bytes; little-endian u64 unless said); docs/slots.md
/// tells how both sides use it.
///
/// Every word has one writer while the program runs: the agent (by process_vm_writev, which cannot compare and
/// exchange) or the handler in libholdfast. In a stop with [`GuardArea::INSIDE`] 0 the agent may write all of them.
pub struct GuardArea;

impl GuardArea {
    /// Agent: number of the guarded epoch; 0: nothing is guarded. On a page of its own that forked children find
    /// zeroed (MADV_WIPEONFORK).
    pub const ARMED: usize = 0;
    /// Library, once: address of its handler of SIGSEGV.
    pub const HANDLER: usize = 4096;
    /// Library, once: where a thread's [`GuardThread`] lies, relative to its fs base (two's complement).
    pub const THREAD: usize = 4104;
    /// Handler: pops of the ring of free slots so far in this epoch.
    pub const FREE_HEAD: usize = 8192;
    /// Handler: entries of the log so far in this epoch.
    pub const LOG_HEAD: usize = 8200;
    /// Handler: not 0: the epoch must fail.
    pub const DOUBT: usize = 8208;
    /// Handler: not 0: the agent was found dead, all is open.
    pub const ABANDONED: usize = 8216;
    /// Handler: number of threads that look at the tables just now.
    pub const INSIDE: usize = 8224;
    /// Agent: number of ranges.
    pub const RANGES: usize = 12288;
    /// Agent: pages resolved with one fault at most, 1 to [`GuardArea::MAX_GROUP`], a power of two.
    pub const GROUP: usize = 12296;
    /// Agent: number of slots of this epoch.
    pub const POOL: usize = 12304;
    /// Agent: pushes to the ring of free slots so far in this epoch.
    pub const FREE_TAIL: usize = 12312;
    /// Agent: moves while it lives.
    pub const HEARTBEAT: usize = 12320;
    /// Agent: number of the last epoch that was ever guarded; never goes back to 0.
    pub const LAST: usize = 12328;
    /// Library: number of entries of the table of large allocations that were ever used.
    pub const LARGE_COUNT: usize = 16384;
    /// Pairs of u64: first byte, length (0: not in force).
    pub const LARGE_TABLE: usize = 16392;
    /// Most large allocations that are known.
    pub const LARGE_MAX: usize = 16384;
    /// Smallest allocation in that table, bytes.
    pub const LARGE_LEN: usize = 1 << 20;
    /// From here on nothing outlives the epoch.
    pub const TABLES: usize = 294_912;
    /// Agent: ranges by ascending address: first byte, first byte after, number of the first page.
    pub const RANGE_TABLE: usize = 294_912;
    /// Most ranges.
    pub const MAX_RANGES: usize = 20_480;
    /// Handler: number + 1 of a page that a thread waits for; 0: free entry.
    pub const WAITERS: usize = 786_432;
    /// Entries there.
    pub const MAX_WAITERS: usize = 512;
    /// Agent: one byte per page, [`GuardArea::DONE`] or [`GuardArea::LIKELY`] or 0.
    pub const FLAGS: usize = 790_528;
    /// The page is stored, or its content at the cut does not matter.
    pub const DONE: u8 = 1;
    /// The page will probably be written soon.
    pub const LIKELY: u8 = 2;
    /// Most guarded pages (64 GiB).
    pub const MAX_PAGES: usize = 1 << 24;
    /// Handler: u32 per page: 0 closed, else [`GuardArea::BUSY`], [`GuardArea::GONE`] and, below, the number of a slot
    /// + 1 or [`GuardArea::OPENED`].
    pub const STATE: usize = Self::FLAGS + Self::MAX_PAGES;
    /// A thread is working on the page; with a slot number below, the copy is complete.
    pub const BUSY: u32 = 1 << 31;
    /// The program has unmapped, moved or protected the page itself.
    pub const GONE: u32 = 1 << 30;
    /// Opened without a copy.
    pub const OPENED: u32 = (1 << 30) - 1;
    /// Handler: u32 per entry: number of the page, class << 24, and [`GuardArea::PREDICTED`]; 0: not written yet.
    pub const LOG: usize = Self::STATE + 4 * Self::MAX_PAGES;
    /// Class: the writer waited.
    pub const WAIT: u32 = 1;
    /// Class: the page was copied.
    pub const COW: u32 = 2;
    /// Class: the page had been stored.
    pub const AVOIDED: u32 = 3;
    /// Opened along with a neighbour; maybe never written.
    pub const PREDICTED: u32 = 1 << 28;
    /// Agent: u32 per entry: numbers of free slots.
    pub const RING: usize = Self::LOG + 4 * Self::MAX_PAGES;
    /// Most slots (4 GiB).
    pub const MAX_SLOTS: usize = 1 << 20;
    /// The slots, a page each.
    pub const SLOTS: usize = Self::RING + 4 * Self::MAX_SLOTS;
    /// Length of the whole area, bytes.
    pub const LEN: usize = Self::SLOTS + 4096 * Self::MAX_SLOTS;
    /// Most pages resolved with one fault.
    pub const MAX_GROUP: u64 = 64;
}

/// What each thread of a program with engine `slots` keeps in its thread-local storage: the buffers of calls under way.
pub struct GuardThread;

impl GuardThread {
    /// Number of entries in force.
    pub const DEPTH: usize = 0;
    /// Entries of four u64: kind, address, length or count, stack pointer of the call.
    pub const ENTRIES: usize = 64;
    /// Bytes of an entry.
    pub const ENTRY: usize = 32;
    /// Most entries.
    pub const MAX_ENTRIES: usize = 6;
    /// Kind: `length` bytes at the address.
    pub const BYTES: u64 = 1;
    /// Kind: `count` times struct iovec.
    pub const VECTORS: u64 = 2;
    /// Kind: struct msghdr.
    pub const MESSAGE: u64 = 3;
    /// Bytes in all.
    pub const LEN: usize = 256;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_request_for_a_checkpoint_is_what_the_library_writes() {
        let plain = Request::Checkpoint { stop: false, wait: true, wishes: Wishes::default() };
        let text = r#"{"request":"checkpoint","stop":false,"wait":true}"#;
        assert_eq!(serde_json::to_string(&plain).unwrap(), text);
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), plain);
    }

    #[test]
    fn wishes_are_told_one_by_one() {
        let wishes = Wishes { engine: Some("copy".into()), ..Wishes::default() };
        let request = Request::Checkpoint { stop: true, wait: true, wishes };
        let text = r#"{"request":"checkpoint","stop":true,"wait":true,"wishes":{"engine":"copy"}}"#;
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
    }
}
