//! What the CUDA hooks in the program (`cuda-hooks/`) and the agent share.

use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// The CUDA hooks' words, in memory of libholdfast (.bss): inherited by fork (the child clears them), part of every
/// image. [`crate::SharedPage`] has its address from the moment that the program's driver library is known; 0 there:
/// the program has not asked for any function of it.
///
/// The counts say what the hooks have seen. A program may reach the driver past them (a static executable, dlmopen(3),
/// the device files themselves): 0 is no proof that there is no device memory.
#[repr(C, align(4096))]
pub struct CudaArea {
    /// The gate, a futex: 0: open; [`CudaArea::BY_AGENT`]: the agent has closed it, and renews `heartbeat`;
    /// [`CudaArea::BY_LIBRARY`]: code in the program has. Read at every call: on a cache line that is else not written.
    pub closed: AtomicU32,
    /// Agent: moves while the agent lives and has the gate closed.
    pub heartbeat: AtomicU32,
    reserved_0: [u64; 7],
    /// Library: address of the table of threads ([`CudaThread`]); 0: none yet.
    pub threads: AtomicU64,
    /// Library: number of entries of that table that were ever used.
    pub thread_count: AtomicU64,
    /// Library: address of the table of objects ([`CudaObject`]); 0: none yet.
    pub objects: AtomicU64,
    /// Library: 1: cuInit has succeeded.
    pub initialised: AtomicU64,
    /// Library: number of threads that wait at the closed gate.
    pub waiting: AtomicU64,
    /// Library: how often the gate was opened because the agent that had closed it was gone.
    pub abandoned: AtomicU64,
    /// Library: calls under way of threads that have no entry in the table.
    pub uncounted_inside: AtomicU64,
    /// Library: calls of such threads that gave the device work, so far.
    pub uncounted_work: AtomicU64,
    /// Library: objects that are not in the table because it was full or in use for too long. Not 0: the table and the
    /// counts below are too small.
    pub lost: AtomicU64,
    /// Library: ways past the gate that the program may have: functions of the driver that it was given without a
    /// wrapper (another library intercepts them, or too many were not known), libraries that find the driver by
    /// themselves (RTLD_DEEPBIND).
    pub unhooked: AtomicU64,
    /// Library: undocumented tables of functions that were asked for (cuGetExportTable).
    pub export_tables: AtomicU64,
    /// Library: address of [`crate::CudaData`]; 0: it owns no device memory.
    pub data: AtomicU64,
    /// Library: address of the symbols of its table of functions, each with a NUL behind it, in the order of the rows.
    pub symbols: AtomicU64,
    /// Library: their length, bytes.
    pub symbols_len: AtomicU64,
    reserved_1: [u64; 2],
    /// Library: objects by kind ([`CudaKind`]) that are in force.
    pub counts: [AtomicU64; CudaKind::ROOM],
    /// Library: their bytes, where a kind has bytes.
    pub bytes: [AtomicU64; CudaKind::ROOM],
}

/// A thread of the program that has called the driver. 64 bytes, a cache line of its own.
#[derive(Default)]
#[repr(C, align(64))]
pub struct CudaThread {
    /// Number of the function that the thread is in, + 1 (rows of `cuda-hooks/`'s table); 0: it is in none.
    pub inside: AtomicU64,
    /// Stack pointer at the outermost call.
    pub stack: AtomicU64,
    /// Calls so far that gave the device work. It moves before the work is given.
    pub work: AtomicU64,
    /// Its fs base: whose entry this is. Entries of threads that have ended are taken over by those that get their
    /// place.
    pub owner: AtomicU64,
    /// The kernel's id of the thread at its first call.
    pub id: AtomicU64,
    reserved: [u64; 3],
}

/// An object of the driver that is in force.
#[repr(C)]
pub struct CudaObject {
    /// Kind << 56 | the lower bits of its address or handle; 0: the entry is free.
    pub key: AtomicU64,
    /// Bytes; of a context that a device keeps ([`CudaKind::PRIMARY`]): its handle; of a mapping: the handle of what is
    /// mapped.
    pub value: AtomicU64,
    /// The context that was current, or 0.
    pub context: AtomicU64,
}

