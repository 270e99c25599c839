//! Open files that are about processes: those of its own folder in /proc, of others', and its namespaces.
//!
//! Used by `files`. They are named so that the process finds its own after a restart too, and that of the others.

use super::{FileReader, Found, Holder, Obstacle};
use crate::capture::own_proc;
use holdfast_image::bytes::Name;
use holdfast_image::record::Object;
use holdfast_sys::procfs;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

impl FileReader<'_> {
    /// A path as the process that has it open finds it after a restart, too.
    pub(super) fn own_proc_path(&self, found: &Found, path: &[u8]) -> Vec<u8> {
        own_proc::named(path, self.ids(found))
    }

    /// The process or thread that a file of /proc is about, if it is not there when a restart opens files.
    pub(super) fn foreign_process(&self, found: &Found, path: &[u8]) -> Option<i32> {
        let holder = self.holder_of(found);
        if holder.own_pid != holder.inner_pid
            && holder.own_pid != 1
            && own_proc::of_process(path, 1).is_some()
        {
            return Some(1); // not that of the job
        }
        own_proc::foreign(path, self.ids(found))
    }

    /// A file of /proc about `pid`, which is not the process that has it open. After a restart it is that of the
    /// process which takes its place; what is bound to memory when it is opened would be that of the process before its
    /// exec.
    pub(super) fn process_file(&self, found: &Found, pid: i32) -> Result<Object, Obstacle> {
        let what = |what: &str| format!("a file of /proc about process or thread {pid}, {what}");
        let holder = self.holder_of(found);
        if holder.own_pid != holder.inner_pid {
            return Err(
                what("open in a pid namespace of the job's own, which is not supported: close it").into()
            );
        }
        let rest =
            own_proc::of_process(&found.target, pid).filter(|rest| !rest.starts_with(b"/task/")).ok_or_else(
                || Obstacle::Passing(what("a thread, which is not supported: close it, or try again")),
            )?;
        if own_proc::shows_memory(rest) {
            return Err(
                what("which shows its memory and is not supported: close it before a checkpoint").into()
            );
        }
        let seen = |error: io::Error| Obstacle::of("cannot be looked into: ", &error);
        let file = fs::metadata(self.link_path(found)).map_err(seen)?;
        // As the process finds it, whose /proc may be another one.
        let path = [format!("/proc/{}/root", self.holder_of(found).tid).as_bytes(), &found.target].concat();
        let now = match fs::symlink_metadata(OsStr::from_bytes(&path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(seen(error)),
            now => now.ok().filter(|now| (now.dev(), now.ino()) == (file.dev(), file.ino())),
        };
        let pid = match now {
            // An id that was given again is that of another file.
            None => -1,
            Some(_) => {
                self.one_with(pid).ok_or_else(|| Obstacle::from(what("which is not the program's")))?
            }
        };
        Ok(Object::ProcessFile { pid, rest: Name(rest.to_vec()), position: found.info.position })
    }

    /// What the one process of the job that has this id, here or for itself, calls itself.
    fn one_with(&self, pid: i32) -> Option<i32> {
        let mut all = self.holders.iter().filter(|one| one.pid == pid || one.inner_pid == pid);
        match (all.next(), all.next()) {
            (Some(one), None) => Some(one.inner_pid),
            (None, _) => self.inner_pid(pid),
            _ => None,
        }
    }

    /// Of the process that has it open, here and as it sees itself.
    fn ids(&self, found: &Found) -> [i32; 2] {
        let holder = self.holder_of(found);
        [holder.pid, holder.own_pid]
    }

    /// Where the process finds a namespace that it has open (`net:[4026531840]`), if it is one that it is in.
    pub(super) fn own_namespace(&self, found: &Found) -> Option<Vec<u8>> {
        let kind = found.target.split(|byte| *byte == b':').next()?;
        let kind = std::str::from_utf8(kind).ok()?;
        let &Holder { tid, .. } = self.holder_of(found);
        let own = procfs::link(&format!("/proc/{tid}/ns/{kind}")).ok()?;
        (own == found.target).then(|| format!("/proc/self/ns/{kind}").into_bytes())
    }
}
