//! How the program of a job was last started, and how it ended: `run.json` in the job's folder.
//!
//! Written by the front when the program runs and when it has ended; by the agent where it ends the program itself, and
//! where there is no front. Read by `list` for the state of a job, and by `run --resume`. What the front was killed
//! before it could write is not there: such a run is lost. Invariant: an end is only written into the run that it is
//! of. Fails by: a file that is missing or cannot be read is as if nothing were known.

use crate::file_system;
use crate::report::utc;
use crate::settings::signal_name;
use holdfast_image::Epoch;
use holdfast_sys::clock;
use holdfast_tiers::Job;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

const NAME: &str = "run.json";
/// Longer ones are not ours: bytes.
const LONGEST: u64 = 64 << 10;

/// With these users end programs.
pub const BY_USERS: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

/// What ends so soon after such a signal was passed on to it is taken to be ended by it: schedulers of batch systems
/// and of containers leave programs that long.
pub const OBEYS_WITHIN: Duration = Duration::from_secs(30);

/// A signal with which users end programs, that was passed on to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ToldBy {
    /// The signal.
    pub signal: i32,
    /// How long before the program's end.
    pub before_ms: u64,
}

/// What an end is to `--restart-on-failure`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// As it was to be.
    Well,
    /// By its user. In words, after "it ended": by which rule.
    ByUser(String),
    /// What a restart is for.
    Failed,
}

/// How a program has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// By itself, with this exit status.
    Status(u8),
    /// By this signal.
    Signal(i32),
    /// After an image that it was ended for.
    Checkpointed(Epoch),
    /// Nothing of ours was its parent.
    Unknown,
}

impl How {
    /// Of the program's exit status.
    pub fn of(status: ExitStatus) -> How {
        match (status.code(), status.signal()) {
            (Some(code), _) => How::Status(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, Some(signal)) => How::Signal(signal),
            (None, None) => How::Unknown,
        }
    }
}

/// The end of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// CLOCK_REALTIME, nanoseconds.
    pub at_ns: u64,
    /// How.
    pub how: How,
}

/// See the head of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LastRun {
    /// When the program was started, or restarted: CLOCK_REALTIME, nanoseconds.
    pub started_ns: u64,
    /// The image that it was restarted from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Epoch>,
    /// Its end, if that was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// The last image that was to end it has failed: its end, whatever it says, is that of a program whose handler was
    /// called instead.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stop_failed: bool,
    /// The last signal of its user that it got before its end, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told_by: Option<ToldBy>,
    /// It was ended because its agent, or its gang, was lost.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
}

impl LastRun {
    /// The program is about to run, from the beginning or from an image. Written down as far as that is possible: a
    /// full disk must not keep it from running.
    pub fn begin(job: &Job, image: Option<Epoch>) -> LastRun {
        let before = LastRun::read(job);
        let run = LastRun { started_ns: clock::realtime_ns(), image, ..LastRun::default() };
        // What is known of the run before must not be taken for this one's after a crash of the host.
        run.write(job, before.is_some_and(|before| before.ended.is_some()));
        run
    }

