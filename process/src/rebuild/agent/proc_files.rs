//! Files of /proc that show the memory of the process which has them open: opened again by the program's own process.
//!
//! Such a file belongs to the memory that its opener had at that time (fs/proc/base.c: `proc_mem_open`), and the
//! new process has opened its files before its exec: memory that is gone since, and of which all reads and writes
//! do nothing. The same goes for all files of `/proc/self` that another process than the first has open: the first
//! has made all descriptors, and these would show the first; something else is in their place until then
//! ([`crate::rebuild::proc_self`]). Where several processes have such a file open, it is the holder's that all of
//! them see. Called by [`super::rebuild_process`] before descriptors become close-on-exec. Fails by: an error that
//! names the descriptor.

use super::remote_calls::{Need, SeedThread};
use crate::capture::own_proc::shows_memory;
use crate::capture::state;
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Member;
use crate::rebuild::proc_self::{NOT_AGAIN, of_self};
use holdfast_image::record::ProcessRecord;

/// Opens them again, at their numbers and offsets.
///
/// # Errors
/// Names the descriptor that cannot be opened.
pub fn reopen(leader: SeedThread, member: Member<'_>) -> Result<(), RebuildError> {
    for (index, description) in member.job.descriptions().iter().enumerate() {
        let Some(file) = of_self(&description.object) else { continue };
        let Some((holder, _)) = member.job.holder(index) else { continue };
        if holder == 0 && !shows_memory(file.rest) {
            continue;
        }
        let own = member.own.files.descriptors.iter().filter(|own| own.description as usize == index);
        let own: Vec<u64> = own.map(|descriptor| u64::from(descriptor.fd.cast_unsigned())).collect();
        let (Some(first), Some(whose)) = (own.first(), member.job.member(holder)) else { continue };
        let mut batch = leader.batch();
        let (of, need) = if holder == member.index {
            (None, Need::Must("open its own file in /proc again, descriptor", *first))
        } else {
            (Some(whose.own.known_to(member.own).unwrap_or(whose.own.pid)), Need::May)
        };
        let name = batch.data(&[&file.path(of)[..], b"\0"].concat());
        let flags = u64::from(description.flags & !NOT_AGAIN);
        batch.row(Row::new(libc::SYS_open, &[name, flags, 0]), need);
        let (results, _) = batch.finish()?;
        let opened = results.first().copied().unwrap_or(-1);
        // Another process's memory may be closed to this one now: it keeps a file that shows nothing.
        if opened < 0 {
            continue;
        }
        let opened = opened.cast_unsigned();
        let mut batch = leader.batch();
        // Texts are made as they are read: where the old offset was in the middle of a line, it is now as well as
        // may be.
        batch.call(libc::SYS_lseek, &[opened, file.position, libc::SEEK_SET as u64], Need::May)?;
        for fd in own {
            batch.call(libc::SYS_dup2, &[opened, fd], Need::Must("put in place the descriptor", fd))?;
        }
        batch.call(libc::SYS_close, &[opened], Need::May)?;
        batch.finish()?;
    }
    Ok(())
}

/// Sets whom the audit system takes for logged in, where the program had set that: a process can do so for itself
/// alone, and its threads get it from the first one. What the user should know, if it may not.
///
/// # Errors
/// The process ended.
pub fn log_in(leader: SeedThread, record: &ProcessRecord) -> Result<Option<String>, RebuildError> {
    let now = || state::login_user(&leader.remote.tid.to_string());
    let Some(user) = record.flags.login_user.filter(|user| now() != Some(*user)) else { return Ok(None) };
    let mut batch = leader.batch();
    let name = batch.data(b"/proc/self/loginuid\0");
    batch.row(Row::new(libc::SYS_open, &[name, (libc::O_WRONLY | libc::O_CLOEXEC) as u64, 0]), Need::May);
    let (results, _) = batch.finish()?;
    if let Some(opened) = results.first().filter(|fd| **fd >= 0).map(|fd| fd.cast_unsigned()) {
        let mut batch = leader.batch();
        let text = user.to_string();
        let at = batch.data(text.as_bytes());
        batch.row(Row::new(libc::SYS_write, &[opened, at, text.len() as u64]), Need::May);
        batch.call(libc::SYS_close, &[opened], Need::May)?;
        batch.finish()?;
    }
    let is_set = now() == Some(user);
    Ok((!is_set)
        .then(|| format!("its loginuid {user} could not be restored: only root may change one that is set")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_memory_are_told_from_others() {
        for rest in ["/mem", "/maps", "/task/12/smaps", "/environ"] {
            assert!(shows_memory(rest.as_bytes()), "{rest}");
        }
        for rest in ["/stat", "", "/fdinfo/3", "/meminfo"] {
            assert!(!shows_memory(rest.as_bytes()), "{rest}");
        }
    }
}
