//! The door of the store: what a tier has to be able to do.
//!
//! A tier keeps *blobs*: segments and manifests under names. It knows neither their format nor what they are for.
//! Called by the writer (first tier), by the cascade (down), by restarts and `verify` (up). Each kind of tier is a
//! module beside this one; what wraps a tier to change how it behaves is a layer (`crate::layer`).
//!
//! Invariants that every tier keeps:
//! * a blob is there as a whole or not at all: one that was begun and not finished is neither listed nor opened;
//! * a blob that is there is never changed; a name that is taken is refused with [`TierError::Exists`];
//! * [`Tier::publish`] is atomic and durable, and of two that publish one name at the same time one is refused. It is
//!   the only commit, and the fence between two writers;
//! * everything may be called from several threads at once, and nothing waits for another call.

pub mod address;
mod error;
mod folder;
mod group;
mod local;
mod memory;
mod name;
mod opening;
pub(crate) mod posix;
mod remote;

pub use error::TierError;
pub use folder::FolderTier;
pub(crate) use group::Group;
pub use local::LocalTier;
pub use memory::{MemoryFirst, MemoryTier, make_log_folder};
pub use name::BlobName;
pub use remote::RemoteTier;
pub use remote::plain;

use std::fs::File;
use std::time::{Duration, SystemTime};

/// What a tier outlives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Survives {
    /// The end of the program and of the agent, not that of the host: memory.
    Program,
    /// A crash of the host; its loss not: a disk in it.
    Host,
    /// The loss of the host: a parallel file system, an object store.
    Site,
}

/// What is known of a tier when it has been opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TierInfo {
    /// As the user wrote it (`dir=/nvme`, `s3://bucket/prefix`), for messages; without credentials.
    pub name: String,
    /// What it outlives.
    pub survives: Survives,
    /// Bytes that may be used; none: not known or not limited.
    pub capacity_bytes: Option<u64>,
    /// Bytes per second that one writer may expect; none: not known.
    pub bandwidth: Option<u64>,
    /// Whether [`Blob::mapping`] yields a file.
    pub mappable: bool,
    /// Why [`Tier::publish`] is no fence between two hosts, if so: the caller must see to it that only one writes.
    pub single_writer: Option<String>,
    /// Why nothing can be written there, if so: the tier is listed and read alone.
    pub read_only: Option<String>,
}

/// One blob in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name.
    pub name: BlobName,
    /// Its length, bytes.
    pub len: u64,
    /// When it was finished, as far as the tier knows.
    pub modified: Option<SystemTime>,
}

/// What is left unfinished for so long is not under way any more.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

impl Entry {
    /// No host counts on it that has not said so, as far as the clock of the tier tells: it was finished a day ago. A
    /// time to come tells nothing.
    pub(crate) fn is_abandoned(&self) -> bool {
        let age = self.modified.and_then(|at| SystemTime::now().duration_since(at).ok());
        age.is_some_and(|age| age >= ABANDONED)
    }
}

/// What lies in a folder of a tier.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// Its blobs, by name.
    pub blobs: Vec<Entry>,
    /// Names of the folders in it, sorted.
    pub folders: Vec<String>,
}

/// A place for blobs.
pub trait Tier: Send + Sync {
    /// What is known of it.
    fn info(&self) -> &TierInfo;

    /// What is in a folder; "" is the uppermost. A folder that does not exist is empty.
    ///
    /// # Errors
    /// The tier cannot be reached, or refuses.
    fn list(&self, folder: &str) -> Result<Listing, TierError>;

    /// A blob that is there. It stays readable through what is returned, as far as the tier can do that, when it is
    /// removed meanwhile.
    ///
    /// # Errors
    /// [`TierError::NotFound`], or the tier cannot be reached.
    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError>;

    /// Begins a blob. `expected` bytes will be written, as far as is known; for room and sizes of parts only.
    ///
    /// # Errors
    /// [`TierError::Exists`] (a tier may say that only when the blob is finished), [`TierError::Full`], or the tier
    /// cannot be reached.
    fn create(&self, name: &BlobName, expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError>;

    /// Writes a small blob at once: create-only, atomic, durable. Everything that was finished in the same folder
    /// before is durable too when this returns.
    ///
    /// # Errors
    /// [`TierError::Exists`]: the name is taken. After any other error the caller does not know whether the blob is
    /// there, and looks.
    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError>;

    /// Removes a blob, durably; one that is gone already is no error.
    ///
    /// # Errors
    /// The tier cannot be reached, or refuses.
    fn remove(&self, name: &BlobName) -> Result<(), TierError>;

    /// Removes what writers of this folder have left unfinished; the caller has seen to it that none is at work.
    /// Returns the bytes that became free.
    ///
    /// # Errors
    /// The tier cannot be reached, or refuses.
    fn clean(&self, folder: &str) -> Result<u64, TierError>;
}

/// An open blob.
pub trait Blob: Send + Sync {
    /// Its length, bytes.
    fn len(&self) -> u64;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`TierError::Short`] when it ends before that; or the tier cannot be reached.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError>;

    /// The file that has its bytes, and where they begin in it (a multiple of the page size), if it can be mapped.
    fn mapping(&self) -> Option<(&File, u64)>;
}

/// A blob that is being written. Dropped without [`BlobWriter::finish`], it vanishes.
pub trait BlobWriter: Send {
    /// Appends bytes. After an error nothing else can be appended.
    ///
    /// # Errors
    /// [`TierError::Full`], or the tier cannot be reached.
    fn append(&mut self, bytes: &[u8]) -> Result<(), TierError>;

    /// Gives the blob its name, and makes its bytes durable (its name no later than with the next [`Tier::publish`] in
    /// its folder). Returns its length: that of all that was appended.
    ///
    /// # Errors
    /// [`TierError::Exists`], or the tier cannot be reached: the blob is not there, or (the answer was lost) the caller
    /// looks.
    fn finish(self: Box<Self>) -> Result<u64, TierError>;
}

/// All bytes of a blob that has at most `most`; `object`: how messages call it. Piece by piece: a length that is not
/// true is found before memory is taken for it.
pub(crate) fn read_whole(
    blob: &dyn Blob,
    most: u64,
    object: impl Fn() -> String,
) -> Result<Vec<u8>, TierError> {
    const PIECE: u64 = 4 << 20;
    let len = blob.len();
    if len > most {
        let what = format!("{len} bytes; at most {most} are possible");
        return Err(TierError::Damaged { object: object(), offset: most, what });
    }
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < len {
        let from = bytes.len();
        let more = (len - from as u64).min(PIECE);
        bytes.resize(from + usize::try_from(more).unwrap_or(0), 0);
        blob.read_at(from as u64, &mut bytes[from..])?;
    }
    Ok(bytes)
}

/// Hands all bytes over, piece by piece, until `each` says that it is enough: then `false`.
pub(crate) fn read_all(
    blob: &dyn Blob,
    len: u64,
    piece: u64,
    mut each: impl FnMut(&[u8]) -> Result<bool, TierError>,
) -> Result<bool, TierError> {
    let mut buffer = vec![0; usize::try_from(piece.min(len)).unwrap_or(0)];
    let mut at = 0;
    while at < len {
        let now = usize::try_from((len - at).min(piece)).unwrap_or(0);
        blob.read_at(at, &mut buffer[..now])?;
        if !each(&buffer[..now])? {
            return Ok(false);
        }
        at += now as u64;
    }
    Ok(true)
}
