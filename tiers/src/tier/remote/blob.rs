//! An object that is being read: ranges of it, several at a time.
//!
//! Called by restarts, `verify` and the cascade, through the tier. A long range is asked for in pieces, because one
//! connection to an object store is slower than the link; a piece that is cut off is asked for again.

use super::place::Place;
use super::requests::asked;
use crate::tier::{Blob, BlobName, TierError};
use object_store::{ObjectStoreExt, path::Path};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Length of a piece.
const PIECE: u64 = 8 << 20;
/// Pieces under way at a time.
const AT_ONCE: usize = 4;
/// How often a piece is asked for.
const TRIES: u32 = 4;

pub(super) struct RemoteBlob {
    place: Arc<Place>,
    path: Path,
    object: String,
    len: u64,
}

impl RemoteBlob {
    pub(super) fn open(place: &Arc<Place>, name: &BlobName) -> Result<RemoteBlob, TierError> {
        let (path, object) = (place.path(name)?, place.object(name));
        let len = place.len(&path, &object)?.ok_or_else(|| TierError::NotFound { object: object.clone() })?;
        Ok(RemoteBlob { place: Arc::clone(place), path, object, len })
    }

    /// One piece, in a task of its own.
    fn fetch(
        &self,
        range: Range<u64>,
    ) -> impl Future<Output = Result<(u64, bytes::Bytes), TierError>> + use<> {
        let (store, path, object) = (Arc::clone(&self.place.store), self.path.clone(), self.object.clone());
        let limit = self.place.patience.limit(range.end - range.start) * 2;
        async move {
            let mut pause = Duration::from_millis(100);
            for left in (0..TRIES).rev() {
                let found = asked(object.clone(), limit, store.get_range(&path, range.clone())).await.result;
                match found {
                    Ok(bytes) if bytes.len() as u64 == range.end - range.start => {
                        return Ok((range.start, bytes));
                    }
                    Ok(bytes) => {
                        return Err(TierError::Short { object, len: range.start + bytes.len() as u64 });
                    }
                    Err(error) if left == 0 || !error.is_transient() => return Err(error),
                    Err(_) => tokio::time::sleep(pause).await,
                }
                pause *= 3;
            }
            Err(TierError::Unavailable { object, why: "it was tried several times".to_owned() })
        }
    }
}

impl Blob for RemoteBlob {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.len);
        let Some(end) = end else {
            return Err(TierError::Short { object: self.object.clone(), len: self.len });
        };
        let mut starts = (offset..end).step_by(PIECE as usize);
        let mut pieces = JoinSet::new();
        let handle = self.place.requests.handle();
        let mut begin = |pieces: &mut JoinSet<_>| {
            if let Some(start) = starts.next() {
                pieces.spawn_on(self.fetch(start..end.min(start + PIECE)), &handle);
            }
        };
        for _ in 0..AT_ONCE {
            begin(&mut pieces);
        }
        // Dropped after an error, the set ends what is under way.
        while let Some(piece) = handle.block_on(pieces.join_next()) {
            let failed =
                |_| TierError::Unavailable { object: self.object.clone(), why: "the reader failed".into() };
            let (start, bytes) = piece.map_err(failed)??;
            let at = (start - offset) as usize;
            buffer[at..at + bytes.len()].copy_from_slice(&bytes);
            begin(&mut pieces);
        }
        Ok(())
    }

    fn mapping(&self) -> Option<(&File, u64)> {
        None
    }
}
