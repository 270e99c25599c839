//! System V shared memory: the segments that are still there, or new ones, with their content.
//!
//! A segment outlives the programs, unless it was removed. Runs in the agent: [`SysvShm::claim`] before there is a
//! process, [`attach`] by tables in each seed (called by `address_space`), [`SysvShm::fill`] when nothing else can
//! fail any more, [`SysvShm::keep`] when the program runs. The agent has all attached until they are filled: a
//! segment that was removed is removed again at once, and lives by that.
//!
//! What must hold: no other program has a segment attached, and what is found is not written to before `fill`. Who
//! cannot choose an id ([`choose_id`]) gets another one, and libholdfast shows the programs the old one
//! ([`SysvShm::write_ids`]). How it fails: an error names the id; what was made is removed.

use super::ranges;
use super::remote_calls::{Batch, Need};
use super::{choose_id, ipc_owner};
use crate::capture::sysv_shm as capture_shm;
use crate::job::names;
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Job;
use holdfast_abi::SharedPage;
use holdfast_image::pages::{ExtentSource, PageProvider};
use holdfast_image::record::{Backing, ProcessRecord, Region, SegmentContent, SysvShmRecord};
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::sysv_shm::{self, Attached, SegmentFacts};
use holdfast_sys::unix_socket;
use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

const NEXT_ID: &str = "/proc/sys/kernel/shm_next_id";
/// How long processes that were killed may take to give a segment up.
const LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);
/// MREMAP_MAYMOVE | MREMAP_FIXED.
const REMAP: u64 = 3;
/// Permission without which its own user cannot fill it.
const OWNER: u32 = 0o600;

/// The segments of a job, in the agent.
#[derive(Debug, Default)]
pub struct SysvShm(Vec<Claimed>);

#[derive(Debug)]
struct Claimed {
    /// The kernel's id; the program knows that of `about`.
    id: i32,
    about: SysvShmRecord,
    /// Until it is filled.
    attached: Option<Attached>,
    /// It is new: all zero, and goes if the restart fails.
    made: bool,
    /// It stays when no process has it attached, so that it must be removed.
    lasting: bool,
    /// No other job may take it meanwhile ([`crate::job::names`]).
    name: Option<UnixDatagram>,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if self.lasting
            && let Err(error) = sysv_shm::remove(self.id)
        {
            tracing::warn!("System V shared memory {} stays behind: {error}", self.id);
        }
    }
}

impl SysvShm {
    /// Finds or makes all.
    ///
    /// # Errors
    /// Names the segment that another program has attached, or whose id cannot be had.
    pub fn claim(job: &Job<'_>) -> Result<SysvShm, RebuildError> {
        let all = job.record.files.segments.iter().zip(extents(job.record));
        all.map(|(segment, len)| if segment.removed { make(segment, len) } else { claim(segment, len) })
            .collect::<Result<_, _>>()
            .map(SysvShm)
    }

    /// What the user should know, one line each.
    pub fn notes(&self) -> Vec<String> {
        let is_other = |claimed: &&Claimed| {
            let about = &claimed.about;
            !about.removed && claimed.id != about.kernel_id() && claimed.id != about.id
        };
        let other = self.0.iter().filter(is_other);
        let note = |claimed: &Claimed| {
            format!(
                "System V shared memory {} was gone and is {} now: the program is shown the old id, but not \
                 one that it \
                 executes from now on; root gets the same id",
                claimed.about.id, claimed.id
            )
        };
        other.map(note).collect()
    }

