//! What a restart is asked for in the agent, and what comes of it.

use crate::gang::Gang;
use crate::mapped_files::MappedFiles;
use crate::namespaces::Namespaces;
use crate::rebuild::error::RebuildError;
use crate::rebuild::timings::RebuildTimings;
use crate::track::tracking::Tracking;
use holdfast_image::host_addresses::MovedAddress;
use holdfast_image::record::{Description, InjectArea};
use holdfast_sys::poll;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How the agent finishes a restart.
#[derive(Clone, Debug)]
pub struct RebuildOptions {
    /// Map pages from the image where that is possible, instead of copying all of them first.
    pub lazy: bool,
    /// The agent's socket, told to the library in the program.
    pub socket_path: PathBuf,
    /// Readable: the agent is told to end. Looked at until the processes are resumed.
    pub interrupt: Option<Arc<OwnedFd>>,
    /// Files that no process has any more, as they were open: their length is put back too.
    pub left: Vec<Description>,
    /// Where ends of files go that are cut off because they were written after the checkpoint.
    pub saved_dir: PathBuf,
    /// Entries that all processes have in their environment from now on, `NAME=VALUE`.
    pub environment: Vec<CString>,
    /// Addresses that the programs know and that are others now.
    pub addresses: Vec<MovedAddress>,
    /// The members of a gang: all of them make this restart together.
    pub gang: Option<Arc<dyn Gang>>,
}

impl RebuildOptions {
    /// # Errors
    /// The agent is told to end, or another member of the gang has failed: nothing of the program has run yet.
    pub fn go_on(&self) -> Result<(), RebuildError> {
        let told = |fd: &Arc<OwnedFd>| poll::readable(&[fd.as_fd()], Some(Duration::ZERO));
        if self.interrupt.as_ref().map(told).is_some_and(|ready| ready.is_ok_and(|ready| ready == [true])) {
            return Err(RebuildError::Interrupted);
        }
        match &self.gang {
            Some(gang) => Ok(gang.goes_on()?),
            None => Ok(()),
        }
    }
}

/// A program that runs again.
#[derive(Clone, Debug)]
pub struct Rebuilt {
    /// Its processes, the first one first.
    pub members: Vec<RebuiltMember>,
    /// What they have mapped of the image; for [`crate::CutOptions::mapped`].
    pub mapped: Arc<MappedFiles>,
    /// Those of all of them; for [`crate::CutOptions::namespaces`].
    pub namespaces: Arc<Namespaces>,
    /// Restarts that it has behind it, this one included.
    pub restarts: u64,
    /// What the user should know, one line each.
    pub notes: Vec<String>,
    /// Where the time went.
    pub timings: RebuildTimings,
}

/// One process of it.
#[derive(Clone, Debug)]
pub struct RebuiltMember {
    /// Its process id as the agent sees it.
    pub pid: i32,
    /// Number of its address space.
    pub space: u32,
    /// Where libholdfast reserved memory for the agent.
    pub area: InjectArea,
    /// What is written from now on.
    pub tracking: Arc<Tracking>,
}
