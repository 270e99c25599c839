//! The library's page of shared variables.

use core::mem::size_of;

/// The page of shared variables: memory of the library (.bss), inherited by fork, part of every image.
///
/// Words are either the library's, which the agent reads, or the agent's, which it writes only while the program is
/// stopped or being rebuilt. What neither of them uses is 0.
#[repr(C, align(4096))]
pub struct SharedPage {
    /// [`SharedPage::MAGIC_BYTES`], once the library has found its agent.
    pub magic: [u8; 8],
    /// Agent: number of restarts that this process has behind it; `holdfast_restarted()` returns it.
    pub restarts: u64,
    /// Library: bumped when any thread calls, through libc, `sigaltstack` or what else changes facts that only the
    /// thread itself can tell (`prctl`, `set_mempolicy`).
    pub fact_generation: u64,
    /// Agent: 1: ids are virtual, and `id_table` is in force.
    pub virtual_ids: u64,
    /// Library: number + 1 of a descriptor that it holds open while it waits for the agent; 0: none;
    /// [`SharedPage::OWN_FD_CHANGING`]: one is being opened or closed at this instant.
    pub own_fd: u64,
    /// Library: number of threads of the program that have a descriptor of the library's open for an instant, to read
    /// the mappings: no image now.
    pub walkers: u64,
    /// Library: `MCL_FUTURE` and `MCL_ONFAULT`, as the last `mlockall` or `munlockall` left them.
    pub lock_future: u64,
    /// Library: number of calls of `mbind`: as long as it is 0, no range of memory has a policy of its own.
    pub bound: u64,
    /// Path of the agent's socket, NUL-terminated: written by the library at its start, by the agent at a restart.
    pub socket_path: [u8; SharedPage::SOCKET_PATH_LEN],
    /// Library: address of the area of engine `slots` ([`crate::GuardArea`]); 0: the program was not started with it.
    pub guard_area: u64,
    /// Library: address of what the CUDA hooks share ([`crate::CudaArea`]); 0: the program uses no CUDA driver that
    /// they know of.
    pub cuda_area: u64,
    /// Library: number of successful calls of `landlock_restrict_self`: as long as it is 0, the process has made no
    /// Landlock domain through the C library.
    pub landlock: u64,
    /// Library: address of the C library's variable `environ`; 0: of an image that an older version made.
    pub environ: u64,
    /// Library: address of what it has noted of watches ([`crate::WatchedPaths`]); 0: nothing yet.
    pub watched: u64,
    /// Library: address of what it has noted of seccomp filters ([`crate::FilterNotes`]); 0: nothing yet.
    pub filters: u64,
    /// Library: number of calls that make keys (add_key(2), request_key(2), keyctl(2)).
    pub keys: u64,
    /// Library: 1: the process has no interval timer (setitimer(2), alarm(2)), as it was asked at its start, and has
    /// made no call since that sets one.
    pub no_timers: u64,
    /// Library: address of what it has noted of Landlock ([`crate::LandlockNotes`]); 0: nothing yet.
    pub domain: u64,
    /// Library: address of its tables of addresses ([`crate::AddressTable`]); 0: of an older version.
    pub addresses: u64,
    reserved_0: [u64; 12],
    /// Library: number of calls of `remap_file_pages`: as long as it is 0, no page of shared memory is without an
    /// address because of one.
    pub remapped: u64,
    /// Library: number of calls that make contexts of Linux AIO, end them, or give them work, and that are under way.
    pub aio_calls: u64,
    /// Library: contexts of Linux AIO that the program has made through the C library or libaio.
    pub aio_table: [AioContext; SharedPage::AIO_MAX],
    /// Agent: number of entries of `id_table`.
    pub id_count: u64,
    /// Agent: ids of processes and threads.
    pub id_table: [IdPair; SharedPage::ID_MAX],
    reserved_1: [u64; 127],
    /// Agent: number of entries of `segment_table`.
    pub segment_count: u64,
    /// Agent: ids of System V shared memory, where they differ.
    pub segment_table: [IdPair; SharedPage::SEGMENT_MAX],
    /// Number of entries of `semaphore_table`; more than [`SharedPage::IPC_MAX`]: some are not in it.
    pub semaphore_count: u64,
    /// Ids of all System V semaphore sets that the program used. The kernel's has its highest bit set
    /// ([`SharedPage::IPC_VALID`]) when the entry is in force.
    pub semaphore_table: [IdPair; SharedPage::IPC_MAX],
    /// The same of message queues.
    pub queue_count: u64,
    /// The same of message queues.
    pub queue_table: [IdPair; SharedPage::IPC_MAX],
    reserved_2: [u64; 1],
    /// Library: number of entries of `protected_table` that were ever used.
    pub protected_count: u64,
    /// Library: protected memory of the C API.
    pub protected_table: [ProtectedRegion; SharedPage::PROTECTED_MAX],
    /// Library: number of calls of `semop` with SEM_UNDO that are under way.
    pub undo_calls: u64,
    /// Library: 1: there were more adjustments than `undo_table` has room for.
    pub undo_lost: u64,
    /// Library: adjustments that the kernel makes at the end of the process (SEM_UNDO): the kernel's id of the set
    /// << 32, the semaphore << 16, the adjustment as 16 bits; 0: free. Those of one semaphore add up.
    pub undo_table: [u64; SharedPage::UNDO_MAX],
    /// Number of entries of `used_segment_table`; more than [`SharedPage::USED_SEGMENT_MAX`]: some are not in it.
    pub used_segment_count: u64,
    /// Library: ids of all System V shared memory that the program has made or attached, both as it knows them; the
    /// second with [`SharedPage::IPC_VALID`] when the entry is in force.
    pub used_segment_table: [IdPair; SharedPage::USED_SEGMENT_MAX],
    /// Number of entries of `lazy_table`; 0 after an eager restart.
    pub lazy_count: u64,
    /// Ranges where memory may be mapped from segment files: the agent's at a restart; the library adds to them when
    /// the program moves memory.
    pub lazy_table: [AddressRange; SharedPage::LAZY_MAX],
    /// Agent: number of entries of `lazy_files`.
    pub lazy_file_count: u64,
    /// Agent: the mapped segment files.
    pub lazy_files: [FileNumber; SharedPage::LAZY_FILE_MAX],
}

