//! Where a remote tier keeps its objects, and the small operations on one of them.
//!
//! Called by the tier, its blobs and its writers, which share it: the runtime lives as long as one of them.

use super::patience::Patience;
use super::requests::Requests;
use crate::tier::{BlobName, TierError};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutMode};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// How often a write that another one is in the way of is tried, and how long to wait between.
const PAUSES: [u64; 6] = [20, 50, 100, 300, 1000, 2000];

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) requests: Requests,
    pub(super) patience: Patience,
    /// What all keys begin with; no '/' at either end.
    pub(super) prefix: String,
    /// The address, for messages.
    pub(super) name: String,
    /// Uploads that could not be ended, with their folder and their bytes.
    pub(super) left: Mutex<Vec<LeftUpload>>,
}

/// An upload in parts that could not be aborted.
#[derive(Debug)]
pub(super) struct LeftUpload {
    pub(super) folder: String,
    pub(super) bytes: u64,
    pub(super) upload: Box<dyn MultipartUpload>,
}

impl Place {
    /// The path of a folder or a blob in the store.
    pub(super) fn path_of(&self, name: &str) -> Result<Path, TierError> {
        let both = if self.prefix.is_empty() || name.is_empty() {
            format!("{}{name}", self.prefix)
        } else {
            format!("{}/{name}", self.prefix)
        };
        let wrong =
            |_| TierError::Settings { object: self.name.clone(), why: format!("{both}: no possible key") };
        Path::parse(&both).map_err(wrong)
    }

    pub(super) fn path(&self, name: &BlobName) -> Result<Path, TierError> {
        self.path_of(name.as_str())
    }

    /// The address of a blob.
    pub(super) fn object(&self, name: &BlobName) -> String {
        format!("{}/{name}", self.name)
    }

    /// Longest wait for an operation that moves so many bytes, with the attempts that the library makes.
    pub(super) fn limit(&self, bytes: u64) -> Duration {
        self.patience.limit(bytes) * 4
    }

    /// The length of an object, if it is there.
    pub(super) fn len(&self, path: &Path, object: &str) -> Result<Option<u64>, TierError> {
        match self.requests.wait(object, self.limit(0), self.store.head(path)) {
            Ok(meta) => Ok(Some(meta.size)),
            Err(TierError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes an object of bytes that are all there. `conditional`: the server sees to it that none is replaced; else
    /// we look first.
    pub(super) fn put_new(
        &self,
        path: &Path,
        object: &str,
        bytes: Bytes,
        conditional: bool,
    ) -> Result<(), TierError> {
        let taken = || TierError::Exists { object: object.to_owned() };
        if !conditional {
            if self.len(path, object)?.is_some() {
                return Err(taken());
            }
            return self.put(path, object, &bytes, PutMode::Overwrite).0;
        }
        for pause in PAUSES {
            let (result, attempts, undecided) = self.put(path, object, &bytes, PutMode::Create);
            match result {
                Ok(()) => return Ok(()),
                Err(TierError::Exists { .. }) if undecided => {
                    std::thread::sleep(Duration::from_millis(pause))
                }
                Err(TierError::Exists { .. }) if attempts <= 1 => return Err(taken()),
                // An answer was lost: what counts is what is there.
                Err(error) => {
                    return if self.ends_with(path, object, bytes.len() as u64, &bytes) {
                        Ok(())
                    } else {
                        Err(error)
                    };
                }
            }
        }
        let why = "other writes to the same name are under way".to_owned();
        Err(TierError::Unavailable { object: object.to_owned(), why })
    }

    /// The result, the attempts, and whether another write was in the way.
    pub(super) fn put(
        &self,
        path: &Path,
        object: &str,
        bytes: &Bytes,
        mode: PutMode,
    ) -> (Result<(), TierError>, u32, bool) {
        let work = self.store.put_opts(path, bytes.clone().into(), mode.into());
        let asked = self.requests.ask(object, self.limit(bytes.len() as u64), work);
        (asked.result.map(drop), asked.attempts, asked.undecided)
    }

    /// Ends an upload in parts whose parts are of no use. What cannot be ended now is kept for `clean`. Whether it was.
    pub(super) fn abort(&self, mut left: LeftUpload, patience: Duration) -> bool {
        let ended = self.requests.wait(&self.name, patience, left.upload.abort());
        let ended = matches!(ended, Ok(()) | Err(TierError::NotFound { .. }));
        if !ended {
            self.left.lock().push(left);
        }
        ended
    }

    /// Ends the uploads in `folder` that could not be ended before. Their bytes.
    pub(super) fn abort_left(&self, folder: &str) -> u64 {
        let taken: Vec<LeftUpload> = self.left.lock().extract_if(.., |left| left.folder == folder).collect();
        let mut freed = 0;
        for left in taken {
            let bytes = left.bytes;
            freed += if self.abort(left, self.patience.answer) { bytes } else { 0 };
        }
        freed
    }

    /// Whether an object is there that has this length and this end.
    pub(super) fn ends_with(&self, path: &Path, object: &str, len: u64, end: &Bytes) -> bool {
        let start = len.saturating_sub(end.len() as u64);
        matches!(self.len(path, object), Ok(Some(there)) if there == len)
            && self
                .requests
                .wait(object, self.limit(end.len() as u64), self.store.get_range(path, start..len))
                .is_ok_and(|there| there == *end)
    }
}
