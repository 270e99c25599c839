//! A process of a job as the agent and the tracer know it, and how the tracer learns who is of the job.
//!
//! Used by everything that stops, tracks or captures. Plain data.

use crate::track::tracking::Tracking;
use holdfast_image::record::InjectArea;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A process of a job.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its pid as the agent sees it.
    pub pid: i32,
    /// Number of its address space; no other process of the job has it.
    pub space: u32,
    /// Where libholdfast reserved memory.
    pub area: InjectArea,
    /// Which of its pages were written.
    pub tracking: Arc<Tracking>,
}

/// A process that has room now.
#[derive(Debug)]
pub struct Adopted {
    /// Its id.
    pub pid: i32,
    /// The room.
    pub area: InjectArea,
    /// What notes its writes; none: this kernel, or its limits, do not allow it.
    pub userfault: Option<OwnedFd>,
}

/// Who is of the job; kept by the agent.
pub trait Roster: Send + Sync {
    /// The processes that the job has now, the program first; none: it has ended.
    fn targets(&self) -> Vec<Target>;
    /// One that could not register itself is of the job from now on.
    fn adopted(&self, adopted: Adopted);
}