offsets! { CudaArea {
    CLOSED = closed;
    HEARTBEAT = heartbeat;
    THREADS = threads;
    THREAD_COUNT = thread_count;
    OBJECTS = objects;
    INITIALISED = initialised;
    WAITING = waiting;
    ABANDONED = abandoned;
    UNCOUNTED_INSIDE = uncounted_inside;
    UNCOUNTED_WORK = uncounted_work;
    LOST = lost;
    UNHOOKED = unhooked;
    EXPORT_TABLES = export_tables;
    DATA = data;
    SYMBOLS = symbols;
    SYMBOLS_LEN = symbols_len;
    COUNTS = counts;
    BYTES = bytes;
} }

offsets! { CudaThread {
    INSIDE = inside;
    STACK = stack;
    WORK = work;
    OWNER = owner;
    ID = id;
} }

offsets! { CudaObject {
    KEY = key;
    VALUE = value;
    CONTEXT = context;
} }

impl CudaArea {
    /// In `closed`: by the agent. It opens by itself when the agent is gone.
    pub const BY_AGENT: u32 = 1;
    /// In `closed`: by code in the program.
    pub const BY_LIBRARY: u32 = 2;
    /// Most entries of the table of threads.
    pub const MAX_THREADS: usize = 4096;
    /// Entries of the table of objects, a power of two.
    pub const MAX_OBJECTS: usize = 1 << 16;
    /// Bytes of one entry of each.
    pub const THREAD_ENTRY: usize = size_of::<CudaThread>();
    /// The same of objects.
    pub const OBJECT_ENTRY: usize = size_of::<CudaObject>();
    /// Length of the area, bytes.
    pub const LEN: usize = size_of::<CudaArea>();

    /// All zero: nothing was called.
    pub const fn new() -> CudaArea {
        CudaArea {
            closed: AtomicU32::new(0),
            heartbeat: AtomicU32::new(0),
            reserved_0: [0; 7],
            threads: AtomicU64::new(0),
            thread_count: AtomicU64::new(0),
            objects: AtomicU64::new(0),
            initialised: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            uncounted_inside: AtomicU64::new(0),
            uncounted_work: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            unhooked: AtomicU64::new(0),
            export_tables: AtomicU64::new(0),
            data: AtomicU64::new(0),
            symbols: AtomicU64::new(0),
            symbols_len: AtomicU64::new(0),
            reserved_1: [0; 2],
            counts: [const { AtomicU64::new(0) }; CudaKind::ROOM],
            bytes: [const { AtomicU64::new(0) }; CudaKind::ROOM],
        }
    }
}

impl Default for CudaArea {
    fn default() -> CudaArea {
        CudaArea::new()
    }
}

/// Kinds of objects: index into [`CudaArea::counts`], and the highest byte of a key.
pub struct CudaKind;

