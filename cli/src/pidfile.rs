//! Which process a job's program is, in the file `program` of the job: should the agent die, the program goes on, and
//! it must not be started a second time meanwhile.
//!
//! Written by the agent, removed by it at the end of the job. Compared with pid, start time and boot: a number that
//! was given to another process is noticed. On another host nothing is known, and nothing is claimed.

use holdfast_sys::procfs::{self, Existence};
use holdfast_tiers::{Job, JobLock};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The file, in the folder of the job.
const NAME: &str = "program";

fn path(job: &Job) -> PathBuf {
    job.dir().join(NAME)
}

/// What tells a process from all others: pid, start time in ticks, boot. `None` if it has ended.
fn identity(pid: i32) -> Option<String> {
    let fields = procfs::stat_fields(pid, pid).ok()?;
    // proc_pid_stat(5): field 22 is the start time; these fields begin with the third.
    let start = fields.get(19)?;
    if procfs::existence(pid) == Existence::Ended {
        return None;
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("{pid} {start} {}\n", boot.trim()))
}

/// Remembers the program. A process that has ended is nothing to remember.
///
/// # Errors
/// The file cannot be written.
pub fn remember(job: &Job, pid: i32) -> io::Result<()> {
    identity(pid).map_or(Ok(()), |identity| fs::write(path(job), identity))
}

/// Forgets it.
pub fn forget(job: &Job, _lock: &JobLock) {
    // Not being there is what is wanted.
    let _ = fs::remove_file(path(job));
}

/// The program of a job, if it is known to run.
pub fn program(job: &Job) -> Option<i32> {
    program_in(job.dir())
}

/// The same of a job whose folder is known.
pub fn program_in(folder: &Path) -> Option<i32> {
    let text = fs::read_to_string(folder.join(NAME)).ok()?;
    let pid: i32 = text.split_whitespace().next()?.parse().ok()?;
    (identity(pid)? == text).then_some(pid)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_tiers::Store;

    #[test]
    fn only_the_very_same_process_counts() {
        let root = std::env::temp_dir().join(format!("alive-{}", std::process::id()));
        let job = Store::open(&root).unwrap().create_job("a").unwrap();
        assert_eq!(program(&job), None);
        let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let pid = child.id().cast_signed();
        remember(&job, pid).unwrap();
        assert_eq!(program(&job), Some(pid));
        let text = fs::read_to_string(path(&job)).unwrap();
        fs::write(path(&job), text.replacen(' ', " 1", 1)).unwrap();
        assert_eq!(program(&job), None);
        fs::write(path(&job), text).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(program(&job), None);
        forget(&job, &job.lock().unwrap());
        assert!(!path(&job).exists());
        fs::remove_dir_all(root).unwrap();
    }
}