    /// Tells libholdfast in a process which of the ids that the program knows are others now.
    ///
    /// # Errors
    /// The process has no libholdfast that could show other ids, or there are too many.
    pub fn write_ids(&self, memory: &ForcedMemory, record: &ProcessRecord) -> Result<(), RebuildError> {
        let page = record.inject.shared.0;
        let others = || self.0.iter().filter(|claimed| claimed.id != claimed.about.id);
        if page == 0 {
            return match others().next() {
                Some(claimed) => Err(RebuildError::Refused(format!(
                    "System V shared memory {} is gone, and its id cannot be chosen here: restart as root",
                    claimed.about.id
                ))),
                None => Ok(()),
            };
        }
        let io = || RebuildError::io("writing the page of libholdfast in the program");
        let address = |at: usize| page + at as u64;
        // Those of which the job knew nothing stay as they are.
        let mut table = capture_shm::table(|at, buffer| memory.read(address(at), buffer)).map_err(io())?;
        table.retain(|(known, _)| self.0.iter().all(|claimed| claimed.about.id != *known));
        table.extend(others().map(|claimed| (claimed.about.id, claimed.id)));
        if table.len() > SharedPage::SEGMENT_MAX {
            return Err(RebuildError::Refused(format!(
                "{} segments of System V shared memory have other ids now, more than libholdfast can show: \
                 restart as root",
                table.len()
            )));
        }
        let bytes: Vec<u8> = table
            .iter()
            .flat_map(|(known, kernel)| [known.to_le_bytes(), kernel.to_le_bytes()])
            .flatten()
            .collect();
        memory.write(address(SharedPage::SEGMENT_TABLE), &bytes).map_err(io())?;
        memory.write(address(SharedPage::SEGMENT_COUNT), &(table.len() as u64).to_le_bytes()).map_err(io())
    }

    /// Their ids, in the order of the record.
    pub fn ids(&self) -> Vec<i32> {
        self.0.iter().map(|claimed| claimed.id).collect()
    }

    /// Makes those zero that were found, as far as mappings of `job` show them: the image has only pages that there
    /// were. Before [`SysvShm::fill`].
    ///
    /// # Errors
    /// Names the segment.
    pub fn clear(&self, job: &Job<'_>) -> Result<(), RebuildError> {
        for region in job.members().flat_map(|member| &member.own.regions) {
            let Backing::SystemV { segment, offset, .. } = region.backing else { continue };
            let claimed = self.0.get(segment as usize).filter(|claimed| !claimed.made);
            let Some((claimed, attached)) = claimed.and_then(|one| Some((one, one.attached.as_ref()?)))
            else {
                continue;
            };
            let len = (region.end.0 - region.start.0).min(attached.size().saturating_sub(offset));
            if len == 0 {
                continue;
            }
            attached
                .clear(offset, len)
                .map_err(RebuildError::io(format!("filling System V shared memory {}", claimed.id)))?;
        }
        Ok(())
    }

    /// Puts the pages of one process's mappings into them.
    ///
    /// # Errors
    /// Names the segment.
    pub fn fill(&self, record: &ProcessRecord, pages: &dyn PageProvider) -> Result<(), RebuildError> {
        for region in &record.regions {
            let Backing::SystemV { segment, offset, .. } = region.backing else { continue };
            let Some(claimed) = self.0.get(segment as usize) else { continue };
            let Some(attached) = &claimed.attached else { continue };
            for (from, to, source) in ranges::within(pages.extents(), region) {
                let at = offset + (from - region.start.0);
                let done = match source {
                    // See `clear`.
                    ExtentSource::Zero => Ok(()),
                    _ => ranges::pieces(from, to, pages, |start, bytes| {
                        attached.write(at + (start - from), bytes)
                    }),
                };
                done.map_err(RebuildError::pages(format!("filling System V shared memory {}", claimed.id)))?;
            }
        }
        Ok(())
    }

    /// Puts in what was in those that no process had attached.
    ///
    /// # Errors
    /// Names the segment.
    pub fn fill_unattached(&self, contents: &[SegmentContent]) -> Result<(), RebuildError> {
        for SegmentContent { segment, content } in contents {
            let Some(claimed) = self.0.get(*segment as usize) else { continue };
            let Some(attached) = &claimed.attached else { continue };
            let cleared = if claimed.made { Ok(()) } else { attached.clear(0, attached.size()) };
            let mut pieces = content.iter();
            cleared
                .and_then(|()| pieces.try_for_each(|piece| attached.write(piece.offset, &piece.data.0)))
                .map_err(RebuildError::io(format!("filling System V shared memory {}", claimed.id)))?;
        }
        Ok(())
    }

