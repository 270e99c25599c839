//! What is looked up of a process before it is stopped, so that the stop need not.
//!
//! Called by [`super::stopped_group`], on the tracer thread. Fails by: [`CutError`]; nothing was stopped.

use crate::capture::hardlinks;
use crate::capture::landlock;
use crate::capture::maps::Flags;
use crate::capture::mounts;
use crate::capture::regions;
use crate::error::CutError;
use crate::freeze::frozen_memory::SavedPages;
use crate::job::process_age;
use crate::job::target::Target;
use crate::job::tracer_state::Kept;
use crate::options::CutOptions;
use crate::refuse;
use crate::stop::interrupt::{self, Whom};
use crate::stop::threads::{self, Samples};
use crate::thread_pool;
use holdfast_image::refusal::Refusal;
use holdfast_sys::clone;
use holdfast_sys::procfs::{self, Status};
use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

/// Bytes that the buffer for pages copied inside the stop has ready beside what shared memory takes, at least and at
/// most, and for how much of a program: fresh memory takes ten times as long to fill (43 MB: 95 ms instead of 8, on a
/// virtual machine).
const READY_LEN: (usize, usize) = (2 << 20, 256 << 20);
const READY_SHARE: u64 = 64;
/// A process that is older does not end at once, mostly.
const YOUNG: Duration = Duration::from_secs(2);

/// Facts looked up before the stop.
pub struct Before {
    /// Flags of mappings; none of one that is held.
    pub flags: Flags,
    /// Who sleeps in a timed call.
    pub samples: Samples,
    /// The flags of mappings are to be looked at inside the stop: it is held, so that one look is enough; its mappings
    /// change all the time; or it is one of several that has just been made, as those are that soon end and cannot be
    /// looked at afterwards.
    pub flags_inside: bool,
    /// Where its vdso is.
    vdso: Range<u64>,
    /// See [`Status::is_nested`].
    pub nested: bool,
    /// A thread is under seccomp filters of its own.
    pub is_filtered: bool,
    /// See [`landlock::outsider`].
    pub outsider: Option<i32>,
    /// Mapped files in whose place there is another by now.
    pub replaced: HashSet<(Vec<u8>, u64)>,
    /// The process.
    pub pidfd: std::os::fd::OwnedFd,
}

impl Before {
    /// What is to be stopped.
    pub fn whom(&self, pid: i32) -> Whom {
        Whom { pid, vdso: self.vdso.clone(), spared: Vec::new() }
    }
}

/// Looks at what needs no stop, and refuses early.
pub fn prepare(
    target: &Target,
    several: bool,
    options: &CutOptions,
    kept: &mut Kept,
) -> Result<Before, CutError> {
    let pid = target.pid;
    let status = Status::read(pid, pid).map_err(|_| CutError::Gone)?;
    let tids = procfs::tasks(pid).map_err(|_| CutError::Gone)?;
    let by = if status.has_ended() { procfs::shown_by(pid) } else { pid };
    if status.has_ended() && tids.len() <= 1 {
        return Err(CutError::Gone);
    }
    // Opens the files of those that are new: inside the stop it takes longer, tens of milliseconds where the table of
    // descriptors grows (fs/file.c, expand_fdtable, waits for all processors).
    kept.tasks.look(pid, &tids);
    let mut refusals: Vec<Refusal> = refuse::area(pid, &target.area).into_iter().collect();
    let confined = refuse::confined(pid, &tids, Some(&target.area), &options.namespaces);
    refusals.extend(confined.refusals);
    refusals.extend(refuse::shared_with_parent(pid, &status));
    if let Some(tracer) = status.tracer() {
        if refuse::is_own_thread(tracer) {
            return Err(CutError::Busy {
                what: format!(
                    "it is still being resumed after the last stop: {}",
                    interrupt::doing(pid, pid)
                ),
            });
        }
        if refuse::is_part_of(tracer, pid) {
            return Err(CutError::Busy { what: format!("it is {}", refuse::inspected(tracer)) });
        }
        refusals.push(refuse::traced(pid, tracer));
    }
    refusals.extend(refuse::closed(pid));
    refuse::unless_empty(refusals)?;
    let (flags, mut maps) = procfs::by_any_thread(pid, |tid| {
        // What is held is looked at once, when it is stopped: a look walks over all pages.
        let flags = match options.hold {
            true => Vec::new(),
            false => procfs::vm_flags(pid, tid).ok().filter(|flags| !flags.is_empty())?,
        };
        Some((flags, procfs::maps(pid, tid).ok().filter(|maps| !maps.is_empty())?))
    })
    .map_err(|_| CutError::Gone)?;
    // What it finds is known inside the stop then.
    hardlinks::name_mappings(&mut maps);
    mounts::survey(by, &options.namespaces, &mut maps)
        .map_err(|why| CutError::Refused(vec![refuse::process(pid, why)]))?;
    let replaced = regions::replaced(pid, &maps, &mut kept.identities);
    let vdso =
        maps.iter().find(|mapping| mapping.name == b"[vdso]").map_or(0..0, |vdso| vdso.start..vdso.end);
    let pidfd = clone::pidfd_open(pid).map_err(|_| CutError::Gone)?;
    let share = usize::try_from(target.tracking.pages().bytes() / READY_SHARE).unwrap_or(usize::MAX);
    let shared = Status::read(by, by).ok().and_then(|status| status.number("RssShmem"));
    let shared = shared.map_or(0, |kib| usize::try_from(kib << 10).unwrap_or(0));
    SavedPages::warm(share.clamp(READY_LEN.0, READY_LEN.1).saturating_add(shared));
    thread_pool::ready();
    let flags_inside =
        options.hold || options.changing || several && process_age::of(pid).is_none_or(|age| age < YOUNG);
    Ok(Before {
        flags,
        samples: threads::sample(pid),
        flags_inside,
        vdso,
        nested: status.is_nested(),
        is_filtered: confined.is_filtered,
        outsider: landlock::outsider(by, &status, options.namespaces.depth()),
        replaced,
        pidfd,
    })
}
