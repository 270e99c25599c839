//! Mappings: what each one is, what of it must be copied inside the stop, and where its pages are.
//!
//! [`classify`] and [`save_special`] run inside the stop; [`regions`] and [`page_runs`] on the frozen copy, after it.

use super::identity::Identities;
use crate::error::TraceError;
use crate::memory::SavedPages;
use holdfast_image::pages::PageRun;
use holdfast_image::record::{Backing, FileIdentity, Region};
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use holdfast_sys::pagemap::{self, ScanRegion};
use holdfast_sys::procfs::Mapping;
use holdfast_sys::procmem;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Shared memory larger than this is not copied inside a stop.
const SHARED_LIMIT: u64 = 1 << 30;
/// Flags of `VmFlags` that a restart sets again (proc_pid_smaps(5)).
const KEPT_FLAGS: [&str; 8] = ["gd", "hg", "nh", "dc", "wf", "dd", "lo", "mg"];

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
    /// Private mapping of a file.
    PrivateFile,
    /// Shared mapping of a file with a name.
    SharedFile,
    /// Shared memory without a name.
    SharedAnonymous,
}

/// A mapping, understood.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// As the kernel prints it.
    pub mapping: Mapping,
    /// What it is.
    pub kind: Kind,
    /// Kept out of children, or wiped in them: a clone does not freeze it.
    pub outside_clone: bool,
}

/// `VmFlags` by start address.
pub type Flags = HashMap<u64, Vec<String>>;

/// The kind of one mapping.
///
/// # Errors
/// Why it cannot be brought back.
fn kind_of(mapping: &Mapping, flags: &[String], own_files: &[PathBuf]) -> Result<Kind, String> {
    let has = |flag: &str| flags.iter().any(|f| f == flag);
    let name = mapping.name.as_slice();
    if matches!(name, b"[vdso]" | b"[vvar]" | b"[vvar_vclock]") {
        return Ok(Kind::Kernel);
    }
    if has("io") || has("pf") {
        return Err("memory of a device".into());
    }
    if has("ht") {
        return Err("explicit huge pages (MAP_HUGETLB) are not supported yet".into());
    }
    if has("ss") {
        return Err("shadow stack".into());
    }
    let path = Path::new(std::ffi::OsStr::from_bytes(name));
    if !mapping.shared {
        let own = own_files.iter().any(|own| path.starts_with(own));
        return Ok(match name.first() {
            Some(b'/') if own => Kind::Anonymous { whole: true },
            Some(b'/') => Kind::PrivateFile,
            _ if name.starts_with(b"anon_inode:") => return Err("private mapping of a kernel object".into()),
            _ => Kind::Anonymous { whole: false },
        });
    }
    if name == b"/dev/zero (deleted)" {
        return Ok(Kind::SharedAnonymous);
    }
    if name.starts_with(b"/SYSV") {
        return Err("System V shared memory is not supported yet".into());
    }
    if name.starts_with(b"/memfd:") {
        return Err("a shared mapping of a memfd is not supported yet".into());
    }
    if name.ends_with(b" (deleted)") {
        return Err("a shared mapping of a deleted file is not supported yet".into());
    }
    match name.first() {
        Some(b'/') if !name.starts_with(b"/dev/") || name.starts_with(b"/dev/shm/") => Ok(Kind::SharedFile),
        Some(b'/') => Err("a shared mapping of a device".into()),
        None => Ok(Kind::SharedAnonymous),
        Some(_) => Err("a shared mapping of a kernel object (io_uring, AIO, perf …)".into()),
    }
}

/// Understands all mappings. Inside the stop; pure. `flags`: from a little before.
///
/// # Errors
/// One line per mapping that cannot be brought back.
pub fn classify(
    maps: Vec<Mapping>,
    flags: &Flags,
    own_files: &[PathBuf],
) -> Result<Vec<Mapped>, Vec<String>> {
    let none = Vec::new();
    let mut all = Vec::with_capacity(maps.len());
    let mut reasons = Vec::new();
    for mapping in maps.into_iter().filter(|m| m.name != b"[vsyscall]") {
        let own_flags = flags.get(&mapping.start).unwrap_or(&none);
        match kind_of(&mapping, own_flags, own_files) {
            Ok(kind) => {
                let outside = own_flags.iter().any(|f| f == "dc" || f == "wf");
                all.push(Mapped { outside_clone: outside && !mapping.shared, mapping, kind });
            }
            Err(reason) => reasons.push(format!(
                "mapping {:#x}-{:#x} ({}): {reason}",
                mapping.start,
                mapping.end,
                String::from_utf8_lossy(&mapping.name)
            )),
        }
    }
    if reasons.is_empty() { Ok(all) } else { Err(reasons) }
}

