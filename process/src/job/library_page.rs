//! Whose a process is by its memory: the page of libholdfast in it names the agent's socket.
//!
//! Used by `orphans`, for those whose environment names no job. A child made by fork has the page as its parent had
//! it, from its first instruction on, and no program writes there by accident, as programs do over their environment
//! (setproctitle(3)). Where the page lies in the library is what a process of the job tells, which has registered with
//! its address. Fails by: what cannot be read is not known ([`Says::Unknown`]). Not inside a stop, but for processes
//! that are new then: the mappings of each are read.

use crate::job::target::Target;
use holdfast_abi::SharedPage;
use holdfast_sys::procfs;
use holdfast_sys::procfs::Mapping;
use holdfast_sys::procmem;
use std::io;
use std::sync::OnceLock;

/// Where the page is in the library.
#[derive(Debug, Default)]
pub struct LibraryPage {
    /// Processes of the job, with the addresses of their pages.
    known: Vec<(i32, u64)>,
    /// The library's file (device and inode), and how far into its mappings.
    found: OnceLock<Option<((u64, u64), u64)>>,
}

/// What a page says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Says {
    /// There is no libholdfast, or it has no agent.
    Nothing,
    /// The path of a socket.
    Socket(Vec<u8>),
    /// It cannot be read, or not be found.
    Unknown,
}

impl LibraryPage {
    /// As these processes have it.
    pub fn of(known: &[Target]) -> LibraryPage {
        let told = known.iter().map(|target| (target.pid, target.area.shared.0));
        LibraryPage { known: told.filter(|(_, page)| *page != 0).collect(), found: OnceLock::new() }
    }

    /// What that of a process says.
    pub fn of_process(&self, pid: i32) -> Says {
        let Ok(maps) = maps_of(pid) else { return Says::Nothing }; // it has ended
        let Some((file, base)) = library(&maps) else { return Says::Nothing };
        let found = *self.found.get_or_init(|| self.known.iter().find_map(|&(pid, page)| place(pid, page)));
        match found.filter(|(own, _)| *own == file) {
            Some((_, within)) => read(pid, base + within).unwrap_or(Says::Unknown),
            None => Says::Unknown,
        }
    }
}

/// As its file is called.
pub const LIBRARY: &[u8] = b"/libholdfast.so";

/// Whether libholdfast is mapped there.
fn is_library(mapping: &Mapping) -> bool {
    mapping.name.ends_with(LIBRARY)
}

/// Whether it is in one of them.
pub fn has_library(maps: &[Mapping]) -> bool {
    maps.iter().any(is_library)
}

/// The mappings of a process.
///
/// # Errors
/// It has ended, or may not be looked into.
pub fn maps_of(pid: i32) -> io::Result<Vec<Mapping>> {
    procfs::by_any_thread(pid, |tid| procfs::maps(pid, tid).ok().filter(|maps| !maps.is_empty()))
}

/// The library's file, and where its mappings begin.
fn library(maps: &[Mapping]) -> Option<((u64, u64), u64)> {
    let first = maps.iter().find(|mapping| is_library(mapping))?;
    Some(((first.device, first.inode), first.start))
}

fn place(pid: i32, page: u64) -> Option<((u64, u64), u64)> {
    let (file, base) = library(&maps_of(pid).ok()?)?;
    Some((file, page.checked_sub(base)?))
}

fn read(pid: i32, page: u64) -> io::Result<Says> {
    let (mut magic, mut path) = ([0; 8], [0; SharedPage::SOCKET_PATH_LEN]);
    procmem::read(pid, page + SharedPage::MAGIC as u64, &mut magic)?;
    procmem::read(pid, page + SharedPage::SOCKET_PATH as u64, &mut path)?;
    let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
    let is_told = magic == SharedPage::MAGIC_BYTES && !path.is_empty();
    Ok(if is_told { Says::Socket(path.to_vec()) } else { Says::Nothing })
}
