//! Profiles of a job's folder: what earlier runs of a program have put, by the build-id of the program.
//!
//! Written and read by the server of objects (`cli/src/serve/ensemble.rs`), read by `show`. A file for each build-id,
//! `profile-BUILDID`: a line with name, version and checksum, then JSON. Invariants: one is whole or not there; what is
//! read is of this user, bounded and checked before it is computed with; no more than [`MOST_FILES`] of a job.
//! Fails by: an error of the store. Nothing depends on a profile but speed: its reader goes on without it.

use crate::error::StoreError;
use crate::files;
use crate::job::Job;
use crate::policy::Profile;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64;

/// Most samples of a profile.
pub const MOST_SAMPLES: usize = 1024;
/// Most bytes of a file: a sample has 60 at most.
const MOST_BYTES: u64 = 256 << 10;
const MOST_POINTS: usize = 64;
const MOST_LETTERS: usize = 16 << 10;
/// Builds of one program that are remembered.
const MOST_FILES: usize = 8;
/// No size and no time is greater: their sums fit in 64 bits.
const MOST: u64 = 1 << 50;
const PREFIX: &str = "profile-";
const HEAD: &str = "holdfast profile 1";

/// What is known of the runs of one program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownRun {
    /// Of the run that was profiled.
    pub profile: Profile,
    /// Number of the codec that its curve is of.
    pub codec: u32,
    /// What was done with the versions of the last run, in letters.
    pub ran: String,
}

impl KnownRun {
    /// The bytes of a file.
    ///
    /// # Errors
    /// A value cannot be written as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, String> {
        let json = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        let mut bytes = format!("{HEAD} {:016x}\n", xxh3_64(&json)).into_bytes();
        bytes.extend(json);
        Ok(bytes)
    }

    /// Reads what [`KnownRun::encode`] has written. Anybody may have.
    ///
    /// # Errors
    /// What is wrong with it, for a message.
    pub fn decode(bytes: &[u8]) -> Result<KnownRun, String> {
        if bytes.len() as u64 > MOST_BYTES {
            return Err(format!("{} bytes; at most {MOST_BYTES} are possible", bytes.len()));
        }
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or("it has no first line")?;
        let (head, json) = (&bytes[..end], &bytes[end + 1..]);
        let head = std::str::from_utf8(head).map_err(|_| "its first line is no text")?;
        let sum = head.strip_prefix(HEAD).ok_or("it is no profile of this version")?;
        if sum.trim_start() != format!("{:016x}", xxh3_64(json)) {
            return Err("its checksum is another one".into());
        }
        let known: KnownRun = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        known.check()?;
        Ok(known)
    }

    fn check(&self) -> Result<(), String> {
        let Profile { samples, codec, rate } = &self.profile;
        if samples.len() > MOST_SAMPLES || codec.curve.len() > MOST_POINTS || self.ran.len() > MOST_LETTERS {
            return Err("it has more samples, points or letters than are possible".into());
        }
        let is_possible = |value: u64| value <= MOST;
        let good = samples.iter().all(|sample| {
            sample.bytes > 0
                && [sample.interval_ns, sample.bytes, sample.compressed].into_iter().all(is_possible)
        });
        let ascends = codec.curve.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
        let points =
            codec.curve.iter().all(|&(bytes, ns)| bytes > 0 && is_possible(bytes) && is_possible(ns));
        if !good || !ascends || !points || codec.temporary_per_mille > 1_000_000 || *rate == 0 {
            return Err("sizes, times or rates in it are not possible".into());
        }
        if !self.ran.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
            return Err("its letters are none".into());
        }
        Ok(())
    }
}

impl Job {
    /// What is known of the runs of a program, `None`: nothing.
    ///
    /// # Errors
    /// It cannot be read, or is not as it must be.
    pub fn known_run(&self, build: &str) -> Result<Option<KnownRun>, StoreError> {
        let path = self.profile_path(build);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io("look at", &path)(error)),
            Ok(_) => {}
        }
        let bytes = files::read_checked(&path, MOST_BYTES)?;
        KnownRun::decode(&bytes).map(Some).map_err(|why| StoreError::corrupt(&path, 0, why))
    }

    /// Keeps it, in the place of what was known.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep_known_run(&self, build: &str, known: &KnownRun) -> Result<(), StoreError> {
        let path = self.profile_path(build);
        let bytes =
            known.check().and_then(|()| known.encode()).map_err(|why| StoreError::corrupt(&path, 0, why))?;
        files::replace(self.dir(), &format!("{PREFIX}{build}"), &bytes)?;
        let mut others: Vec<_> = self
            .known_runs()?
            .into_iter()
            .filter_map(|(build, path)| Some((fs::metadata(&path).ok()?.modified().ok()?, build, path)))
            .collect();
        others.sort();
        let too_many = others.len().saturating_sub(MOST_FILES);
        others.into_iter().take(too_many).try_for_each(|(_, _, path)| files::remove(&path))
    }

    /// The builds that something is known of, and the files.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn known_runs(&self) -> Result<Vec<(String, PathBuf)>, StoreError> {
        let failed = || StoreError::io("list", self.dir());
        let mut found = Vec::new();
        for entry in fs::read_dir(self.dir()).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            if let Some(build) = entry.file_name().to_str().and_then(|name| name.strip_prefix(PREFIX)) {
                found.push((build.to_owned(), entry.path()));
            }
        }
        found.sort();
        Ok(found)
    }

    fn profile_path(&self, build: &str) -> PathBuf {
        self.dir().join(format!("{PREFIX}{build}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{CodecCurve, Sample};

    fn known() -> KnownRun {
        let profile = Profile {
            samples: vec![Sample { interval_ns: 5, bytes: 4096, compressed: 100 }; 3],
            codec: CodecCurve { curve: vec![(4096, 10), (8192, 15)], temporary_per_mille: 0 },
            rate: 1_000_000,
        };
        KnownRun { profile, codec: 1, ran: "2 U, C".into() }
    }

    #[test]
    fn what_was_written_is_read_and_nothing_else_is() -> Result<(), String> {
        let bytes = known().encode()?;
        assert_eq!(KnownRun::decode(&bytes)?, known());
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(KnownRun::decode(&other).is_err(), "byte {at} changed");
            assert!(KnownRun::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        Ok(())
    }

    #[test]
    fn what_is_not_possible_is_refused_with_a_right_checksum() -> Result<(), String> {
        let changed = |change: fn(&mut KnownRun)| {
            let mut other = known();
            change(&mut other);
            other.encode().map(|bytes| KnownRun::decode(&bytes).is_err())
        };
        assert!(changed(|known| known.profile.rate = 0)?);
        assert!(changed(|known| known.profile.samples[1].bytes = 0)?);
        assert!(changed(|known| known.profile.samples[1].interval_ns = u64::MAX)?);
        assert!(changed(|known| known.profile.codec.curve.reverse())?);
        assert!(changed(|known| known.profile.codec.temporary_per_mille = u64::MAX)?);
        assert!(changed(|known| known.ran = "\u{1b}[2J".into())?);
        assert!(changed(|known| known.profile.samples = vec![known.profile.samples[0]; MOST_SAMPLES + 1])?);
        Ok(())
    }
}
