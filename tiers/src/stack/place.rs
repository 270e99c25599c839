//! Where images can be: the store, memory above it, or a tier below; and where versions of streams are: a log tier.
//!
//! Parsed once, where a command line, a configuration or `job.json` is read ([`super::TierSpec`]). Pure.
//! Invariant: [`Place::parse`] takes what `Display` writes, and both mean the same place.

use crate::tier::address::{Address, absolute};
use std::fmt;
use std::path::PathBuf;

/// How the store is called among tiers.
const LOCAL: &str = "local";
/// How memory is, alone or before `=` and a folder.
const MEMORY: &str = "memory";
/// How a log tier is, before `=` and a folder.
const LOG: &str = "log";

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// The job's folder in the store: `local`.
    Store,
    /// Memory above it; in this folder (a tmpfs, or on a file system with DAX), if one is named: `memory[=/FOLDER]`.
    Memory(Option<PathBuf>),
    /// A tier below it.
    At(Address),
    /// The folder of the logs of a job's streams: `log=/FOLDER`. No image is there.
    Log(PathBuf),
}

impl Place {
    /// What is to be said of a log where images are meant.
    pub const NO_IMAGES: &str = "a log has versions of streams, and no images: `holdfast run` takes it, and `holdfast \
                                 streams` shows what is there";

    /// Understands what users write.
    ///
    /// # Errors
    /// It means no place; or it holds credentials.
    pub fn parse(text: &str) -> Result<Place, String> {
        match text.split_once('=') {
            _ if text == LOCAL => Ok(Place::Store),
            _ if text == MEMORY => Ok(Place::Memory(None)),
            Some((MEMORY, path)) if !path.chars().any(char::is_control) => {
                absolute(path).map(|path| Place::Memory(Some(path)))
            }
            Some((LOG, path)) if !path.chars().any(char::is_control) => absolute(path).map(Place::Log),
            _ => Address::parse(text).map(Place::At).map_err(|error| error.to_string()),
        }
    }

    /// Whether `name` is how the store is called in listings and records.
    pub fn is_store(name: &str) -> bool {
        name == LOCAL
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Store => out.write_str(LOCAL),
            Place::Memory(None) => out.write_str(MEMORY),
            Place::Memory(Some(path)) => write!(out, "{MEMORY}={}", path.display()),
            Place::At(address) => address.fmt(out),
            Place::Log(path) => write!(out, "{LOG}={}", path.display()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_the_store_memory_or_an_address() {
        for text in
            ["local", "memory", "memory=/mnt/pmem/log", "dir=/nvme", "s3://bucket/prefix", "log=/dev/shm/x"]
        {
            let place = Place::parse(text).unwrap();
            assert_eq!(place.to_string(), text);
            assert_eq!(Place::parse(&place.to_string()), Ok(place));
        }
        assert_eq!(Place::parse("memory=/mnt//pmem/"), Ok(Place::Memory(Some("/mnt/pmem".into()))));
        assert_eq!(Place::parse("local"), Ok(Place::Store));
        assert!(matches!(Place::parse("/pfs/me"), Ok(Place::At(Address::Folder(_)))));
        for text in
            ["", "Local", "local=/x", "memory=log", "memory=", "memory:/x", "memory=/a\0", "log", "log=x"]
        {
            assert!(Place::parse(text).is_err(), "{text:?}");
        }
    }
}