    /// What is known of a job.
    pub fn read(job: &Job) -> Option<LastRun> {
        let mut text = Vec::new();
        file_system::open_own(&job.dir().join(NAME))?.take(LONGEST).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// It has ended. Nothing is written where another run has begun meanwhile, or the job was removed.
    pub fn end(self, job: &Job, how: How) {
        if let Some(there) = LastRun::read(job).filter(|there| there.started_ns == self.started_ns) {
            let stop_failed = there.stop_failed && !matches!(how, How::Checkpointed(_));
            let ended = Some(Ended { at_ns: clock::realtime_ns(), how });
            LastRun { ended, stop_failed, told_by: self.told_by, lost: self.lost, ..there }
                .write(job, has_image(job));
        }
    }

    /// An image that was to end the program has failed, or one was made since.
    pub fn note_stop(job: &Job, failed: bool) {
        if let Some(run) = LastRun::read(job).filter(|run| run.ended.is_none() && run.stop_failed != failed) {
            LastRun { stop_failed: failed, ..run }.write(job, false);
        }
    }

    /// It goes on, though its end was written down.
    pub fn goes_on(self, job: &Job) {
        LastRun { ended: None, ..self }.write(job, false);
    }

    /// The end that was written down was its end.
    pub fn has_ended(self, job: &Job) {
        if let Some(there) = LastRun::read(job).filter(|there| there.started_ns == self.started_ns) {
            LastRun { ended: self.ended, ..there }.write(job, has_image(job));
        }
    }

    fn write(&self, job: &Job, durably: bool) {
        let written = serde_json::to_vec_pretty(self).map_err(io::Error::from).and_then(|text| {
            let path = job.dir().join(NAME);
            match file_system::write_own(&path, &text) {
                // How a program has ended is told on a full disk, too.
                Err(error) if is_full(&error) => file_system::write_over(&path, &text),
                written => written,
            }
        });
        let synced = written.and_then(|()| if durably { sync(job) } else { Ok(()) });
        if let Err(error) = synced {
            tracing::info!("{NAME} of job {}: {error}", job.name());
        }
    }

    /// How long it ran, by the clock of the host.
    pub fn duration(&self) -> Duration {
        let ended_ns = self.ended.map_or(self.started_ns, |ended| ended.at_ns);
        Duration::from_nanos(ended_ns.saturating_sub(self.started_ns))
    }

    /// What its end is; `None`: that was not seen. Shells add 128 to a signal. A signal may also be handled, and mean
    /// nothing for an end that comes much later.
    pub fn verdict(&self) -> Option<Verdict> {
        let by_user = |signal: i32| BY_USERS.contains(&signal);
        let how = self.ended?.how;
        let obeyed = |told: &ToldBy| Duration::from_millis(told.before_ms) < OBEYS_WITHIN;
        Some(match (how, self.told_by.filter(obeyed)) {
            (How::Status(0) | How::Checkpointed(_), _) if !self.lost => Verdict::Well,
            (How::Signal(signal), _) if by_user(signal) && !self.lost => {
                Verdict::ByUser("which is no failure".into())
            }
            (How::Status(status), _) if by_user(i32::from(status) - 128) && !self.lost => {
                let signal = signal_name(i32::from(status) - 128);
                Verdict::ByUser(format!("which is {signal} to shells, and no failure"))
            }
            (_, Some(ToldBy { signal, before_ms })) => Verdict::ByUser(format!(
                "{:.1} s after {} was passed on to it, which is less than {} s and taken for its cause",
                before_ms as f64 / 1e3,
                signal_name(signal),
                OBEYS_WITHIN.as_secs()
            )),
            _ => Verdict::Failed,
        })
    }

    /// Whether it has ended, and not as its program or its user wanted.
    pub fn has_failed(&self) -> bool {
        self.verdict() == Some(Verdict::Failed)
    }

    /// Whether the program has come to its end by itself, with exit status 0.
    pub fn is_done(&self) -> bool {
        self.ended.is_some_and(|ended| ended.how == How::Status(0))
    }

    /// The state of a job that does not run.
    pub fn state(&self) -> &'static str {
        match self.ended.map(|ended| ended.how) {
            Some(How::Status(0)) => "done",
            Some(How::Status(_)) => "failed",
            Some(How::Signal(_)) => "killed",
            Some(How::Checkpointed(_)) => "checkpointed",
            Some(How::Unknown) => "ended",
            None => "lost",
        }
    }

    /// The end in words, for a message.
    pub fn end_text(&self) -> String {
        let Some(Ended { at_ns, how }) = self.ended else {
            return "its end was not seen".to_owned();
        };
        let how = match how {
            How::Status(status) => format!("ended with status {status}"),
            How::Signal(signal) => format!("was killed by {}", signal_name(signal)),
            How::Checkpointed(epoch) => format!("was ended after image {epoch}"),
            How::Unknown => "ended".to_owned(),
        };
        format!("{how} at {}", utc(at_ns))
    }
}

/// Whether anything could be restarted: without an image a crash of the host may take the end with it, and nothing
/// waits for a disk.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn has_image(job: &Job) -> bool {
    let mut entries = fs::read_dir(job.dir()).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().to_string_lossy().starts_with("manifest-"))
}

fn sync(job: &Job) -> io::Result<()> {
    File::open(job.dir().join(NAME))?.sync_all()?;
    File::open(job.dir())?.sync_all()
}