    /// Gives new ones the permission bits that they had, and detaches all, for the programs may count who has them.
    /// After [`SysvShm::fill`].
    ///
    /// # Errors
    /// Names the segment.
    pub fn settle(&mut self) -> Result<(), RebuildError> {
        let restricted = |claimed: &&Claimed| claimed.made && claimed.about.mode & OWNER != OWNER;
        for claimed in self.0.iter().filter(restricted) {
            let what = format!("setting the permission bits of System V shared memory {}", claimed.id);
            sysv_shm::set_mode(claimed.id, claimed.about.mode).map_err(RebuildError::io(what))?;
        }
        self.0.iter_mut().for_each(|claimed| claimed.attached = None);
        Ok(())
    }

    /// Leaves them to the program. Their names stay with the agent as long as it lives.
    pub fn keep(mut self) {
        for claimed in &mut self.0 {
            claimed.lasting = false;
            claimed.name.take().into_iter().for_each(std::mem::forget);
        }
    }
}

/// How long each must be for its mappings, which may end with a huge page of which it has only a part.
fn extents(record: &ProcessRecord) -> Vec<u64> {
    let mut all: Vec<u64> = record.files.segments.iter().map(|segment| segment.size).collect();
    for region in record.processes().flat_map(|process| &process.regions) {
        let Backing::SystemV { segment, offset, .. } = region.backing else { continue };
        let end = offset + (region.end.0 - region.start.0);
        match all.get_mut(segment as usize) {
            Some(len) if region.huge_shift().is_some() => *len = end.max(*len),
            _ => {}
        }
    }
    all
}

/// One that was not removed: that with its id, or the one that has its key now, or a new one.
fn claim(about: &SysvShmRecord, len: u64) -> Result<Claimed, RebuildError> {
    match take(about, about.kernel_id())? {
        Some(found) => Ok(found),
        None => make(about, len),
    }
}

