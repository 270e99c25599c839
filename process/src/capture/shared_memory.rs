//! Shared memory: which of its pages are copied inside the stop.
//!
//! No clone freezes it. Each page of an object is copied once, however often and in how many processes it is mapped. Of
//! files in memory (memory without a name, memfds, deleted files of a tmpfs, System V) only pages that there are
//! ([`super::touched`]): the others are zero after a restart, as they were. Of files on a disk, and of those with a
//! name, which may have other bytes by then, all.
//!
//! Called by `capture_process` and `check` ([`refuse_large`]), and by `engine` inside the stop ([`SharedPages::take`],
//! [`save_served`]).

use super::maps::{self, Kind, Mapped, readable_end};
use super::name_caches;
use super::touched::{Asked, Piece};
use crate::error::TraceError;
use crate::freeze::frozen_memory::SavedPages;
use crate::refuse;
use crate::track::hugetlb;
use holdfast_abi::SharedPage;
use holdfast_image::Addr;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::record::InjectArea;
use holdfast_image::refusal::Refusal;
use holdfast_sys::memfd;
use holdfast_sys::mountinfo;
use holdfast_sys::procfs::Mapping;
use holdfast_sys::procmem::{self, ForcedMemory};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// More than this of a file is not copied inside a stop.
const LIMIT: u64 = 1 << 30;

/// Pages of shared objects, by device, inode, and whether that is the id of a segment of System V, whose numbers are
/// others: at their offsets in the object.
#[derive(Debug, Default)]
pub struct SharedPages(HashMap<(u64, u64, bool), PageSet>);

impl SharedPages {
    /// What of these mappings is not known yet; from now on it is.
    fn add<'a>(&mut self, all: &'a [Mapped]) -> Vec<(&'a Mapped, PageRun)> {
        let mut pieces = Vec::new();
        for mapped in all {
            let mapping = &mapped.mapping;
            let end = match mapped.kind {
                Kind::SharedFile if mapping.prot & 2 != 0 => maps::file_end(mapped, mapping.end),
                // What the program may not read now it may read later.
                Kind::SharedAnonymous | Kind::SharedNameless | Kind::SystemV => mapping.end,
                _ => continue,
            };
            if end <= mapping.start {
                continue;
            }
            let object = (mapping.device, mapping.inode, mapped.kind == Kind::SystemV);
            let known = self.0.entry(object).or_default();
            // The pages of the object, by their offset in it.
            let shown = PageRun::between(Addr(mapping.offset), Addr(mapping.offset + (end - mapping.start)));
            let own = PageSet::from(vec![shown]);
            for run in own.difference(known).runs() {
                let start = mapping.start + (run.start.0 - mapping.offset);
                pieces.push((mapped, PageRun { start: Addr(start), pages: run.pages }));
            }
            *known = known.union(&own);
        }
        pieces
    }

    /// The pages of a process that are to be copied: those of shared memory that no process before it has shown. Inside
    /// the stop, after [`refuse_large`].
    ///
    /// # Errors
    /// As [`Asked::touched`].
    pub fn take(
        &mut self,
        asked: Asked<'_>,
        memory: &ForcedMemory,
        all: &[Mapped],
    ) -> Result<PageSet, TraceError> {
        let (in_memory, others): (Vec<_>, Vec<_>) =
            self.add(all).into_iter().partition(|(mapped, _)| is_in_memory(mapped));
        let pieces: Vec<Piece<'_>> = in_memory.iter().map(|(mapped, run)| (&mapped.mapping, *run)).collect();
        let others_whole = others.iter().map(|(_, run)| *run).collect();
        let pages = asked.touched(&pieces)?.union(&others_whole);
        let ends = in_memory.into_iter().chain(others).filter(|(mapped, _)| may_end(&mapped.mapping));
        let beyond: PageSet = ends.filter_map(|(_, run)| beyond_end(memory, run, &pages)).collect();
        Ok(pages.difference(&beyond))
    }
}

/// Whether the file of a mapping may end in it without being asked for its length.
fn may_end(mapping: &Mapping) -> bool {
    mapping.name.ends_with(b" (deleted)") && mapping.name != hugetlb::NAME
}

/// The part of `run` that is beyond the end of its file, if there are some of `pages` in it. What is looked at is one
/// of them, mostly.
fn beyond_end(memory: &ForcedMemory, run: PageRun, pages: &PageSet) -> Option<PageRun> {
    let own = pages.intersection(&PageSet::from(vec![run]));
    let end = own.runs().last()?.end();
    let readable = readable_end(memory, run.start.0, end.0);
    (readable < end.0).then(|| PageRun::between(Addr(readable), end))
}

/// Whether it is a mapping of a file in memory without a name, whose pages there are or not.
fn is_in_memory(mapped: &Mapped) -> bool {
    let device = mapped.mapping.device;
    match mapped.kind {
        Kind::SharedAnonymous | Kind::SystemV => Some(device) == of_memfds(),
        Kind::SharedNameless => Some(device) == of_memfds() || is_of_tmpfs(device),
        _ => false,
    }
}

/// A device as the maps file has it.
fn in_maps(major: u32, minor: u32) -> u64 {
    u64::from(major) << 32 | u64::from(minor)
}

/// The device of memfds, of shared memory without a name, and of System V, unless they are of huge pages (mm/shmem.c,
/// shm_mnt).
fn of_memfds() -> Option<u64> {
    static DEVICE: OnceLock<Option<u64>> = OnceLock::new();
    let look = || {
        let device = File::from(memfd::create(c"holdfast-device", false).ok()?).metadata().ok()?.dev();
        Some(in_maps(libc::major(device), libc::minor(device)))
    };
    *DEVICE.get_or_init(look)
}

