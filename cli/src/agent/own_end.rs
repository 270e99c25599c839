//! The end of a run that no front sees: of a program that was started without one, and of what goes on when the front
//! has seen its child end, as daemons do.
//!
//! Used by the loop; written into the job's `run.json` ([`LastRun`]). What is left of a program for a moment only does
//! not change how that has ended. Fails by: nothing; what cannot be written is not known later.

use crate::last_run::{How, LastRun};
use holdfast_tiers::Job;
use std::time::{Duration, Instant};

/// What ends within this time after the program is a rest of it.
const MOMENT: Duration = Duration::from_secs(5);

/// See the head of the file.
#[derive(Debug, Default)]
pub struct OwnEnd {
    /// There is no front.
    attached: Option<LastRun>,
    /// Since when the front has ended, and what it has written.
    outlived: Option<(Instant, LastRun)>,
}

impl OwnEnd {
    /// A program without a front runs.
    pub fn attached(&mut self, job: &Job) {
        self.attached.get_or_insert_with(|| LastRun::begin(job, None));
    }

    /// Processes of the job are there though the front has ended.
    pub fn outlived(&mut self, job: &Job) {
        if self.outlived.is_none()
            && let Some(run) = LastRun::read(job).filter(|run| run.ended.is_some())
        {
            run.goes_on(job);
            self.outlived = Some((Instant::now(), run));
        }
    }

    /// The last process has ended.
    pub fn over(&mut self, job: &Job) {
        if let Some((since, run)) = self.outlived.take() {
            if since.elapsed() < MOMENT { run.has_ended(job) } else { run.end(job, How::Unknown) }
        } else if let Some(run) = self.attached.take()
            && LastRun::read(job).is_some_and(|run| run.ended.is_none())
        {
            run.end(job, How::Unknown);
        }
    }
}
