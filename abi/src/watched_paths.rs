//! What the library has noted of watches (inotify(7)).

/// Where the program has watched, as far as it is known: the kernel tells of a watch which inode it has, not where that
/// is. Memory of the library (.bss), inherited by fork, part of every image. What is there may be half written: it is
/// where the agent looks first, and nothing else.
#[repr(C)]
pub struct WatchedPaths {
    /// How many were noted in all; the next one is at this place, counted in a circle.
    pub count: u64,
    /// Absolute paths, each ended by NULs.
    pub paths: [[u8; WatchedPaths::LEN]; WatchedPaths::MAX],
}

offsets! { WatchedPaths {
    COUNT = count;
    PATHS = paths;
} }

impl WatchedPaths {
    /// Room for one, bytes; longer ones are not noted.
    pub const LEN: usize = 256;
    /// Entries.
    pub const MAX: usize = 512;
}
