//! The folder of a gang: where its leader is (`leader.json`), and its images (`gang-000001`), which of them are
//! protected (`protected-000001`). In the store; or, where
//! each host has a store of its own, in a folder that they share (`--gang-folder`), which `folder` in the store names.
//!
//! Written by the leader's agent, which holds the lock of member 0's job: there is one at a time; by others when it is
//! lost in a checkpoint ([`super::takeover`]). Read by the other members and by commands, on any host. Invariants:
//! files are 0600, their folder 0700; an image is created once and never changed. Fails by: an error that names the
//! file; one that cannot be read is never taken for one that is not there.

use super::image::{GangImage, MOST_BYTES};
use super::key::Key;
use crate::exit::{Exit, Failure};
use crate::file_system;
use crate::settings::GangPlace;
use holdfast_tiers::Store;
use holdfast_tiers::redundancy::Protection;
use holdfast_tiers::tier::{BlobName, LocalTier, Tier, TierError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Why images of members stay, in the words of `prune`.
pub const GANG_NEEDS: &str = "the newest image of its gang needs it";
/// The same.
pub const IS_PROTECTED: &str = "it is of the newest image of its gang that other hosts can rebuild";
const LEADER: &str = "leader.json";
/// In the store's folder of the gang: path of the one that is shared.
const SHARED: &str = "folder";
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

/// An image of which all members have their parity (`protected-000001`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Protected {
    /// Of this description.
    pub format: u32,
    /// Name of the gang.
    pub gang: String,
    /// Number of the image.
    pub image: u64,
    /// SHA-256 of the image of the gang.
    pub set: String,
    /// As `--protect` has it.
    pub protection: Protection,
    /// The members of each group.
    pub groups: Vec<Vec<u32>>,
}

impl Protected {
    const FORMAT: u32 = 1;

    /// A new one.
    pub fn new(
        gang: &str,
        image: u64,
        set: &str,
        protection: Protection,
        groups: Vec<Vec<u32>>,
    ) -> Protected {
        let (gang, set) = (gang.to_owned(), set.to_owned());
        Protected { format: Protected::FORMAT, gang, image, set, protection, groups }
    }

    fn decode(gang: &str, image: u64, bytes: &[u8]) -> Option<Protected> {
        let read: Protected = serde_json::from_slice(bytes).ok()?;
        ((read.format, read.gang.as_str(), read.image) == (Protected::FORMAT, gang, image)).then_some(read)
    }
}

/// See the head of the file.
#[derive(Clone, Debug)]
pub struct GangFolder {
    name: String,
    path: PathBuf,
    /// Each host has a store of its own.
    is_shared: bool,
}

impl GangFolder {
    /// That of a gang, if there is one of this name.
    ///
    /// # Errors
    /// It cannot be looked at, or others may write to it; the hosts share one, and it is not there.
    pub fn open(store: &Store, name: &str) -> Result<Option<GangFolder>, Failure> {
        let Some(path) = store.gang_folder(name)? else { return Ok(None) };
        let Some(shared) = shared_of(store, name)? else {
            return Ok(Some(GangFolder { name: name.to_owned(), path, is_shared: false }));
        };
        if let Some(found) = GangFolder::shared(&shared, name)? {
            return Ok(Some(found));
        }
        let what = format!(
            "the folder of gang {name}, {}, is not there any more; if the gang was deleted, `holdfast rm {name}` \
             deletes what this host has of it",
            shared.join(name).display()
        );
        Err(Failure::new(Exit::NotFound, what))
    }

    /// That in a folder which hosts share, if it is there.
    ///
    /// # Errors
    /// It cannot be looked at, or others may write to it.
    pub fn shared(shared: &Path, name: &str) -> Result<Option<GangFolder>, Failure> {
        let path = Store::shared_gang_folder(shared, name, false)?;
        Ok(path.map(|path| GangFolder { name: name.to_owned(), path, is_shared: true }))
    }