/// One of those that are mounted here.
fn is_of_tmpfs(device: u64) -> bool {
    const MINOR_BITS: u32 = 20;
    let is_it = |mount: &mountinfo::Mount| {
        let (major, minor) = (mount.device >> MINOR_BITS, mount.device & ((1 << MINOR_BITS) - 1));
        mount.kind == "tmpfs" && major << 32 | minor == device
    };
    mountinfo::own().is_ok_and(|all| all.iter().any(is_it))
}

fn served(all: &[Mapped]) -> impl Iterator<Item = &Mapped> {
    all.iter().filter(|mapped| matches!(mapped.kind, Kind::Served | Kind::Aio))
}

/// Refuses mappings of files of which so much would be copied that the stop would be long.
pub fn refuse_large(all: &[Mapped]) -> Vec<Refusal> {
    let served = served(all).map(|mapped| (mapped, mapped.run()));
    SharedPages::default()
        .add(all)
        .into_iter()
        .chain(served)
        .filter(|(mapped, run)| run.pages.bytes() > LIMIT && !is_in_memory(mapped))
        .map(|(mapped, run)| {
            let reason = format!(
                "{} MiB of a file that is mapped shared, which are copied inside the stop: the limit is {} MiB for \
                 one mapping; map less of it at once, or share memory without a file",
                run.pages.bytes() >> 20,
                LIMIT >> 20
            );
            maps::refuse(&mapped.mapping, reason)
        })
        .collect()
}

/// Shared memory of which pages may have no address any more, because the program has called `remap_file_pages(2)`: it
/// has some pages at several addresses, so others may be at none, which nothing here would find. `live`: a thread.
pub fn refuse_hidden(live: i32, area: &InjectArea, all: &[Mapped]) -> Vec<Refusal> {
    let shared = |mapped: &&Mapped| matches!(mapped.kind, Kind::SharedAnonymous | Kind::SharedNameless);
    let remapped = |page: u64| procmem::read_u64(live, page + SharedPage::REMAPPED as u64);
    if area.shared.0 == 0
        || !all.iter().any(|mapped| shared(&mapped))
        || matches!(remapped(area.shared.0), Ok(0))
    {
        return Vec::new();
    }
    let mut pages: HashMap<(u64, u64), (PageSet, u64, &Mapping)> = HashMap::new();
    for mapping in all.iter().filter(shared).map(|mapped| &mapped.mapping) {
        let len = mapping.end - mapping.start;
        let own = PageSet::from(vec![PageRun::between(Addr(mapping.offset), Addr(mapping.offset + len))]);
        let object = (mapping.device, mapping.inode);
        let known = pages.entry(object).or_insert_with(|| (PageSet::default(), 0, mapping));
        (known.0, known.1) = (known.0.union(&own), known.1 + len);
    }
    let hidden = pages.into_values().filter(|(pages, mapped, _)| pages.pages().bytes() < *mapped);
    hidden.map(|(_, _, mapping)| maps::refuse(mapping, refuse::HIDDEN.into())).collect()
}

/// Copies what servers have given to the process. Inside the stop.
///
/// # Errors
/// Memory that cannot be read.
pub fn save_served(memory: &ForcedMemory, all: &[Mapped], saved: &mut SavedPages) -> Result<(), TraceError> {
    for mapped in served(all) {
        save_one(memory, mapped, saved)?;
    }
    Ok(())
}

fn save_one(memory: &ForcedMemory, mapped: &Mapped, saved: &mut SavedPages) -> Result<(), TraceError> {
    let mapping = &mapped.mapping;
    let end = readable_end(memory, mapping.start, mapping.end);
    let run = PageRun::between(Addr(mapping.start), Addr(end));
    if run.pages.0 > 0 {
        saved.add(run, |buffer| {
            memory.read(run.start.0, buffer)?;
            if mapped.kind == Kind::Served && !refuse::is_of_objects(&mapping.name) {
                name_caches::mark(mapping, buffer);
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::maps::classify;
    use super::*;
    use crate::mapped_files::MappedFiles;
    use holdfast_sys::procfs::parse_maps;

    #[test]
    fn a_file_is_counted_once_and_refused_when_it_is_large_and_memory_is_not() {
        let classified = |text: &str| {
            classify(parse_maps(text.as_bytes()).unwrap(), &Vec::new(), &MappedFiles::default()).unwrap()
        };
        // No device has such a number.
        let twice = "40000000-80001000 rw-s 00000000 fff:01 5 /data/x (deleted)\n\
                     100000000-140001000 rw-s 00000000 fff:01 5 /data/x (deleted)\n";
        let refusals = refuse_large(&classified(twice));
        assert_eq!(refusals.len(), 1);
        assert!(refusals[0].to_string().contains("1024 MiB of a file"), "{}", refusals[0]);
        assert!(
            refuse_large(&classified("40000000-80000000 rw-s 00000000 fff:01 5 /data/x (deleted)\n"))
                .is_empty()
        );
        let device = of_memfds().unwrap();
        let (major, minor) = (device >> 32, device & 0xffff_ffff);
        let memory =
            format!("40000000-80001000 rw-s 00000000 {major:02x}:{minor:02x} 5 /memfd:x (deleted)\n");
        assert!(refuse_large(&classified(&memory)).is_empty());
    }
}
