//! From which image a program that has failed is restarted (`--restart-on-failure`), after which pause, and when no
//! more.
//!
//! Pure; used by [`super::restarts`]. An image may be of a program that was failing already: a rank has died, and its
//! launcher has not noticed yet. Every restart from it fails, and what is stored meanwhile is no better. So when the
//! second restart in a row has brought nothing, it goes on from before the first of them, and further back from then
//! on. What is lost, an agent or a host, is not the image's fault. Invariant: failures in a row have an end.

use std::time::Duration;

/// So many failures in a row are too many.
const MOST_IN_A_ROW: u32 = 8;
/// Of them so many are blamed on the image.
const BLAMED: u32 = 2;
/// A program that fails so soon may have been failing when its image was made, and when the next one was.
const SOON: Duration = Duration::from_secs(5);
/// The pause after the second failure in a row, and how it grows.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// The program, by itself, after so long.
    Program(Duration),
    /// Its agent, its command, or its gang was lost.
    Lost,
    /// The restart.
    Restart,
    /// There is no host for a member.
    NoHost,
}

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attempts {
    /// The image of the last restart, and the newest one that there was then.
    last: Option<(u64, u64)>,
    /// Failures in a row that have brought nothing, how many of them may be the image's fault, and the image of the
    /// first of these.
    row: u32,
    blamed: u32,
    first: Option<u64>,
    /// First and last number of images that are not gone on from.
    suspect: Vec<(u64, u64)>,
}

impl Attempts {
    /// It has failed, and this image is the newest of all.
    pub fn failed(&mut self, how: Failed, newest: u64) {
        let Some((image, newest_then)) = self.last else { return };
        let is_new = newest > newest_then;
        let got_on = match how {
            Failed::Program(ran) => newest > newest_then + 1 || is_new && ran >= SOON,
            Failed::Lost | Failed::Restart | Failed::NoHost => is_new,
        };
        if got_on {
            (self.row, self.blamed, self.first) = (0, 0, None);
            return;
        }
        self.row += 1;
        if [Failed::Lost, Failed::NoHost].contains(&how) {
            return;
        }
        self.blamed += 1;
        let first = *self.first.get_or_insert(image);
        if self.blamed >= BLAMED {
            self.suspect.push((first.min(image), newest));
        }
    }

    /// Whether it may be restarted from this image.
    pub fn trusts(&self, image: u64) -> bool {
        !self.suspect.iter().any(|(first, last)| (*first..=*last).contains(&image))
    }

    /// It has failed so often in a row that it is not restarted any more.
    pub fn too_many(&self) -> Option<u32> {
        // The failure before the first restart is one of them.
        (self.row + 1 >= MOST_IN_A_ROW).then_some(self.row + 1)
    }

    /// How long to wait before the next restart: what is in its way may be ending.
    pub fn pause(&self, how: Failed) -> Duration {
        let steps = if how == Failed::Restart { self.row.max(1) } else { self.row };
        let doubled = 1_u32.checked_shl(steps.saturating_sub(1)).unwrap_or(u32::MAX);
        if steps == 0 { Duration::ZERO } else { PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE) }
    }

    /// It is restarted from this image; that one is the newest.
    pub fn restarted(&mut self, image: u64, newest: u64) {
        self.last = Some((image, newest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Failed = Failed::Program(Duration::from_millis(300));
    const LONG: Failed = Failed::Program(Duration::from_secs(60));

    /// Fails so, and is restarted from the image that is chosen of those up to `newest`.
    fn next(attempts: &mut Attempts, how: Failed, newest: u64) -> u64 {
        attempts.failed(how, newest);
        let trusted = (1..=newest).rev().find(|image| attempts.trusts(*image));
        let image = trusted.unwrap_or(newest);
        attempts.restarted(image, newest);
        image
    }

    #[test]
    fn an_image_of_a_program_that_was_failing_is_gone_back_from() {
        let mut attempts = Attempts::default();
        assert_eq!(next(&mut attempts, LONG, 13), 13);
        // It has made one more image before it failed again.
        assert_eq!(next(&mut attempts, MOMENT, 14), 14);
        assert_eq!(next(&mut attempts, MOMENT, 14), 12, "both were made of a program that was failing");
        assert_eq!(next(&mut attempts, MOMENT, 14), 11, "and one more");
        // That one was good; the others stay what they are.
        assert_eq!(next(&mut attempts, LONG, 20), 20);
        assert!(attempts.too_many().is_none() && !attempts.trusts(14) && attempts.trusts(15));
        assert_eq!(attempts.pause(LONG), Duration::ZERO);
    }

    #[test]
    fn a_slow_failure_that_comes_again_is_gone_back_from_and_not_for_ever() {
        let mut attempts = Attempts::default();
        let mut images = Vec::new();
        while attempts.too_many().is_none() {
            images.push(next(&mut attempts, LONG, 9));
        }
        assert_eq!(images, [9, 9, 8, 7, 6, 5, 4, 3]);
        assert_eq!(attempts.too_many(), Some(8));
    }

    #[test]
    fn what_is_lost_is_not_the_fault_of_an_image_and_has_an_end_too() {
        let mut attempts = Attempts::default();
        let mut images = Vec::new();
        while attempts.too_many().is_none() {
            images.push(next(&mut attempts, Failed::Lost, 9));
        }
        assert_eq!(images, [9; 8]);
        let mut attempts = Attempts::default();
        for newest in 9..90 {
            assert_eq!(next(&mut attempts, Failed::Lost, newest), newest);
        }
        assert!(attempts.too_many().is_none());
    }

    #[test]
    fn pauses_become_longer() {
        let mut attempts = Attempts::default();
        assert_eq!(attempts.pause(MOMENT), Duration::ZERO);
        assert_eq!(attempts.pause(Failed::Restart), PAUSE, "what is in its way may be ending");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            next(&mut attempts, Failed::Restart, 9);
            pauses.push(attempts.pause(Failed::Restart).as_secs());
        }
        assert_eq!(pauses, [1, 1, 2, 4, 8, 16, 32, 60]);
    }
}