/// Copies what a clone does not freeze: shared memory, and private memory kept out of children. Inside the stop.
///
/// # Errors
/// Memory that cannot be read; shared memory too large to be copied inside a stop.
pub fn save_special(tid: i32, pagemap: &File, all: &[Mapped]) -> Result<SavedPages, TraceError> {
    let mut saved = SavedPages::default();
    for mapped in all {
        let (start, end) = (mapped.mapping.start, mapped.mapping.end);
        match mapped.kind {
            Kind::SharedFile if mapped.mapping.prot & 2 != 0 => {
                save(tid, &mut saved, start, file_end(mapped, end))?;
            }
            Kind::SharedAnonymous if mapped.mapping.prot & 1 != 0 => save(tid, &mut saved, start, end)?,
            Kind::Anonymous { .. } | Kind::PrivateFile if mapped.outside_clone => {
                for run in private_runs(pagemap, mapped)? {
                    save(tid, &mut saved, run.start.0, run.end().0)?;
                }
            }
            _ => {}
        }
    }
    Ok(saved)
}

/// Where the file of a mapping ends in it, rounded up to a page: beyond, access is SIGBUS.
fn file_end(mapped: &Mapped, end: u64) -> u64 {
    let path = Path::new(std::ffi::OsStr::from_bytes(&mapped.mapping.name));
    let size = std::fs::metadata(path).map(|m| m.len()).unwrap_or(0);
    let rest = size.saturating_sub(mapped.mapping.offset).next_multiple_of(PAGE_SIZE);
    end.min(mapped.mapping.start.saturating_add(rest))
}

fn save(tid: i32, saved: &mut SavedPages, start: u64, end: u64) -> Result<(), TraceError> {
    if start >= end {
        return Ok(());
    }
    if end - start > SHARED_LIMIT {
        return Err(TraceError::Io(std::io::Error::other(format!(
            "shared memory at {start:#x} is {} MiB: more than is copied inside a stop",
            (end - start) >> 20
        ))));
    }
    let mut bytes = vec![0_u8; usize::try_from(end - start).unwrap_or(0)];
    procmem::read(tid, start, &mut bytes)?;
    saved.add(run_of(start, end), bytes);
    Ok(())
}

fn run_of(start: u64, end: u64) -> PageRun {
    PageRun { start: Addr(start), pages: PageCount((end - start) / PAGE_SIZE) }
}

/// The pages of a private mapping that an image must hold.
fn private_runs(pagemap: &File, mapped: &Mapped) -> Result<Vec<PageRun>, TraceError> {
    use pagemap::{IS_FILE, IS_GUARD, IS_PFNZERO, IS_PRESENT, IS_SWAPPED};
    let (start, end) = (mapped.mapping.start, mapped.mapping.end);
    if mapped.kind == (Kind::Anonymous { whole: true }) {
        return Ok(vec![run_of(start, end)]);
    }
    let of_file = mapped.kind == Kind::PrivateFile;
    let mut runs: Vec<PageRun> = Vec::new();
    let mut guard = None;
    let wanted = IS_FILE | IS_PFNZERO | IS_GUARD | IS_PRESENT | IS_SWAPPED;
    let each = |found: ScanRegion| {
        if found.categories & IS_GUARD != 0 {
            guard = Some(found.start);
        }
        // A page of the file that is still the file's; the zero page is what an absent page reads as.
        let skip = if of_file { IS_FILE } else { IS_PFNZERO };
        if found.categories & skip != 0 {
            return;
        }
        match runs.last_mut() {
            Some(last) if last.end().0 == found.start => {
                last.pages = PageCount((found.end - last.start.0) / PAGE_SIZE);
            }
            _ => runs.push(run_of(found.start, found.end)),
        }
    };
    pagemap::scan(pagemap, start, end, IS_PRESENT | IS_SWAPPED, wanted, each)?;
    if let Some(address) = guard {
        return Err(TraceError::Io(std::io::Error::other(format!(
            "guard region at {address:#x} (MADV_GUARD_INSTALL) is not supported yet"
        ))));
    }
    Ok(runs)
}

/// All runs of frozen private pages. After the stop, on the copy's pagemap. `self_contained`: whole file mappings too.
///
/// # Errors
/// The copy is gone, or holds something that cannot be brought back.
pub fn page_runs(pagemap: &File, all: &[Mapped], stored_whole: &[bool]) -> Result<Vec<PageRun>, TraceError> {
    let mut runs = Vec::new();
    for (mapped, &whole) in all.iter().zip(stored_whole) {
        if mapped.outside_clone || !matches!(mapped.kind, Kind::Anonymous { .. } | Kind::PrivateFile) {
            continue;
        }
        if whole && mapped.kind == Kind::PrivateFile {
            let end = file_end_by_fd(mapped);
            if end > mapped.mapping.start {
                runs.push(run_of(mapped.mapping.start, end));
            }
            continue;
        }
        runs.extend(private_runs(pagemap, mapped)?);
    }
    Ok(runs)
}

