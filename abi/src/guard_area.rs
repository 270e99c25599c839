//! The area of engine `slots` in the program (docs/slots.md).

use crate::PAGE;
use core::mem::size_of;

/// Tables of engine `slots`, in private memory of the program that the library reserves once; untouched pages cost
/// nothing.
///
/// Every word has one writer while the program runs: the agent (by process_vm_writev, which cannot compare and
/// exchange) or the handler in libholdfast. In a stop with `handler.inside` 0 the agent may write all of them.
#[repr(C, align(4096))]
pub struct GuardArea {
    /// Agent: number of the guarded epoch; 0: nothing is guarded. On a page of its own that forked children find
    /// zeroed (MADV_WIPEONFORK).
    pub armed: OwnPage,
    /// The library's words.
    pub library: LibraryWords,
    /// The handler's words.
    pub handler: HandlerWords,
    /// The agent's words.
    pub agent: AgentWords,
    /// Library: number of entries of `large_table` that were ever used.
    pub large_count: u64,
    /// Library: large allocations.
    pub large_table: [LargeAllocation; GuardArea::LARGE_MAX],
    reserved: [u8; 16_376],
    /// Agent: ranges by ascending address. From here on nothing outlives the epoch.
    pub range_table: [GuardRange; GuardArea::MAX_RANGES],
    /// Handler: number + 1 of a page that a thread waits for; 0: free entry.
    pub waiters: [u64; GuardArea::MAX_WAITERS],
    /// Agent: one byte per page, [`GuardArea::DONE`] or [`GuardArea::LIKELY`] or 0.
    pub flags: [u8; GuardArea::MAX_PAGES],
    /// Handler: per page 0 (closed), else [`GuardArea::BUSY`], [`GuardArea::GONE`] and, below, the number of a slot + 1
    /// or [`GuardArea::OPENED`].
    pub state: [u32; GuardArea::MAX_PAGES],
    /// Handler: per entry the number of the page, class << [`GuardArea::CLASS_SHIFT`], and [`GuardArea::PREDICTED`]; 0:
    /// not written yet.
    pub log: [u32; GuardArea::MAX_PAGES],
    /// Agent: numbers of free slots.
    pub ring: [u32; GuardArea::MAX_SLOTS],
    /// Copies of pages.
    pub slots: [[u8; PAGE]; GuardArea::MAX_SLOTS],
}

/// A word with a page to itself.
#[repr(C, align(4096))]
pub struct OwnPage(pub u64);

/// What the library writes once.
#[repr(C, align(4096))]
pub struct LibraryWords {
    /// Address of its handler of SIGSEGV.
    pub handler: u64,
    /// Where a thread's [`crate::GuardThread`] lies, relative to its fs base (two's complement).
    pub thread: u64,
}

/// What the handler writes, in any thread of the program.
#[repr(C, align(4096))]
pub struct HandlerWords {
    /// Pops of the ring of free slots so far in this epoch.
    pub free_head: u64,
    /// Entries of the log so far in this epoch.
    pub log_head: u64,
    /// Not 0: the epoch must fail.
    pub doubt: u64,
    /// Not 0: the agent was found dead, all is open.
    pub abandoned: u64,
    /// Number of threads that look at the tables just now.
    pub inside: u64,
}

/// What the agent writes.
#[repr(C, align(4096))]
pub struct AgentWords {
    /// Number of ranges.
    pub ranges: u64,
    /// Pages resolved with one fault at most, 1 to [`GuardArea::MAX_GROUP`], a power of two.
    pub group: u64,
    /// Number of slots of this epoch.
    pub pool: u64,
    /// Pushes to the ring of free slots so far in this epoch.
    pub free_tail: u64,
    /// Moves while the agent lives.
    pub heartbeat: u64,
    /// Number of the last epoch that was ever guarded; never goes back to 0.
    pub last: u64,
}

/// A large allocation.
#[repr(C)]
pub struct LargeAllocation {
    /// First byte; 0: the entry is free.
    pub start: u64,
    /// Length, bytes; 0: the entry is not in force.
    pub len: u64,
}

/// A guarded range.
#[repr(C)]
pub struct GuardRange {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
    /// Number of its first page in the tables.
    pub first: u64,
}

offsets! { GuardArea {
    ARMED = armed;
    HANDLER = library.handler;
    THREAD = library.thread;
    FREE_HEAD = handler.free_head;
    LOG_HEAD = handler.log_head;
    DOUBT = handler.doubt;
    ABANDONED = handler.abandoned;
    INSIDE = handler.inside;
    RANGES = agent.ranges;
    GROUP = agent.group;
    POOL = agent.pool;
    FREE_TAIL = agent.free_tail;
    HEARTBEAT = agent.heartbeat;
    LAST = agent.last;
    LARGE_COUNT = large_count;
    LARGE_TABLE = large_table;
    RANGE_TABLE = range_table;
    WAITERS = waiters;
    FLAGS = flags;
    STATE = state;
    LOG = log;
    RING = ring;
    SLOTS = slots;
} }

offsets! { LargeAllocation {
    START = start;
    LEN = len;
} }

offsets! { GuardRange {
    START = start;
    END = end;
    FIRST = first;
} }

