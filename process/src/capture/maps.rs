//! Mappings: what each one is.
//!
//! [`classify`] runs inside the stop. The pages of private memory are the tracker's business (`track`), those of shared
//! memory that of [`super::shared_memory`].

use crate::capture::name_caches;
use crate::cuda::uses;
use crate::mapped_files::MappedFiles;
use crate::refuse;
use crate::track::hugetlb;
use holdfast_image::pages::PageRun;
use holdfast_image::refusal::{Refusal, Subject};
use holdfast_image::{Addr, PAGE_SIZE};
use holdfast_sys::pagemap::{self, IS_GUARD, ScanRegion};
use holdfast_sys::procfs::Mapping;
use holdfast_sys::procmem::ForcedMemory;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How the kernel prints names that the program gave to memory (PR_SET_VMA_ANON_NAME; fs/proc/task_mmu.c).
pub const PRIVATE_NAME: &[u8] = b"[anon:";
/// The same for shared memory.
pub const SHARED_NAME: &[u8] = b"[anon_shmem:";
/// Shared memory without a name that several processes have, as a restart makes it.
const OWN_SHARED: &[u8] = b"/memfd:holdfast-shared (deleted)";

/// What a mapping is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// vdso and its data.
    Kernel,
    /// Private memory without a file. `whole`: every page counts, present or not (it was mapped from an image).
    Anonymous {
        /// See above.
        whole: bool,
    },
    /// Private memory of explicit huge pages (MAP_HUGETLB).
    Huge,
    /// Private mapping of a file.
    PrivateFile,
    /// Shared mapping of a file with a name.
    SharedFile,
    /// Shared mapping of a memfd or a deleted file.
    SharedNameless,
    /// System V shared memory.
    SystemV,
    /// Shared memory without a name.
    SharedAnonymous,
    /// What a server has given to its client, who does without where the server has gone: a database of nscd or SSSD
    /// ([`super::name_caches`]), a buffer of a server of objects (`compat/objects`). In the image as private memory.
    Served,
    /// The ring of a context of Linux AIO ([`super::aio`]). In the image as private memory.
    Aio,
}

/// A mapping, understood.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// As the kernel prints it.
    pub mapping: Mapping,
    /// What it is.
    pub kind: Kind,
    /// Private, or of System V, and kept out of children, or wiped in them: a clone does not freeze it.
    pub outside_clone: bool,
    /// A clone must not have it, though the program's children may: the kernel counts who has a segment of System V
    /// attached, for everybody to see; and a write to a huge page that a clone has takes another one from a pool that
    /// may be empty.
    pub kept_out: bool,
}

impl Mapped {
    /// All of its pages.
    pub fn run(&self) -> PageRun {
        PageRun::between(Addr(self.mapping.start), Addr(self.mapping.end))
    }
    /// Whether its pages are the program's own: the tracker knows which were written.
    pub fn is_private(&self) -> bool {
        matches!(self.kind, Kind::Anonymous { .. } | Kind::Huge | Kind::PrivateFile)
    }
    /// Whether a frozen copy does not have it: its pages are saved inside the stop.
    pub fn is_saved(&self) -> bool {
        self.outside_clone || self.kind == Kind::Huge
    }
}

/// `VmFlags`: first byte of the mapping, first byte after it, flags; ascending.
pub type Flags = Vec<(u64, u64, Vec<String>)>;

/// The flags of the mapping that holds `address`; none if there was no such mapping.
pub fn flags_at(flags: &Flags, address: u64) -> &[String] {
    let index = flags.partition_point(|&(_, end, _)| end <= address);
    flags.get(index).filter(|entry| entry.0 <= address).map_or(&[], |entry| &entry.2)
}

/// How segments of System V are called, by their key (ipc/shm.c, newseg).
const SEGMENT: &[u8] = b"/SYSV";

