//! What each thread of a program with engine `slots` keeps in its thread-local storage.

use core::mem::size_of;
use core::sync::atomic::AtomicU64;

/// The buffers of calls under way in one thread. The agent reads it in a stop: an entry is written before the depth
/// that covers it.
#[repr(C, align(64))]
pub struct GuardThread {
    /// Number of entries in force.
    pub depth: AtomicU64,
    /// A SIGSEGV that was sent to the thread waits for the program to unblock it. The library's alone.
    pub pending: AtomicU64,
    /// Room for the mask of a call that takes one. The library's alone.
    pub mask: [AtomicU64; 6],
    /// One inside the signal handler of another.
    pub entries: [GuardBuffer; GuardThread::MAX_ENTRIES],
}

/// One buffer that a call may write to.
#[repr(C)]
pub struct GuardBuffer {
    /// [`GuardThread::BYTES`], [`GuardThread::VECTORS`] or [`GuardThread::MESSAGE`].
    pub kind: AtomicU64,
    /// Where it is.
    pub address: AtomicU64,
    /// Bytes, or a count.
    pub len: AtomicU64,
    /// Stack pointer of the call.
    pub stack: AtomicU64,
}

offsets! { GuardThread {
    DEPTH = depth;
    ENTRIES = entries;
} }

impl GuardThread {
    /// Most entries.
    pub const MAX_ENTRIES: usize = 6;
    /// Bytes of an entry.
    pub const ENTRY: usize = size_of::<GuardBuffer>();
    /// Kind: `len` bytes at the address.
    pub const BYTES: u64 = 1;
    /// Kind: `len` times struct iovec.
    pub const VECTORS: u64 = 2;
    /// Kind: struct msghdr.
    pub const MESSAGE: u64 = 3;
    /// Bytes in all.
    pub const LEN: usize = size_of::<GuardThread>();
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn the_layout_is_frozen() {
        assert_eq!((GuardThread::DEPTH, GuardThread::ENTRIES, GuardThread::LEN), (0, 64, 256));
        assert_eq!((GuardThread::ENTRY, GuardThread::MAX_ENTRIES), (32, 6));
        let entry = [
            offset_of!(GuardBuffer, kind),
            offset_of!(GuardBuffer, address),
            offset_of!(GuardBuffer, len),
            offset_of!(GuardBuffer, stack),
        ];
        assert_eq!(entry, [0, 8, 16, 24]);
        assert_eq!([GuardThread::BYTES, GuardThread::VECTORS, GuardThread::MESSAGE], [1, 2, 3]);
    }
}
