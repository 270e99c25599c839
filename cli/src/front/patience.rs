//! How long a command waits for what is dying: the program, its agent and its processes, after a kill (`--wait`).
//!
//! Made once per command; all its waits together are bounded by it. The user is told once what is waited for, if it
//! takes longer than a moment.

use crate::exit::{Exit, Failure};
use crate::report;
use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

/// What `--wait` is if it is not given.
pub const USUAL: Duration = Duration::from_secs(30);
/// What the user does not need to know of.
const MOMENT: Duration = Duration::from_millis(250);
/// How long an agent may take that has something to tell of a program: it may not have noticed its end yet.
const NOTICE: Duration = Duration::from_millis(500);
/// How long it takes to end what has failed: SIGTERM, and SIGKILL after ten seconds.
const ENDING: Duration = Duration::from_secs(12);
const PAUSE: Duration = Duration::from_millis(10);

/// A bound on all waits of a command.
#[derive(Debug)]
pub struct Patience {
    limit: Duration,
    /// Waited so far.
    waited: Cell<Duration>,
    /// How long what runs may take to be seen to end.
    notice: Duration,
    told: Cell<bool>,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience::new(USUAL)
    }
}

impl Patience {
    /// So long at most.
    pub fn new(limit: Duration) -> Patience {
        Patience { limit, waited: Cell::default(), notice: NOTICE, told: Cell::default() }
    }

    /// The same where what runs has failed, or a part of its gang has, and is being ended.
    #[must_use]
    pub fn after_failure(self) -> Patience {
        Patience { notice: self.limit.clamp(NOTICE, ENDING), ..self }
    }

    /// How long a program may seem to run.
    pub fn notice(&self) -> Duration {
        self.notice
    }

    /// What may still be waited.
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.waited.get())
    }

    /// Waits until `what` finds nothing any more; it names what is there.
    ///
    /// # Errors
    /// It is there at the end of all patience.
    pub fn wait(&self, mut what: impl FnMut() -> Option<String>) -> Result<(), Failure> {
        let (begun, before) = (Instant::now(), self.waited.get());
        while let Some(there) = what() {
            if self.left().is_zero() {
                let message = match self.limit.as_secs() {
                    0 => format!("{there} is still ending: --wait 30s waits for it"),
                    limit => {
                        format!("{there} has not ended within {limit} s: --wait TIME waits longer")
                    }
                };
                return Err(Failure::new(Exit::Refused, message));
            }
            if begun.elapsed() >= MOMENT && !self.told.replace(true) {
                report::note(&format!("waiting for the end of {there}"));
            }
            thread::sleep(PAUSE);
            self.waited.set(before + begun.elapsed());
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_is_waited_for_and_what_stays_is_named() {
        let mut left = 3;
        let goes = || {
            left -= 1;
            (left > 0).then(|| "it".to_owned())
        };
        Patience::default().wait(goes).unwrap();
        let patience = Patience::new(Duration::ZERO);
        patience.wait(|| None).unwrap();
        let failure = patience.wait(|| Some("process 7 (x)".into())).unwrap_err();
        assert!(failure.exit == Exit::Refused && failure.message.contains("process 7 (x)"), "{failure}");
        let notice = |limit| Patience::new(limit).after_failure().notice();
        assert_eq!([notice(Duration::ZERO), notice(USUAL)], [NOTICE, ENDING]);
        let patience = Patience::new(Duration::from_millis(30));
        assert!(patience.wait(|| Some("it".into())).is_err());
        assert!(patience.left().is_zero(), "all waits together");
    }
}
