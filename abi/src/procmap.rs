//! The request for one mapping of a process (Linux 6.11 on, include/uapi/linux/fs.h), which libholdfast makes of its
//! own and the agent of the program's.

/// struct procmap_query.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcmapQuery {
    /// Bytes of this structure.
    pub size: u64,
    /// Which mapping is asked for.
    pub flags: u64,
    /// Where.
    pub address: u64,
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
    /// PROT_* bits, and more above them.
    pub vma_flags: u64,
    /// Bytes of its pages.
    pub page_size: u64,
    /// Offset in the file.
    pub offset: u64,
    /// 0: no file.
    pub inode: u64,
    /// Of the device of the file.
    pub major: u32,
    /// Likewise.
    pub minor: u32,
    /// Room for the name, bytes; 0: it is not wanted.
    pub name_size: u32,
    /// Room for the build-id of the file, bytes; 0: it is not wanted.
    pub build_id_size: u32,
    /// Address of that for the name.
    pub name: u64,
    /// Address of that for the build-id.
    pub build_id: u64,
}

impl ProcmapQuery {
    /// _IOWR('f', 17, struct procmap_query), on an open maps file.
    pub const REQUEST: usize = 3 << 30 | size_of::<ProcmapQuery>() << 16 | (b'f' as usize) << 8 | 17;

    /// For the mapping at an address, without its name and build-id.
    pub fn at(address: u64, flags: u64) -> ProcmapQuery {
        ProcmapQuery { size: size_of::<ProcmapQuery>() as u64, flags, address, ..ProcmapQuery::default() }
    }

    /// The device of the file: major << 32 | minor; 0: no file.
    pub fn device(&self) -> u64 {
        u64::from(self.major) << 32 | u64::from(self.minor)
    }
}
