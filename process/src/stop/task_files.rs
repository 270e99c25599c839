//! Names and children of all threads of a stopped process, read through files that stay open from stop to stop.
//!
//! The way to /proc/PID/task/TID/comm takes the kernel several times as long as what it says there, and a stop of
//! many threads goes it twice for each. Called by `capture_process`, from several threads at once, each for another
//! process. What must hold: what is told is of the thread that has the id now. A file is of the thread that it
//! was opened for, not of its id: of one that has ended, comm cannot be read any more (fs/proc/base.c, comm_show:
//! ESRCH), while its list of children would be empty. So comm is read last, and tells of both. How it fails: nothing
//! is told of a thread that has ended or cannot be looked at.

use holdfast_image::bytes::Name;
use holdfast_sys::attributes;
use holdfast_sys::proctext::{self, ProcFolder};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Nothing is kept under a descriptor beyond this share of the limit: others need some, too.
const SHARE: u64 = 4;

/// What is told of a thread.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// Its name.
    pub comm: Name,
    /// Processes that it has made, living and ended.
    pub children: Vec<i32>,
}

#[derive(Debug)]
struct Files {
    comm: File,
    /// `None`: the kernel has no such file (CONFIG_PROC_CHILDREN).
    children: Option<File>,
}

impl Files {
    fn open(folder: &ProcFolder, tid: i32) -> io::Result<Files> {
        let children = match folder.file(&format!("{tid}/children")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened?),
        };
        Ok(Files { comm: folder.file(&format!("{tid}/comm"))?, children })
    }

    /// Fails if the thread has ended; otherwise the children are its.
    fn read(&self) -> io::Result<Told> {
        let children = self.children.as_ref().map(proctext::list_again).transpose()?.unwrap_or_default();
        let comm = proctext::record_again(&self.comm)?;
        let numbers =
            children.split(u8::is_ascii_whitespace).filter_map(|word| std::str::from_utf8(word).ok());
        Ok(Told {
            comm: Name(comm.trim_ascii_end().to_vec()),
            children: numbers.filter_map(|word| word.parse().ok()).collect(),
        })
    }

    fn highest(&self) -> u64 {
        let highest = self.children.as_ref().map_or(0, AsRawFd::as_raw_fd).max(self.comm.as_raw_fd());
        u64::from(highest.unsigned_abs())
    }
}

/// The files of one process.
#[derive(Debug, Default)]
pub struct TaskFiles(Mutex<HashMap<i32, Files>>);

impl TaskFiles {
    /// Looks at the threads with these ids; those are all that the process has.
    pub fn look(&self, pid: i32, tids: &[i32]) -> HashMap<i32, Told> {
        let mut kept = self.0.lock();
        let mut before = std::mem::take(&mut *kept);
        let mut fresh = None;
        let mut all = HashMap::with_capacity(tids.len());
        for &tid in tids {
            if let Some(files) = before.remove(&tid)
                && let Ok(told) = files.read()
            {
                all.insert(tid, told);
                kept.insert(tid, files);
                continue;
            }
            let (folder, limit) = fresh.get_or_insert_with(|| {
                let limit = attributes::limit(0, libc::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
                (ProcFolder::open(format!("/proc/{pid}/task")), limit / SHARE)
            });
            let Some(files) = folder.as_ref().ok().and_then(|folder| Files::open(folder, tid).ok()) else {
                continue;
            };
            if let Ok(told) = files.read() {
                all.insert(tid, told);
                if files.highest() < *limit {
                    kept.insert(tid, files);
                }
            }
        }
        all
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn shell(script: &str) -> (Child, i32) {
        let mut command = Command::new("sh");
        let child = command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id().cast_signed();
        (child, pid)
    }

    fn until(what: impl Fn() -> bool) {
        for _ in 0..1000 {
            if what() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(what(), "it does not come about");
    }

    #[test]
    fn what_is_read_again_is_what_is_true_now() {
        let (mut child, pid) =
            shell("sleep 100 & read x; printf other > /proc/$$/comm; sleep 100 & sleep 100");
        let files = TaskFiles::default();
        let look = || files.look(pid, &[pid]).remove(&pid).unwrap();
        until(|| look().children.len() == 1);
        assert_eq!(look().comm, Name(b"sh".to_vec()));
        assert_eq!(files.0.lock().len(), 1, "kept open");
        drop(child.stdin.take());
        until(|| look().children.len() == 3);
        assert_eq!(look().comm, Name(b"other".to_vec()));
        look().children.into_iter().for_each(|pid| holdfast_sys::ptrace::kill(pid, libc::SIGKILL).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(files.look(pid, &[pid]), HashMap::new(), "it has ended");
        assert!(files.0.lock().is_empty());
    }

    #[test]
    fn a_file_is_of_the_thread_and_not_of_its_id() {
        let (mut one, first) = shell("read x");
        let (mut two, second) = shell("printf second > /proc/$$/comm; read x");
        until(|| std::fs::read(format!("/proc/{second}/comm")).unwrap() == b"second\n");
        let files = TaskFiles::default();
        files.look(first, &[first]);
        // As if the second had got the id of the first, which has ended.
        let old = files.0.lock().remove(&first).unwrap();
        files.0.lock().insert(second, old);
        one.kill().unwrap();
        one.wait().unwrap();
        assert_eq!(files.look(second, &[second])[&second].comm, Name(b"second".to_vec()));
        two.kill().unwrap();
        two.wait().unwrap();
    }
}
