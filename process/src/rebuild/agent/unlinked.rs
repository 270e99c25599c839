//! Files without a name: memfds and deleted files, made anew.
//!
//! The first new process makes each and puts what the record has into it. Each stays open in all processes at a
//! number above all of the program's ([`kept_fds`]) across forks and exec, so that the agent can have it mapped
//! ([`super::address_space`]), bring in the pages that shared mappings cover and at last set permission bits and
//! seals ([`UnlinkedFiles`]): a seal against writing allows no writable mapping but those that are there already
//! (F_SEAL_FUTURE_WRITE) or none at all (mm/memfd.c, memfd_add_seals). [`close`] closes those numbers. How it
//! fails: an error names the file.

use super::address_space::AddressSpaceBuilder;
use super::ranges::{pieces, within};
use super::remote_calls::Need;
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Job;
use crate::rebuild::kept_fds;
use crate::rebuild::new_process::unlinked::holder;
use crate::rebuild::paths::Opener;
use holdfast_image::pages::{ExtentSource, PageProvider};
use holdfast_image::record::{Backing, NamelessFile, NamelessKind, ProcessRecord, Region};
use holdfast_sys::memfd::F_ADD_SEALS;
use holdfast_sys::{clone, fd};
use std::fs::{File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown};
use std::time::{Duration, UNIX_EPOCH};

/// The file of a shared mapping, and the mapping's offset in it.
fn shared(region: &Region) -> Option<(u32, u64)> {
    match region.backing {
        Backing::Nameless { file, offset, shared: true, .. } => Some((file, offset)),
        _ => None,
    }
}

/// The files of a record, in the agent, which has them from the first new process.
#[derive(Debug)]
pub struct UnlinkedFiles<'a> {
    about: &'a [NamelessFile],
    files: Vec<File>,
}

impl<'a> UnlinkedFiles<'a> {
    /// From the process `pid`, in which they are at their numbers.
    ///
    /// # Errors
    /// The process is gone.
    pub fn from(job: &'a Job<'_>, pid: i32) -> Result<UnlinkedFiles<'a>, RebuildError> {
        let about = &job.record.files.nameless[..];
        if about.is_empty() {
            return Ok(UnlinkedFiles { about, files: Vec::new() });
        }
        let take = |(file, about): (usize, &NamelessFile)| {
            let taken = clone::file_of(pid, kept_fds::of_unlinked(job, file));
            taken.map_err(RebuildError::io(format!("taking {}", about.name)))
        };
        Ok(UnlinkedFiles { about, files: about.iter().enumerate().map(take).collect::<Result<_, _>>()? })
    }

    /// Writes the pages of one process's shared mappings into them.
    ///
    /// # Errors
    /// Names the file.
    pub fn fill(&self, record: &ProcessRecord, pages: &dyn PageProvider) -> Result<(), RebuildError> {
        for region in &record.regions {
            let Some((file, offset)) = shared(region) else { continue };
            let (about, file) = (&self.about[file as usize], &self.files[file as usize]);
            let stored = within(pages.extents(), region).filter(|part| part.2 != ExtentSource::Zero);
            for (from, to, _) in stored {
                let put = |start: u64, bytes: &[u8]| {
                    // The last page may reach beyond the end, which a write would move.
                    let at = offset + (start - region.start.0);
                    let kept = about.size.saturating_sub(at).min(bytes.len() as u64);
                    file.write_all_at(&bytes[..usize::try_from(kept).unwrap_or(0)], at)
                };
                pieces(from, to, pages, put)
                    .map_err(RebuildError::pages(format!("filling {}", about.name)))?;
            }
        }
        Ok(())
    }

    /// Sets owner, permission bits, time and seals, as far as the process that has one could. After all mappings and
    /// all content of all processes.
    ///
    /// # Errors
    /// Names the file.
    pub fn seal(&self, job: &Job<'_>) -> Result<(), RebuildError> {
        let files = (0_u32..).zip(self.files.iter().zip(self.about));
        for (index, (file, about)) in files.filter(|(_, (_, about))| !about.by_mapping) {
            let opener = Opener::of(job.member(holder(job, index)).map_or(job.record, |member| member.own));
            restore_owner_and_time(file, about);
            let now = file.metadata().map_err(RebuildError::io(format!("looking at {}", about.name)))?;
            let mode = opener.mode_of(about.mode, now.uid(), now.gid());
            let failed = |what: &str| RebuildError::io(format!("{what} {}", about.name));
            file.set_permissions(Permissions::from_mode(mode))
                .map_err(failed("setting the permission bits of"))?;
            if about.kind == NamelessKind::Memfd && about.seals != 0 {
                fd::fcntl(file.as_fd(), F_ADD_SEALS, i64::from(about.seals))
                    .map_err(failed("sealing the memfd"))?;
            }
        }
        Ok(())
    }
}

impl UnlinkedFiles<'_> {
    /// Closes them, before the program runs: what a process has open for writing cannot be executed (ETXTBSY).
    pub fn close_all(&mut self) {
        self.files.clear();
    }
}

/// As far as this user may: a file of another owner that an ordinary user had open stays that user's.
fn restore_owner_and_time(file: &File, about: &NamelessFile) {
    if let (Some(owner), Ok(now)) = (about.owner, file.metadata())
        && owner != (now.uid(), now.gid())
    {
        let _ = fchown(file, Some(owner.0), Some(owner.1));
    }
    if let Some(time) = about.mtime_ns.and_then(|time| u64::try_from(time).ok()) {
        let _ = file.set_modified(UNIX_EPOCH + Duration::from_nanos(time));
    }
}

/// Closes what stayed open for the agent, in one process. `served`: see [`PageProvider::is_served`].
///
/// # Errors
/// The process is gone.
pub fn close(builder: &AddressSpaceBuilder<'_>, job: &Job<'_>, served: bool) -> Result<(), RebuildError> {
    let mut batch = builder.batch();
    let files = (0..job.record.files.nameless.len()).map(|file| kept_fds::of_unlinked(job, file));
    let common = (served || kept_fds::has_common(job)).then(|| kept_fds::of_common(job, builder.shared));
    for fd in files.chain(common) {
        let fd = u64::from(fd.cast_unsigned());
        batch.call(libc::SYS_close, &[fd], Need::Must("close descriptor", fd))?;
    }
    batch.finish().map(|_| ())
}
