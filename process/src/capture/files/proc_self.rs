//! Open files that are about the process itself: those of its folder in /proc, and its namespaces.
//!
//! Used by `files`. They are named so that the process finds its own after a restart too.

use super::{FileReader, Found, Holder};
use crate::capture::own_proc;
use holdfast_sys::procfs;

impl FileReader<'_> {
    /// A path as the process that has it open finds it after a restart, too.
    pub(super) fn own_proc_path(&self, found: &Found, path: &[u8]) -> Vec<u8> {
        own_proc::named(path, self.ids(found))
    }

    /// The process or thread that a file of /proc is about, if it is not there when a restart opens files.
    pub(super) fn foreign_process(&self, found: &Found, path: &[u8]) -> Option<i32> {
        own_proc::foreign(path, self.ids(found))
    }

    /// Of the process that has it open, here and as it sees itself.
    fn ids(&self, found: &Found) -> [i32; 2] {
        let holder = &self.holders[found.holder];
        [holder.pid, holder.inner_pid]
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