    /// That of the gang that a member is of, made if it is not there.
    ///
    /// # Errors
    /// It cannot be made, or others may write to it; the store has images of the gang, and another folder is to.
    pub fn make(store: &Store, place: &GangPlace) -> Result<GangFolder, Failure> {
        let (name, own) = (place.name.clone(), store.make_gang_folder(&place.name)?);
        let Some(shared) = &place.folder else {
            return Ok(GangFolder { name, path: own, is_shared: false });
        };
        if shared_of(store, &name)?.as_ref() != Some(shared) {
            let before = GangFolder { name: name.clone(), path: own.clone(), is_shared: false };
            if !before.images()?.is_empty() {
                let what = format!(
                    "{} has images of gang {name}, made without --gang-folder; give the gang another name, or delete \
                     them: holdfast rm {name}",
                    own.display()
                );
                return Err(Failure::new(Exit::Refused, what));
            }
            let path = own.join(SHARED);
            file_system::write_own(&path, shared.as_os_str().as_encoded_bytes())
                .map_err(|error| Failure::system(format_args!("writing {}", path.display()), &error))?;
        }
        match Store::shared_gang_folder(shared, &name, true)? {
            Some(path) => Ok(GangFolder { name, path, is_shared: true }),
            None => Err(Failure::new(Exit::Internal, format!("{} was removed", shared.display()))),
        }
    }

    /// Whether each host has a store of its own: what a store lacks of the gang another one may have.
    pub fn is_shared(&self) -> bool {
        self.is_shared
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
        let Some(text) = read_own(&path)? else { return Ok(None) };
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
            listed.blobs.iter().filter_map(|entry| number_of(IMAGE, entry.name.file())).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// One image.
    ///
    /// # Errors
    /// There is no such image, or it cannot be read, or is damaged.
    pub fn image(&self, number: u64) -> Result<GangImage, Failure> {
        let (tier, name) = (self.tier()?, file_name(IMAGE, number));
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
        let Some(name) = BlobName::new(&file_name(IMAGE, image.image)) else {
            return Err(Failure::new(Exit::Internal, "no number is left for an image of the gang"));
        };
        Ok(self.tier()?.publish(&name, &image.encode())?)
    }

    /// An image of the gang is none any more; those of its members stay.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, number: u64) -> Result<(), Failure> {
        let Some(name) = BlobName::new(&file_name(IMAGE, number)) else { return Ok(()) };
        Ok(self.tier()?.remove(&name)?)
    }

    /// The key of the gang that is running.
    ///
    /// # Errors
    /// There is no leader, or what it has left cannot be read.
    pub fn key(&self) -> Result<Key, Failure> {
        let leader = self.leader()?;
        let key = leader.as_ref().and_then(|leader| Key::read(&leader.key));
        let what = || format!("what {} has of the leader is damaged, or is gone", self.path.display());
        key.ok_or_else(|| Failure::new(Exit::BadImage, what()))
    }

    /// Images that are protected, with the sets; inner: why what is written down of one is not known.
    ///
    /// # Errors
    /// The folder cannot be listed, or a file cannot be looked at.
    pub fn protections(&self) -> Result<Protections, Failure> {
        let tier = self.tier()?;
        let mut found = BTreeMap::new();
        for entry in tier.list("")?.blobs {
            let Some(number) = number_of(PROTECTED, entry.name.file()) else { continue };
            let mut bytes = vec![0; usize::try_from(entry.len.min(MOST_BYTES)).unwrap_or(0)];
            let read = tier.open(&entry.name).and_then(|blob| blob.read_at(0, &mut bytes));
            let protected = match read {
                // Removed meanwhile.
                Err(TierError::NotFound { .. }) => continue,
                Err(TierError::Short { .. }) => None,
                read => read.map(|()| Protected::decode(&self.name, number, &bytes))?,
            };
            let why = || format!("{} is damaged", self.path.join(entry.name.file()).display());
            found.insert(number, protected.ok_or_else(why));
        }
        Ok(found)
    }

