//! Options of the commands about streams (compat/streams).

use clap::Args;
use std::path::PathBuf;

/// `holdfast streams`.
#[derive(Debug, Args)]
pub struct StreamsArgs {
    /// Only streams of this name
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Folder of the logs [default: $HOLDFAST_STREAMS, else /dev/shm/holdfast-streams-UID]
    #[arg(long, value_name = "DIR")]
    pub streams: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `holdfast cat`.
#[derive(Debug, Args)]
pub struct CatArgs {
    /// Stream, and version [default: the newest]
    #[arg(value_name = "NAME[/RANK][@V]")]
    pub stream: String,
    /// Object; without it the objects are listed
    #[arg(value_name = "OBJECT")]
    pub object: Option<String>,
    /// Print the object of each version from there on, as they come, until the producer has ended
    #[arg(short, long, requires = "object")]
    pub follow: bool,
    /// Folder of the logs [default: $HOLDFAST_STREAMS, else /dev/shm/holdfast-streams-UID]
    #[arg(long, value_name = "DIR")]
    pub streams: Option<PathBuf>,
    /// Print the list as JSON
    #[arg(long, conflicts_with = "object")]
    pub json: bool,
}
