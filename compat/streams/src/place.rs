//! Where logs are: `FOLDER/NAME/RANK`, by default in `/dev/shm/holdfast-streams-UID`.
//!
//! Invariant: the folder is its user's alone, and no link: others may make names in /dev/shm.

use crate::Error;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The folder of logs, if it is another one.
pub const FOLDER: &str = "HOLDFAST_STREAMS";
/// Variables of producers: the size of a log, what happens when it is full, how long a put waits then, which pages are
/// put.
pub const SIZE: &str = "HOLDFAST_STREAM_SIZE";
/// See [`SIZE`].
pub const FULL: &str = "HOLDFAST_STREAM_FULL";
/// See [`SIZE`].
pub const WAIT: &str = "HOLDFAST_STREAM_WAIT";
/// See [`SIZE`].
pub const DELTAS: &str = "HOLDFAST_STREAM_DELTAS";

/// A stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    folder: PathBuf,
    name: String,
    rank: u32,
}

/// The folder of all logs: `chosen`, or what the environment says, or the default.
pub fn folder(chosen: Option<&Path>) -> PathBuf {
    let said = || std::env::var_os(FOLDER).filter(|said| !said.is_empty()).map(PathBuf::from);
    let default = || PathBuf::from(format!("/dev/shm/holdfast-streams-{}", nix::unistd::geteuid()));
    chosen.map(Path::to_path_buf).or_else(said).unwrap_or_else(default)
}

fn is_name(name: &str) -> bool {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(is_good)
}

impl Place {
    /// `NAME/RANK`, or `NAME` for rank 0.
    ///
    /// # Errors
    /// It is no such text.
    pub fn parse(text: &str, folder: &Path) -> Result<Place, Error> {
        let (name, rank) = text.split_once('/').unwrap_or((text, "0"));
        match rank.parse() {
            Ok(rank) if is_name(name) => Ok(Place { folder: folder.to_owned(), name: name.to_owned(), rank }),
            _ => Err(Error::Argument(format!(
                "\"{text}\" names no stream: NAME/RANK is asked for, with letters, digits, '.', '_' and '-' in NAME"
            ))),
        }
    }

    /// The same stream of another rank.
    pub fn of_rank(&self, rank: u32) -> Place {
        Place { rank, ..self.clone() }
    }

    /// The file of its log.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name).join(self.rank.to_string())
    }

    /// Makes its folders.
    pub(crate) fn make_folders(&self) -> Result<(), Error> {
        for path in [self.folder.clone(), self.folder.join(&self.name)] {
            let failed = |why| Error::System { path: path.clone(), why };
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                done => done.map_err(failed)?,
            }
            let found = fs::symlink_metadata(&path).map_err(failed)?;
            if !found.is_dir() || found.uid() != nix::unistd::geteuid().as_raw() || found.mode() & 0o022 != 0
            {
                return Err(Error::Argument(format!(
                    "{}: it is to be a folder of this user, which no other may write to",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.name, self.rank)
    }
}

/// All streams of a folder, in order. What is no stream in it is left out.
///
/// # Errors
/// The folder cannot be read; one that is not there has none.
pub fn all(folder: &Path) -> Result<Vec<Place>, Error> {
    let mut places = Vec::new();
    for name in names(folder)?.into_iter().filter(|name| is_name(name)) {
        let below = folder.join(&name);
        if below.is_dir() {
            let ranks = names(&below)?.into_iter().filter_map(|rank| rank.parse::<u32>().ok());
            let mut ranks: Vec<u32> = ranks.collect();
            ranks.sort_unstable();
            places.extend(ranks.into_iter().map(|rank| Place {
                folder: folder.to_owned(),
                name: name.clone(),
                rank,
            }));
        }
    }
    Ok(places)
}

fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let failed = |why| Error::System { path: folder.to_owned(), why };
    let listed = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in listed {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_folder() {
        let folder = Path::new("/f");
        assert_eq!(Place::parse("sim/3", folder).unwrap().path(), Path::new("/f/sim/3"));
        assert_eq!(Place::parse("sim", folder).unwrap().path(), Path::new("/f/sim/0"));
        for bad in ["", "/1", "../x/1", ".x/1", "a/b", "a/1/2", "a/-1", "a b/1", "a/4294967296"] {
            assert!(Place::parse(bad, folder).is_err(), "{bad}");
        }
    }
}