/// An id that the program knows, and the kernel's.
#[repr(C)]
pub struct IdPair {
    /// The program's.
    pub known: i32,
    /// The kernel's.
    pub kernel: i32,
}

/// A context of Linux AIO.
#[repr(C)]
pub struct AioContext {
    /// What `io_setup(2)` has returned: the address of its ring; 0: the entry is free.
    pub context: u64,
    /// How many requests it has taken.
    pub submitted: u64,
}

/// An entry of the table of protected memory.
#[repr(C)]
pub struct ProtectedRegion {
    /// First byte.
    pub start: u64,
    /// Length, bytes; 0: the entry is not in force.
    pub len: u64,
    /// Name, NUL-terminated.
    pub name: [u8; SharedPage::PROTECTED_NAME_LEN],
}

/// A range of addresses.
#[repr(C)]
pub struct AddressRange {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
}

/// A file, by the numbers that `/proc/PID/maps` shows.
#[repr(C)]
pub struct FileNumber {
    /// Device as major << 32 | minor.
    pub device: u64,
    /// Inode.
    pub inode: u64,
}

offsets! { SharedPage {
    MAGIC = magic;
    RESTARTS = restarts;
    FACT_GENERATION = fact_generation;
    VIRTUAL_IDS = virtual_ids;
    OWN_FD = own_fd;
    WALKERS = walkers;
    LOCK_FUTURE = lock_future;
    BOUND = bound;
    SOCKET_PATH = socket_path;
    GUARD_AREA = guard_area;
    CUDA_AREA = cuda_area;
    LANDLOCK = landlock;
    ENVIRON = environ;
    WATCHED = watched;
    FILTERS = filters;
    KEYS = keys;
    NO_TIMERS = no_timers;
    DOMAIN = domain;
    ADDRESSES = addresses;
    REMAPPED = remapped;
    AIO_CALLS = aio_calls;
    AIO_TABLE = aio_table;
    ID_COUNT = id_count;
    ID_TABLE = id_table;
    SEGMENT_COUNT = segment_count;
    SEGMENT_TABLE = segment_table;
    SEMAPHORE_COUNT = semaphore_count;
    SEMAPHORE_TABLE = semaphore_table;
    QUEUE_COUNT = queue_count;
    QUEUE_TABLE = queue_table;
    PROTECTED_COUNT = protected_count;
    PROTECTED_TABLE = protected_table;
    UNDO_CALLS = undo_calls;
    UNDO_LOST = undo_lost;
    UNDO_TABLE = undo_table;
    USED_SEGMENT_COUNT = used_segment_count;
    USED_SEGMENT_TABLE = used_segment_table;
    LAZY_COUNT = lazy_count;
    LAZY_TABLE = lazy_table;
    LAZY_FILE_COUNT = lazy_file_count;
    LAZY_FILES = lazy_files;
} }

