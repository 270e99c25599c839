//! Laying out the address space: everything of the seed but itself goes, the kernel's mappings move to their old
//! places, and every region of the record is mapped again. Runs in the agent, by tables in the seed.
//!
//! What must hold: the layout's hole is free in the record. All mappings are made with MAP_FIXED_NOREPLACE: an overlap
//! is an error, never a silent replacement.

use super::pages::PagesPlan;
use super::passed_files;
use super::remote_calls::{Batch, Need, SeedThread};
use super::seed::Layout;
use super::sysv_shm;
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Job;
use crate::rebuild::kept_fds::{self, SharedObject};
use crate::rebuild::paths::Opener;
use holdfast_image::pages::PageProvider;
use holdfast_image::record::{Backing, FileIdentity, ProcessRecord, Region};
use holdfast_sys::fault;
use holdfast_sys::procfs::{self, Mapping};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

const PROT_READ: u64 = 1;
const PROT_WRITE: u64 = 2;
const MAP_SHARED: u64 = libc::MAP_SHARED as u64;
const MAP_PRIVATE: u64 = libc::MAP_PRIVATE as u64;
const MAP_FIXED: u64 = libc::MAP_FIXED as u64;
const MAP_ANONYMOUS: u64 = libc::MAP_ANONYMOUS as u64;
const MAP_NORESERVE: u64 = libc::MAP_NORESERVE as u64;
const MAP_GROWSDOWN: u64 = libc::MAP_GROWSDOWN as u64;
const MAP_HUGETLB: u64 = libc::MAP_HUGETLB as u64;
/// Instead of MAP_PRIVATE (include/uapi/linux/mman.h, Linux 6.11): pages may vanish, children do not have them.
const MAP_DROPPABLE: u64 = 0x08;
const NOREPLACE: u64 = libc::MAP_FIXED_NOREPLACE as u64;
/// include/uapi/asm-generic/mman-common.h, Linux 6.13.
const MADV_GUARD_INSTALL: u64 = 102;
/// struct open_how (include/uapi/linux/openat2.h) and what it takes in a batch.
const RESOLVE_NO_SYMLINKS: u64 = 0x04;
const OPEN_HOW: usize = 32;
/// As argument: no descriptor.
const NO_FD: u64 = u64::MAX;

/// With which a region is mapped at first; `early`: so that its pages can be written.
fn prot(region: &Region, early: bool) -> u64 {
    u64::from(region.prot) | if early { PROT_READ | PROT_WRITE } else { 0 }
}

/// MAP_NORESERVE, or nothing: so that the kernel counts private memory if it did, and later mappings beside it are one
/// with it. Of writable memory, images that were made before that was recorded know neither; memory that is writable
/// only as long as it is filled was not counted either.
fn uncounted(region: &Region, early: bool) -> u64 {
    let is_writable = prot(region, early) & PROT_WRITE != 0;
    let is_counted = region.has("ac") || !is_writable;
    if region.has("nr") || !is_counted { MAP_NORESERVE } else { 0 }
}

/// One address space under construction.
pub struct AddressSpaceBuilder<'a> {
    /// The only thread.
    pub leader: SeedThread,
    /// Where the seed lies.
    pub layout: Layout,
    /// What is to be built.
    pub record: &'a ProcessRecord,
    /// The job that it belongs to.
    pub job: &'a Job<'a>,
    /// Memory that other processes of the job have too.
    pub shared: &'a BTreeMap<u64, SharedObject>,
    /// The ids of its System V shared memory.
    pub segments: &'a [i32],
    /// The image was made under a kernel with another vdso: see [`crate::rebuild::vdso`].
    pub other_vdso: bool,
}

