//! One version from one tier to another: segments that are missing, each checked against the manifest while it is
//! copied ([`super::segment_check`]), then `job-N`, then the manifest. That is the commit there.
//!
//! Called by the cascade (down) and by `holdfast fetch` (up), which holds the job's lock. Memory: one manifest with its
//! frame table, and the pieces that are under way ([`crate::read_ahead`]). Invariants: nothing of a damaged segment is
//! ever finished at the target; a blob that another version of the target may need is never removed, nor one that
//! another host may be about to name; all segments are there when a manifest is published; what is there already is not
//! copied again. A crash leaves segments that no manifest names: the next attempt uses them.

use super::inventory::{Inventory, open_manifest};
use super::packing::{Packing, SegmentPacker};
use super::segment_check::SegmentCheck;
use crate::catalog::{self, SegmentKey, Table};
use crate::fault;
use crate::format::FormatError;
use crate::format::manifest::{Identity, Manifest, SegmentEntry};
use crate::format::segment::Frame;
use crate::names;
use crate::read_ahead::read_ahead;
use crate::tier::{Blob, BlobName, BlobWriter, TierError, read_all};
use crate::tier_folder::TierFolder;
use crate::unpacked;
use holdfast_image::Epoch;

/// Largest piece that is read and written at once.
const PIECE: u64 = 1 << 20;
/// Bytes at each end of a segment by which it is known: the first block of headers is there, and the last.
const ENDS: u64 = 4096;
/// So often what vanishes while a version is copied is copied again.
const LOST: u32 = 3;

/// Which way a version goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// To a lower tier. Segments that are there already are known by their ends.
    Down,
    /// Back to the first tier. Segments that are there already are checked as a whole: they may be why it is needed.
    Up,
}

impl Way {
    fn point(self, down: &'static str, up: &'static str) {
        fault::point(if self == Way::Down { down } else { up });
    }
}

/// How fast a copy may go, and who wants to know how far it is.
pub trait Pace {
    /// Bytes that will be copied in all.
    fn begin(&self, total: u64);
    /// Waits until so many bytes may follow. `false`: stop here.
    fn pass(&self, bytes: u64) -> bool;
    /// Largest piece, bytes.
    fn piece(&self) -> u64 {
        PIECE
    }
    /// Runs the commit, if the version may still be committed.
    ///
    /// # Errors
    /// Of the commit.
    fn commit(&self, commit: &mut dyn FnMut() -> Result<(), CopyError>) -> Result<(), CopyError> {
        commit()
    }
    /// So many bytes are done; unless [`Pace::packing`] packs, they are those that were let pass.
    fn done(&self, _bytes: u64) {}
    /// How segments are packed on their way; `None`: not at all.
    fn packing(&self) -> Option<&Packing> {
        None
    }
}

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Copied {
    /// Bytes of segments that were copied.
    pub bytes: u64,
    /// Segments that were there already.
    pub found: usize,
}

/// Why a version was not copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// It cannot be read where it is, or is damaged there.
    #[error("{0}")]
    Source(TierError),
    /// It cannot be written where it is to go.
    #[error("{0}")]
    Target(TierError),
    /// Another agent has written there under the same names.
    #[error(
        "{object}: it is of another image; the job was continued from this tier elsewhere: restart one of the two with \
         --name, or give it another tier"
    )]
    Foreign {
        /// The blob.
        object: String,
        /// The segment that it is; none: the manifest.
        segment: Option<SegmentKey>,
    },
    /// The pace said so.
    #[error("stopped")]
    Stopped,
}

/// Copies version `epoch`, with `recipe` as its `job-N`. Does nothing where it is there already.
///
/// # Errors
/// See [`CopyError`]; the target has no version then that it had not before.
pub fn copy_version(
    from: &TierFolder,
    to: &TierFolder,
    epoch: Epoch,
    recipe: Option<&[u8]>,
    way: Way,
    pace: &dyn Pace,
) -> Result<Copied, CopyError> {
    let mut there = to.inventory().map_err(CopyError::Target)?;
    Copier { from, to, way, pace }.version(epoch, recipe, &mut there)
}

