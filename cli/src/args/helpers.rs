//! Processes that Holdfast starts beside itself: hidden from help and shells.

use super::map_host::addresses;
use super::on_restart::variable;
use super::restart::moved;
use crate::inherited_fds::InheritedFd;
use crate::settings::{Cow, Export, parse_export, parse_size};
use clap::Args;
use holdfast_image::paths::Moved;
use holdfast_image::streams::Switch;
use holdfast_process::rebuild::addresses::Pair;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// `holdfast __agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Name of the job.
    #[arg(long, required_unless_present = "attach_env")]
    pub job: Option<String>,
    /// Descriptor of the link to `holdfast run` or `restart`.
    #[arg(long)]
    pub link: Option<i32>,
    /// Number of the image to restart from.
    #[arg(long, requires = "seed")]
    pub restart: Option<u64>,
    /// Number of the image of the gang that it is a part of.
    #[arg(long, requires = "restart")]
    pub gang_image: Option<u64>,
    /// Start the other members of an open gang, by ssh.
    #[arg(long, requires = "gang_image")]
    pub start_members: bool,
    /// Descriptor of the socket to the process that is being rebuilt.
    #[arg(long)]
    pub seed: Option<i32>,
    /// Map memory from the image.
    #[arg(long)]
    pub lazy: bool,
    /// Have processes map what they have in common.
    #[arg(long)]
    pub share: bool,
    /// The first of the new processes has the file of a page server.
    #[arg(long)]
    pub served: bool,
    /// Files that were moved.
    #[arg(long, value_parser = moved())]
    pub map: Vec<Moved>,
    /// Addresses that are others.
    #[arg(long, value_parser = addresses)]
    pub map_host: Vec<Pair>,
    /// Files that are used though they are another user's.
    #[arg(long)]
    pub accept_replaced: Vec<PathBuf>,
    /// A stream that becomes one of `holdfast restart`.
    #[arg(long, value_name = "DESCRIPTION:NUMBER:FROM:WHOLE")]
    pub stream: Vec<Switch>,
    /// An entry that the program gets into its environment.
    #[arg(long, value_parser = variable())]
    pub env: Vec<CString>,
    /// A signal that it gets.
    #[arg(long)]
    pub signal: Option<i32>,
    /// A descriptor that the program was started with.
    #[arg(long, value_name = "FD:DEVICE:INODE")]
    pub inherited: Vec<InheritedFd>,
    /// The program cannot load libholdfast.
    #[arg(long, requires = "link")]
    pub silent: bool,
    /// Started by libholdfast: settings come from HOLDFAST_*, the socket's path goes to standard output.
    #[arg(long)]
    pub attach_env: bool,
}

impl AgentArgs {
    /// What `holdfast restart` was told and is meant for each member of a gang, in its words.
    pub fn for_other_members(&self) -> Vec<OsString> {
        let mut words = Vec::<OsString>::new();
        let mut add = |name: &str, value: OsString| words.extend([name.into(), value]);
        self.map.iter().for_each(|moved| add("--map", moved.to_argument()));
        for (old, new) in &self.map_host {
            add("--map-host", format!("{old}={new}").into());
        }
        self.accept_replaced.iter().for_each(|path| add("--accept-replaced", path.into()));
        for entry in &self.env {
            add("--env", OsStr::from_bytes(entry.as_bytes()).to_owned());
        }
        if let Some(signal) = self.signal {
            add("--signal-on-restart", signal.to_string().into());
        }
        words
    }
}

/// `holdfast __pages`.
#[derive(Debug, Args)]
pub struct PagesArgs {
    /// Name of the job.
    #[arg(long)]
    pub job: String,
    /// Number of the image.
    #[arg(long)]
    pub image: u64,
    /// Descriptor of the socket to `holdfast restart`.
    #[arg(long)]
    pub front: i32,
}

/// `holdfast __meet`.
#[derive(Debug, Args)]
pub struct MeetArgs {
    /// Which member of which gang it is, as in `job.json`.
    #[arg(long)]
    pub place: String,
    /// The image of the gang that was asked for.
    #[arg(long)]
    pub image: Option<u64>,
}

/// `holdfast __prefetch`.
#[derive(Debug, Args)]
pub struct PrefetchArgs {
    /// Name of the job, for those who look at processes.
    #[arg(long)]
    pub job: String,
    /// Descriptor of the socket to the page server.
    #[arg(long)]
    pub server: i32,
    /// Descriptor of the socket to `holdfast restart`.
    #[arg(long)]
    pub front: i32,
}

/// `holdfast __cuda`, `holdfast __probe`.
#[derive(Debug, Args)]
pub struct CudaArgs {
    /// Descriptor of the socket to the agent.
    #[arg(long)]
    pub agent: i32,
    /// The libcuda to be loaded.
    #[arg(long)]
    pub library: PathBuf,
}

/// `holdfast __keeper`.
#[derive(Debug, Args)]
pub struct KeeperArgs {
    /// Descriptor of the socket to the agent.
    #[arg(long)]
    pub agent: i32,
    /// Descriptor of the file for contents.
    #[arg(long)]
    pub ring: i32,
    /// Most device memory for what an image does not have yet.
    #[arg(long)]
    pub gpu_cache: Cow,
    /// Where programs ask.
    #[arg(long)]
    pub socket: PathBuf,
}

/// `holdfast serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Most memory for versions that are not in the store yet, and for those that are read again soon
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Instead: let readers on other hosts read streams of this one (`holdfast cat --from`). Ends by a signal
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        requires = "key",
        requires = "export",
        conflicts_with = "memory"
    )]
    pub listen: Option<String>,
    /// Who has this file may read; it is made if it is not there
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub key: Option<PathBuf>,
    /// A stream that may be read, or some versions of it: sim, sim/1, sim@10-20; repeatable. No other may
    #[arg(long, value_name = "NAME[/RANK][@FIRST-LAST]", value_parser = parse_export, requires = "listen")]
    pub export: Vec<Export>,
    /// Folder of the logs, or log=DIR [default: $HOLDFAST_STREAMS, else /dev/shm/holdfast-streams-UID]
    #[arg(long, value_name = "DIR", value_parser = super::streams::parse_folder, requires = "listen")]
    pub streams: Option<PathBuf>,
}