/// Kinds as constants, their names, and which of them forbid a checkpoint.
macro_rules! kinds {
    ($($(#[$text:meta])* $name:ident = $number:literal $word:literal $blocks:literal;)*) => {
        impl CudaKind {
            $($(#[$text])* pub const $name: u8 = $number;)*
            /// Kind, how a message names it, and whether a checkpoint is refused while there is one.
            pub const ALL: &'static [(u8, &'static str, bool)] = &[$(($number, $word, $blocks)),*];
        }
    };
}

kinds! {
    /// Contexts made by cuCtxCreate.
    CONTEXT = 1 "contexts" false;
    /// Contexts that devices keep, retained.
    PRIMARY = 2 "primary contexts" false;
    /// Memory of cuMemAlloc and cuMemAllocPitch.
    DEVICE = 3 "device memory" false;
    /// Memory of stream-ordered allocations.
    POOLED = 4 "stream-ordered memory" false;
    /// Pinned memory of the host, allocated by the driver.
    PINNED = 5 "pinned host memory" false;
    /// Memory of the program that it has pinned.
    REGISTERED = 6 "registered host memory" false;
    /// Physical memory (cuMemCreate).
    PHYSICAL = 7 "physical memory" false;
    /// Reserved ranges of addresses.
    RESERVED = 8 "reserved addresses" false;
    /// Physical memory that is mapped.
    MAPPED = 9 "mappings" false;
    /// Arrays and mipmapped arrays.
    ARRAY = 10 "arrays" false;
    /// Executable graphs. Counted, and not in the table of objects.
    GRAPH = 11 "executable graphs" false;
    /// Captures of streams that have begun and not ended.
    CAPTURE = 16 "open stream captures" true;
    /// Managed memory, and managed pools.
    MANAGED = 17 "managed memory (cuMemAllocManaged)" true;
    /// Managed variables of libraries.
    MANAGED_VARIABLE = 18 "managed variables" true;
    /// Memory and events that other processes may open, or of other processes.
    IPC = 19 "memory or events shared with other processes (cuIpc)" true;
    /// Memory or pools that were given out as descriptors.
    EXPORTED = 20 "exported memory (shareable handles)" true;
    /// Memory or pools that came from elsewhere as descriptors.
    IMPORTED = 21 "imported memory (shareable handles)" true;
    /// Multicast objects.
    MULTICAST = 22 "multicast objects" true;
    /// Access of one device to another's memory.
    PEER = 23 "peer access" true;
    /// Memory and semaphores of other interfaces.
    EXTERNAL = 24 "external memory or semaphores" true;
    /// Objects of OpenGL, EGL and VDPAU.
    GRAPHICS = 25 "graphics resources" true;
    /// Ranges of device memory that other devices may reach (dma-buf).
    DMA_BUF = 26 "memory given to other devices (dma-buf)" true;
}

impl CudaKind {
    /// Kinds are smaller.
    pub const ROOM: usize = 32;
    /// In a key: the kind from this bit on.
    pub const SHIFT: u32 = 56;
}

const _: () = assert!(
    CudaArea::LEN == crate::PAGE
        && CudaArea::THREAD_ENTRY == 64
        && CudaArea::OBJECT_ENTRY == 24
        && CudaArea::BYTES + CudaKind::ROOM * 8 <= crate::PAGE
);

#[cfg(test)]
mod tests {
    use super::*;

    /// Images hold the area: a number that changes here makes what older images say of CUDA wrong.
    #[test]
    fn the_layout_is_frozen() {
        let golden = [
            (CudaArea::CLOSED, 0),
            (CudaArea::HEARTBEAT, 4),
            (CudaArea::THREADS, 64),
            (CudaArea::THREAD_COUNT, 72),
            (CudaArea::OBJECTS, 80),
            (CudaArea::INITIALISED, 88),
            (CudaArea::WAITING, 96),
            (CudaArea::ABANDONED, 104),
            (CudaArea::UNCOUNTED_INSIDE, 112),
            (CudaArea::UNCOUNTED_WORK, 120),
            (CudaArea::LOST, 128),
            (CudaArea::UNHOOKED, 136),
            (CudaArea::EXPORT_TABLES, 144),
            (CudaArea::DATA, 152),
            (CudaArea::SYMBOLS, 160),
            (CudaArea::SYMBOLS_LEN, 168),
            (CudaArea::COUNTS, 192),
            (CudaArea::BYTES, 448),
            (CudaArea::MAX_THREADS, 4096),
            (CudaArea::MAX_OBJECTS, 65_536),
            (CudaArea::LEN, 4096),
        ];
        for (index, (now, then)) in golden.into_iter().enumerate() {
            assert_eq!(now, then, "number {index} of the list");
        }
        let thread =
            [CudaThread::INSIDE, CudaThread::STACK, CudaThread::WORK, CudaThread::OWNER, CudaThread::ID];
        assert_eq!(thread, [0, 8, 16, 24, 32]);
        assert_eq!([CudaObject::KEY, CudaObject::VALUE, CudaObject::CONTEXT], [0, 8, 16]);
        assert_eq!([CudaArea::BY_AGENT, CudaArea::BY_LIBRARY], [1, 2]);
    }

    #[test]
    fn kinds_are_distinct_and_fit() {
        for (index, (kind, word, _)) in CudaKind::ALL.iter().enumerate() {
            assert!(usize::from(*kind) < CudaKind::ROOM && *kind != 0, "{word}");
            assert!(CudaKind::ALL.iter().skip(index + 1).all(|(other, _, _)| other != kind), "{word}");
        }
    }
}