/// Removes the folder of a job that has nothing in it: no image anywhere, nothing of the user's. The caller holds its
/// lock.
pub fn leave_nothing(job: &Job) -> io::Result<()> {
    if fs::read_dir(job.saved_dir()).is_ok_and(|mut all| all.next().is_some()) {
        return Ok(());
    }
    fs::remove_dir_all(job.dir())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_tiers::Store;

    #[test]
    fn an_end_is_that_of_its_own_run() {
        let root = std::env::temp_dir().join(format!("last-run-{}", std::process::id()));
        let job = Store::open(&root).unwrap().create_job("a").unwrap();
        assert_eq!(LastRun::read(&job), None);
        let first = LastRun::begin(&job, None);
        assert_eq!(LastRun::read(&job).unwrap().state(), "lost");
        let second = LastRun::begin(&job, Some(Epoch(3)));
        first.end(&job, How::Status(0));
        assert_eq!(LastRun::read(&job), Some(second));
        LastRun::note_stop(&job, true);
        second.end(&job, How::of(ExitStatus::from_raw(3 << 8)));
        let read = LastRun::read(&job).unwrap();
        assert!(read.stop_failed, "the front does not know of it");
        assert_eq!((read.state(), read.image, read.is_done()), ("failed", Some(Epoch(3)), false));
        assert!(read.end_text().starts_with("ended with status 3 at 20"), "{}", read.end_text());
        // What is no record of ours says nothing.
        for text in ["", "{", "{\"ended\": 7}"] {
            file_system::write_own(&job.dir().join(NAME), text.as_bytes()).unwrap();
            assert_eq!(LastRun::read(&job), None, "{text}");
        }
        second.end(&job, How::Unknown);
        assert_eq!(LastRun::read(&job), None);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn states_have_words() {
        let run = |how| LastRun { ended: Some(Ended { at_ns: 0, how }), ..LastRun::default() };
        let states = [
            (How::Status(0), "done", "ended with status 0 at 1970-01-01T00:00:00Z"),
            (How::Signal(9), "killed", "was killed by SIGKILL at 1970-01-01T00:00:00Z"),
            (How::Checkpointed(Epoch(4)), "checkpointed", "was ended after image 4 at 1970-01-01T00:00:00Z"),
            (How::Unknown, "ended", "ended at 1970-01-01T00:00:00Z"),
        ];
        for (how, state, text) in states {
            assert_eq!((run(how).state(), run(how).end_text().as_str()), (state, text));
        }
        assert!(run(How::Status(0)).is_done() && !run(How::Unknown).is_done());
        let failed = [How::Status(3), How::Signal(9), How::Signal(11), How::Unknown];
        assert!(failed.iter().all(|how| run(*how).has_failed()));
        let well =
            [How::Status(0), How::Status(143), How::Signal(libc::SIGTERM), How::Checkpointed(Epoch(4))];
        assert!(well.iter().all(|how| !run(*how).has_failed()));
        assert!(LastRun { lost: true, ..run(How::Signal(15)) }.has_failed());
        assert!(LastRun { lost: true, ..run(How::Status(0)) }.has_failed(), "it was not at its end");
        let told = |how, before_ms| {
            let told_by = Some(ToldBy { signal: libc::SIGINT, before_ms });
            LastRun { told_by, ..run(how) }
        };
        assert_eq!(told(How::Status(0), 3).verdict(), Some(Verdict::Well));
        let Some(Verdict::ByUser(rule)) = told(How::Status(3), 2_100).verdict() else { unreachable!() };
        assert_eq!(
            rule,
            "2.1 s after SIGINT was passed on to it, which is less than 30 s and taken for its cause"
        );
        assert!(!LastRun { lost: true, ..told(How::Signal(15), 3) }.has_failed(), "its user has ended it");
        // It was handled.
        for how in [How::Status(3), How::Signal(9), How::Signal(11)] {
            assert!(!told(how, 29_999).has_failed() && told(how, 30_000).has_failed());
        }
        let Some(Verdict::ByUser(rule)) = run(How::Status(143)).verdict() else { unreachable!() };
        assert_eq!(rule, "which is SIGTERM to shells, and no failure");
        assert!(!LastRun::default().has_failed(), "its end was not seen");
    }
}
