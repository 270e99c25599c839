//! Mappings: what each one is, and what of shared memory must be copied inside the stop.
//!
//! [`classify`] and [`save_shared`] run inside the stop; [`regions`] after it. The pages of private memory are the
//! tracker's business (`track`).

use super::identity::Identities;
use crate::error::TraceError;
use crate::memory::SavedPages;
use holdfast_image::pages::PageRun;
use holdfast_image::record::{Backing, FileIdentity, Region};
use holdfast_image::set::PageSet;
use holdfast_image::{Addr, PAGE_SIZE};
use holdfast_sys::procfs::Mapping;
use holdfast_sys::procmem::{self, ForcedMemory};
use std::collections::{HashMap, HashSet};
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

impl Mapped {
    /// All of its pages.
    pub fn run(&self) -> PageRun {
        PageRun::between(Addr(self.mapping.start), Addr(self.mapping.end))
    }
    /// Whether its pages are the program's own: the tracker knows which were written.
    pub fn is_private(&self) -> bool {
        matches!(self.kind, Kind::Anonymous { .. } | Kind::PrivateFile)
    }
}

/// `VmFlags`: first byte of the mapping, first byte after it, flags; ascending.
pub type Flags = Vec<(u64, u64, Vec<String>)>;

/// The flags of the mapping that holds `address`; none if there was no such mapping.
fn flags_at(flags: &Flags, address: u64) -> &[String] {
    let index = flags.partition_point(|&(_, end, _)| end <= address);
    flags.get(index).filter(|entry| entry.0 <= address).map_or(&[], |entry| &entry.2)
}

/// Those that a restart sets again; others come and go without the program (`uw`: tracked).
fn kept_flags(flags: &[String]) -> impl Iterator<Item = &String> {
    flags.iter().filter(|flag| KEPT_FLAGS.contains(&flag.as_str()))
}

/// The flags of a mapping that has exactly these borders.
fn flags_of<'a>(flags: &'a Flags, mapping: &Mapping) -> Option<&'a [String]> {
    let index = flags.partition_point(|&(start, _, _)| start < mapping.start);
    flags
        .get(index)
        .filter(|entry| (entry.0, entry.1) == (mapping.start, mapping.end))
        .map(|entry| &entry.2[..])
}

/// Whether a look before the stop knows the flags of all mappings; those of new ones only a frozen copy shows.
pub fn all_known(all: &[Mapped], before: &Flags) -> bool {
    all.iter().all(|mapped| mapped.kind == Kind::Kernel || flags_of(before, &mapped.mapping).is_some())
}

