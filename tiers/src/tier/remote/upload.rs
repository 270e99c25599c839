//! A blob that is being written to a server.
//!
//! Called by the cascade and by writers of images, through the tier. What fits into one part is put as a whole at the
//! end; what is longer goes up in parts while it is written, a few at a time, so that memory is bounded whatever the
//! length. Nothing is seen under the name before the end.
//! Invariants: an upload that was begun is completed or aborted, whatever fails and however the writer is dropped, but
//! for a crash: for that there is a rule at the server (docs/remote.md).

use super::place::{LeftUpload, Place};
use super::requests::asked;
use crate::tier::{BlobName, BlobWriter, TierError};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Length of a part: S3 takes no shorter ones than 5 MiB, but for the last.
const PART: u64 = 8 << 20;
/// Most parts of an upload (S3: "Amazon S3 multipart upload limits").
const MAX_PARTS: u64 = 10_000;
/// So many parts beyond those that were expected have one length; then it is doubled.
const STEP: u64 = 1000;
/// Bytes under way at a time, beside the part that is being filled.
const UNDER_WAY: u64 = 32 << 20;
/// How long a dropped writer waits for parts that are under way, and for the server to forget them.
const ABORT: Duration = Duration::from_secs(5);

/// Length of a part: all are alike where the length of the whole is known, as some servers want it (R2: "all parts
/// except the last one must be the same size"). Only what is longer than was expected gets longer ones, so that any
/// object has an end.
fn part_len(number: u64, expected: u64) -> u64 {
    let alike = expected.div_ceil(MAX_PARTS - STEP).next_multiple_of(1 << 20).max(PART);
    let beyond = number.saturating_sub(expected.div_ceil(alike));
    alike << (beyond / STEP).min(9)
}

/// How many parts of such a length may be under way.
fn at_once(part_len: u64) -> usize {
    (UNDER_WAY / part_len).max(1) as usize
}

pub(super) struct RemoteWriter {
    place: Arc<Place>,
    name: BlobName,
    path: Path,
    object: String,
    conditional: bool,
    expected: u64,
    /// What is not sent yet.
    buffer: Vec<u8>,
    /// Bytes in parts that were sent.
    sent: u64,
    upload: Option<Upload>,
    failed: bool,
}

struct Upload {
    parts: JoinSet<Result<(), TierError>>,
    begun: u64,
    multipart: Box<dyn MultipartUpload>,
}

impl RemoteWriter {
    pub(super) fn new(
        place: &Arc<Place>,
        name: &BlobName,
        conditional: bool,
        expected: Option<u64>,
    ) -> Result<RemoteWriter, TierError> {
        Ok(RemoteWriter {
            place: Arc::clone(place),
            name: name.clone(),
            path: place.path(name)?,
            object: place.object(name),
            conditional,
            expected: expected.unwrap_or(0),
            buffer: Vec::new(),
            sent: 0,
            upload: None,
            failed: false,
        })
    }

    fn part_len(&self) -> usize {
        part_len(self.upload.as_ref().map_or(0, |upload| upload.begun), self.expected) as usize
    }

    fn refuse_taken(&self) -> Result<(), TierError> {
        match self.place.len(&self.path, &self.object)? {
            Some(_) => Err(TierError::Exists { object: self.object.clone() }),
            None => Ok(()),
        }
    }

    /// Waits until fewer than `most` parts are under way.
    fn wait_for_parts(&mut self, most: usize) -> Result<(), TierError> {
        let handle = self.place.requests.handle();
        let Some(upload) = &mut self.upload else { return Ok(()) };
        while upload.parts.len() >= most.max(1) {
            let failed =
                |_| TierError::Unavailable { object: self.object.clone(), why: "a thread failed".into() };
            handle.block_on(upload.parts.join_next()).map_or(Ok(Ok(())), |part| part.map_err(failed))??;
        }
        Ok(())
    }

