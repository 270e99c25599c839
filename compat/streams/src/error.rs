//! Why something was not done. Each says what of which log, and what to do.

use std::io;
use std::path::PathBuf;

/// See each.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("{0}")]
    Argument(String),
    #[error("{}: {why}", path.display())]
    System { path: PathBuf, why: io::Error },
    #[error("{} is no log of Holdfast, or a damaged one ({why}): remove it, or choose another name", path.display())]
    NotALog { path: PathBuf, why: String },
    #[error(
        "{}: the file system has no room for the log ({why}): make room there, or a log smaller, for a stream that is \
         new (HOLDFAST_STREAM_SIZE)", path.display()
    )]
    NoRoom { path: PathBuf, why: io::Error },
    #[error("{}: another process writes to this stream: end it first", path.display())]
    Busy { path: PathBuf },
    #[error("{}: no such stream; `holdfast streams` lists those that there are", path.display())]
    NoStream { path: PathBuf },
    #[error(
        "the log is full: {reader} still reads version {version}, the oldest one: wait for it, end it, or make the \
         log larger (HOLDFAST_STREAM_SIZE)"
    )]
    Held { reader: String, version: u64 },
    #[error(
        "the log has {capacity} bytes, and {need} are needed for a version beside the one before: make it larger \
         (HOLDFAST_STREAM_SIZE, for a stream that is new)"
    )]
    TooSmall { need: u64, capacity: u64 },
    #[error(
        "the log is full: it keeps all versions; {need} bytes are needed, and {free} of its {capacity} are free: make \
         it larger (HOLDFAST_STREAM_SIZE, for a stream that is new)"
    )]
    Full { need: u64, free: u64, capacity: u64 },
    #[error("there is no version {version} of this stream{}", range(*.oldest, *.newest))]
    NoVersion { version: u64, oldest: u64, newest: u64 },
    #[error("version {version} has no object \"{key}\"")]
    NoObject { key: String, version: u64 },
    #[error("\"{key}\" has {is} bytes in version {version}, not {asked}")]
    Size { key: String, version: u64, is: u64, asked: u64 },
    #[error("the data of version {version} are damaged: their checksum is another one")]
    Damaged { version: u64 },
    #[error("the stream was opened by another process, of which this one is a child: open it here")]
    Forked,
    #[error("{} readers have this stream open, more than it has room for: end one", crate::layout::CURSORS)]
    Readers,
}

fn range(oldest: u64, newest: u64) -> String {
    match newest {
        0 => ": it has none yet".to_owned(),
        _ => format!(": it has {oldest} to {newest}"),
    }
}
