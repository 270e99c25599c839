//! System V shared memory: the segments behind mappings, and those that processes have made or attached before and that
//! no process has attached just now.
//!
//! Called by the cut inside the stop, and by `check`. The maps file gives the id of a segment as its inode (ipc/shm.c,
//! newseg). The pages are saved as those of other shared memory; what is in a segment that no process has attached is
//! read here, by attaching it for a moment. Of those libholdfast knows (`preload/src/segments.rs`), or, where a process
//! has none, the kernel who was the last to use one. Fails by: a refusal that names the segment.

use super::files::{Look, NAMELESS_LIMIT};
use super::maps::{self, Kind, Mapped};
use crate::refuse;
use holdfast_abi::SharedPage;
use holdfast_image::PAGE_SIZE;
use holdfast_image::bytes::Blob;
use holdfast_image::record::{ContentPiece, InjectArea, Ownership, SegmentContent, SysvShmRecord};
use holdfast_image::refusal::Refusal;
use holdfast_sys::procfs::{self, Mapping};
use holdfast_sys::procmem;
use holdfast_sys::sysv_shm::{self, Attached, SegmentFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// What is used, and what is in the way, each by the place of its process.
#[derive(Debug, Default)]
pub struct Used {
    /// All segments.
    pub segments: Vec<SysvShmRecord>,
    /// What is in those that no process has attached; of a process that runs on ([`Look::Running`]): nothing.
    pub contents: Vec<SegmentContent>,
    /// What cannot be restored.
    pub refusals: Vec<(usize, Refusal)>,
    /// What may be another matter in a moment: another process has a segment attached too, one that is just ending,
    /// perhaps; or one is too large to be read here while no process has it attached.
    pub shared: Vec<(usize, Refusal)>,
}

fn of_process(mapped: &[Mapped]) -> impl Iterator<Item = &Mapping> {
    mapped.iter().filter(|mapped| mapped.kind == Kind::SystemV).map(|mapped| &mapped.mapping)
}

/// A process.
#[derive(Clone, Copy, Debug)]
pub struct Process<'a> {
    /// Its pid.
    pub pid: i32,
    /// Where libholdfast reserved memory, if it did.
    pub area: Option<&'a InjectArea>,
    /// Its mappings.
    pub mapped: &'a [Mapped],
}

/// The segments of all processes.
pub fn used<'a>(processes: impl Iterator<Item = Process<'a>>, look: Look) -> Used {
    let processes: Vec<Process<'a>> = processes.collect();
    let mut found = Used::default();
    let attached = attached(&processes, &mut found);
    let unattached = unattached(&processes, &attached, look, &mut found);
    for (id, (own, place, process, mapping)) in attached {
        let refuse = |reason: String| (place, maps::refuse(mapping, reason));
        match sysv_shm::segment(id) {
            Ok(facts) => {
                found.shared.extend((facts.attached > own).then(|| refuse(attached_outside(id))));
                found.segments.push(record(id, shown(process, id), &facts));
            }
            Err(error) => found.refusals.push(refuse(unseen(id, &error))),
        }
    }
    for (place, process, known, id) in unattached {
        let refuse = |reason: String| (place, refuse::process(process.pid, reason));
        match sysv_shm::segment(id) {
            // It was removed.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIDRM)) => {}
            Err(error) => found.refusals.push(refuse(unseen(id, &error))),
            Ok(facts) if facts.attached > 0 => found.shared.push(refuse(attached_outside(id))),
            Ok(facts) if facts.size > NAMELESS_LIMIT => found.shared.push(refuse(too_large(id, facts.size))),
            Ok(facts) => match content(id, facts.size, look) {
                Ok(content) => {
                    let segment = u32::try_from(found.segments.len()).unwrap_or(u32::MAX);
                    found.segments.push(record(id, Some(known), &facts));
                    found.contents.push(SegmentContent { segment, content });
                }
                Err(error) => found.refusals.push(refuse(unseen(id, &error))),
            },
        }
    }
    found
}