offsets! { AioContext {
    CONTEXT = context;
    SUBMITTED = submitted;
} }

offsets! { ProtectedRegion {
    START = start;
    LEN = len;
    NAME = name;
} }

offsets! { AddressRange {
    START = start;
    END = end;
} }

offsets! { FileNumber {
    DEVICE = device;
    INODE = inode;
} }

impl SharedPage {
    /// By these bytes the agent knows that the page is one.
    pub const MAGIC_BYTES: [u8; 8] = *b"HOLDFAST";
    /// In `own_fd`: a descriptor is just being opened or closed.
    pub const OWN_FD_CHANGING: u64 = u64::MAX;
    /// Room for the socket's path with its NUL, bytes.
    pub const SOCKET_PATH_LEN: usize = 512;
    /// Most entries of the table of process ids.
    pub const ID_MAX: usize = 4096;
    /// Most entries of the table of shared memory.
    pub const SEGMENT_MAX: usize = 512;
    /// Most entries of the tables of semaphore sets and of message queues, each.
    pub const IPC_MAX: usize = 126;
    /// Most contexts of Linux AIO that are noted.
    pub const AIO_MAX: usize = 16;
    /// Bytes of an entry of their table.
    pub const AIO_ENTRY: usize = size_of::<AioContext>();
    /// Bit of the kernel's id in those two: the entry is in force.
    pub const IPC_VALID: u32 = 1 << 31;
    /// Most adjustments of SEM_UNDO.
    pub const UNDO_MAX: usize = 253;
    /// Most entries of the table of shared memory that was used.
    pub const USED_SEGMENT_MAX: usize = 255;
    /// Most protected regions.
    pub const PROTECTED_MAX: usize = 1024;
    /// Bytes of one entry of their table.
    pub const PROTECTED_ENTRY: usize = size_of::<ProtectedRegion>();
    /// Room for a name with its NUL, bytes.
    pub const PROTECTED_NAME_LEN: usize = 112;
    /// Most ranges of memory that is mapped from segment files.
    pub const LAZY_MAX: usize = 1024;
    /// Most segment files.
    pub const LAZY_FILE_MAX: usize = 255;
    /// Length of the whole page, bytes.
    pub const LEN: usize = size_of::<SharedPage>();
}

// Padding would be memory without a name: every gap is a `reserved` field.
const _: () = assert!(
    SharedPage::LEN == 48 * crate::PAGE
        && SharedPage::LAZY_FILES + SharedPage::LAZY_FILE_MAX * size_of::<FileNumber>() == SharedPage::LEN
        && SharedPage::PROTECTED_ENTRY == 128
        && size_of::<IdPair>() == 8
);