/// The kind of one mapping.
///
/// # Errors
/// Why it cannot be restored.
fn kind_of(mapping: &Mapping, flags: &[String], files: &MappedFiles) -> Result<Kind, String> {
    let has = |flag: &str| flags.iter().any(|f| f == flag);
    let name = mapping.name.as_slice();
    if matches!(name, b"[vdso]" | b"[vvar]" | b"[vvar_vclock]") {
        return Ok(Kind::Kernel);
    }
    if uses::is_device(name) {
        return Err(refuse::CUDA_DEVICE.into());
    }
    if has("io") || has("pf") {
        return Err("memory of a device".into());
    }
    if has("ht") {
        return match (name == hugetlb::NAME, mapping.shared) {
            (true, false) => Ok(Kind::Huge),
            // A restart makes it of ordinary pages.
            (true, true) => Ok(Kind::SharedAnonymous),
            (false, true) if name.starts_with(SEGMENT) => Ok(Kind::SystemV),
            _ => Err("explicit huge pages of a file are not supported".into()),
        };
    }
    if has("ss") {
        return Err("shadow stack".into());
    }
    if name_caches::is_of_client(mapping, mapping.prot & 2 != 0 || has("mw")) {
        return Ok(Kind::Served);
    }
    if !mapping.shared {
        return Ok(match name.first() {
            Some(b'/') if files.has(mapping) => Kind::Anonymous { whole: true },
            Some(b'/') => Kind::PrivateFile,
            _ if name.starts_with(b"anon_inode:") => return Err("private mapping of a kernel object".into()),
            _ => Kind::Anonymous { whole: false },
        });
    }
    if name == b"/dev/zero (deleted)" || name == OWN_SHARED || name.starts_with(SHARED_NAME) {
        return Ok(Kind::SharedAnonymous);
    }
    if name.starts_with(SEGMENT) {
        return Ok(Kind::SystemV);
    }
    if name == b"anon_inode:[io_uring]" {
        return Err(refuse::IO_URING.into());
    }
    if name.starts_with(b"/memfd:") {
        return Ok(Kind::SharedNameless);
    }
    if refuse::is_only_called_deleted(name, (None, mapping.inode)) {
        return Err(refuse::CALLED_DELETED.into());
    }
    if refuse::is_of_objects(name) {
        return Ok(Kind::Served);
    }
    if name.ends_with(b" (deleted)") {
        // What the kernel makes for itself is named like a deleted file in the root folder: /[aio], /secretmem, /i915.
        let of_kernel = name.iter().filter(|byte| **byte == b'/').count() < 2;
        return match of_kernel {
            true if name.starts_with(b"/[aio]") => Ok(Kind::Aio),
            true => Err("a shared mapping of a kernel object (secret memory, a device …)".into()),
            false => Ok(Kind::SharedNameless),
        };
    }
    match name.first() {
        Some(b'/') if !name.starts_with(b"/dev/") || name.starts_with(b"/dev/shm/") => Ok(Kind::SharedFile),
        Some(b'/') => Err("a shared mapping of a device".into()),
        None => Ok(Kind::SharedAnonymous),
        Some(_) => Err("a shared mapping of a kernel object (AIO, perf …)".into()),
    }
}

/// Understands all mappings. Inside the stop; pure. `flags`: from a little before.
///
/// # Errors
/// One per mapping that cannot be restored.
pub fn classify(maps: Vec<Mapping>, flags: &Flags, files: &MappedFiles) -> Result<Vec<Mapped>, Vec<Refusal>> {
    let mut all = Vec::with_capacity(maps.len());
    let mut refusals = Vec::new();
    for mapping in maps.into_iter().filter(|m| m.name != b"[vsyscall]") {
        let own_flags = flags_at(flags, mapping.start);
        match kind_of(&mapping, own_flags, files) {
            Ok(kind) => {
                let outside = own_flags.iter().any(|f| f == "dc" || f == "wf");
                let own = !mapping.shared || kind == Kind::SystemV;
                let kept_out = !outside && matches!(kind, Kind::SystemV | Kind::Huge);
                all.push(Mapped { outside_clone: outside && own, kept_out, mapping, kind });
            }
            Err(reason) => refusals.push(refuse(&mapping, reason)),
        }
    }
    if refusals.is_empty() { Ok(all) } else { Err(refusals) }
}

/// Refuses a mapping.
pub fn refuse(mapping: &Mapping, reason: String) -> Refusal {
    let name = String::from_utf8_lossy(&mapping.name).into_owned();
    Refusal { subject: Subject::Mapping { start: mapping.start, end: mapping.end, name }, reason }
}

