//! Open files that are about the process itself: those of its folder in /proc, and its namespaces.
//!
//! Used by `files`. They are named so that the process finds its own in the next life too.

use super::{FileReader, Found, Holder};
use holdfast_sys::procfs;
use std::path::Path;

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

    /// The process that a file of /proc is about, if a restart would not find it: it is not of the job, or has ended.
    /// Process 1 is always there.
    pub(super) fn foreign_process(&self, path: &[u8]) -> Option<i32> {
        let mut parts = path.strip_prefix(b"/proc/")?.split(|byte| *byte == b'/');
        let pid = std::str::from_utf8(parts.next()?).ok()?.parse::<i32>().ok()?;
        // Threads have such folders too; those of a program in another pid namespace have other numbers here.
        let is_own = |holder: &Holder<'_>| {
            [holder.pid, holder.inner_pid].contains(&pid)
                || holder.pid != holder.inner_pid
                || Path::new(&format!("/proc/{}/task/{pid}", holder.pid)).exists()
        };
        let is_known = pid == 1 || self.holders.iter().any(is_own) || self.inner_pid(pid).is_some();
        (!is_known).then_some(pid)
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
