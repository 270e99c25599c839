//! What a job is run with: kept in `job.json`, so that a restart goes on with the same settings, and handed to the agent.
//!
//! Invariants: plain data; a file that does not parse is an error that names it, never a default.

use crate::exit::{Exit, Failure};
use holdfast_image::bytes::Name;
use holdfast_tiers::Job;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How the memory is frozen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// Chosen by Holdfast (at present always `fork`).
    #[default]
    Auto,
    /// A frozen copy of the process is flushed while the program runs on.
    Fork,
    /// The program stands still until its memory is stored. For comparison.
    Sync,
}

impl EngineChoice {
    /// The name that is recorded in an image.
    pub fn name(self) -> &'static str {
        match self {
            EngineChoice::Auto | EngineChoice::Fork => "fork",
            EngineChoice::Sync => "sync",
        }
    }
}

/// Whose allocator the program uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Allocator {
    /// The jemalloc in libholdfast.
    #[default]
    Jemalloc,
    /// The program's own.
    System,
}

/// Settings of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Time between two checkpoints, seconds; none: only on request.
    pub every_s: Option<u64>,
    /// Newest images to keep; none: all.
    pub keep: Option<usize>,
    /// How memory is frozen.
    pub engine: EngineChoice,
    /// Whose malloc.
    pub malloc: Allocator,
    /// Store program text and libraries too.
    pub self_contained: bool,
    /// Store protected regions only.
    pub only_protected: bool,
    /// Store all pages as they are.
    pub no_compress: bool,
    /// The signal that asks for a checkpoint.
    pub signal: Option<i32>,
    /// The signal that asks for a checkpoint and the end of the program.
    pub stop_signal: Option<i32>,
}

/// Content of `job.json`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Recipe {
    /// The command line as given.
    pub command: Vec<Name>,
    /// Working folder in which it was given.
    pub cwd: Name,
    /// CLOCK_REALTIME of the start, nanoseconds.
    pub created_ns: u64,
    /// Settings.
    pub settings: Settings,
}

impl Recipe {
    /// Reads the job's recipe.
    ///
    /// # Errors
    /// The file is missing or does not parse.
    pub fn read(job: &Job) -> Result<Recipe, Failure> {
        serde_json::from_value(job.recipe()?).map_err(|error| {
            let path = job.dir().join("job.json");
            Failure::new(
                Exit::BadImage,
                format!("{}: {error}; the file was changed by something else than holdfast", path.display()),
            )
        })
    }
    /// Writes it.
    ///
    /// # Errors
    /// Of the store.
    pub fn write(&self, job: &Job) -> Result<(), Failure> {
        let value = serde_json::to_value(self)
            .map_err(|error| Failure::new(Exit::Internal, format!("encoding job.json: {error}")))?;
        job.write_recipe(&value).map_err(Failure::from)
    }
}

/// Parses `30s`, `10m`, `1h`, `2d`, `90` (seconds) and sums such as `1h30m`.
///
/// # Errors
/// Says what is accepted.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write 30s, 10m, 1h or 1h30m");
    let mut total = 0_u64;
    let mut rest = text;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit = rest.chars().next();
        let seconds = match unit {
            Some('s') => 1,
            None if total == 0 => 1,
            Some('m') => 60,
            Some('h') => 3600,
            Some('d') => 86400,
            _ => return Err(wrong()),
        };
        rest = &rest[unit.map_or(0, char::len_utf8)..];
        total = number.checked_mul(seconds).and_then(|n| n.checked_add(total)).ok_or_else(wrong)?;
    }
    if total == 0 { Err("the duration must be at least 1s".into()) } else { Ok(Duration::from_secs(total)) }
}

const SIGNALS: &[(&str, i32)] = &[
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CONT", libc::SIGCONT),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("PWR", libc::SIGPWR),
];

/// Parses a signal that may ask for a checkpoint: `USR1`, `SIGUSR1` or a number.
///
/// # Errors
/// Says what is accepted.
pub fn parse_signal(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let number = name.parse::<i32>().ok();
    SIGNALS
        .iter()
        .find(|(known, value)| *known == name || number == Some(*value))
        .map(|&(_, value)| value)
        .or(number.filter(|n| (34..=64).contains(n)))
        .ok_or_else(|| {
            let names: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
            format!(
                "{text:?} is not a signal that can ask for a checkpoint; use one of {}, 34 to 64",
                names.join(", ")
            )
        })
}

/// Parses `TERM=checkpoint-stop`.
///
/// # Errors
/// Says what is accepted.
pub fn parse_on(text: &str) -> Result<i32, String> {
    match text.split_once('=') {
        Some((signal, "checkpoint-stop")) => parse_signal(signal),
        _ => Err(format!("{text:?} is not SIGNAL=checkpoint-stop, for example TERM=checkpoint-stop")),
    }
}

/// The name of a signal, for messages.
pub fn signal_name(signal: i32) -> String {
    SIGNALS
        .iter()
        .find(|(_, value)| *value == signal)
        .map_or_else(|| format!("signal {signal}"), |(name, _)| format!("SIG{name}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, seconds) in
            [("30s", 30), ("10m", 600), ("1h", 3600), ("90", 90), ("1h30m", 5400), ("2d", 172_800)]
        {
            assert_eq!(parse_duration(text).unwrap().as_secs(), seconds, "{text}");
        }
        for text in [
            "",
            "0",
            "0s",
            "m",
            "-1s",
            "10x",
            "1.5h",
            "1h 5m",
            "99999999999999999999s",
            "9999999999999999999h",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn signals() {
        assert_eq!(parse_signal("USR1").unwrap(), libc::SIGUSR1);
        assert_eq!(parse_signal("sigterm").unwrap(), libc::SIGTERM);
        assert_eq!(parse_signal("12").unwrap(), libc::SIGUSR2);
        assert_eq!(parse_signal("40").unwrap(), 40);
        for text in ["KILL", "STOP", "9", "SEGV", "0", "65", "", "CHLD"] {
            assert!(parse_signal(text).is_err(), "{text}");
        }
        assert_eq!(parse_on("TERM=checkpoint-stop").unwrap(), libc::SIGTERM);
        assert!(parse_on("TERM=stop").is_err());
        assert!(parse_on("TERM").is_err());
    }

    #[test]
    fn settings_of_an_older_version_are_read() {
        let read: Settings = serde_json::from_str(r#"{"every_s": 5}"#).unwrap();
        assert_eq!(read, Settings { every_s: Some(5), ..Settings::default() });
    }
}
