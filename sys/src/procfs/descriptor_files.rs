//! `/proc/PID/fd` and `fdinfo`.

use super::numbers;
use crate::proctext::{self, ProcFolder};
use std::io;

/// `/proc/PID/fdinfo/FD`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescriptorInfo {
    /// O_* flags with O_CLOEXEC.
    pub flags: u32,
    /// Offset.
    pub position: u64,
    /// All lines.
    pub text: String,
}

/// Reads it; `None` when the descriptor is not open (any more).
pub fn descriptor_info(pid: i32, fd: u64) -> Option<DescriptorInfo> {
    understood(proctext::record_text(format!("/proc/{pid}/fdinfo/{fd}")).ok()?)
}

/// The descriptors of a process, to be looked at one by one.
#[derive(Debug)]
pub struct DescriptorFolder {
    links: ProcFolder,
    infos: ProcFolder,
}

fn understood(text: String) -> Option<DescriptorInfo> {
    let mut info = DescriptorInfo { flags: 0, position: 0, text };
    info.flags = u32::from_str_radix(info.get("flags")?, 8).ok()?;
    info.position = info.get("pos")?.parse().ok()?;
    Some(info)
}

/// Numbers of all open descriptors.
///
/// # Errors
/// Process gone, or not ours.
pub fn descriptors(pid: i32, tid: i32) -> io::Result<Vec<i32>> {
    let mut all = numbers(&format!("/proc/{pid}/task/{tid}/fd"))?;
    all.sort_unstable();
    Ok(all)
}

impl DescriptorInfo {
    /// The value of a line `key:value`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
    }
}

impl DescriptorFolder {
    /// By a thread of it: a main thread that has ended has no descriptors any more.
    ///
    /// # Errors
    /// Process gone, or not ours.
    pub fn open(pid: i32, tid: i32) -> io::Result<DescriptorFolder> {
        Ok(DescriptorFolder {
            links: ProcFolder::open(format!("/proc/{pid}/task/{tid}/fd"))?,
            infos: ProcFolder::open(format!("/proc/{pid}/task/{tid}/fdinfo"))?,
        })
    }
    /// As [`descriptor_info`].
    pub fn info(&self, fd: i32) -> Option<DescriptorInfo> {
        understood(self.infos.record_text(&fd.to_string()).ok()?)
    }
    /// What it is called.
    ///
    /// # Errors
    /// It is not open (any more).
    pub fn target(&self, fd: i32) -> io::Result<Vec<u8>> {
        self.links.link(&fd.to_string())
    }
    /// Device and inode of what it leads to.
    ///
    /// # Errors
    /// It is not open (any more).
    pub fn identity(&self, fd: i32) -> io::Result<(u64, u64)> {
        self.links.identity(&fd.to_string())
    }
}