impl GuardArea {
    /// Most large allocations that are known.
    pub const LARGE_MAX: usize = 16_384;
    /// Bytes of one entry of their table.
    pub const LARGE_ENTRY: usize = size_of::<LargeAllocation>();
    /// Smallest allocation in that table, bytes.
    pub const LARGE_LEN: usize = 1 << 20;
    /// From here on nothing outlives the epoch.
    pub const TABLES: usize = Self::RANGE_TABLE;
    /// Most ranges.
    pub const MAX_RANGES: usize = 20_480;
    /// Bytes of one row of their table.
    pub const RANGE_ENTRY: usize = size_of::<GuardRange>();
    /// Most threads that the agent sees wait.
    pub const MAX_WAITERS: usize = 512;
    /// Flag: the page is stored, or its content at the cut does not matter.
    pub const DONE: u8 = 1;
    /// Flag: the page will probably be written soon.
    pub const LIKELY: u8 = 2;
    /// Most guarded pages (64 GiB).
    pub const MAX_PAGES: usize = 1 << 24;
    /// State: a thread is working on the page; with a slot number below, the copy is complete.
    pub const BUSY: u32 = 1 << 31;
    /// State: the program has unmapped, moved or protected the page itself.
    pub const GONE: u32 = 1 << 30;
    /// State: opened without a copy.
    pub const OPENED: u32 = (1 << 30) - 1;
    /// In an entry of the log: the number of its page.
    pub const LOG_PAGE: u32 = (1 << Self::CLASS_SHIFT) - 1;
    /// In an entry of the log: its class from this bit on.
    pub const CLASS_SHIFT: u32 = Self::MAX_PAGES.trailing_zeros();
    /// Of what is there: the class without [`GuardArea::PREDICTED`].
    pub const CLASS_MASK: u32 = (Self::PREDICTED >> Self::CLASS_SHIFT) - 1;
    /// Class: the writer waited.
    pub const WAIT: u32 = 1;
    /// Class: the page was copied.
    pub const COW: u32 = 2;
    /// Class: the page had been stored.
    pub const AVOIDED: u32 = 3;
    /// In an entry of the log: opened along with a neighbour; maybe never written.
    pub const PREDICTED: u32 = 1 << 28;
    /// Most slots (4 GiB).
    pub const MAX_SLOTS: usize = 1 << 20;
    /// Most pages resolved with one fault.
    pub const MAX_GROUP: u64 = 64;
    /// Length of the whole area, bytes.
    pub const LEN: usize = size_of::<GuardArea>();
}

// The agent gives pages of tables back to the kernel and reads u32 in whole words; slots are copied by page.
const _: () = assert!(
    GuardArea::TABLES.is_multiple_of(PAGE)
        && GuardArea::STATE.is_multiple_of(PAGE)
        && GuardArea::LOG.is_multiple_of(8)
        && GuardArea::SLOTS.is_multiple_of(PAGE)
        && GuardArea::LEN == GuardArea::SLOTS + GuardArea::MAX_SLOTS * PAGE
);

#[cfg(test)]
mod tests {
    use super::*;

    /// Images hold the area: a number that changes here makes programs with engine `slots` fail after a restart.
    #[test]
    fn the_layout_is_frozen() {
        let golden = [
            (GuardArea::ARMED, 0),
            (GuardArea::HANDLER, 4096),
            (GuardArea::THREAD, 4104),
            (GuardArea::FREE_HEAD, 8192),
            (GuardArea::LOG_HEAD, 8200),
            (GuardArea::DOUBT, 8208),
            (GuardArea::ABANDONED, 8216),
            (GuardArea::INSIDE, 8224),
            (GuardArea::RANGES, 12_288),
            (GuardArea::GROUP, 12_296),
            (GuardArea::POOL, 12_304),
            (GuardArea::FREE_TAIL, 12_312),
            (GuardArea::HEARTBEAT, 12_320),
            (GuardArea::LAST, 12_328),
            (GuardArea::LARGE_COUNT, 16_384),
            (GuardArea::LARGE_TABLE, 16_392),
            (GuardArea::LARGE_MAX, 16_384),
            (GuardArea::LARGE_LEN, 1_048_576),
            (GuardArea::TABLES, 294_912),
            (GuardArea::RANGE_TABLE, 294_912),
            (GuardArea::MAX_RANGES, 20_480),
            (GuardArea::WAITERS, 786_432),
            (GuardArea::MAX_WAITERS, 512),
            (GuardArea::FLAGS, 790_528),
            (GuardArea::MAX_PAGES, 16_777_216),
            (GuardArea::STATE, 17_567_744),
            (GuardArea::LOG, 84_676_608),
            (GuardArea::RING, 151_785_472),
            (GuardArea::MAX_SLOTS, 1_048_576),
            (GuardArea::SLOTS, 155_979_776),
            (GuardArea::LEN, 4_450_947_072),
        ];
        for (index, (now, then)) in golden.into_iter().enumerate() {
            assert_eq!(now, then, "number {index} of the list");
        }
        assert_eq!((GuardArea::LARGE_ENTRY, LargeAllocation::START, LargeAllocation::LEN), (16, 0, 8));
        assert_eq!(GuardArea::RANGE_ENTRY, 24);
        assert_eq!([GuardRange::START, GuardRange::END, GuardRange::FIRST], [0, 8, 16]);
        assert_eq!((GuardArea::DONE, GuardArea::LIKELY, GuardArea::MAX_GROUP), (1, 2, 64));
        assert_eq!([GuardArea::WAIT, GuardArea::COW, GuardArea::AVOIDED], [1, 2, 3]);
        assert_eq!((GuardArea::CLASS_SHIFT, GuardArea::PREDICTED), (24, 0x1000_0000));
        assert_eq!((GuardArea::LOG_PAGE, GuardArea::CLASS_MASK), (0x00ff_ffff, 0xf));
        let states = [GuardArea::BUSY, GuardArea::GONE, GuardArea::OPENED];
        assert_eq!(states, [0x8000_0000, 0x4000_0000, 0x3fff_ffff]);
    }
}