#[cfg(test)]
mod tests {
    use super::*;

    /// Images hold the page: a number that changes here makes every older image unreadable.
    #[test]
    fn the_layout_is_frozen() {
        let golden = [
            (SharedPage::MAGIC, 0),
            (SharedPage::RESTARTS, 8),
            (SharedPage::FACT_GENERATION, 16),
            (SharedPage::VIRTUAL_IDS, 24),
            (SharedPage::OWN_FD, 32),
            (SharedPage::WALKERS, 40),
            (SharedPage::LOCK_FUTURE, 48),
            (SharedPage::BOUND, 56),
            (SharedPage::SOCKET_PATH, 64),
            (SharedPage::SOCKET_PATH_LEN, 512),
            (SharedPage::GUARD_AREA, 576),
            (SharedPage::CUDA_AREA, 584),
            (SharedPage::LANDLOCK, 592),
            (SharedPage::ENVIRON, 600),
            (SharedPage::FILTERS, 616),
            (SharedPage::KEYS, 624),
            (SharedPage::NO_TIMERS, 632),
            (SharedPage::DOMAIN, 640),
            (SharedPage::ADDRESSES, 648),
            (SharedPage::REMAPPED, 752),
            (SharedPage::AIO_CALLS, 760),
            (SharedPage::AIO_TABLE, 768),
            (SharedPage::AIO_MAX, 16),
            (SharedPage::ID_COUNT, 1024),
            (SharedPage::ID_TABLE, 1032),
            (SharedPage::ID_MAX, 4096),
            (SharedPage::SEGMENT_COUNT, 34_816),
            (SharedPage::SEGMENT_TABLE, 34_824),
            (SharedPage::SEGMENT_MAX, 512),
            (SharedPage::SEMAPHORE_COUNT, 38_920),
            (SharedPage::SEMAPHORE_TABLE, 38_928),
            (SharedPage::QUEUE_COUNT, 39_936),
            (SharedPage::QUEUE_TABLE, 39_944),
            (SharedPage::IPC_MAX, 126),
            (SharedPage::PROTECTED_COUNT, 40_960),
            (SharedPage::PROTECTED_TABLE, 40_968),
            (SharedPage::PROTECTED_ENTRY, 128),
            (SharedPage::PROTECTED_MAX, 1024),
            (SharedPage::UNDO_CALLS, 172_040),
            (SharedPage::UNDO_LOST, 172_048),
            (SharedPage::UNDO_TABLE, 172_056),
            (SharedPage::UNDO_MAX, 253),
            (SharedPage::LAZY_COUNT, 176_128),
            (SharedPage::LAZY_TABLE, 176_136),
            (SharedPage::LAZY_MAX, 1024),
            (SharedPage::LAZY_FILE_COUNT, 192_520),
            (SharedPage::LAZY_FILES, 192_528),
            (SharedPage::LAZY_FILE_MAX, 255),
            (SharedPage::LEN, 196_608),
        ];
        for (index, (now, then)) in golden.into_iter().enumerate() {
            assert_eq!(now, then, "number {index} of the list");
        }
        assert_eq!([AioContext::CONTEXT, AioContext::SUBMITTED, SharedPage::AIO_ENTRY], [0, 8, 16]);
        assert_eq!([ProtectedRegion::START, ProtectedRegion::LEN, ProtectedRegion::NAME], [0, 8, 16]);
        assert_eq!((AddressRange::START, AddressRange::END, size_of::<AddressRange>()), (0, 8, 16));
        assert_eq!((FileNumber::DEVICE, FileNumber::INODE, size_of::<FileNumber>()), (0, 8, 16));
        assert_eq!((SharedPage::IPC_VALID, SharedPage::OWN_FD_CHANGING), (0x8000_0000, u64::MAX));
        assert_eq!(&SharedPage::MAGIC_BYTES, b"HOLDFAST");
    }
}
