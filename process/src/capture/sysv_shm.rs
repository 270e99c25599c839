//! System V shared memory: the segments behind mappings.
//!
//! Called by the cut inside the stop, and by `check`. The maps file gives the id of a segment as its inode (ipc/shm.c,
//! newseg). The pages are saved as those of other shared memory. Segments that nobody has attached belong to no process
//! and are not looked at: they stay on the host as they are.

use super::maps::{self, Kind, Mapped};
use holdfast_abi::SharedPage;
use holdfast_image::record::{InjectArea, Ownership, SysvShmRecord};
use holdfast_image::refusal::Refusal;
use holdfast_sys::procfs::{self, Mapping};
use holdfast_sys::procmem;
use holdfast_sys::sysv_shm::{self, SegmentFacts};
use std::collections::BTreeMap;
use std::io;

/// What is attached, and what is in the way, each by the place of its process.
#[derive(Debug, Default)]
pub struct Attached {
    /// All segments.
    pub segments: Vec<SysvShmRecord>,
    /// What cannot be restored.
    pub refusals: Vec<(usize, Refusal)>,
    /// What somebody else has attached too: a process that is just ending, perhaps.
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
pub fn attached<'a>(processes: impl Iterator<Item = Process<'a>>) -> Attached {
    let mut found = Attached::default();
    // Of each segment: how many mappings there are, and one of them. The kernel counts mappings, not calls of shmat.
    let mut known: BTreeMap<i32, (u64, usize, Process<'_>, &Mapping)> = BTreeMap::new();
    for (place, process) in processes.enumerate() {
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
    for (id, (own, place, process, mapping)) in known {
        match sysv_shm::segment(id) {
            Ok(SegmentFacts { key, size, mode, removed, attached, owner: (user, group), creator }) => {
                let kernel = Some(id);
                let (id, kernel) = shown(process, id).map_or((id, None), |shown| (shown, kernel));
                let (owner, creator) = (Some(Ownership { user, group }), Some(creator));
                let record = SysvShmRecord { id, kernel, key, size, mode, removed, owner, creator };
                found.segments.push(record);
                if attached > own {
                    let reason = format!(
                        "System V shared memory {id} is attached outside the job too, which is not supported: end what \
                         has it, or start it within the job"
                    );
                    found.shared.push((place, maps::refuse(mapping, reason)));
                }
            }
            Err(error) => {
                let reason = format!("System V shared memory {id} that cannot be looked at: {error}");
                found.refusals.push((place, maps::refuse(mapping, reason)));
            }
        }
    }
    found
}

/// The id that a restart has libholdfast show instead of the kernel's.
fn shown(process: Process<'_>, kernel: i32) -> Option<i32> {
    let page = process.area.map(|area| area.shared.0).filter(|page| *page != 0)?;
    let table = table(|at, buffer| procmem::read(process.pid, page + at as u64, buffer)).ok()?;
    table.iter().find(|entry| entry.1 == kernel).map(|entry| entry.0)
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
