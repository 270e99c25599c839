//! `holdfast plan`.

use crate::completion::jobs;
use crate::levels::{LevelSpec, MtbfSpec};
use crate::settings::{parse_duration, parse_seconds};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// `holdfast plan`.
#[derive(Debug, Default, Args)]
pub struct PlanArgs {
    /// A level, the cheapest first (may be given more than once): NAME[,cost=TIME][,flush=TIME][,slow=PERCENT]
    /// [,restart=TIME][,mtbf=TIME]. cost: how long the program waits for a checkpoint of it [default: that of the level
    /// below]; flush: how long it takes behind the program's back until the level has it [default: 0]; slow: by how
    /// much the program is slower meanwhile [default: 0]; restart: from the failure until the program runs again
    /// [default: cost and flush together]; mtbf: mean time between failures that this level survives and the level
    /// below does not [default: there are none]. With --from: what differs from what was measured, or one more level
    #[arg(long, value_name = "SPEC")]
    pub level: Vec<LevelSpec>,
    /// Take the levels from this job, as they were measured: stops, flushes and sizes of its images, copies to its
    /// tiers, its last restart
    #[arg(long, value_name = "JOB", add = jobs())]
    pub from: Option<String>,
    /// Mean time between failures, as mtbf= of the level NAME; without a name: of the only level
    #[arg(long, value_name = "[NAME=]TIME")]
    pub mtbf: Vec<MtbfSpec>,
    /// The same from a file, a line for each level: NAME = "TIME" (TOML)
    #[arg(long, value_name = "FILE")]
    pub rates: Option<PathBuf>,
    /// Compute, too, what comes of checkpoints this often [default: with --from: as the job has it]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub every: Option<Duration>,
    /// Compute, too, how long a program runs that would take TIME without checkpoints and failures
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub work: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