/// One that is there, alone. `None`: it is gone, or is another one.
fn take(about: &SysvShmRecord, id: i32) -> Result<Option<Claimed>, RebuildError> {
    let begun = Instant::now();
    loop {
        // One that may not even be looked at is another program's.
        let Ok(facts) = sysv_shm::segment(id) else { return Ok(None) };
        let SegmentFacts { key, size, removed, attached, .. } = facts;
        if !removed && (key, size) != (about.key, about.size) {
            return Ok(None);
        }
        refuse_others(about, id, &facts)?;
        let name = if removed || attached > 0 { None } else { take_name(id)? };
        if name.is_some() {
            let what = format!("attaching System V shared memory {id} to put its content back");
            let own = Attached::new(id).map_err(RebuildError::io(what))?;
            // Another restart may have come in between.
            if sysv_shm::segment(id).is_ok_and(|facts| facts.attached == 1) {
                let (about, made, lasting) = (*about, false, false);
                return Ok(Some(Claimed { id, about, attached: Some(own), made, lasting, name }));
            }
        }
        if begun.elapsed() > LIMIT && removed {
            return Ok(None);
        }
        if begun.elapsed() > LIMIT {
            let what = if attached == 0 { "belongs to" } else { "is attached by" };
            return Err(RebuildError::Refused(format!(
                "System V shared memory {id} {what} another program (the job itself, or a restart of it?): end that \
                 first"
            )));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Takes the name of a segment; `None`: another agent has it.
fn take_name(id: i32) -> Result<Option<UnixDatagram>, RebuildError> {
    names::take_segment(id).map_err(RebuildError::io("taking the name of System V shared memory"))
}

/// One that another user has made or owns would show that user the program's memory.
fn refuse_others(about: &SysvShmRecord, id: i32, now: &SegmentFacts) -> Result<(), RebuildError> {
    let whose = ipc_owner::Recorded { owner: about.owner, creator: about.creator };
    match whose.another_user(now.owner.0, now.creator).filter(|_| !now.removed) {
        Some(other) => {
            Err(whose.refusal(&format!("System V shared memory {id}"), other, &format!("-m {id}")))
        }
        None => Ok(()),
    }
}

/// A new one of `size` bytes and ordinary pages, with the old id if that can be had.
fn make(about: &SysvShmRecord, size: u64) -> Result<Claimed, RebuildError> {
    let SysvShmRecord { id, key, mode, removed, .. } = *about;
    // A removed one has lost its key.
    let key = if removed { libc::IPC_PRIVATE } else { key };
    let create = || sysv_shm::create(key, size, mode | OWNER);
    let made = match choose_id::with_id(NEXT_ID, Some(id), create, sysv_shm::remove) {
        Ok(made) => made,
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => return adopt(about),
        Err(error) => {
            let what = format!("making System V shared memory {id} of {size} bytes anew");
            return Err(RebuildError::io(what)(error));
        }
    };
    let attached = Attached::new(made).inspect_err(|_| drop(sysv_shm::remove(made)));
    let attached = attached.map_err(RebuildError::io(format!("attaching System V shared memory {made}")))?;
    let attached = Some(attached);
    // Others can only have had their own; whose id this is here may be another user.
    if let Some(owner) = about.owner.filter(|_| unix_socket::effective_user() == 0) {
        let _ = sysv_shm::set_owner(made, (owner.user, owner.group));
    }
    let mut claimed = Claimed { id: made, about: *about, attached, made: true, lasting: true, name: None };
    claimed.name = take_name(made)?;
    if removed {
        sysv_shm::remove(made)
            .map_err(RebuildError::io(format!("removing System V shared memory {made}")))?;
        claimed.lasting = false;
    }
    Ok(claimed)
}

/// The one that was made with the same key after the checkpoint, by the old program perhaps: as a file is found by its
/// name.
fn adopt(about: &SysvShmRecord) -> Result<Claimed, RebuildError> {
    let SysvShmRecord { id, key, size, .. } = *about;
    let what = format!("looking for the System V shared memory with key {key:#x}");
    let found = sysv_shm::find(key).map_err(RebuildError::io(what))?;
    take(about, found)?.ok_or_else(|| {
        RebuildError::Refused(format!(
            "System V shared memory {id} is gone, and {found}, which has its key {key:#x} now, is not of \
             {size} bytes, or was \
             just removed: remove it (ipcrm -m {found}), or restart again"
        ))
    })
}

/// A mapping of a segment.
struct Piece {
    start: u64,
    len: u64,
    offset: u64,
    prot: u64,
    huge: bool,
}

/// Attaches the segments of one process where they were, once for those that may be made writable and once for
/// those that may not: each in the staging range, of which the pieces are second mappings (mremap(2) with an old
/// size of 0). Of huge pages there are none such (mm/mremap.c): they are attached in their place.
///
/// # Errors
/// Names the segment, or the mapping.
pub fn attach(
    mut batch: Batch,
    record: &ProcessRecord,
    ids: &[i32],
    staging: u64,
) -> Result<(), RebuildError> {
    const WAYS: [(bool, i32, u64); 2] = [(true, 0, 3), (false, libc::SHM_RDONLY, 1)];
    for (index, id) in (0_u32..).zip(ids) {
        for (way, flag, prot) in WAYS {
            let of = |region: &Region| match region.backing {
                Backing::SystemV { segment, offset, writable } if (segment, writable) == (index, way) => {
                    Some(Piece {
                        start: region.start.0,
                        len: region.end.0 - region.start.0,
                        offset,
                        prot: u64::from(region.prot),
                        huge: region.huge_shift().is_some(),
                    })
                }
                _ => None,
            };
            let pieces: Vec<Piece> = record.regions.iter().filter_map(of).collect();
            let attached = (*id, flag);
            let (huge, small): (Vec<&Piece>, Vec<&Piece>) = pieces.iter().partition(|piece| piece.huge);
            attach_whole(&mut batch, attached, &huge)?;
            attach_pieces(&mut batch, attached, staging, &small)?;
            for Piece { start, len, prot: wanted, .. } in pieces {
                if wanted != prot {
                    let need = Need::Must("protect memory at", start);
                    batch.call(libc::SYS_mprotect, &[start, len, wanted], need)?;
                }
            }
        }
    }
    batch.finish().map(|_| ())
}

fn attach_at(batch: &mut Batch, (id, flag): (i32, i32), at: u64) -> Result<(), RebuildError> {
    let number = |value: i32| u64::from(value.cast_unsigned());
    let need = Need::Must("attach System V shared memory", number(id));
    batch.call(libc::SYS_shmat, &[number(id), at, number(flag)], need)
}

fn attach_whole(batch: &mut Batch, attached: (i32, i32), pieces: &[&Piece]) -> Result<(), RebuildError> {
    let addresses: BTreeSet<u64> =
        pieces.iter().map(|piece| piece.start.saturating_sub(piece.offset)).collect();
    addresses.into_iter().try_for_each(|at| attach_at(batch, attached, at))
}

fn attach_pieces(
    batch: &mut Batch,
    attached: (i32, i32),
    staging: u64,
    pieces: &[&Piece],
) -> Result<(), RebuildError> {
    if pieces.is_empty() {
        return Ok(());
    }
    attach_at(batch, attached, staging)?;
    for &&Piece { start, len, offset, .. } in pieces {
        let args = [staging + offset, 0, len, REMAP, start];
        batch.call(libc::SYS_mremap, &args, Need::Must("map shared memory at", start))?;
    }
    batch.call(libc::SYS_shmdt, &[staging], Need::Must("detach", staging))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::record;
    use holdfast_image::bytes::Blob;
    use holdfast_image::record::{ContentPiece, Ownership};

    fn of(segments: Vec<SysvShmRecord>) -> ProcessRecord {
        let mut record = record(Vec::new());
        record.files.segments = segments;
        record
    }

    #[test]
    fn what_is_found_stays_and_what_a_process_has_is_left_alone() {
        let id = sysv_shm::create(libc::IPC_PRIVATE, 8192, 0o600).unwrap();
        let about = SysvShmRecord {
            id,
            kernel: None,
            key: 0,
            size: 8192,
            mode: 0o600,
            removed: false,
            owner: None,
            creator: None,
        };
        let found = SysvShm::claim(&Job::new(&of(vec![about]))).unwrap();
        assert_eq!((found.ids(), found.0[0].made), (vec![id], false));
        let refused = SysvShm::claim(&Job::new(&of(vec![about]))).unwrap_err().to_string();
        assert!(refused.contains(&id.to_string()) && refused.contains("another program"), "{refused}");
        drop(found);
        let renamed = SysvShmRecord { id: 5, kernel: Some(id), ..about };
        assert_eq!(SysvShm::claim(&Job::new(&of(vec![renamed]))).unwrap().ids(), [id]);
        let other = SysvShm::claim(&Job::new(&of(vec![SysvShmRecord { size: 4096, ..about }]))).unwrap();
        let made = other.ids()[0];
        assert!(made != id && sysv_shm::segment(made).unwrap().size == 4096);
        assert!(other.notes()[0].contains(&format!("memory {id} was gone and is {made} now")));
        drop(other);
        assert!(sysv_shm::segment(made).is_err(), "what was made goes if the restart fails");
        assert_eq!(sysv_shm::segment(id).unwrap().attached, 0);
        sysv_shm::remove(id).unwrap();
    }

    #[test]
    fn what_no_process_had_attached_is_as_it_was_and_no_other_job_gets_it() {
        let id = sysv_shm::create(libc::IPC_PRIVATE, 3 * 4096, 0o600).unwrap();
        let own = Attached::new(id).unwrap();
        own.write(0, b"later").unwrap();
        drop(own);
        let about = SysvShmRecord {
            id,
            kernel: None,
            key: 0,
            size: 3 * 4096,
            mode: 0o600,
            removed: false,
            owner: None,
            creator: None,
        };
        let record = of(vec![about]);
        let piece = ContentPiece { offset: 4096, data: Blob(b"then".to_vec()) };
        let mut found = SysvShm::claim(&Job::new(&record)).unwrap();
        found.fill_unattached(&[SegmentContent { segment: 0, content: vec![piece] }]).unwrap();
        found.settle().unwrap();
        let (now, mut bytes) = (Attached::for_reading(id).unwrap(), [1; 4100]);
        now.read(0, &mut bytes).unwrap();
        assert!(bytes[..4096].iter().all(|byte| *byte == 0) && &bytes[4096..] == b"then");
        drop(now);
        let refused = SysvShm::claim(&Job::new(&record)).unwrap_err().to_string();
        assert!(refused.contains("belongs to another program"), "{refused}");
        drop(found);
        sysv_shm::remove(id).unwrap();
    }

    #[test]
    fn a_segment_with_the_same_key_takes_the_place_of_one_that_is_gone() {
        let key = (0x4b00_0000 | std::process::id()).cast_signed();
        let gone = sysv_shm::create(libc::IPC_PRIVATE, 4096, 0o600).unwrap();
        sysv_shm::remove(gone).unwrap();
        let id = sysv_shm::create(key, 8192, 0o600).unwrap();
        let about = SysvShmRecord {
            id: gone,
            kernel: None,
            key,
            size: 8192,
            mode: 0o600,
            removed: false,
            owner: None,
            creator: None,
        };
        let found = SysvShm::claim(&Job::new(&of(vec![about]))).unwrap();
        assert_eq!((found.ids(), found.0[0].made), (vec![id], false));
        drop(found);
        let refused = SysvShm::claim(&Job::new(&of(vec![SysvShmRecord { size: 5, ..about }]))).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains(&format!("ipcrm -m {id}")), "{refused}");
        sysv_shm::remove(id).unwrap();
    }

    /// As after a reboot, when another user was quicker with the key.
    #[test]
    fn a_segment_of_another_user_is_refused() {
        if unix_socket::effective_user() != 0 {
            return println!("not run: this test needs root");
        }
        let key = (0x4c00_0000 | std::process::id()).cast_signed();
        let id = sysv_shm::create(key, 8192, 0o666).unwrap();
        let about = SysvShmRecord {
            id: id + 1,
            kernel: None,
            key,
            size: 8192,
            mode: 0o600,
            removed: false,
            owner: Some(Ownership { user: 0, group: 0 }),
            creator: Some(0),
        };
        let claim = || SysvShm::claim(&Job::new(&of(vec![about]))).map(|found| found.ids());
        assert_eq!(claim().unwrap(), [id]);
        sysv_shm::set_owner(id, (2102, 2102)).unwrap();
        let refused = claim().unwrap_err().to_string();
        assert!(refused.contains("2102") && refused.contains(&format!("ipcrm -m {id}")), "{refused}");
        sysv_shm::remove(id).unwrap();
        let theirs = SysvShmRecord { owner: Some(Ownership { user: 2102, group: 2103 }), ..about };
        let made = SysvShm::claim(&Job::new(&of(vec![theirs]))).unwrap();
        let facts = sysv_shm::segment(made.ids()[0]).unwrap();
        assert_eq!((facts.owner, facts.creator), ((2102, 2103), 0));
    }

    #[test]
    fn what_was_removed_is_made_anew_and_goes_with_the_restart() {
        let about = SysvShmRecord {
            id: 77,
            kernel: None,
            key: 5,
            size: 5000,
            mode: 0o400,
            removed: true,
            owner: None,
            creator: None,
        };
        let record = of(vec![about, about]);
        let mut made = SysvShm::claim(&Job::new(&record)).unwrap();
        let ids = made.ids();
        assert_ne!(ids[0], ids[1], "two of them do not collide");
        // A program that has one.
        let program = Attached::new(ids[0]).unwrap();
        made.settle().unwrap();
        let facts = sysv_shm::segment(ids[0]).unwrap();
        assert_eq!((facts.removed, facts.size, facts.attached), (true, 5000, 1));
        assert_eq!(facts.mode, 0o400);
        made.keep();
        drop(program);
        assert!(ids.iter().all(|id| sysv_shm::segment(*id).is_err()));
    }
}