/// Of each segment that is attached: how many mappings there are (the kernel counts them, not calls of shmat), and one
/// of them.
type Known<'p, 'a> = BTreeMap<i32, (u64, usize, &'p Process<'a>, &'p Mapping)>;

fn attached<'p, 'a>(processes: &'p [Process<'a>], found: &mut Used) -> Known<'p, 'a> {
    let mut known = Known::new();
    for (place, process) in processes.iter().enumerate() {
        for mapping in of_process(process.mapped) {
            if is_elsewhere(process.pid) {
                let reason = "System V shared memory of another IPC namespace: not supported".into();
                found.refusals.push((place, maps::refuse(mapping, reason)));
                break;
            }
            let Ok(id) = i32::try_from(mapping.inode) else { continue };
            known.entry(id).or_insert((0, place, process, mapping)).0 += 1;
        }
    }
    known
}

/// Those that processes use and that none of them has attached: with the place of a process, that process, the id that
/// it knows, and the kernel's.
fn unattached<'p, 'a>(
    processes: &'p [Process<'a>],
    attached: &Known<'_, '_>,
    look: Look,
    found: &mut Used,
) -> Vec<(usize, &'p Process<'a>, i32, i32)> {
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    for (place, process) in processes.iter().enumerate() {
        match noted(process) {
            Ok(known) => {
                for known in known {
                    let kernel = to_kernel(process, known);
                    if !attached.contains_key(&kernel) && seen.insert(kernel) {
                        all.push((place, process, known, kernel));
                    }
                }
            }
            // It may have become another process, or have ended.
            Err(error) if look == Look::Running && error.raw_os_error().is_some() => {}
            Err(error) => found.refusals.push((place, refuse::process(process.pid, error))),
        }
    }
    let is_bare = |process: &Process<'_>| process.area.is_some_and(|area| area.shared.0 == 0);
    if let Some(first) = processes.iter().position(is_bare) {
        let mut pids: Vec<i32> = processes.iter().map(|one| if is_bare(one) { one.pid } else { 0 }).collect();
        // We were the last to attach what an image before this one has.
        pids.push(std::process::id().cast_signed());
        for (place, id) in sysv_shm::last_users(&pids).unwrap_or_default() {
            let place = if place == processes.len() { first } else { place };
            if !attached.contains_key(&id) && seen.insert(id) {
                all.push((place, &processes[place], id, id));
            }
        }
    }
    if let Some((place, process, ..)) = all.iter().find(|(_, process, ..)| is_elsewhere(process.pid)) {
        let reason = "System V shared memory of another IPC namespace: not supported";
        found.refusals.push((*place, refuse::process(process.pid, reason)));
        return Vec::new();
    }
    all
}

/// What libholdfast has noted in a process: ids as that knows them.
fn noted(process: &Process<'_>) -> io::Result<Vec<i32>> {
    const LEN: usize = 8 + SharedPage::USED_SEGMENT_MAX * 8;
    let Some(page) = page_of(process) else { return Ok(Vec::new()) };
    let mut bytes = [0; LEN];
    procmem::read(process.pid, page + SharedPage::USED_SEGMENT_COUNT as u64, &mut bytes)?;
    let (count, pairs) = bytes.as_chunks::<8>().0.split_first().unwrap_or((&[0; 8], &[]));
    let count = usize::try_from(u64::from_le_bytes(*count)).unwrap_or(usize::MAX);
    if count > SharedPage::USED_SEGMENT_MAX {
        let most = SharedPage::USED_SEGMENT_MAX;
        return Err(io::Error::other(format!(
            "it has made or attached more than {most} segments of System V shared memory: not supported"
        )));
    }
    let entry = |pair: &[u8; 8]| u64::from_le_bytes(*pair);
    let valid = u64::from(SharedPage::IPC_VALID) << 32;
    let entries = pairs.iter().take(count).map(entry).filter(|entry| entry & valid != 0);
    Ok(entries.map(|entry| (entry & 0xffff_ffff) as u32 as i32).collect())
}