/// Refuses guard regions elsewhere than in private memory without a file. What lies under one in shared memory can be
/// seen in other mappings of it, and cannot be read here; one in a private mapping of a file has come past libholdfast
/// (`preload/src/advice.rs`), and what is written there would not be tracked rightly.
pub fn refuse_guards(pagemap: &File, all: &[Mapped]) -> Vec<Refusal> {
    let place = |kind| match kind {
        Kind::SharedFile | Kind::SharedAnonymous | Kind::SharedNameless | Kind::SystemV => {
            Some("in shared memory")
        }
        Kind::PrivateFile => Some("in a private mapping of a file"),
        Kind::Kernel | Kind::Anonymous { .. } | Kind::Huge | Kind::Served | Kind::Aio => None,
    };
    let refused = |mapped: &Mapped| {
        let (mapping, place, mut found) = (&mapped.mapping, place(mapped.kind)?, None);
        let each = |guard: ScanRegion| found = found.or(Some(guard.start));
        // A kernel that does not know the category refuses: then there is nothing to be said of it.
        pagemap::scan(pagemap, mapping.start, mapping.end, IS_GUARD, IS_GUARD, each).ok()?;
        let reason = format!("guard region at {:#x} (MADV_GUARD_INSTALL): not supported {place}", found?);
        Some(refuse(mapping, reason))
    };
    all.iter().filter_map(refused).collect()
}

/// Where the file of a shared mapping without a name ends in it: nothing can be read beyond.
pub fn readable_end(memory: &ForcedMemory, start: u64, end: u64) -> u64 {
    let readable = |page: u64| memory.read(start + page * PAGE_SIZE, &mut [0]).is_ok();
    let (mut from, mut to) = (0, (end - start) / PAGE_SIZE);
    if to > 0 && readable(to - 1) {
        return end;
    }
    // All before `from` can be read, nothing from `to` on.
    while from < to {
        let middle = from + (to - from) / 2;
        if readable(middle) { from = middle + 1 } else { to = middle }
    }
    start + from * PAGE_SIZE
}

/// Where the file of a mapping ends in it, rounded up to a page: beyond, access is SIGBUS.
pub fn file_end(mapped: &Mapped, end: u64) -> u64 {
    let path = Path::new(std::ffi::OsStr::from_bytes(&mapped.mapping.name));
    let size = std::fs::metadata(path).map(|m| m.len()).unwrap_or(0);
    let rest = size.saturating_sub(mapped.mapping.offset).next_multiple_of(PAGE_SIZE);
    end.min(mapped.mapping.start.saturating_add(rest))
}

/// As [`file_end`]; a deleted file's length is not known by path: then the whole mapping, whose unreadable tail the
/// reader notices.
pub fn file_end_by_fd(mapped: &Mapped) -> u64 {
    if mapped.mapping.name.ends_with(b" (deleted)") {
        return mapped.mapping.end;
    }
    file_end(mapped, mapped.mapping.end)
}

/// Where the file behind a mapping of this name lies.
pub fn path_of(name: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_sys::procfs::parse_maps;

    #[test]
    fn what_cannot_be_restored_is_named_with_its_range() {
        let text = b"1000-3000 rw-s 00000000 00:05 9 /dev/dri/card0\n\
            5000-6000 rw-s 00000000 00:01 7 /secretmem (deleted)\n\
            7000-8000 rw-s 00000000 00:05 9 /dev/nvidia0\n";
        let lines: Vec<String> = classify(parse_maps(text).unwrap(), &Vec::new(), &MappedFiles::default())
            .unwrap_err()
            .iter()
            .map(Refusal::to_string)
            .collect();
        assert_eq!(lines[0], "mapping 0x1000-0x3000 (/dev/dri/card0): a shared mapping of a device");
        assert!(lines[1].starts_with("mapping 0x5000-0x6000 (/secretmem (deleted)): "), "{}", lines[1]);
        assert!(lines[2].ends_with(refuse::CUDA_DEVICE), "{}", lines[2]);
    }
}
