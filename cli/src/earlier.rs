//! What a job had when its last run began: kept in its recipe.
//!
//! Used by `run` and the agent. Invariant: what a run that did not come to its end has left is kept until the next one
//! has.

use crate::exit::Failure;
use crate::last_run::LastRun;
use holdfast_tiers::Job;
use holdfast_tiers::stack::TiersRecord;
use serde::{Deserialize, Serialize};

/// What a job had when its last run began: numbers of images.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Earlier {
    /// The greatest: the images of this run have greater ones.
    pub last: u64,
    /// The first of the runs in a row that did not come to their ends. From it to `last` all stay until this run has
    /// come to its own; 0: none does.
    pub kept_from: u64,
}

impl Earlier {
    /// For a run that begins now, after one that found `self`.
    ///
    /// # Errors
    /// The job's images cannot be listed.
    pub fn of_next(self, job: &Job) -> Result<Earlier, Failure> {
        let below = TiersRecord::read(job).tiers.into_iter().flat_map(|tier| tier.versions);
        let here = job.images()?.into_iter().map(|image| image.epoch.0);
        let newest = below.chain(here).max().unwrap_or(0);
        Ok(self.followed(newest, LastRun::read(job).is_some_and(|run| run.is_done())))
    }

    /// The next run begins. One that has come to its end leaves nothing to go on from; one that has not leaves what it
    /// found, and what it has made.
    fn followed(self, newest: u64, is_done: bool) -> Earlier {
        let kept_from = match newest > self.last {
            _ if is_done => 0,
            true if self.kept_from == 0 => self.last + 1,
            _ => self.kept_from,
        };
        Earlier { last: newest, kept_from }
    }

    /// The images that stay, the first and the last.
    pub fn kept(&self) -> Option<(u64, u64)> {
        (self.kept_from > 0 && self.kept_from <= self.last).then_some((self.kept_from, self.last))
    }

    /// Nothing was there.
    pub fn is_none(&self) -> bool {
        *self == Earlier::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crash_has_left_stays_until_the_next_run_is_over() {
        let first = Earlier::default().followed(0, false);
        assert!(first.is_none() && first.kept().is_none());
        // Killed after image 4, started afresh, and killed again before an image, and after image 6.
        let second = first.followed(4, false);
        assert_eq!(second.kept(), Some((1, 4)));
        let third = second.followed(4, false);
        assert_eq!(third, second);
        let fourth = third.followed(6, false);
        assert_eq!(fourth.kept(), Some((1, 6)), "of all since one came to its end");
        // It has come to its end.
        assert_eq!(fourth.followed(8, true), Earlier { last: 8, kept_from: 0 });
        assert_eq!(fourth.followed(8, true).followed(8, false).kept(), None);
    }
}