/// What is in a segment that no process has attached. Inside the stop.
fn content(id: i32, size: u64, look: Look) -> io::Result<Vec<ContentPiece>> {
    if look == Look::Running {
        return Ok(Vec::new());
    }
    let attached = Attached::for_reading(id)?;
    let mut pieces: Vec<ContentPiece> = Vec::new();
    let mut page = vec![0; usize::try_from(PAGE_SIZE).unwrap_or(0)];
    for offset in (0..size).step_by(page.len()) {
        attached.read(offset, &mut page)?;
        if page.iter().all(|byte| *byte == 0) {
            continue;
        }
        match pieces.last_mut() {
            Some(last) if last.offset + last.data.0.len() as u64 == offset => {
                last.data.0.extend_from_slice(&page)
            }
            _ => pieces.push(ContentPiece { offset, data: Blob(page.clone()) }),
        }
    }
    Ok(pieces)
}

fn record(id: i32, known: Option<i32>, facts: &SegmentFacts) -> SysvShmRecord {
    let SegmentFacts { key, size, mode, removed, owner: (user, group), creator, .. } = *facts;
    let kernel = Some(id).filter(|_| known.is_some_and(|known| known != id));
    let (id, owner) = (known.unwrap_or(id), Some(Ownership { user, group }));
    SysvShmRecord { id, kernel, key, size, mode, removed, owner, creator: Some(creator) }
}

fn attached_outside(id: i32) -> String {
    format!(
        "System V shared memory {id} is attached outside the job too, which is not supported: end what has it, or \
         start it within the job"
    )
}

fn too_large(id: i32, size: u64) -> String {
    format!(
        "System V shared memory {id} has {} MiB and nobody has it attached just now (the limit is {}): try again while \
         a process has it, or keep it attached",
        size >> 20,
        NAMELESS_LIMIT >> 20
    )
}

fn unseen(id: i32, error: &io::Error) -> String {
    format!("System V shared memory {id} that cannot be looked at: {error}")
}

/// The page of libholdfast in a process.
fn page_of(process: &Process<'_>) -> Option<u64> {
    process.area.map(|area| area.shared.0).filter(|page| *page != 0)
}

/// The ids that a restart has libholdfast show instead of the kernel's, each with that.
fn shown_ids(process: &Process<'_>) -> Vec<(i32, i32)> {
    let Some(page) = page_of(process) else { return Vec::new() };
    table(|at, buffer| procmem::read(process.pid, page + at as u64, buffer)).unwrap_or_default()
}

/// The id that is shown.
fn shown(process: &Process<'_>, kernel: i32) -> Option<i32> {
    shown_ids(process).into_iter().find(|entry| entry.1 == kernel).map(|entry| entry.0)
}

/// The kernel's id.
fn to_kernel(process: &Process<'_>, known: i32) -> i32 {
    let other = shown_ids(process).into_iter().find(|entry| entry.0 == known);
    other.map_or(known, |entry| entry.1)
}

/// The table of libholdfast's page: ids that the program knows, each with the kernel's. `read`: from an offset in it.
///
/// # Errors
/// Of reading.
pub fn table(read: impl Fn(usize, &mut [u8]) -> io::Result<()>) -> io::Result<Vec<(i32, i32)>> {
    let mut count = [0_u8; 8];
    read(SharedPage::SEGMENT_COUNT, &mut count)?;
    let count = usize::try_from(u64::from_le_bytes(count)).unwrap_or(0).min(SharedPage::SEGMENT_MAX);
    let mut bytes = vec![0_u8; count * 8];
    read(SharedPage::SEGMENT_TABLE, &mut bytes)?;
    let number =
        |pair: &[u8], at: usize| i32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]]);
    Ok(bytes.chunks_exact(8).map(|pair| (number(pair, 0), number(pair, 4))).collect())
}

/// Whether ids mean something else to a process.
pub fn is_elsewhere(pid: i32) -> bool {
    let namespace = |who: &str| procfs::link(&format!("/proc/{who}/ns/ipc")).ok();
    let own = namespace("self");
    namespace(&pid.to_string()).is_some_and(|its| own.is_some_and(|own| own != its))
}