    /// Sends the buffer as a part. Returns its bytes.
    fn send_part(&mut self) -> Result<Bytes, TierError> {
        if self.upload.is_none() {
            self.refuse_taken()?;
            let begin = self.place.store.put_multipart(&self.path);
            let multipart = self.place.requests.wait(&self.object, self.place.limit(0), begin)?;
            self.upload = Some(Upload { parts: JoinSet::new(), begun: 0, multipart });
        }
        self.wait_for_parts(at_once(self.buffer.len() as u64))?;
        let bytes = Bytes::from(std::mem::take(&mut self.buffer));
        let limit = self.place.limit(bytes.len() as u64);
        let handle = self.place.requests.handle();
        if let Some(upload) = &mut self.upload {
            if upload.begun == MAX_PARTS {
                let why = format!("longer than {MAX_PARTS} parts; this is more than an object store takes");
                return Err(TierError::Settings { object: self.object.clone(), why });
            }
            let (object, part) = (self.object.clone(), upload.multipart.put_part(bytes.clone().into()));
            upload.parts.spawn_on(async move { asked(object, limit, part).await.result }, &handle);
            upload.begun += 1;
            self.sent += bytes.len() as u64;
        }
        Ok(bytes)
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = self.part_len() - self.buffer.len();
            let (now, later) = rest.split_at(rest.len().min(space));
            self.buffer.extend_from_slice(now);
            rest = later;
            if now.len() == space {
                self.send_part()?;
            }
        }
        Ok(())
    }

    /// Sends the rest, and makes the object of the parts.
    fn complete(&mut self) -> Result<u64, TierError> {
        let last = if self.buffer.is_empty() { Bytes::new() } else { self.send_part()? };
        self.wait_for_parts(1)?;
        self.refuse_taken()?;
        let Some(upload) = &mut self.upload else { return Ok(self.sent) };
        let asked = self.place.requests.ask(&self.object, self.place.limit(0), upload.multipart.complete());
        match asked.result {
            Ok(_) => {}
            Err(error @ TierError::Exists { .. }) if asked.attempts <= 1 => return Err(error),
            // An answer was lost: what counts is what is there.
            Err(_) if self.place.ends_with(&self.path, &self.object, self.sent, &last) => {}
            Err(error) => return Err(error),
        }
        self.upload = None;
        Ok(self.sent)
    }

    /// An upload that is not there any more: Garage ends those of a name that another one has got.
    fn explained(&self, error: TierError) -> TierError {
        let TierError::NotFound { object } = error else { return error };
        let why = "the server has forgotten the parts of this upload".to_owned();
        self.refuse_taken().err().unwrap_or(TierError::Unavailable { object, why })
    }

    fn failed_before(&self) -> TierError {
        let why = "an earlier write failed".to_owned();
        TierError::Unavailable { object: self.object.clone(), why }
    }

    /// Ends the upload, if one was begun.
    fn abort(&mut self) {
        if let Some(mut upload) = self.upload.take() {
            let parts = &mut upload.parts;
            // One that the server is still taking may come after the end of the upload, and stay there ("Amazon S3 API
            // Reference", AbortMultipartUpload: "those part uploads might or might not succeed").
            self.place.requests.handle().block_on(async {
                let all = async { while parts.join_next().await.is_some() {} };
                let _ = tokio::time::timeout(ABORT, all).await;
                parts.shutdown().await;
            });
            let left = LeftUpload {
                folder: self.name.folder().to_owned(),
                bytes: self.sent,
                upload: upload.multipart,
            };
            self.place.abort(left, ABORT);
        }
    }
}

impl BlobWriter for RemoteWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        if self.failed {
            return Err(self.failed_before());
        }
        let added = self.add(bytes).map_err(|error| self.explained(error));
        if added.is_err() {
            self.failed = true;
            self.abort();
            self.buffer = Vec::new();
        }
        added
    }

    fn finish(mut self: Box<Self>) -> Result<u64, TierError> {
        if self.failed {
            return Err(self.failed_before());
        }
        if self.upload.is_some() {
            return self.complete().map_err(|error| self.explained(error));
        }
        let bytes = Bytes::from(std::mem::take(&mut self.buffer));
        let len = bytes.len() as u64;
        self.place.put_new(&self.path, &self.object, bytes, self.conditional)?;
        Ok(len)
    }
}

impl Drop for RemoteWriter {
    fn drop(&mut self) {
        self.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_parts_are_enough_for_any_object() {
        let total = |expected| (0..MAX_PARTS).map(|number| part_len(number, expected)).sum::<u64>();
        assert!(total(0) >= 5 << 40);
        for expected in [1, PART, 100 << 30, 1 << 40, 5 << 40] {
            let parts = expected.div_ceil(part_len(0, expected));
            assert!(parts <= MAX_PARTS - STEP && total(expected) >= expected, "{expected}: {parts} parts");
            let alike = (0..parts).all(|number| part_len(number, expected) == part_len(0, expected));
            assert!(alike, "{expected}: parts of several lengths");
        }
    }

    #[test]
    fn memory_is_bounded_by_two_parts_where_they_are_long() {
        assert_eq!(at_once(PART), 4);
        assert_eq!(at_once(1 << 30), 1);
    }
}
