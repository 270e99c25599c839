//! The folder of a gang in the store: where its leader is (`leader.json`), and its images (`gang-000001`).
//!
//! Written by the leader's agent, which holds the lock of member 0's job: there is one at a time. Read by the other
//! members and by commands, on any host. Invariants: files are 0600, their folder 0700; an image is created once and
//! never changed. Fails by: an error that names the file; one that cannot be read is never taken for one that is not
//! there.

use super::image::{GangImage, MOST_BYTES};
use crate::exit::{Exit, Failure};
use crate::file_system;
use holdfast_tiers::Store;
use holdfast_tiers::tier::{BlobName, LocalTier, Tier};
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const LEADER: &str = "leader.json";
/// Longer ones are not ours: bytes.
const LONGEST: u64 = 1 << 20;

/// Where the leader of a gang is, and what proves that one may ask it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Its version of Holdfast.
    pub version: String,
    /// Tells it from leaders before.
    pub run: String,
    /// Its host.
    pub host: String,
    /// Where it listens, best first.
    pub addresses: Vec<String>,
    /// 256 random bits, in hexadecimal digits.
    pub key: String,
}

impl std::fmt::Debug for Leader {
    /// Without the key: it must not get into a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the leader on {} at {}", self.host, self.addresses.join(", "))
    }
}

/// See the head of the file.
#[derive(Debug)]
pub struct GangFolder {
    name: String,
    path: PathBuf,
}

impl GangFolder {
    /// That of a gang, if there is one of this name.
    ///
    /// # Errors
    /// It cannot be looked at, or others may write to it.
    pub fn open(store: &Store, name: &str) -> Result<Option<GangFolder>, Failure> {
        let path = store.gang_folder(name)?;
        Ok(path.map(|path| GangFolder { name: name.to_owned(), path }))
    }

    /// The same, made if it is not there.
    ///
    /// # Errors
    /// It cannot be made, or others may write to it.
    pub fn make(store: &Store, name: &str) -> Result<GangFolder, Failure> {
        Ok(GangFolder { name: name.to_owned(), path: store.make_gang_folder(name)? })
    }

    /// Name of the gang.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the leader says that it is; `None`: there is none.
    ///
    /// # Errors
    /// What is there cannot be read, or was not written by one.
    pub fn leader(&self) -> Result<Option<Leader>, Failure> {
        let path = self.path.join(LEADER);
        if let Err(error) = path.symlink_metadata() {
            return match error.kind() {
                io::ErrorKind::NotFound => Ok(None),
                _ => Err(Failure::system(format_args!("looking at {}", path.display()), &error)),
            };
        }
        let Some(file) = file_system::open_own(&path) else {
            let what = format!("{} is not a file of yours that you alone can read", path.display());
            return Err(Failure::new(Exit::Permission, what));
        };
        let mut text = Vec::new();
        file.take(LONGEST)
            .read_to_end(&mut text)
            .map_err(|error| Failure::system(format_args!("reading {}", path.display()), &error))?;
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| Failure::new(Exit::BadImage, format!("{}: {error}", path.display())))
    }

    /// From now on the leader is there.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn announce(&self, leader: &Leader) -> Result<(), Failure> {
        let path = self.path.join(LEADER);
        serde_json::to_vec_pretty(leader)
            .map_err(io::Error::from)
            .and_then(|text| file_system::write_own(&path, &text))
            .map_err(|error| Failure::system(format_args!("writing {}", path.display()), &error))
    }

    /// The leader is there no more. Called by the one that has the lock of member 0's job.
    pub fn withdraw(&self) {
        // What is left tells of a leader that does not answer.
        let _ = std::fs::remove_file(self.path.join(LEADER));
    }

    fn tier(&self) -> Result<LocalTier, Failure> {
        Ok(LocalTier::open(&self.path)?)
    }

    /// Numbers of all images, ascending.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn images(&self) -> Result<Vec<u64>, Failure> {
        let listed = self.tier()?.list("")?;
        let mut numbers: Vec<u64> =
            listed.blobs.iter().filter_map(|entry| number_of(entry.name.file())).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// One image.
    ///
    /// # Errors
    /// There is no such image, or it cannot be read, or is damaged.
    pub fn image(&self, number: u64) -> Result<GangImage, Failure> {
        let (tier, name) = (self.tier()?, file_name(number));
        let shown = self.path.join(&name);
        let blob = BlobName::new(&name).map(|name| tier.open(&name)).transpose()?;
        let Some(blob) = blob.filter(|blob| blob.len() <= MOST_BYTES) else {
            return Err(Failure::new(Exit::BadImage, format!("{} is too long", shown.display())));
        };
        let mut bytes = vec![0; usize::try_from(blob.len()).unwrap_or(0)];
        blob.read_at(0, &mut bytes)?;
        GangImage::decode(&self.name, number, &bytes)
            .map_err(|why| Failure::new(Exit::BadImage, format!("{}: {why}", shown.display())))
    }

    /// Makes an image of the gang: its number was free.
    ///
    /// # Errors
    /// The number is taken, or the file cannot be written. Whether it is there then is not known, but for the former.
    pub fn publish(&self, image: &GangImage) -> Result<(), Failure> {
        let Some(name) = BlobName::new(&file_name(image.image)) else {
            return Err(Failure::new(Exit::Internal, "no number is left for an image of the gang"));
        };
        Ok(self.tier()?.publish(&name, &image.encode())?)
    }

    /// An image of the gang is none any more; those of its members stay.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, number: u64) -> Result<(), Failure> {
        let Some(name) = BlobName::new(&file_name(number)) else { return Ok(()) };
        Ok(self.tier()?.remove(&name)?)
    }

    /// Which image of a member the newest image of the gang names.
    ///
    /// # Errors
    /// It cannot be read: then nothing may be removed.
    pub fn needed_of(&self, member: u32) -> Result<Option<u64>, Failure> {
        let Some(newest) = self.images()?.pop() else { return Ok(None) };
        let image = self.image(newest)?;
        Ok(image.members.iter().find(|one| one.member == member).map(|one| one.epoch.0))
    }
}

fn file_name(number: u64) -> String {
    format!("gang-{number:06}")
}

/// Understands exactly the names that the function above makes.
fn number_of(file: &str) -> Option<u64> {
    let number = file.strip_prefix("gang-")?.parse().ok()?;
    (file_name(number) == file).then_some(number)
}
