//! Object stores as tiers: S3 and its like, Google Cloud Storage, Azure, and web servers for reading.
//!
//! ```text
//! BUCKET/PREFIX/sim/manifest-000001   sim/segment-000001-000   .holdfast-probe
//! ```
//! Called through `tier::address::open`, which asks nothing of the server. A blob is an object; [`Tier::publish`] is a
//! put that the server refuses where the key is taken. Whether it does is tried before the first write:
//! `.holdfast-probe` is created, which must fail once it is there. At a server that replaces it all the same, or knows
//! no such put, names are looked up before they are taken, and [`TierInfo::single_writer`] says so.
//! Invariants: no wait without a limit; no credentials in a message; a web server is only read.

mod answer;
mod aws_files;
mod blob;
mod client;
mod connect;
mod courier;
mod failure;
#[cfg(test)]
mod hostile;
mod patience;
mod place;
pub mod plain;
mod requests;
#[cfg(test)]
mod test_server;
#[cfg(test)]
mod tests;
mod upload;

use self::blob::RemoteBlob;
use self::patience::Patience;
use self::place::Place;
use self::requests::Requests;
use self::upload::RemoteWriter;
use super::address::Address;
use super::{Blob, BlobName, BlobWriter, Entry, Listing, Survives, Tier, TierError, TierInfo};
use bytes::Bytes;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, path::Path};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

/// The object that who writes tries to create first.
const PROBE: &str = ".holdfast-probe";
/// What it says to its finder.
const PROBE_TEXT: &[u8] =
    b"Holdfast tries to create this object whenever it uses this place: it must not be replaced.\n";

/// A tier at a server.
#[derive(Debug)]
pub struct RemoteTier {
    place: Arc<Place>,
    /// Until something is written.
    unknown: TierInfo,
    known: OnceLock<TierInfo>,
    writable: bool,
}

impl RemoteTier {
    /// Opens the place that an address means. The server is asked nothing: one that is down is no error.
    ///
    /// # Errors
    /// [`TierError::Settings`]: the address or the environment makes no sense.
    pub fn open(address: &Address) -> Result<RemoteTier, TierError> {
        let name = address.to_string();
        let prefix = match address {
            Address::Bucket { prefix, .. } | Address::Http { path: prefix, .. } => prefix.clone(),
            Address::Folder(_) => String::new(),
        };
        let patience = connect::patience(&name)?;
        let store = connect::store(address, &name, patience)?;
        let writable = !matches!(address, Address::Http { .. });
        RemoteTier::over(store, prefix, name, patience, writable)
    }

    fn over(
        store: Arc<dyn ObjectStore>,
        prefix: String,
        name: String,
        patience: Patience,
        writable: bool,
    ) -> Result<RemoteTier, TierError> {
        let unknown = TierInfo {
            name: name.clone(),
            survives: Survives::Site,
            capacity_bytes: None,
            bandwidth: None,
            mappable: false,
            single_writer: None,
            read_only: (!writable).then(|| "it is a web server".to_owned()),
        };
        let requests = Requests::new(&name)?;
        let place = Place { store, requests, patience, prefix, name, left: Default::default() };
        Ok(RemoteTier { place: Arc::new(place), unknown, known: OnceLock::new(), writable })
    }

    /// Whether the server refuses to replace an object; asked until there is an answer.
    fn conditional(&self) -> Result<bool, TierError> {
        if !self.writable {
            let why = "a web server is read-only; write to the file system or the object store behind it"
                .to_owned();
            return Err(TierError::Settings { object: self.place.name.clone(), why });
        }
        if self.known.get().is_none() {
            let replaces = !self.refuses_to_replace(self.place.limit(0))?;
            let why = || "this server replaces an object where it is asked to create one".to_owned();
            // Another thread that was first has found the same.
            let _ = self.known.set(TierInfo { single_writer: replaces.then(why), ..self.unknown.clone() });
        }
        Ok(self.info().single_writer.is_none())
    }

    fn refuses_to_replace(&self, patience: Duration) -> Result<bool, TierError> {
        let path = self.place.path_of(PROBE)?;
        let object = format!("{}/{PROBE}", self.place.name);
        // Once where an earlier probe has left it; a lost answer makes no difference.
        for _ in 0..2 {
            let put = self.place.store.put_opts(
                &path,
                Bytes::from_static(PROBE_TEXT).into(),
                PutMode::Create.into(),
            );
            let asked = self.place.requests.ask(&object, patience, put);
            match asked.result {
                Ok(_) => {}
                Err(TierError::Exists { .. }) => return Ok(true),
                // 501 of a server that does not know the header, or of the library for a store that has none.
                Err(_) if asked.unsupported => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

impl Tier for RemoteTier {
    fn info(&self) -> &TierInfo {
        self.known.get().unwrap_or(&self.unknown)
    }

    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        let mut listing = Listing::default();
        if !BlobName::is_folder(folder) {
            return Ok(listing);
        }
        let path = self.place.path_of(folder)?;
        let prefix = (!path.as_ref().is_empty()).then_some(&path);
        let object = format!("{}/{folder}", self.place.name);
        // A long listing is many requests.
        let patience = self.place.limit(0) * 10;
        let found =
            match self.place.requests.wait(&object, patience, self.place.store.list_with_delimiter(prefix)) {
                // A web server knows folders, and that there is none.
                Err(TierError::NotFound { .. }) if !self.writable => return Ok(listing),
                // An object store has none: what nothing is in is listed as empty.
                Err(TierError::NotFound { object }) => {
                    let why =
                        "the server answers that there is no such bucket: make it, or correct the address";
                    return Err(TierError::Settings { object, why: why.to_owned() });
                }
                other => other?,
            };
        // A server may list what was not asked for.
        let name_of = |location: &Path| {
            let mut below = location.prefix_match(&path)?;
            let name = BlobName::within(folder, below.next()?.as_ref());
            if below.next().is_none() { name } else { None }
        };
        for meta in found.objects {
            if let Some(name) = name_of(&meta.location) {
                let modified = Some(SystemTime::from(meta.last_modified));
                listing.blobs.push(Entry { name, len: meta.size, modified });
            }
        }
        listing.folders =
            found.common_prefixes.iter().filter_map(|at| Some(name_of(at)?.file().to_owned())).collect();
        listing.blobs.sort_by(|one, other| one.name.cmp(&other.name));
        listing.folders.sort();
        Ok(listing)
    }

    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        Ok(Box::new(RemoteBlob::open(&self.place, name)?))
    }

    fn create(&self, name: &BlobName, expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        let conditional = self.conditional()?;
        Ok(Box::new(RemoteWriter::new(&self.place, name, conditional, expected)?))
    }

    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        let conditional = self.conditional()?;
        let (path, object) = (self.place.path(name)?, self.place.object(name));
        self.place.put_new(&path, &object, Bytes::copy_from_slice(bytes), conditional)
    }

    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        if !self.writable {
            return self.conditional().map(drop);
        }
        let (path, object) = (self.place.path(name)?, self.place.object(name));
        match self.place.requests.wait(&object, self.place.limit(0), self.place.store.delete(&path)) {
            Err(TierError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    /// Of uploads in parts only those can be found that this tier has begun and could not end; for what a crash has
    /// left there is a rule at the server.
    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        Ok(self.place.abort_left(folder))
    }
}