impl AddressSpaceBuilder<'_> {
    /// An empty table of calls in the seed.
    pub fn batch(&self) -> Batch {
        self.leader.batch()
    }

    /// All of it but the pages and the protection that waits for them. Returns what the user should know.
    ///
    /// # Errors
    /// Names the mapping or file that could not be mapped.
    pub fn build(&self, plan: &PagesPlan, pages: &dyn PageProvider) -> Result<Option<String>, RebuildError> {
        self.clear()?;
        let files = self.open_files(plan, pages)?;
        let (huge, note) = self.map_huge(plan)?;
        self.map_regions(plan, &files, &huge)?;
        self.map_shared_objects()?;
        sysv_shm::attach(self.batch(), self.record, self.segments, self.layout.staging)?;
        self.map_segments(plan, &files, pages)?;
        self.advise()?;
        self.close(files)?;
        Ok(note)
    }

    /// Opens the files of what is to be mapped in a process that runs already ([`AddressSpaceBuilder::map_more`]).
    ///
    /// # Errors
    /// Names the file.
    pub fn open_more(&self, plan: &PagesPlan, pages: &dyn PageProvider) -> Result<Files, RebuildError> {
        self.open_files(plan, pages)
    }

    /// Maps regions in a process that runs already, where nothing is mapped, and closes their files. No shared memory.
    ///
    /// # Errors
    /// Names the mapping.
    pub fn map_more(&self, plan: &PagesPlan, files: Files) -> Result<Option<String>, RebuildError> {
        let (huge, note) = self.map_huge(plan)?;
        self.map_regions(plan, &files, &huge)?;
        self.advise()?;
        self.close(files)?;
        Ok(note)
    }

    fn close(&self, files: Files) -> Result<(), RebuildError> {
        let mut batch = self.batch();
        for fd in files.open {
            batch.call(libc::SYS_close, &[fd], Need::May)?;
        }
        batch.finish().map(|_| ())
    }

    /// Gives regions that were writable for the copy only the protection that they had, puts the guards in, and locks
    /// what was locked (in which no guard can be put: mm/madvise.c, is_valid_guard_vma).
    ///
    /// # Errors
    /// Names the mapping.
    pub fn protect(&self, plan: &PagesPlan) -> Result<(), RebuildError> {
        let mut batch = self.batch();
        for guard in &self.record.guards {
            let args = [guard.start.0, guard.end.0 - guard.start.0, MADV_GUARD_INSTALL];
            batch.call(libc::SYS_madvise, &args, Need::Must("install the guard region at", guard.start.0))?;
        }
        for (region, early) in self.record.regions.iter().zip(&plan.early_write) {
            let (start, len) = (region.start.0, region.end.0 - region.start.0);
            let shared = matches!(region.backing, Backing::SharedAnonymous { .. });
            if *early || (shared && u64::from(region.prot) != PROT_READ | PROT_WRITE) {
                let args = [start, len, u64::from(region.prot)];
                batch.call(libc::SYS_mprotect, &args, Need::Must("protect memory at", start))?;
            }
            if let Some(key) = region.key() {
                let args = [start, len, u64::from(region.prot), u64::from(key)];
                batch.call(libc::SYS_pkey_mprotect, &args, Need::Must("give a key to memory at", start))?;
            }
            if region.has("lo") {
                // RLIMIT_MEMLOCK may be lower here; locked memory is a matter of speed.
                let flags = if region.has("lf") { u64::from(libc::MLOCK_ONFAULT) } else { 0 };
                batch.call(libc::SYS_mlock2, &[start, len, flags], Need::May)?;
            }
        }
        batch.finish().map(|_| ())
    }

    /// Unmaps what the seed does not need, and moves the kernel's mappings.
    fn clear(&self) -> Result<(), RebuildError> {
        let now = procfs::maps(self.leader.remote.tid, self.leader.remote.tid)
            .map_err(RebuildError::io("reading the mappings of the new process"))?;
        let kernel: Vec<&Mapping> = now.iter().filter(|m| is_kernel(m)).collect();
        let mut batch = self.batch();
        let seed = self.layout.base..self.layout.end;
        for mapping in
            now.iter().filter(|m| !is_kernel(m) && !seed.contains(&m.start) && m.name != b"[vsyscall]")
        {
            let len = mapping.end - mapping.start;
            batch.call(libc::SYS_munmap, &[mapping.start, len], Need::Must("unmap", mapping.start))?;
        }
        if self.other_vdso {
            self.park(&kernel, &mut batch)?;
        } else {
            self.move_to_recorded(&kernel, &mut batch)?;
        }
        // Images made before the flags were recorded tell only whether.
        let thp = self.record.attributes.thp_disable | u32::from(self.record.flags.thp_disabled);
        if thp != 0 {
            let args = [libc::PR_SET_THP_DISABLE as u64, 1, u64::from(thp & !1)];
            batch.call(libc::SYS_prctl, &args, Need::May)?;
        }
        batch.finish().map(|_| ())
    }

    /// Moves the kernel's mappings to where they stay, in the seed's hole, at their distances from each other.
    fn park(&self, kernel: &[&Mapping], batch: &mut Batch) -> Result<(), RebuildError> {
        for mapping in kernel {
            let len = mapping.end - mapping.start;
            let args = [mapping.start, len, len, REMAP, self.parked_at(kernel, mapping)];
            batch.call(libc::SYS_mremap, &args, Need::Must("move the kernel's mapping at", mapping.start))?;
        }
        Ok(())
    }

    fn parked_at(&self, kernel: &[&Mapping], mapping: &Mapping) -> u64 {
        self.layout.park + (mapping.start - kernel.first().map_or(mapping.start, |first| first.start))
    }

    /// Moves the kernel's mappings to the places of the old ones.
    fn move_to_recorded(&self, kernel: &[&Mapping], batch: &mut Batch) -> Result<(), RebuildError> {
        let wanted: Vec<(&str, &Region)> = self
            .record
            .regions
            .iter()
            .filter_map(|region| match &region.backing {
                Backing::Kernel { name } => Some((name.trim_matches(['[', ']']), region)),
                _ => None,
            })
            .collect();
        let mut park = self.layout.park;
        let mut moves = Vec::new();
        for mapping in kernel {
            let len = mapping.end - mapping.start;
            let name = kernel_name(mapping);
            let Some((_, region)) = wanted.iter().find(|(wanted, _)| *wanted == name) else {
                batch.call(libc::SYS_munmap, &[mapping.start, len], Need::Must("unmap", mapping.start))?;
                continue;
            };
            if region.end.0 - region.start.0 != len {
                return Err(RebuildError::Image(format!(
                    "[{name}] of this kernel is {len} bytes long, that of the image {}: restart under the \
                     same kernel",
                    region.end.0 - region.start.0
                )));
            }
            moves.push((park, region.start.0, len));
            let args = [mapping.start, len, len, REMAP, park];
            batch.call(libc::SYS_mremap, &args, Need::Must("move the kernel's mapping at", mapping.start))?;
            park += len;
        }
        if moves.len() != wanted.len() {
            return Err(RebuildError::Image(
                "this kernel does not have the same [vdso] and [vvar] mappings: restart under the same kernel".into(),
            ));
        }
        for (from, to, len) in moves {
            let args = [from, len, len, REMAP, to];
            batch.call(libc::SYS_mremap, &args, Need::Must("move the kernel's mapping to", to))?;
        }
        Ok(())
    }

    /// Opens every file that is mapped, once for each way it is needed.
    fn open_files(&self, plan: &PagesPlan, pages: &dyn PageProvider) -> Result<Files, RebuildError> {
        let mut wanted: Vec<(FileKey, Vec<u8>, i32)> = Vec::new();
        let mut known: HashMap<FileKey, usize> = HashMap::new();
        let mut want = |key: FileKey, path: &[u8], flags: i32| {
            known.entry(key).or_insert_with(|| {
                wanted.push((key, path.to_vec(), flags));
                wanted.len() - 1
            });
        };
        for region in &self.record.regions {
            if let Some(key) = FileKey::of(region) {
                let flags = match key {
                    FileKey::Mapped { writable: true, .. } | FileKey::Nameless { writable: true, .. } => {
                        libc::O_RDWR
                    }
                    _ => libc::O_RDONLY,
                };
                match key {
                    // It lies open there; opened anew, because a mapping keeps how its file was opened.
                    FileKey::Nameless { file, .. } => {
                        let path =
                            format!("/proc/self/fd/{}", kept_fds::of_unlinked(self.job, file as usize));
                        want(key, path.as_bytes(), flags);
                    }
                    _ => want(key, &self.record.files.mapped[key.index()].path_of_process().0, flags),
                }
            }
        }
        let mut batch = self.batch();
        for (key, path, flags) in &wanted {
            let name = String::from_utf8_lossy(path).into_owned();
            let mut path = path.clone();
            path.push(0);
            batch.reserve(path.len() + OPEN_HOW)?;
            let address = batch.data(&path);
            let mut flags = (flags | libc::O_CLOEXEC) as u64;
            if matches!(key, FileKey::Mapped { .. }) {
                // It is looked at afterwards, and may be a named pipe by now.
                flags |= (libc::O_NONBLOCK | libc::O_NOCTTY) as u64;
                let how: Vec<u8> =
                    [flags, 0, RESOLVE_NO_SYMLINKS].iter().flat_map(|w| w.to_le_bytes()).collect();
                let how = (batch.data(&how), how.len() as u64);
                let args = [libc::AT_FDCWD as u64, address, how.0, how.1];
                batch.row(Row::new(libc::SYS_openat2, &args), Need::MustOn("open", name));
            } else {
                let args = [libc::AT_FDCWD as u64, address, flags, 0];
                batch.row(Row::new(libc::SYS_openat, &args), Need::MustOn("open", name));
            }
        }
        let (results, _) = batch.finish()?;
        let mut open: Vec<u64> = results.iter().map(|fd| fd.cast_unsigned()).collect();
        self.check_opened(wanted.iter().zip(&open))?;
        let mut by_key: HashMap<FileKey, u64> = known.into_iter().map(|(key, at)| (key, open[at])).collect();
        let common = pages.shared_pages();
        let segments: BTreeSet<u32> = plan.mapped.iter().map(|mapped| mapped.segment).collect();
        let segments: Vec<u32> = segments.into_iter().filter(|segment| Some(*segment) != common).collect();
        let file = |segment: &u32| pages.segment(*segment).map(|segment| segment.file.as_fd());
        let files: Option<Vec<BorrowedFd<'_>>> = segments.iter().map(file).collect();
        let files = files.ok_or_else(|| RebuildError::Image("a segment has no file to be mapped".into()))?;
        let passed = passed_files::pass(self.leader, &files)?;
        by_key.extend(segments.into_iter().map(FileKey::Segment).zip(passed.iter().copied()));
        open.extend(passed);
        // It lies open there, and is closed by `unlinked`.
        let number = u64::from(kept_fds::of_common(self.job, self.shared).cast_unsigned());
        by_key.extend(common.map(|segment| (FileKey::Segment(segment), number)));
        Ok(Files { open, by_key })
    }

    /// Whether what the seed has opened with the rights of the restart is what its process may have: see
    /// [`crate::rebuild::paths`].
    fn check_opened<'w>(
        &self,
        opened: impl Iterator<Item = (&'w (FileKey, Vec<u8>, i32), &'w u64)>,
    ) -> Result<(), RebuildError> {
        let opener = Opener::of(self.record);
        for ((key, _, flags), fd) in opened {
            let FileKey::Mapped { .. } = key else { continue };
            let file = &self.record.files.mapped[key.index()];
            if file.is_only_inside() {
                continue; // it was made with its namespace
            }
            let FileIdentity { path, inode, .. } = file;
            let (_, found) = opener.open(path, inode.as_ref(), flags.cast_unsigned())?;
            let link = format!("/proc/{}/fd/{fd}", self.leader.remote.tid);
            let now = fs::metadata(link).map_err(RebuildError::io(format!("looking at {path}")))?;
            if (now.dev(), now.ino()) != (found.now.dev(), found.now.ino()) {
                return Err(RebuildError::file(path, "it was replaced while it was opened; restart again"));
            }
        }
        Ok(())
    }

    /// Regions of explicit huge pages, as far as this host has enough of them; where they begin. The kernel sets
    /// the pages aside here, so that none is missing later (mm/hugetlb.c, hugetlb_reserve_pages). And what the user
    /// should know.
    fn map_huge(&self, plan: &PagesPlan) -> Result<(BTreeSet<u64>, Option<String>), RebuildError> {
        /// `HOLDFAST_FAULT=no-huge-pages`: as on a host that has none.
        const NONE: &str = "no-huge-pages";
        let mut batch = self.batch();
        let mut wanted = Vec::new();
        for (region, early) in self.record.regions.iter().zip(&plan.early_write) {
            let shift = region.huge_shift().filter(|_| region.backing == Backing::Anonymous);
            let Some(shift) = shift else { continue };
            let shift = if fault::is_asked(NONE) { 1 } else { shift };
            let size = u64::from(shift) << libc::MAP_HUGE_SHIFT;
            let flags = MAP_PRIVATE | MAP_ANONYMOUS | NOREPLACE | MAP_HUGETLB | size;
            let (start, len) = (region.start.0, region.end.0 - region.start.0);
            batch.call(libc::SYS_mmap, &[start, len, prot(region, *early), flags, NO_FD, 0], Need::May)?;
            wanted.push((start, len));
        }
        let (results, _) = batch.finish()?;
        let made = |(start, _): (u64, u64), result: i64| result.cast_unsigned() == start;
        let (made, missed): (Vec<_>, Vec<_>) =
            wanted.into_iter().zip(results).partition(|&(range, result)| made(range, result));
        let missed_mib = missed.iter().map(|((_, len), _)| len >> 20).sum::<u64>();
        let note = (missed_mib > 0).then(|| {
            format!(
                "{missed_mib} MiB of explicit huge pages: this host has not so many free \
                (vm.nr_hugepages); ordinary pages instead"
            )
        });
        Ok((made.into_iter().map(|((start, _), _)| start).collect(), note))
    }

    fn map_regions(&self, plan: &PagesPlan, files: &Files, made: &BTreeSet<u64>) -> Result<(), RebuildError> {
        let mut batch = self.batch();
        let regions = self.record.regions.iter().zip(&plan.early_write);
        for (region, early) in regions.filter(|(region, _)| !made.contains(&region.start.0)) {
            let prot = prot(region, *early);
            let (start, len) = (region.start.0, region.end.0 - region.start.0);
            let args = match &region.backing {
                Backing::Kernel { .. } if self.other_vdso => {
                    [start, len, prot, MAP_PRIVATE | MAP_ANONYMOUS | NOREPLACE, NO_FD, 0]
                }
                Backing::Kernel { .. } | Backing::SharedAnonymous { .. } | Backing::SystemV { .. } => {
                    continue;
                }
                Backing::Anonymous => {
                    let grows = if region.has("gd") { MAP_GROWSDOWN } else { 0 };
                    let kind = if region.has("dp") { MAP_DROPPABLE } else { MAP_PRIVATE };
                    let flags = kind | MAP_ANONYMOUS | uncounted(region, *early) | NOREPLACE | grows;
                    [start, len, prot, flags, NO_FD, 0]
                }
                Backing::PrivateFile { offset, .. } | Backing::Nameless { offset, shared: false, .. } => {
                    let flags = MAP_PRIVATE | uncounted(region, *early) | NOREPLACE;
                    [start, len, prot, flags, files.of(region), *offset]
                }
                Backing::SharedFile { offset, .. } | Backing::Nameless { offset, .. } => {
                    [start, len, prot, MAP_SHARED | NOREPLACE, files.of(region), *offset]
                }
            };
            batch.call(libc::SYS_mmap, &args, Need::Must("map memory at", start))?;
        }
        batch.finish().map(|_| ())
    }

    /// Shared memory without a name: each object is made once in the staging range; its pieces are second mappings
    /// of it (mremap(2) with an old size of 0), so that what the program mapped twice is one memory again. What
    /// other processes have too was made before the exec ([`kept_fds`]).
    fn map_shared_objects(&self) -> Result<(), RebuildError> {
        /// Length of the object, and each piece with its offset in it.
        type OwnObject<'a> = (u64, Vec<(&'a Region, u64)>);
        let mut objects: HashMap<u64, OwnObject<'_>> = HashMap::new();
        let mut batch = self.batch();
        let mut inherited = BTreeMap::new();
        for region in &self.record.regions {
            let (Backing::SharedAnonymous { offset, .. }, Some((object, least))) =
                (&region.backing, kept_fds::object_of(region))
            else {
                continue;
            };
            if let Some(SharedObject { number, .. }) = self.shared.get(&object) {
                let (start, len) = (region.start.0, region.end.0 - region.start.0);
                let fd = u64::from(number.cast_unsigned());
                let args = [start, len, PROT_READ | PROT_WRITE, MAP_SHARED | NOREPLACE, fd, *offset];
                batch.call(libc::SYS_mmap, &args, Need::Must("map shared memory at", start))?;
                inherited.insert(object, fd);
            } else {
                let entry = objects.entry(object).or_default();
                entry.0 = entry.0.max(least);
                entry.1.push((region, *offset));
            }
        }
        for fd in inherited.into_values() {
            batch.call(libc::SYS_close, &[fd], Need::Must("close descriptor", fd))?;
        }
        let staging = self.layout.staging;
        for (size, pieces) in objects.values() {
            let uncounted = if pieces.iter().any(|(region, _)| region.has("nr")) { MAP_NORESERVE } else { 0 };
            let flags = MAP_SHARED | MAP_ANONYMOUS | uncounted | NOREPLACE;
            let args = [staging, *size, PROT_READ | PROT_WRITE, flags, NO_FD, 0];
            batch.call(libc::SYS_mmap, &args, Need::Must("make shared memory of length", *size))?;
            for &(region, offset) in pieces {
                let (start, len) = (region.start.0, region.end.0 - region.start.0);
                let args = [staging + offset, 0, len, REMAP, start];
                batch.call(libc::SYS_mremap, &args, Need::Must("map shared memory at", start))?;
            }
            batch.call(libc::SYS_munmap, &[staging, *size], Need::Must("unmap", staging))?;
        }
        batch.finish().map(|_| ())
    }

    /// A lazy restart: runs of pages are mapped from the segments, over the anonymous memory made before.
    fn map_segments(
        &self,
        plan: &PagesPlan,
        files: &Files,
        pages: &dyn PageProvider,
    ) -> Result<(), RebuildError> {
        let mut batch = self.batch();
        for run in &plan.mapped {
            let fd = files.by_key.get(&FileKey::Segment(run.segment)).copied().unwrap_or(NO_FD);
            let regions = &self.record.regions;
            let region = regions.get(regions.partition_point(|region| region.end.0 <= run.start));
            let (prot, uncounted) = match region {
                // The kernel counts it when it is writable, as it is until `protect`.
                Some(region) if region.has("ac") => (u64::from(run.prot) | PROT_WRITE, 0),
                Some(region) => (u64::from(run.prot), uncounted(region, false)),
                None => (u64::from(run.prot), MAP_NORESERVE),
            };
            let flags = MAP_PRIVATE | MAP_FIXED | uncounted;
            let begin = pages.segment(run.segment).map_or(0, |segment| segment.begin);
            let args = [run.start, run.len, prot, flags, fd, begin + run.offset];
            batch.call(libc::SYS_mmap, &args, Need::Must("map the image at", run.start))?;
        }
        batch.finish().map(|_| ())
    }

    /// Sets what madvise(2) had set, and names. Before the pages come in, so that huge pages can be used for them.
    fn advise(&self) -> Result<(), RebuildError> {
        const ADVICE: [(&str, i32); 8] = [
            ("sr", libc::MADV_SEQUENTIAL),
            ("rr", libc::MADV_RANDOM),
            ("hg", libc::MADV_HUGEPAGE),
            ("nh", libc::MADV_NOHUGEPAGE),
            ("dc", libc::MADV_DONTFORK),
            ("wf", libc::MADV_WIPEONFORK),
            ("dd", libc::MADV_DONTDUMP),
            ("mg", libc::MADV_MERGEABLE),
        ];
        let mut batch = self.batch();
        for region in self.record.regions.iter().filter(|r| !matches!(r.backing, Backing::Kernel { .. })) {
            let (start, len) = (region.start.0, region.end.0 - region.start.0);
            for (_, advice) in ADVICE.iter().filter(|(flag, _)| region.has(flag)) {
                // DONTFORK and WIPEONFORK change what the program's children see; the others are hints.
                let need = if matches!(*advice, libc::MADV_DONTFORK | libc::MADV_WIPEONFORK) {
                    Need::Must("advise memory at", start)
                } else {
                    Need::May
                };
                batch.call(libc::SYS_madvise, &[start, len, (*advice) as u64], need)?;
            }
            if let Some(name) = &region.name {
                let mut bytes = name.0.clone();
                bytes.push(0);
                batch.reserve(bytes.len())?;
                let name = batch.data(&bytes);
                let args = [libc::PR_SET_VMA as u64, libc::PR_SET_VMA_ANON_NAME as u64, start, len, name];
                batch.row(Row::new(libc::SYS_prctl, &args), Need::May);
            }
        }
        batch.finish().map(|_| ())
    }
}

