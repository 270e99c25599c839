//! What the library has noted of seccomp filters (seccomp(2)).

/// The filters that the program has installed through the C library, which the kernel tells root alone. Memory of the
/// library (.bss), inherited by fork, part of every image. The agent believes a note only where the kernel's own count
/// of a thread's filters (`Seccomp_filters` of its status file) is that of the notes.
#[repr(C)]
pub struct FilterNotes {
    /// Number of entries of `filters` that were begun; more than [`FilterNotes::MAX`]: some are not in it.
    pub count: u64,
    /// Number of instructions that were taken; more than [`FilterNotes::INSTRUCTIONS`]: some are not there.
    pub used: u64,
    /// Distance of each thread's word from its fs base, signed: its newest filter, counted from 1; 0: none.
    pub thread: u64,
    /// The same for all threads: what the last of them that took all along (SECCOMP_FILTER_FLAG_TSYNC) had then.
    pub common: u64,
    /// The filters.
    pub filters: [FilterNote; FilterNotes::MAX],
    /// Their programs: `struct sock_filter` each.
    pub instructions: [u64; FilterNotes::INSTRUCTIONS],
}

/// One of them.
#[repr(C)]
pub struct FilterNote {
    /// The filter that it lies over, counted from 1; 0: none.
    pub below: u32,
    /// SECCOMP_FILTER_FLAG_*.
    pub flags: u32,
    /// Its first instruction.
    pub start: u32,
    /// How many there are; 0: it is not noted yet, or did not fit.
    pub len: u32,
}

offsets! { FilterNotes {
    COUNT = count;
    USED = used;
    THREAD = thread;
    COMMON = common;
    FILTERS = filters;
    CODE = instructions;
} }

impl FilterNotes {
    /// Most filters.
    pub const MAX: usize = 256;
    /// Most instructions, of all together.
    pub const INSTRUCTIONS: usize = 32 * 1024;
    /// Length, bytes.
    pub const LEN: usize = core::mem::size_of::<FilterNotes>();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Images hold it.
    #[test]
    fn the_layout_is_frozen() {
        let now = [
            FilterNotes::COUNT,
            FilterNotes::USED,
            FilterNotes::THREAD,
            FilterNotes::COMMON,
            FilterNotes::FILTERS,
            FilterNotes::CODE,
            FilterNotes::LEN,
            core::mem::size_of::<FilterNote>(),
        ];
        assert_eq!(now, [0, 8, 16, 24, 32, 4128, 266_272, 16]);
    }
}
