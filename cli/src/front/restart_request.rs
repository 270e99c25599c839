//! What is asked of a restart. Made by the commands `run --resume` and `restart`.

use super::locate::Located;
use super::patience::Patience;
use crate::args::OnRestart;
use crate::settings::Settings;
use holdfast_image::Epoch;
use holdfast_image::paths::Moved;
use holdfast_process::rebuild::addresses::Pair;
use holdfast_process::rebuild::streams::Wish;
use holdfast_tiers::{Job, Store};
use std::cell::Cell;
use std::path::PathBuf;

/// How memory is restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryMode {
    /// Lazily where that is possible, the store is on this host, and nothing forbids it.
    Auto,
    /// Lazily where that is possible.
    Lazy,
    /// All of it before the program runs.
    Eager,
}

/// What to restart, and how.
pub struct RestartRequest<'a> {
    /// The store.
    pub store: &'a Store,
    /// The job.
    pub job: &'a Job,
    /// Its settings.
    pub settings: &'a Settings,
    /// A certain image; none: the newest.
    pub epoch: Option<Epoch>,
    /// The image of its gang that this one is a part of.
    pub gang_image: Option<u64>,
    /// The other members are to be started, by ssh; at the first try, after which they try again by themselves.
    pub start_members: Cell<bool>,
    /// One that is not whole in the store.
    pub located: Option<&'a Located>,
    /// If an image is damaged, take the next older one.
    pub fallback: bool,
    /// How memory is restored.
    pub memory: MemoryMode,
    /// Files that were moved.
    pub map: &'a [Moved],
    /// Addresses that are others (`--map-host`).
    pub map_host: &'a [Pair],
    /// How long what is left of the program may take to be gone.
    pub patience: &'a Patience,
    /// Where standard streams go that were files.
    pub stdio: Wish,
    /// Files that are used though they are another user's.
    pub accept_replaced: &'a [PathBuf],
    /// What else is done.
    pub also: &'a OnRestart,
}
