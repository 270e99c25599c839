//! `holdfast restart`, and the files that have moved.

use super::gang::GangArgs;
use super::map_host::{MovedHost, map_host};
use super::on_failure::is_restarted;
use super::on_restart::OnRestart;
use crate::completion::jobs;
use crate::names::{ImageName, parse_image};
use crate::new_settings::NewSettings;
use crate::settings::{Cow, Settings, Spot, parse_size, parse_wait};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use holdfast_image::paths::Moved;
use holdfast_process::rebuild::addresses::Pair;
use holdfast_process::rebuild::streams::Wish;
use holdfast_tiers::stack::TierSpec;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `holdfast restart`.
#[derive(Debug, Args)]
pub struct RestartArgs {
    /// JOB (the newest image) or JOB@N
    #[arg(value_name = "JOB[@N]", value_parser = parse_image, required_unless_present = "all_lost", add = jobs())]
    pub image: Option<ImageName>,
    /// Restart every lost job (its end was not seen) from its newest image, after a reboot, and wait for their ends
    #[arg(long, exclusive = true)]
    pub all_lost: bool,
    /// Start the program at once, and read memory from the image when the program touches it, where possible
    #[arg(long, conflicts_with = "eager")]
    pub lazy: bool,
    /// Read all memory before the program runs
    #[arg(long)]
    pub eager: bool,
    /// If the image is damaged, take the next older one
    #[arg(long)]
    pub fallback: bool,
    /// From now on these are the job's tiers, as for `run`. They supply what the store lacks of the image
    #[arg(long, value_name = "SPEC")]
    pub tier: Vec<TierSpec>,
    /// From now on most space of the job's images in the store, as for `run`
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_space: Option<u64>,
    /// Restart a copy, as a job of its own with this name: any number of copies may run at once
    #[arg(long, value_name = "NEW", conflicts_with = "fallback")]
    pub name: Option<String>,
    /// Look for files and folders of the program below NEW instead of OLD (may be given more than once)
    #[arg(long, value_name = "OLD=NEW", value_parser = moved())]
    pub map: Vec<Moved>,
    /// The program's sockets are at NEW where the host of the image had OLD, and it goes on with the address OLD: on
    /// another host (may be given more than once; addresses, or names that still lead to them)
    #[arg(long, value_name = "OLD=NEW", value_parser = map_host)]
    pub map_host: Vec<MovedHost>,
    /// Wait at most TIME for the processes of a program that was just killed, until they have released their memory,
    /// sockets, locks and ids; 0: do not wait [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_wait)]
    pub wait: Option<Duration>,
    /// Use the file at PATH although its owner has changed, or more users may write to it (may be given more than once)
    #[arg(long, value_name = "PATH")]
    pub accept_replaced: Vec<PathBuf>,
    /// Standard streams of the program that were files. keep: the program goes on in its files. here: it gets the
    /// streams of this command. auto: it goes on in its files, but gets those streams of this command that are
    /// redirected to a file or a pipe. Streams that were terminals or pipes are always those of this command
    #[arg(long, value_name = "auto|keep|here", value_enum, default_value_t, hide_default_value = true)]
    pub stdio: StdioChoice,
    /// Of several hosts.
    #[command(flatten)]
    pub gang: GangArgs,
    /// `--restart-on-failure` of the leader has started it, on another host
    #[arg(long, hide = true)]
    pub supervised: bool,
    /// Where the members of a gang are restarted that was run with --gang ssh, in their order; the first is this host
    /// [default: where they were]
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// What else is done at this restart.
    #[command(flatten)]
    pub on_restart: OnRestart,
    /// From now on most GPU memory for data that is not in the image yet, as for `run`
    #[arg(long, value_name = "LIMIT")]
    pub gpu_cache: Option<Cow>,
    /// From now on take a checkpoint and end the program when the cloud is about to take this machine away, as for
    /// `run`; none: not any more
    #[arg(long, value_name = "aws|gcp|azure|CMD", value_parser = spot_or_none)]
    pub on_spot: Option<MaybeSpot>,
    /// From now on end the program when it cannot be protected any more, as for `run`
    #[arg(long)]
    pub strict: bool,
    /// From now on.
    #[command(flatten)]
    pub new: NewSettings,
}

impl RestartArgs {
    /// All of `--map-host`.
    pub fn hosts(&self) -> Vec<Pair> {
        self.map_host.iter().flat_map(|moved| moved.0.iter().copied()).collect()
    }

    /// What the job goes on with.
    pub fn settings(&self, old: &Settings) -> Settings {
        let (max_space, strict) = (self.max_space.or(old.max_space), self.strict || old.strict);
        let gpu_cache = self.gpu_cache.or(old.gpu_cache);
        let on_spot = self.on_spot.clone().unwrap_or_else(|| old.on_spot.clone());
        let supervised = self.supervised || is_restarted();
        Settings { max_space, strict, supervised, gpu_cache, on_spot, ..self.new.apply(old) }
    }
}

/// A value of `--on-spot`; none unsets it. (An `Option` of an `Option` means something else to clap.)
type MaybeSpot = std::option::Option<Spot>;

fn spot_or_none(text: &str) -> Result<MaybeSpot, String> {
    if text == "none" { Ok(None) } else { text.parse().map(Some) }
}

/// `--stdio`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum StdioChoice {
    /// On in their files, unless they are redirected.
    #[default]
    Auto,
    /// On in their files.
    Keep,
    /// Where the command's own lead.
    Here,
}

impl StdioChoice {
    /// In the words of the restart.
    pub fn wish(self) -> Wish {
        match self {
            StdioChoice::Auto => Wish::Auto,
            StdioChoice::Keep => Wish::Keep,
            StdioChoice::Here => Wish::Here,
        }
    }
}

/// Reads `OLD=NEW`; paths need not be text.
pub(super) fn moved() -> impl TypedValueParser<Value = Moved> {
    let read = |text: OsString| {
        let moved = Moved::parse(&text)?;
        Ok::<_, String>(Moved { new: without_links(&moved.new), ..moved })
    };
    OsStringValueParser::new().try_map(read)
}

/// The same place without symbolic links on the way, as far as it is there: a restart follows none.
fn without_links(path: &Path) -> PathBuf {
    let found = path.ancestors().find_map(|there| Some((there, there.canonicalize().ok()?)));
    let Some((there, real)) = found else { return path.to_owned() };
    match path.strip_prefix(there) {
        Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
        _ => real,
    }
}
