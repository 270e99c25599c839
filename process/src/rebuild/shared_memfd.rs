//! Memory that the processes of an image have in common by copy-on-write: unpacked once, into a file in memory
//! without a name that all of them map privately, so that they share it again until they write.
//!
//! The first new process makes the file; all inherit it at a number that both halves of a restart know
//! ([`kept_fds`]). The agent fills it ([`take`]) before anything is mapped, and seals it: no process can
//! change it any more. What is mapped from it is to all that follow as what a lazy restart maps from segments (see
//! `agent::lazy`, `agent::pages`). Only jobs of several processes have one. Instead of it the front may have given the
//! first new process a file that a page server serves ([`PageProvider::is_served`]): nothing is filled and sealed then.
//! How it fails: an error; nothing runs then.

use super::error::RebuildError;
use super::job::Job;
use super::kept_fds::{self, SharedObject};
use holdfast_image::pages::PageProvider;
use holdfast_sys::{clone, fd, memfd};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;

/// Its size and content stay as they are (include/uapi/linux/fcntl.h).
const SEALS: i32 = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;

/// Takes the file from the first new process, and fills it. `None`: no pages are in common.
///
/// # Errors
/// The process is gone; the image cannot be read; there is no memory.
pub fn take(
    job: &Job<'_>,
    several: &BTreeMap<u64, SharedObject>,
    pid: i32,
    pages: &dyn PageProvider,
) -> Result<Option<File>, RebuildError> {
    let is_there = pages.is_served() || kept_fds::has_common(job);
    if !is_there || pages.shared_pages().is_none() {
        return Ok(None);
    }
    const WHAT: &str = "filling the memory that the processes share (restart --eager does without)";
    let io = || RebuildError::io(WHAT);
    let file = clone::file_of(pid, kept_fds::of_common(job, several)).map_err(io())?;
    pages.fill_shared_pages(&file).map_err(RebuildError::pages(WHAT))?;
    if !pages.is_served() {
        fd::fcntl(file.as_fd(), memfd::F_ADD_SEALS, i64::from(SEALS)).map_err(io())?;
    }
    Ok(Some(file))
}
