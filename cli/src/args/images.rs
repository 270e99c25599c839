//! Commands at images: `fetch`, `sync`, `verify`, `prune`, `rm`, `export`, `import`.

use crate::commands::copies::CopyArgs;
use crate::commands::places::Which;
use crate::completion::jobs;
use crate::names::{ImageName, parse_image, parse_image_or_version};
use crate::settings::{parse_duration, parse_size};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// `holdfast fetch`.
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// JOB (the newest image that any tier has) or JOB@N
    #[arg(value_name = "JOB[@N]", value_parser = parse_image, add = jobs())]
    pub image: ImageName,
    /// How.
    #[command(flatten)]
    pub copy: CopyArgs,
    /// Copy nothing: number and manifest go to standard output, for `restart`
    #[arg(long, hide = true)]
    pub manifest: bool,
    /// With --manifest: an image that is newer than this one, which the store has
    #[arg(long, hide = true, value_name = "N")]
    pub newer_than: Option<u64>,
}

/// `holdfast sync`.
#[derive(Debug, Args)]
pub struct SyncArgs {
    /// Name of the job
    #[arg(add = jobs())]
    pub job: String,
    /// How.
    #[command(flatten)]
    pub copy: CopyArgs,
}

/// `holdfast verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// JOB (all its images) or JOB@N [default: all jobs of the store]
    #[arg(value_name = "JOB[@N]", value_parser = parse_image, add = jobs())]
    pub image: Option<ImageName>,
    /// Where.
    #[command(flatten)]
    pub which: Which,
    /// Replace damaged and missing parts by intact copies from other tiers of the job (not while the job runs)
    #[arg(long)]
    pub repair: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `holdfast prune`.
#[derive(Debug, Default, Args)]
pub struct PruneArgs {
    /// Jobs, or images to delete: JOB@3 JOB@4. Without images and rules: images that the job's own rules do not keep,
    /// in the store and on all tiers
    #[arg(value_name = "JOB[@N]", value_parser = parse_image, required = true, add = jobs())]
    pub images: Vec<ImageName>,
    /// Keep the newest N images, at least one (--all deletes all)
    #[arg(long, visible_alias = "keep-last", value_name = "N", conflicts_with = "all")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub keep: Option<u64>,
    /// Delete only images older than TIME, for example 7d; the newest image stays
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "all")]
    pub older_than: Option<Duration>,
    /// Keep the newest image of each of the last N days that have one (UTC); may be given with --keep-last
    #[arg(long, value_name = "N", conflicts_with = "all", value_parser = clap::value_parser!(u64).range(1..))]
    pub keep_daily: Option<u64>,
    /// Delete the files that restarts have saved (`saved/`): parts that they cut off, and files that they found in the
    /// place of others. With --older-than only older ones, with --all also those that another restart may need
    #[arg(long)]
    pub saved: bool,
    /// Keep images whose number is a multiple of N, and the newest one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "all")]
    pub every: Option<u64>,
    /// Keep the newest images of together at most SIZE bytes, for example 200G
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "all")]
    pub max: Option<u64>,
    /// Delete all images, and (in the store) the job
    #[arg(long)]
    pub all: bool,
    /// Where.
    #[command(flatten)]
    pub which: Which,
    /// Delete also the last image that can be restarted, and images that a tier has yet to get
    #[arg(long)]
    pub anyway: bool,
    /// Print the plan, and delete nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl PruneArgs {
    /// Whether rules are given.
    pub fn has_rules(&self) -> bool {
        self.all || self.saved || self.has_image_rules()
    }
    /// Whether rules for images are given.
    pub fn has_image_rules(&self) -> bool {
        let bounds = self.keep.is_some() || self.every.is_some() || self.max.is_some();
        bounds || self.keep_daily.is_some() || (self.older_than.is_some() && !self.saved)
    }
    /// Whether images or rules are given.
    pub fn asks(&self) -> bool {
        self.has_rules() || self.images.iter().any(|image| image.epoch.is_some())
    }
}

/// `holdfast rm`.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// Names of the jobs
    #[arg(value_name = "JOB", required = true, add = jobs())]
    pub jobs: Vec<String>,
    /// Print the plan, and delete nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl RmArgs {
    /// It is a prune that leaves nothing in the store.
    pub fn prune(&self) -> PruneArgs {
        let images = self.jobs.iter().map(|job| ImageName { job: job.clone(), epoch: None }).collect();
        PruneArgs { images, all: true, dry_run: self.dry_run, json: self.json, ..PruneArgs::default() }
    }
}

/// `holdfast export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// JOB (the newest image) or JOB@N; with --veloc: a set of objects (its newest version), or SET@VERSION
    #[arg(value_name = "JOB[@N]", value_parser = parse_image_or_version, add = jobs())]
    pub image: ImageName,
    /// The file, which must not exist; `-`: standard output. With --veloc: the folder
    pub file: PathBuf,
    /// Write a version of a set of objects as VELOC does: a file NAME-RANK-VERSION.dat for each rank
    #[arg(long, conflicts_with_all = ["tier", "all_tiers"])]
    pub veloc: bool,
    /// Where.
    #[command(flatten)]
    pub which: Which,
}

/// `holdfast import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The file; `-`: standard input. With --veloc: the folder
    pub file: PathBuf,
    /// Name of the job, which must have no image [default: that of the exported job]. With --veloc: name of the set,
    /// or which of the checkpoints in the folder
    #[arg(long, value_name = "JOB")]
    pub name: Option<String>,
    /// Take the files that VELOC has written, NAME-RANK-VERSION.dat: all whole versions of all ranks
    #[arg(long)]
    pub veloc: bool,
    /// They are of processes that call VELOC_Init_single: each id is a set of its own, NAME-ID
    #[arg(long, requires = "veloc")]
    pub single: bool,
    /// They are files of the program's own (VELOC_Route_file)
    #[arg(long, requires = "veloc")]
    pub file_mode: bool,
    /// Check them by the checksums that VELOC has in this folder (`meta`, where `chksum = true`)
    #[arg(long, requires = "veloc", value_name = "FOLDER")]
    pub checksums: Option<PathBuf>,
}