    /// An image is protected: all members have said so.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn protect(&self, protected: &Protected) -> Result<(), Failure> {
        let Some(name) = BlobName::new(&file_name(PROTECTED, protected.image)) else { return Ok(()) };
        let bytes = serde_json::to_vec_pretty(protected).unwrap_or_default();
        Ok(self.tier()?.publish(&name, &bytes)?)
    }

    /// It is not any more.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn unprotect(&self, number: u64) -> Result<(), Failure> {
        let Some(name) = BlobName::new(&file_name(PROTECTED, number)) else { return Ok(()) };
        Ok(self.tier()?.remove(&name)?)
    }

    /// Which images of a member the gang needs.
    ///
    /// # Errors
    /// One cannot be read: then nothing may be removed.
    pub fn needed_of(&self, member: u32) -> Result<Needed, Failure> {
        let (mut needed, images) = (Needed::default(), self.images()?);
        let Some(newest) = images.last() else { return Ok(needed) };
        let last = self.image(*newest)?;
        needed.newest = last.part_of(member);
        for (number, protected) in self.protections()?.into_iter().rev() {
            if !images.contains(&number) {
                continue;
            }
            let image = if number == *newest { last.clone() } else { self.image(number)? };
            // What is written down of it may be damaged: it counts.
            if protected.is_err() || protected.is_ok_and(|one| one.set == image.id()) {
                needed.protected = image.part_of(member);
                break;
            }
        }
        Ok(needed)
    }
}

/// What is written down of protected images, by number.
pub type Protections = BTreeMap<u64, Result<Protected, String>>;

/// Images of a member that its gang needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needed {
    /// The one that the gang's newest image names.
    pub newest: Option<u64>,
    /// The one that its newest protected image names: if a host is lost now, all go on from that one.
    pub protected: Option<u64>,
    /// The one whose parity is being made: only the agent knows.
    pub encoded: Option<u64>,
}

impl Needed {
    /// Why this image stays, if it does.
    pub fn why(&self, number: u64) -> Option<&'static str> {
        if self.newest == Some(number) {
            return Some(GANG_NEEDS);
        }
        [self.protected, self.encoded].contains(&Some(number)).then_some(IS_PROTECTED)
    }
}

/// The folder that hosts share for this gang, as the store has it written down.
///
/// # Errors
/// That cannot be read.
pub fn shared_of(store: &Store, gang: &str) -> Result<Option<PathBuf>, Failure> {
    let Some(path) = store.gang_folder(gang)?.map(|own| own.join(SHARED)) else { return Ok(None) };
    let Some(bytes) = read_own(&path)? else { return Ok(None) };
    let shared = PathBuf::from(std::ffi::OsString::from_vec(bytes));
    if !shared.is_absolute() {
        return Err(Failure::new(Exit::BadImage, format!("{} has no path", path.display())));
    }
    Ok(Some(shared))
}

/// A small file of this user's alone; `None`: it is not there.
///
/// # Errors
/// It cannot be read, or others can read or write it.
pub(super) fn read_own(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    if let Err(error) = path.symlink_metadata() {
        return match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            _ => Err(Failure::system(format_args!("looking at {}", path.display()), &error)),
        };
    }
    let Some(file) = file_system::open_own(path) else {
        let what = format!("{} is not a file of yours that you alone can read", path.display());
        return Err(Failure::new(Exit::Permission, what));
    };
    let mut bytes = Vec::new();
    file.take(LONGEST)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::system(format_args!("reading {}", path.display()), &error))?;
    Ok(Some(bytes))
}

/// What the names of files with a number begin with.
const IMAGE: &str = "gang-";
const PROTECTED: &str = "protected-";

fn file_name(begin: &str, number: u64) -> String {
    format!("{begin}{number:06}")
}

/// Understands exactly the names that the function above makes.
fn number_of(begin: &str, file: &str) -> Option<u64> {
    let number = file.strip_prefix(begin)?.parse().ok()?;
    (file_name(begin, number) == file).then_some(number)
}