/// What has this name there is another image's.
pub(crate) fn foreign(to: &TierFolder, segment: Option<SegmentKey>, epoch: Epoch) -> CopyError {
    let file = match segment {
        Some((of, number)) => names::segment_name(Epoch(of), number),
        None => names::manifest_name(epoch),
    };
    CopyError::Foreign { object: to.object(&file), segment }
}

/// What a version needs beside its manifest.
struct Needs {
    segments: Vec<SegmentEntry>,
    /// Ascending by segment.
    frames: Vec<Frame>,
}

impl Needs {
    fn frames_of(&self, index: usize) -> &[Frame] {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let first = self.frames.partition_point(|frame| frame.segment < index);
        let count = self.frames[first..].partition_point(|frame| frame.segment == index);
        &self.frames[first..first + count]
    }
}

/// From where to where, and how.
pub(crate) struct Copier<'a> {
    pub(crate) from: &'a TierFolder,
    pub(crate) to: &'a TierFolder,
    pub(crate) way: Way,
    pub(crate) pace: &'a dyn Pace,
}

impl Copier<'_> {
    /// As [`copy_version`]. `there`: what the target has; what it gets is added.
    pub(crate) fn version(
        &self,
        epoch: Epoch,
        recipe: Option<&[u8]>,
        there: &mut Inventory,
    ) -> Result<Copied, CopyError> {
        let bytes = self.from.manifest(epoch).map_err(CopyError::Source)?;
        let object = self.from.object(&names::manifest_name(epoch));
        let manifest = open_manifest(&object, epoch, &bytes).map_err(CopyError::Source)?;
        let bad = |error| CopyError::Source(super::inventory::damaged(&object, error));
        let segments = manifest.segments().map_err(bad)?;
        let frames = manifest.frames(&segments).map_err(bad)?;
        if self.way == Way::Up {
            self.make_way(epoch, Identity::of(&bytes).map_err(bad)?)?;
        }
        let needs = Needs { segments, frames };
        let mut copied = self.bring(&needs, there)?;
        if let Some(recipe) = recipe {
            self.publish(&names::recipe_name(epoch), recipe, false)?;
            there.recipes.insert(epoch.0);
            self.way.point("cascade-recipe", "fetch-recipe");
        }
        if self.way == Way::Down {
            copied.bytes += self.bring_lost(&needs, there)?;
        }
        self.pace.commit(&mut || self.publish(&names::manifest_name(epoch), &bytes, true))?;
        there.versions.insert(epoch.0);
        self.way.point("cascade-manifest", "fetch-manifest");
        Ok(copied)
    }

    /// A manifest that is damaged keeps its name from the good one. One of another image is good: nothing is touched.
    fn make_way(&self, epoch: Epoch, wanted: Identity) -> Result<(), CopyError> {
        let name = names::manifest_name(epoch);
        match self.to.manifest(epoch).map(|bytes| (Manifest::open(&bytes).err(), Identity::of(&bytes).ok())) {
            Ok((Some(FormatError::Bad { .. }), _)) => {
                let name = self.to.blob(&name).map_err(CopyError::Target)?;
                self.to.tier().remove(&name).map_err(CopyError::Target)
            }
            Ok((None, Some(found))) if found == wanted => Ok(()),
            // One of a newer format is not damaged.
            Ok(_) => Err(foreign(self.to, None, epoch)),
            Err(TierError::NotFound { .. }) => Ok(()),
            Err(error) => Err(CopyError::Target(error)),
        }
    }

    /// Copies all segments that the target has not.
    fn bring(&self, needs: &Needs, there: &mut Inventory) -> Result<Copied, CopyError> {
        let mut copied = Copied::default();
        let mut missing = Vec::new();
        for (index, entry) in needs.segments.iter().enumerate() {
            if self.has(entry, needs.frames_of(index), there)? {
                copied.found += 1;
            } else {
                missing.push((entry, needs.frames_of(index)));
            }
        }
        self.pace.begin(missing.iter().map(|(entry, _)| entry.len).sum());
        for (entry, frames) in missing {
            self.segment(entry, frames)?;
            there.segments.insert(entry.key(), entry.len);
            copied.bytes += entry.len;
        }
        Ok(copied)
    }

    /// Right before the commit: what another host has removed meanwhile, which continues the job and knew of no version
    /// that needs it, is copied again. Returns the bytes.
    fn bring_lost(&self, needs: &Needs, there: &mut Inventory) -> Result<u64, CopyError> {
        let mut bytes = 0;
        let mut tries = 0;
        loop {
            *there = self.to.inventory().map_err(CopyError::Target)?;
            let lost = needs.segments.iter().find(|entry| !there.segments.contains_key(&entry.key()));
            match lost {
                None => return Ok(bytes),
                Some(lost) if tries == LOST => {
                    let object = self.to.object(&names::segment_name(lost.epoch, lost.number));
                    return Err(CopyError::Target(TierError::NotFound { object }));
                }
                Some(_) => bytes += self.bring(needs, there)?.bytes,
            }
            tries += 1;
        }
    }

    /// Whether the target has this segment. One that is another image's, of which the target has no version and which
    /// no host can be about to publish any more, is removed; so is a damaged one on the way up.
    fn has(&self, entry: &SegmentEntry, frames: &[Frame], there: &mut Inventory) -> Result<bool, CopyError> {
        let file = names::segment_name(entry.epoch, entry.number);
        if !there.segments.contains_key(&entry.key()) {
            return Ok(false);
        }
        let name = self.to.blob(&file).map_err(CopyError::Target)?;
        if self.is_same(&name, entry, frames)? {
            return Ok(true);
        }
        // Only versions of its own epoch and later ones can name it.
        let is_named = there.versions.range(entry.epoch.0..).next().is_some();
        let is_foreign = match self.way {
            Way::Down => is_named || !there.abandoned.contains(&entry.key()),
            Way::Up => self.is_another_s(entry, there)?,
        };
        if is_foreign {
            return Err(foreign(self.to, Some(entry.key()), entry.epoch));
        }
        self.to.tier().remove(&name).map_err(CopyError::Target)?;
        there.segments.remove(&entry.key());
        Ok(false)
    }

    /// Whether a version of the target needs the segment of this name as that of another image.
    fn is_another_s(&self, entry: &SegmentEntry, there: &Inventory) -> Result<bool, CopyError> {
        for &number in there.versions.range(entry.epoch.0..) {
            match catalog::read(self.to, Epoch(number)) {
                Some(Table::Unseen(error)) => return Err(CopyError::Target(error)),
                Some(Table::Known { segments, .. })
                    if segments.iter().any(|s| s.key() == entry.key() && s.image_id != entry.image_id) =>
                {
                    return Ok(true);
                }
                Some(Table::Known { .. } | Table::Damaged(_)) | None => {}
            }
        }
        Ok(false)
    }

    fn is_same(&self, name: &BlobName, entry: &SegmentEntry, frames: &[Frame]) -> Result<bool, CopyError> {
        let ours = self.from.blob(name.file()).map_err(CopyError::Source)?;
        let ours = unpacked::open(&**self.from.tier(), &ours, entry.len).map_err(CopyError::Source)?;
        let theirs = match unpacked::open(&**self.to.tier(), name, entry.len) {
            Err(TierError::Damaged { .. }) => return Ok(false),
            theirs => theirs.map_err(CopyError::Target)?,
        };
        if theirs.len() != entry.len {
            return Ok(false);
        }
        for offset in [0, entry.len.saturating_sub(ENDS)] {
            let len = usize::try_from(ENDS.min(entry.len - offset)).unwrap_or(0);
            let (mut a, mut b) = (vec![0; len], vec![0; len]);
            ours.read_at(offset, &mut a).map_err(CopyError::Source)?;
            theirs.read_at(offset, &mut b).map_err(CopyError::Target)?;
            if a != b {
                return Ok(false);
            }
        }
        if self.way == Way::Down {
            return Ok(true);
        }
        let mut check = SegmentCheck::new(entry, frames);
        let all = read_ahead(&*theirs, entry.len, PIECE, |piece| Ok(check.feed(piece).is_ok()));
        Ok(all.map_err(CopyError::Target)? && check.finish().is_ok())
    }

    fn segment(&self, entry: &SegmentEntry, frames: &[Frame]) -> Result<(), CopyError> {
        let file = names::segment_name(entry.epoch, entry.number);
        let object = self.from.object(&file);
        let source = self.from.blob(&file).map_err(CopyError::Source)?;
        let blob = unpacked::open(&**self.from.tier(), &source, entry.len).map_err(CopyError::Source)?;
        if blob.len() != entry.len {
            return Err(CopyError::Source(TierError::Short { object, len: blob.len() }));
        }
        let name = self.to.blob(&file).map_err(CopyError::Target)?;
        let mut writer = self.to.tier().create(&name, Some(entry.len)).map_err(CopyError::Target)?;
        let mut check = SegmentCheck::new(entry, frames);
        let packing = self.pace.packing().filter(|_| self.way == Way::Down);
        let mut packer = packing.map(|packing| SegmentPacker::new(packing, entry.len));
        let mut failed = None;
        let damaged =
            |(offset, what)| CopyError::Source(TierError::Damaged { object: object.clone(), offset, what });
        let read = read_ahead(&*blob, entry.len, self.pace.piece().clamp(ENDS, PIECE), |piece| {
            let checked = check.feed(piece).map_err(damaged);
            failed = checked.and_then(|()| self.pass_on(&mut *writer, packer.as_mut(), piece)).err();
            Ok(failed.is_none())
        });
        read.map_err(CopyError::Source)?;
        if let Some(error) = failed {
            return Err(error);
        }
        check.finish().map_err(damaged)?;
        let end = packer.map(|packer| packer.end()).unwrap_or_default();
        self.send(&mut *writer, &end)?;
        let finish = || writer.finish().map_err(CopyError::Target);
        match packing {
            Some(packing) => packing.link.measure(0, finish)?,
            None => finish()?,
        };
        self.way.point("cascade-segment", "fetch-segment");
        Ok(())
    }

    /// Writes the next bytes of a segment, packed or as they are.
    fn pass_on(
        &self,
        writer: &mut dyn BlobWriter,
        packer: Option<&mut SegmentPacker<'_>>,
        piece: &[u8],
    ) -> Result<(), CopyError> {
        match packer {
            Some(packer) => packer.take(piece, &mut |data| self.send(writer, data))?,
            None => self.send(writer, piece)?,
        }
        self.pace.done(piece.len() as u64);
        self.way.point("cascade-piece", "fetch-piece");
        Ok(())
    }

    /// Writes what goes over the link, as fast as it may.
    fn send(&self, writer: &mut dyn BlobWriter, data: &[u8]) -> Result<(), CopyError> {
        let piece = usize::try_from(self.pace.piece().clamp(ENDS, PIECE)).unwrap_or(ENDS as usize);
        for piece in data.chunks(piece) {
            if !self.pace.pass(piece.len() as u64) {
                return Err(CopyError::Stopped);
            }
            let mut append = || writer.append(piece).map_err(CopyError::Target);
            match self.pace.packing() {
                Some(packing) => packing.link.measure(piece.len() as u64, append)?,
                None => append()?,
            }
        }
        Ok(())
    }

    /// A name that is taken is no error where the same is there. `own`: else it is another agent's.
    fn publish(&self, file: &str, bytes: &[u8], own: bool) -> Result<(), CopyError> {
        let name = self.to.blob(file).map_err(CopyError::Target)?;
        match self.to.tier().publish(&name, bytes) {
            Ok(()) => Ok(()),
            Err(TierError::Exists { .. }) if !own => Ok(()),
            Err(error) => {
                // Whether it is there is not known after any error.
                let len = bytes.len() as u64;
                match self.to.tier().open(&name) {
                    Ok(blob) if blob.len() == len && equals(&*blob, bytes).map_err(CopyError::Target)? => {
                        Ok(())
                    }
                    Ok(_) if own => Err(CopyError::Foreign { object: self.to.object(file), segment: None }),
                    _ => Err(CopyError::Target(error)),
                }
            }
        }
    }
}

fn equals(blob: &dyn Blob, bytes: &[u8]) -> Result<bool, TierError> {
    let mut at = 0;
    read_all(blob, bytes.len() as u64, PIECE, |piece| {
        let same = bytes[at..].starts_with(piece);
        at += piece.len();
        Ok(same)
    })
}
