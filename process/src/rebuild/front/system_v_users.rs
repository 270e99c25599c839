//! Dying processes that may still change System V objects of a program.
//!
//! Used by `dying`, on the host. A process that was killed makes no new call, but one that it is in may still come to
//! its end: it runs, or it waits in that call for memory. (Who sleeps in semop(2), msgsnd(2) or msgrcv(2) is woken by
//! its death, and runs.) What is undone at its end (SEM_UNDO) is not waited for: setting the values of a set forgets
//! it (ipc/sem.c, `semctl_main`, SETALL). A segment of shared memory that a dying process has attached is attached
//! until its memory is given back. Invariant: nothing is changed, and who has given back its memory, or waits for
//! anything else for ever, does not count. How it fails: what cannot be read counts as not there; who takes a segment
//! looks itself at who has it.

use holdfast_image::record::{ProcessRecord, SysvShmRecord};
use holdfast_sys::{procfs, sysv_shm};

/// Calls that use such objects.
const CALLS: [i64; 11] = [
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_shmat,
    libc::SYS_shmdt,
    libc::SYS_shmctl,
];

/// What a program has of them.
#[derive(Debug)]
pub struct SystemV {
    /// Semaphores, queues, or segments.
    any: bool,
    /// Segments that a process has attached now.
    attached: Vec<i32>,
}

impl SystemV {
    /// Of a program, as they are now.
    pub fn of(record: &ProcessRecord) -> SystemV {
        let files = &record.files;
        let is_attached = |about: &&SysvShmRecord| {
            sysv_shm::segment(about.kernel_id()).is_ok_and(|now| {
                now.attached > 0 && (now.removed || now.key == about.key) && now.size == about.size
            })
        };
        let attached = files.segments.iter().filter(is_attached).map(SysvShmRecord::kernel_id).collect();
        SystemV { any: !files.segments.is_empty() || !files.ipc.is_empty(), attached }
    }

    /// Whether this process, which is dying, may.
    pub fn may_be_changed_by(&self, pid: i32) -> bool {
        self.any
            && procfs::tasks(pid).unwrap_or_default().into_iter().any(|tid| self.may_be_by_thread(pid, tid))
    }

    fn may_be_by_thread(&self, pid: i32, tid: i32) -> bool {
        const PF_EXITING: u64 = 4;
        const PF_DUMPCORE: u64 = 0x200;
        let Ok(fields) = procfs::stat_fields(pid, tid) else { return false };
        let number = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<u64>().ok());
        let (Some(state), Some(flags), Some(memory)) = (fields.first(), number(9), number(23)) else {
            return false;
        };
        if state == "Z" || state == "X" {
            return false;
        }
        if memory == 0 {
            // Its memory is being given back; who has done that has lost its folder, too (kernel/exit.c, do_exit).
            return !self.attached.is_empty() && procfs::link(&format!("/proc/{pid}/task/{tid}/cwd")).is_ok();
        }
        let has_left_its_call = flags & (PF_EXITING | PF_DUMPCORE) != 0;
        !has_left_its_call && (state == "R" || is_in_a_call(pid, tid)) || self.is_attached_to(pid, tid)
    }

    fn is_attached_to(&self, pid: i32, tid: i32) -> bool {
        let is_one = |mapping: &procfs::Mapping| {
            mapping.name.starts_with(b"/SYSV")
                && self.attached.iter().any(|id| u64::from(id.cast_unsigned()) == mapping.inode)
        };
        !self.attached.is_empty() && procfs::maps(pid, tid).is_ok_and(|maps| maps.iter().any(is_one))
    }
}

/// Whether a thread waits in one of [`CALLS`].
fn is_in_a_call(pid: i32, tid: i32) -> bool {
    matches!(procfs::current_call(pid, tid), Ok(Some([number, ..])) if CALLS.contains(&number.cast_signed()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn who_waits_for_something_else_does_not_count() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let is_asleep = || matches!(procfs::current_call(pid, pid), Ok(Some([number, ..])) if number == 230);
        while !is_asleep() {
            std::thread::yield_now();
        }
        let objects = SystemV { any: true, attached: vec![i32::MAX] };
        assert!(!objects.may_be_changed_by(pid), "it sleeps");
        child.kill().unwrap();
        // Neither a zombie, nor one that is gone.
        while procfs::stat_fields(pid, pid).is_ok_and(|fields| fields[0] != "Z") {
            std::thread::yield_now();
        }
        assert!(!objects.may_be_changed_by(pid));
        child.wait().unwrap();
        assert!(!objects.may_be_changed_by(pid));
        let own = std::process::id().cast_signed();
        assert!(objects.may_be_changed_by(own), "it runs");
        assert!(!SystemV { any: false, attached: Vec::new() }.may_be_changed_by(own));
    }
}
