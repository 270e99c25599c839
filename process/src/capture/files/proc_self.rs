//! Open files that are about the process itself: those of its folder in /proc, and its namespaces.
//!
//! Used by `files`. They are named so that the process finds its own in the next life too.

use super::{FileReader, Found, Holder};
use holdfast_sys::procfs;

impl FileReader<'_> {
    /// A file of the process's own folder in /proc is named so that it is its own in the next life too, whatever the
    /// mount of /proc.
    pub(super) fn own_proc_path(&self, found: &Found, path: &[u8]) -> Vec<u8> {
        let holder = &self.holders[found.holder];
        for pid in [holder.pid, holder.inner_pid] {
            if let Some(rest) = path.strip_prefix(format!("/proc/{pid}").as_bytes())
                && (rest.is_empty() || rest.starts_with(b"/"))
            {
                return [b"/proc/self", rest].concat();
            }
        }
        path.to_vec()
    }

    /// The process or thread that a file of /proc is about, if it is not there when a restart opens files: only
    /// process 1 and the one that has the file are.
    pub(super) fn foreign_process(&self, found: &Found, path: &[u8]) -> Option<i32> {
        let mut parts = path.strip_prefix(b"/proc/")?.split(|byte| *byte == b'/');
        let number = |part: &[u8]| std::str::from_utf8(part).ok()?.parse::<i32>().ok();
        let pid = number(parts.next()?)?;
        let Holder { pid: outer, inner_pid: inner, .. } = self.holders[found.holder];
        if ![1, outer, inner].contains(&pid) {
            return Some(pid);
        }
        // `/proc/PID/task/TID`
        let tid = (parts.next()? == b"task").then(|| number(parts.next()?))??;
        (tid != pid).then_some(tid)
    }

    /// Where the process finds a namespace that it has open (`net:[4026531840]`), if it is one that it is in.
    pub(super) fn own_namespace(&self, found: &Found) -> Option<Vec<u8>> {
        let kind = found.target.split(|byte| *byte == b':').next()?;
        let kind = std::str::from_utf8(kind).ok()?;
        let Holder { pid, tid, .. } = self.holders[found.holder];
        let own = procfs::link(&format!("/proc/{pid}/task/{tid}/ns/{kind}")).ok()?;
        (own == found.target).then(|| format!("/proc/self/ns/{kind}").into_bytes())
    }
}