/// The flags of all mappings at the stop. `copy`: those of the frozen copy (or of the program, held), which are the
/// ones of that instant but for what was kept out of the copy. The rest was looked at before the stop and after it.
///
/// # Errors
/// A flag changed between the two looks: which came first, the change or the stop, nobody knows.
pub fn settle_flags(
    all: &[Mapped],
    before: &Flags,
    copy: Option<&Flags>,
    after: impl FnOnce() -> std::io::Result<Flags>,
) -> Result<Flags, String> {
    let mut settled = Vec::with_capacity(all.len());
    let mut open = Vec::new();
    for mapped in all {
        let (start, end) = (mapped.mapping.start, mapped.mapping.end);
        match copy.map(|copy| flags_at(copy, start)).filter(|flags| !flags.is_empty()) {
            Some(flags) => settled.push((start, end, flags.to_vec())),
            None => open.push(&mapped.mapping),
        }
    }
    if !open.is_empty() {
        let after = after().map_err(|error| format!("looking at the flags of mappings again: {error}"))?;
        for mapping in open {
            let flags = match (flags_of(before, mapping), flags_of(&after, mapping)) {
                (Some(then), Some(now)) if kept_flags(then).ne(kept_flags(now)) => {
                    return Err(format!("the flags of mapping {:#x} changed meanwhile", mapping.start));
                }
                (Some(flags), _) | (None, Some(flags)) => flags,
                (None, None) => return Err(format!("mapping {:#x} came and went", mapping.start)),
            };
            settled.push((mapping.start, mapping.end, flags.to_vec()));
        }
    }
    settled.sort_unstable_by_key(|entry| entry.0);
    Ok(settled)
}

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
    let mut all = Vec::with_capacity(maps.len());
    let mut reasons = Vec::new();
    for mapping in maps.into_iter().filter(|m| m.name != b"[vsyscall]") {
        let own_flags = flags_at(flags, mapping.start);
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

/// Copies shared memory, which no clone freezes, each page of an object once however often it is mapped. Inside the
/// stop.
///
/// # Errors
/// Memory that cannot be read; shared memory too large to be copied inside a stop.
pub fn save_shared(
    tid: i32,
    memory: &ForcedMemory,
    all: &[Mapped],
    saved: &mut SavedPages,
) -> Result<(), TraceError> {
    let mut objects: HashMap<(u64, u64), PageSet> = HashMap::new();
    for mapped in all {
        let mapping = &mapped.mapping;
        let end = match mapped.kind {
            Kind::SharedFile if mapping.prot & 2 != 0 => file_end(mapped, mapping.end),
            // What the program may not read now it may read later.
            Kind::SharedAnonymous => mapping.end,
            _ => continue,
        };
        if end <= mapping.start {
            continue;
        }
        let known = objects.entry((mapping.device, mapping.inode)).or_default();
        // The pages of the object, by their offset in it.
        let own = PageSet::from(vec![PageRun::between(
            Addr(mapping.offset),
            Addr(mapping.offset + (end - mapping.start)),
        )]);
        for run in own.difference(known).runs() {
            let start = mapping.start + (run.start.0 - mapping.offset);
            save(tid, memory, saved, start, start + run.pages.bytes())?;
        }
        *known = known.union(&own);
    }
    Ok(())
}

/// Where the file of a mapping ends in it, rounded up to a page: beyond, access is SIGBUS.
fn file_end(mapped: &Mapped, end: u64) -> u64 {
    let path = Path::new(std::ffi::OsStr::from_bytes(&mapped.mapping.name));
    let size = std::fs::metadata(path).map(|m| m.len()).unwrap_or(0);
    let rest = size.saturating_sub(mapped.mapping.offset).next_multiple_of(PAGE_SIZE);
    end.min(mapped.mapping.start.saturating_add(rest))
}

fn save(
    tid: i32,
    memory: &ForcedMemory,
    saved: &mut SavedPages,
    start: u64,
    end: u64,
) -> Result<(), TraceError> {
    if start >= end {
        return Ok(());
    }
    if end - start > SHARED_LIMIT {
        return Err(TraceError::Io(std::io::Error::other(format!(
            "shared memory at {start:#x} is {} MiB: more than is copied inside a stop",
            (end - start) >> 20
        ))));
    }
    saved.add(PageRun::between(Addr(start), Addr(end)), |buffer| {
        procmem::read(tid, start, buffer).or_else(|_| memory.read(start, buffer))
    })?;
    Ok(())
}

/// As [`file_end`]; a deleted file's length is not known by path: then the whole mapping, whose unreadable tail the
/// reader notices.
pub fn file_end_by_fd(mapped: &Mapped) -> u64 {
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
        let vm_flags = kept_flags(flags_at(flags, mapping.start)).cloned().collect();
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

/// Which mappings of files are to be stored whole: all, if the image is to be self-contained, else those whose file was
/// deleted, or replaced (`replaced`: name and inode, looked up before the stop).
pub fn stored_whole(all: &[Mapped], self_contained: bool, replaced: &HashSet<(Vec<u8>, u64)>) -> Vec<bool> {
    all.iter()
        .map(|mapped| {
            let mapping = &mapped.mapping;
            mapped.kind == Kind::PrivateFile
                && (self_contained
                    || mapping.name.ends_with(b" (deleted)")
                    || replaced.contains(&(mapping.name.clone(), mapping.inode)))
        })
        .collect()
}

/// The files among the mappings that are not the ones at their path any more. Before the stop.
pub fn replaced(maps: &[Mapping], identities: &mut Identities) -> HashSet<(Vec<u8>, u64)> {
    let mut seen = HashSet::new();
    maps.iter()
        .filter(|mapping| !mapping.shared && mapping.name.first() == Some(&b'/'))
        .map(|mapping| (mapping.name.clone(), mapping.inode))
        .filter(|file| seen.insert(file.clone()))
        .filter(|(name, inode)| {
            identities.of(Path::new(std::ffi::OsStr::from_bytes(name)), Some(*inode)).is_none()
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_sys::procfs::parse_maps;

    fn flags(entries: &[(u64, u64, &str)]) -> Flags {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        entries.iter().map(|&(start, end, text)| (start, end, words(text))).collect()
    }

    fn settle(before: &Flags, copy: Option<&Flags>, after: &Flags) -> Result<Flags, String> {
        let text = b"1000-3000 rw-p 00000000 00:00 0 \n5000-6000 rw-p 00000000 00:00 0 \n";
        let all = classify(parse_maps(text).unwrap(), before, &[]).unwrap();
        settle_flags(&all, before, copy, || Ok(after.clone()))
    }

    #[test]
    fn flags_are_those_of_the_stop_or_the_cut_is_tried_again() {
        let before = flags(&[(0x1000, 0x3000, "rd hg"), (0x5000, 0x6000, "rd wf")]);
        let tracked = flags(&[(0x1000, 0x3000, "rd hg uw"), (0x5000, 0x6000, "rd wf uw")]);
        assert_eq!(settle(&before, None, &tracked).unwrap(), before);
        // The copy knows better, where it has the mapping at all, whatever its borders are there.
        let copy = flags(&[(0x1000, 0x2000, "rd nh")]);
        let settled = settle(&before, Some(&copy), &tracked).unwrap();
        assert_eq!(settled, flags(&[(0x1000, 0x3000, "rd nh"), (0x5000, 0x6000, "rd wf")]));
        // Changed between the looks: before the stop or after it?
        let changed = flags(&[(0x1000, 0x3000, "rd hg"), (0x5000, 0x6000, "rd")]);
        assert!(settle(&before, None, &changed).unwrap_err().contains("0x5000"));
        // Unmapped since, or new at the stop.
        assert_eq!(settle(&before, None, &flags(&[(0x1000, 0x3000, "rd hg")])).unwrap(), before);
        assert_eq!(settle(&flags(&[(0x1000, 0x3000, "rd hg")]), None, &before).unwrap(), before);
        assert!(settle(&flags(&[]), None, &flags(&[])).is_err());
    }
}
