//! Options of the commands about streams (compat/streams).

use clap::Args;
use std::path::PathBuf;

/// The folder of logs: a path, or a log tier as `run --tier` takes it.
pub(super) fn parse_folder(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("log=").unwrap_or(text) {
        "" => Err("a folder is asked for, for example /dev/shm/x".into()),
        path => Ok(path.into()),
    }
}

/// `holdfast streams`.
#[derive(Debug, Args)]
pub struct StreamsArgs {
    /// Only streams of this name
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Folder of the logs, or log=DIR [default: $HOLDFAST_STREAMS, else /dev/shm/holdfast-streams-UID]
    #[arg(long, value_name = "DIR", value_parser = parse_folder)]
    pub streams: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `holdfast cat`.
#[derive(Debug, Args)]
pub struct CatArgs {
    /// Stream, and version [default: the newest]; with --image a job, and the number of its image
    #[arg(value_name = "NAME[/RANK][@V] | JOB[@N]")]
    pub stream: String,
    /// Object; without it the objects are listed. With --image a variable of the program, '*POINTER+BYTES' (what a
    /// variable points to), or 0xADDRESS+BYTES
    #[arg(value_name = "OBJECT")]
    pub object: Option<String>,
    /// Memory of a job's program, as an image has it; the program need not know of it
    #[arg(long, conflicts_with = "streams")]
    pub image: bool,
    /// Of this process of the image [default: the program]
    #[arg(long, value_name = "PID", requires = "image")]
    pub process: Option<i32>,
    /// Print the object of each version from there on, as they come, until the producer has ended; with --image: of
    /// each image, until the job has ended
    #[arg(short, long, requires = "object")]
    pub follow: bool,
    /// With --follow: before each object a line with the number of its version and how many bytes follow
    #[arg(long, requires = "follow", conflicts_with = "image")]
    pub numbered: bool,
    /// Folder of the logs, or log=DIR [default: $HOLDFAST_STREAMS, else /dev/shm/holdfast-streams-UID]
    #[arg(long, value_name = "DIR", value_parser = parse_folder)]
    pub streams: Option<PathBuf>,
    /// Of a stream on another host, where `holdfast serve --listen` runs
    #[arg(long, value_name = "ADDRESS:PORT", requires = "key", conflicts_with_all = ["image", "streams"])]
    pub from: Option<String>,
    /// The key of that server: a copy of its file
    #[arg(long, value_name = "FILE", requires = "from")]
    pub key: Option<PathBuf>,
    /// Print the list as JSON
    #[arg(long, conflicts_with = "object")]
    pub json: bool,
}
