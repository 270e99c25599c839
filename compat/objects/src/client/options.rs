//! What a client is told when it opens a set.

use std::path::PathBuf;

/// Which rank of which set, and where.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The store.
    pub store: PathBuf,
    /// Name of the set.
    pub set: String,
    /// This rank.
    pub rank: u32,
    /// How many ranks there are.
    pub ranks: u32,
    /// Lower tiers (`dir=PATH,keep=N`), the fastest first.
    pub tiers: Vec<String>,
    /// So many of the newest whole versions are kept in the store; `None`: all.
    pub keep: Option<u64>,
    /// Path of the binary `holdfast`; `None`: it is looked for ([`BINARY_VARIABLE`], beside the library, PATH).
    pub holdfast: Option<PathBuf>,
}
