//! How the memory of a job came back at its last restart: `restarted.json` in the job's folder.
//!
//! Written by the agent when the program runs again; read by `holdfast show`; said in one line by `restart --lazy`.
//! Advice only: one that is missing or cannot be read is as if nothing were known.

use crate::file_system;
use crate::report::size;
use holdfast_process::rebuild::RebuildTimings;
use holdfast_tiers::Job;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};

const NAME: &str = "restarted.json";
/// Longer ones are not ours: bytes.
const LONGEST: u64 = 64 << 10;
/// Less memory is not worth a word: bytes.
const LEAST: u64 = 1 << 20;

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LastRestart {
    /// Number of the image.
    pub image: u64,
    /// Bytes that were mapped: read when they are touched.
    pub mapped_bytes: u64,
    /// By a page server, not from segments.
    pub served: bool,
    /// Bytes that were copied before the program ran.
    pub copied_bytes: u64,
    /// Those of them that could not be mapped because they are compressed.
    pub compressed_bytes: u64,
    /// Those that could not because they lie one by one in the segments.
    pub scattered_bytes: u64,
    /// From the first of the agent's steps until the program ran, nanoseconds.
    pub ns: u64,
}

impl LastRestart {
    /// Of one that is just over.
    pub fn of(image: u64, served: bool, timings: &RebuildTimings) -> LastRestart {
        let RebuildTimings {
            mapped_bytes,
            copied_bytes,
            compressed_bytes,
            scattered_bytes,
            total_ns: ns,
            ..
        } = *timings;
        LastRestart { image, mapped_bytes, served, copied_bytes, compressed_bytes, scattered_bytes, ns }
    }

    /// What is known of a job.
    pub fn read(job: &Job) -> Option<LastRestart> {
        let mut text = Vec::new();
        file_system::open_own(&job.dir().join(NAME))?.take(LONGEST).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Keeps it.
    ///
    /// # Errors
    /// As the calls.
    pub fn write(&self, job: &Job) -> io::Result<()> {
        file_system::write_own(&job.dir().join(NAME), &serde_json::to_vec_pretty(self)?)
    }

    /// Whether a lazy restart has done as it was asked.
    pub fn is_lazy(&self) -> bool {
        self.copied_bytes < LEAST && !self.served
    }

    /// One line.
    pub fn line(&self) -> String {
        let mut parts = Vec::new();
        if self.mapped_bytes > 0 {
            let how = if self.served { "served by a process of its own" } else { "mapped from the image" };
            parts.push(format!("{} of memory {how}, read when touched", size(self.mapped_bytes)));
        }
        parts.push(format!("{} copied", size(self.copied_bytes)));
        let why =
            [(self.compressed_bytes, "compressed"), (self.scattered_bytes, "one by one in the segments")];
        let why = why.iter().filter(|(bytes, _)| *bytes >= LEAST);
        let why: Vec<String> = why.map(|(bytes, what)| format!("{} {what}", size(*bytes))).collect();
        let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join(", ")) };
        format!("{}{why}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_what_was_done_and_why() {
        let eager = LastRestart { copied_bytes: 3 << 20, ..LastRestart::default() };
        assert_eq!(eager.line(), "3.0 MiB copied");
        assert!(!eager.is_lazy());
        let served =
            LastRestart { mapped_bytes: 5 << 30, copied_bytes: 4096, served: true, ..LastRestart::default() };
        let line = "5.0 GiB of memory served by a process of its own, read when touched, 4.0 KiB copied";
        assert_eq!(served.line(), line);
        let some =
            LastRestart { mapped_bytes: 2 << 20, compressed_bytes: 2 << 20, scattered_bytes: 7, ..eager };
        let line =
            "2.0 MiB of memory mapped from the image, read when touched, 3.0 MiB copied (2.0 MiB compressed)";
        assert_eq!(some.line(), line);
        assert!(LastRestart { mapped_bytes: 1 << 30, ..LastRestart::default() }.is_lazy());
    }
}
