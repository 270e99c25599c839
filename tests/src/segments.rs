//! A process outside all jobs that has System V shared memory attached.
//!
//! Used by the tests of refusals. The segment goes with it.

use crate::artifacts::kit;
use crate::sandbox::PATIENCE;
use anyhow::{Context, Result};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// See the head of the file.
#[derive(Debug)]
pub struct Outside {
    key: String,
    process: Child,
}

impl Outside {
    /// Starts it, with a key of its own for each `number` in this process.
    ///
    /// # Errors
    /// It does not attach the segment in time.
    pub fn start(number: u32) -> Result<Outside> {
        let key = (0x4a00_0000 | number << 22 | std::process::id()).to_string();
        let mut command = Command::new(kit().program("refused"));
        command.args(["segment", "1000", &key]).stdout(Stdio::null());
        let outside = Outside { process: command.spawn()?, key };
        let (begun, maps) = (Instant::now(), format!("/proc/{}/maps", outside.process.id()));
        while !std::fs::read_to_string(&maps)?.contains("/SYSV") {
            (begun.elapsed() < PATIENCE).then_some(()).context("no segment is attached")?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(outside)
    }

    /// The key, in decimal.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = Command::new("ipcrm").args(["-M", &self.key]).status();
    }
}