/// As [`file_end`]; a deleted file's length is not known by path: then the whole mapping, whose unreadable tail the
/// reader notices.
fn file_end_by_fd(mapped: &Mapped) -> u64 {
    if mapped.mapping.name.ends_with(b" (deleted)") {
        return mapped.mapping.end;
    }
    file_end(mapped, mapped.mapping.end)
}

/// The regions of the record, the files behind them, and which file mappings must be stored whole (deleted or
/// replaced files; all, if the image is to be self-contained). After the stop.
pub fn regions(
    all: &[Mapped],
    flags: &Flags,
    identities: &mut Identities,
    self_contained: bool,
) -> (Vec<Region>, Vec<FileIdentity>, Vec<bool>) {
    let mut files: Vec<FileIdentity> = Vec::new();
    let mut index_of: HashMap<Vec<u8>, Option<u32>> = HashMap::new();
    let mut regions = Vec::with_capacity(all.len());
    let mut stored_whole = Vec::with_capacity(all.len());
    for mapped in all {
        let mapping = &mapped.mapping;
        let mut file = || {
            *index_of.entry(mapping.name.clone()).or_insert_with(|| {
                let path = Path::new(std::ffi::OsStr::from_bytes(&mapping.name));
                let identity = identities.of(path, Some(mapping.inode))?;
                files.push(identity);
                u32::try_from(files.len() - 1).ok()
            })
        };
        let (backing, whole) = match mapped.kind {
            Kind::Kernel => {
                let name =
                    String::from_utf8_lossy(mapping.name.trim_ascii()).trim_matches(['[', ']']).to_owned();
                (Backing::Kernel { name }, false)
            }
            Kind::Anonymous { .. } => (Backing::Anonymous, false),
            Kind::PrivateFile => match (self_contained, file()) {
                (false, Some(file)) => (Backing::PrivateFile { file, offset: mapping.offset }, false),
                _ => (Backing::Anonymous, true),
            },
            Kind::SharedFile => match file() {
                Some(file) => {
                    let writable = mapping.prot & 2 != 0;
                    (Backing::SharedFile { file, offset: mapping.offset, writable }, false)
                }
                None => (shared_anonymous(mapping), false),
            },
            Kind::SharedAnonymous => (shared_anonymous(mapping), false),
        };
        let vm_flags = flags.get(&mapping.start).map_or_else(Vec::new, |all| {
            all.iter().filter(|flag| KEPT_FLAGS.contains(&flag.as_str())).cloned().collect()
        });
        let (start, end) = (Addr(mapping.start), Addr(mapping.end));
        regions.push(Region { start, end, prot: mapping.prot, backing, vm_flags });
        stored_whole.push(whole);
    }
    (regions, files, stored_whole)
}

fn shared_anonymous(mapping: &Mapping) -> Backing {
    let object_size = mapping.offset + (mapping.end - mapping.start);
    Backing::SharedAnonymous { object: mapping.inode, offset: mapping.offset, object_size }
}

/// `VmFlags` by start address, as [`Flags`].
///
/// # Errors
/// The process is gone.
pub fn flags_of(pid: i32, tid: i32) -> std::io::Result<Flags> {
    Ok(holdfast_sys::procfs::vm_flags(pid, tid)?
        .into_iter()
        .map(|(start, _, flags)| (start, flags))
        .collect())
}

/// What the copy must look like: every private mapping of the stop, and none that a clone wipes or leaves out and that
/// was not copied inside the stop. Otherwise the program changed a flag between the look before the stop and the stop.
///
/// # Errors
/// Names the mapping; the checkpoint must be tried again.
pub fn check_copy(all: &[Mapped], copy: &Flags) -> Result<(), String> {
    for mapped in all {
        if mapped.outside_clone || !matches!(mapped.kind, Kind::Anonymous { .. } | Kind::PrivateFile) {
            continue;
        }
        let start = mapped.mapping.start;
        match copy.get(&start) {
            None => {
                return Err(format!("mapping {start:#x} was taken out of clones (MADV_DONTFORK) meanwhile"));
            }
            Some(flags) if flags.iter().any(|f| f == "wf") => {
                return Err(format!("mapping {start:#x} was marked MADV_WIPEONFORK meanwhile"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}