/// MREMAP_MAYMOVE | MREMAP_FIXED.
const REMAP: u64 = 3;

fn is_kernel(mapping: &Mapping) -> bool {
    matches!(mapping.name.as_slice(), b"[vdso]" | b"[vvar]" | b"[vvar_vclock]")
}

fn kernel_name(mapping: &Mapping) -> String {
    String::from_utf8_lossy(&mapping.name).trim_matches(['[', ']']).to_owned()
}

/// A file that the seed opens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum FileKey {
    /// Index into [`holdfast_image::record::FileTable::mapped`], and how it is opened.
    Mapped { file: u32, writable: bool },
    /// Index into [`holdfast_image::record::FileTable::nameless`], and how it is opened.
    Nameless { file: u32, writable: bool },
    /// A segment of the image, or what is in its place ([`PageProvider::shared_pages`]).
    Segment(u32),
}

impl FileKey {
    fn of(region: &Region) -> Option<FileKey> {
        match region.backing {
            Backing::PrivateFile { file, .. } => Some(FileKey::Mapped { file, writable: false }),
            Backing::SharedFile { file, writable, .. } => Some(FileKey::Mapped { file, writable }),
            Backing::Nameless { file, shared, writable, .. } => {
                Some(FileKey::Nameless { file, writable: shared && writable })
            }
            _ => None,
        }
    }
    fn index(self) -> usize {
        match self {
            FileKey::Mapped { file, .. } | FileKey::Nameless { file, .. } => file as usize,
            FileKey::Segment(segment) => segment as usize,
        }
    }
}

/// Files open in the seed.
pub struct Files {
    open: Vec<u64>,
    by_key: HashMap<FileKey, u64>,
}

impl Files {
    fn of(&self, region: &Region) -> u64 {
        FileKey::of(region).and_then(|key| self.by_key.get(&key)).copied().unwrap_or(NO_FD)
    }
}
