//! `tiers.json` in the job's folder: what is known of its tiers, for listings that ask no tier.
//!
//! Written by the cascade when something changes, and by a fetch; read by `holdfast list` and by the next cascade.
//! Advice only: one that is missing or cannot be read is as if nothing were known.

use super::others::OtherImage;
use super::place::Place;
use crate::Job;
use crate::files::{self, TEMP};
use crate::tier::posix;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;

/// Its name, and its greatest length, bytes.
const NAME: &str = "tiers.json";
const MOST: u64 = 4 << 20;

/// What is known of one tier.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TierRecord {
    /// Its address.
    pub tier: String,
    /// Numbers of the images that it has.
    pub versions: Vec<u64>,
    /// Those that it is to get and has not got.
    pub waiting: Vec<u64>,
    /// Its images that have numbers of the store's and are not those: no copies.
    pub others: Vec<OtherImage>,
    /// Why not, if something failed.
    pub error: Option<String>,
    /// Why it is only read, if so.
    pub read_only: Option<String>,
    /// Why only one host may write there, if so.
    pub single_writer: Option<String>,
    /// The greatest number that anything there has, also of what is not complete: new images get greater ones.
    pub greatest: u64,
    /// How fast its last copies went, bytes per second, if any was large enough to tell.
    pub speed: Option<u64>,
    /// CLOCK_REALTIME of this knowledge, nanoseconds.
    pub known_ns: u64,
}

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TiersRecord {
    /// The lower tiers, the fastest first.
    pub tiers: Vec<TierRecord>,
}

impl TiersRecord {
    /// Reads what is known of a job's tiers.
    pub fn read(job: &Job) -> TiersRecord {
        let bytes = files::read_checked(&job.dir().join(NAME), MOST).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// Writes it, atomically; not durable: after a crash of the host the tiers are asked again.
    ///
    /// # Errors
    /// As open(2), write(2), rename(2).
    pub fn write(&self, job: &Job) -> std::io::Result<()> {
        let (path, temp) = (job.dir().join(NAME), job.dir().join(format!("{TEMP}{NAME}")));
        let _ = fs::remove_file(&temp);
        posix::create_new(&temp, 0)?.write_all(&serde_json::to_vec_pretty(self)?)?;
        fs::rename(temp, path)
    }

    /// With what another one knows of tiers that this one does not have.
    #[must_use]
    pub fn with(mut self, other: TiersRecord) -> TiersRecord {
        let unknown: Vec<TierRecord> =
            other.tiers.into_iter().filter(|tier| self.of(&tier.tier).is_none()).collect();
        self.tiers.extend(unknown);
        self
    }

    /// The tiers below the store.
    pub fn lower(&self) -> impl Iterator<Item = &TierRecord> {
        self.tiers.iter().filter(|tier| !Place::is_store(&tier.tier))
    }

    /// The tier of this address, if something is known.
    pub fn of(&self, address: &str) -> Option<&TierRecord> {
        self.tiers.iter().find(|tier| tier.tier == address)
    }
}
