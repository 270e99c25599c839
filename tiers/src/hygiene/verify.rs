//! Reads every byte that a job has on one tier, and says what is wrong with it.
//!
//! Called by `holdfast verify` and by `repair`. Nothing is changed. Memory: one manifest at a time, the frame tables of
//! all versions joined, one frame per thread. Invariants: the first damage does not end it; a version that is removed
//! meanwhile is no error; an error is a tier that cannot be asked.

use super::segment::{self, Problem, plain};
use crate::catalog::Needed;
use crate::format::manifest::{Manifest, Record, SegmentEntry};
use crate::format::segment::Frame;
use crate::names::{self, FileName};
use crate::redundancy::{self, SetFile, SetState};
use crate::tier::TierError;
use crate::tier_folder::TierFolder;
use holdfast_image::Epoch;
use std::collections::{BTreeMap, BTreeSet};

/// What is to be verified, and who wants to know.
pub struct Verify<'a> {
    /// One version only; else all, and what no version needs.
    pub epoch: Option<Epoch>,
    /// Looks at the record of a version: the store does not know what is in it.
    pub record: &'a dyn Fn(&Record) -> Result<(), String>,
    /// Gets the bytes to be read in all, before they are.
    pub total: &'a dyn Fn(u64),
    /// Gets bytes that were read, from any thread.
    pub passed: &'a (dyn Fn(u64) + Sync),
}

/// Something that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// File name of the blob.
    pub file: String,
    /// Its path or address.
    pub object: String,
    /// Where in it.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// Versions that need what is damaged; none: no version does.
    pub versions: BTreeSet<u64>,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// The versions that were looked at, with the bytes of their blobs: what several share counts for each.
    pub versions: BTreeMap<u64, u64>,
    /// What is wrong, by file and offset.
    pub findings: Vec<Finding>,
    /// Blobs that no version needs, with their lengths: left by a crash, or under way.
    pub unneeded: Vec<(String, u64)>,
    /// What it has for other members of its gang.
    pub sets: Vec<VerifiedSet>,
}

/// A set of a gang's redundancy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifiedSet {
    /// The number in its names.
    pub number: u64,
    /// The image of the gang, if that is known.
    pub image: Option<u64>,
    /// Bytes of parity.
    pub bytes: u64,
    /// What is wrong with it.
    pub problem: Option<String>,
}

impl Verified {
    /// What is wrong with one version.
    pub fn of(&self, version: u64) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.versions.contains(&version))
    }

    /// Adds what was found of other versions of the same folder. What is damaged is one finding for all.
    pub fn join(&mut self, other: Verified) {
        self.versions.extend(other.versions);
        self.unneeded.extend(other.unneeded);
        self.sets.extend(other.sets);
        for finding in other.findings {
            let same = |known: &&mut Finding| {
                (&known.file, known.offset, &known.what) == (&finding.file, finding.offset, &finding.what)
            };
            match self.findings.iter_mut().find(same) {
                Some(known) => known.versions.extend(finding.versions),
                None => self.findings.push(finding),
            }
        }
    }

    /// Versions that are damaged.
    pub fn damaged(&self) -> BTreeSet<u64> {
        self.findings.iter().flat_map(|finding| finding.versions.iter().copied()).collect()
    }
}

/// The tables of one version.
pub(super) struct Tables {
    pub(super) image_id: [u8; 16],
    pub(super) manifest_len: u64,
    pub(super) segments: Vec<SegmentEntry>,
    pub(super) frames: Vec<Frame>,
}

impl Tables {
    /// The frames of its segment `index`, ascending.
    pub(super) fn frames_of(&self, index: usize) -> impl Iterator<Item = Frame> {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let first = self.frames.partition_point(|frame| frame.segment < index);
        let count = self.frames[first..].partition_point(|frame| frame.segment == index);
        self.frames[first..first + count].iter().map(plain)
    }
}

/// Decodes all of a manifest.
pub(super) fn decode(
    bytes: &[u8],
    epoch: Epoch,
    record: &dyn Fn(&Record) -> Result<(), String>,
) -> Result<Tables, Problem> {
    let bad = Problem::of_format;
    let manifest = Manifest::open(bytes).map_err(bad)?;
    if manifest.epoch != epoch {
        return Err(Problem::new(32, format!("this is the manifest of image {}", manifest.epoch)));
    }
    manifest.figures().map_err(bad)?;
    let found = manifest.record().map_err(bad)?;
    record(&found).map_err(|what| Problem::new(manifest.record_offset(), what))?;
    manifest.history().map_err(bad)?;
    let segments = manifest.segments().map_err(bad)?;
    let frames = manifest.frames(&segments).map_err(bad)?;
    manifest.index(&frames).map_err(bad)?;
    let (image_id, manifest_len) = (manifest.image_id, bytes.len() as u64);
    Ok(Tables { image_id, manifest_len, segments, frames })
}

/// A segment as manifests want it.
pub(super) struct Wanted {
    pub(super) entry: SegmentEntry,
    /// Versions that need it.
    pub(super) versions: BTreeSet<u64>,
    /// All frames that any of them needs, ascending.
    pub(super) frames: Vec<Frame>,
}

/// All that several versions want, by epoch and number; more than one of a name where manifests are of different
/// images.
#[derive(Default)]
pub(super) struct AllWanted(pub(super) BTreeMap<(u64, u32), Vec<Wanted>>);

impl AllWanted {
    pub(super) fn add(&mut self, version: u64, tables: &Tables) {
        for (index, entry) in tables.segments.iter().enumerate() {
            let known = self.0.entry((entry.epoch.0, entry.number)).or_default();
            // Its version depends on which manifest named it first: 1 or 2 are the same.
            let same = |w: &Wanted| w.entry.image_id == entry.image_id && w.entry.len == entry.len;
            let at = known.iter().position(same).unwrap_or(known.len());
            if at == known.len() {
                known.push(Wanted { entry: *entry, versions: BTreeSet::new(), frames: Vec::new() });
            }
            let wanted = &mut known[at];
            wanted.versions.insert(version);
            wanted.frames.extend(tables.frames_of(index));
            wanted.frames.sort_unstable_by_key(|frame| (frame.offset, frame.checksum, frame.stored_len));
            wanted.frames.dedup();
        }
    }
}

/// Looks at one version, or at all that the place has.
///
/// # Errors
/// [`TierError::NotFound`]: there is no such version. The tier cannot be asked.
pub fn verify(place: &TierFolder, options: &Verify<'_>) -> Result<Verified, TierError> {
    let mut look = Look { place, options, found: Verified::default(), wanted: AllWanted::default() };
    let there = place.inventory()?;
    let numbers: Vec<u64> = match options.epoch {
        Some(epoch) => vec![epoch.0],
        None => there.versions.iter().copied().collect(),
    };
    for number in numbers {
        look.version(Epoch(number))?;
    }
    let wanted = std::mem::take(&mut look.wanted).0;
    let needed: u64 =
        wanted.values().filter_map(|wanted| wanted.first()).map(|wanted| wanted.entry.len).sum();
    let mut loose: Vec<((u64, u32), u64)> = Vec::new();
    let has_sets = options.epoch.is_none() && there.has_sets;
    let sets = if has_sets { redundancy::sets_in(place)? } else { Vec::new() };
    if options.epoch.is_none() {
        // A version whose manifest cannot be read, or a set whose group cannot, may need any segment up to its own.
        let unread = sets.iter().filter(|set| set.file.is_err()).map(|set| set.number);
        let reach = look.found.damaged().last().copied().into_iter().chain(unread).max().unwrap_or(0);
        let of_sets = sets.iter().filter_map(|set| set.file.as_ref().ok()).flat_map(redundancy::covered);
        let needed = Needed::of(wanted.keys().copied().chain(of_sets).collect(), reach);
        let is_loose = |key: &(u64, u32)| !needed.may_be(*key);
        loose.extend(there.segments.iter().filter(|(key, _)| is_loose(key)).map(|(k, l)| (*k, *l)));
    }
    let parity = sets.iter().filter_map(|set| set.parity).sum::<u64>();
    (options.total)(needed + parity + loose.iter().map(|(_, len)| len).sum::<u64>());
    for ((epoch, number), wanted) in &wanted {
        look.segment(&names::segment_name(Epoch(*epoch), *number), wanted)?;
    }
    for ((epoch, number), len) in loose {
        look.loose(Epoch(epoch), number, len)?;
    }
    look.recipes(&there.recipes)?;
    for set in &sets {
        let problem = match look.stream(set, &wanted)? {
            None => redundancy::check_set(place, set, options.passed)?,
            problem => problem,
        };
        let image = set.file.as_ref().ok().map(|file| file.image);
        let (number, bytes) = (set.number, set.parity.unwrap_or(0));
        look.found.sets.push(VerifiedSet { number, image, bytes, problem });
    }
    let mut found = look.found;
    found.findings.sort_by(|a, b| (&a.file, a.offset).cmp(&(&b.file, b.offset)));
    Ok(found)
}

struct Look<'a> {
    place: &'a TierFolder,
    options: &'a Verify<'a>,
    found: Verified,
    wanted: AllWanted,
}

impl Look<'_> {
    fn finding(&mut self, file: &str, problem: Problem, versions: BTreeSet<u64>) {
        let object = self.place.object(file);
        let Problem { offset, what, .. } = problem;
        self.found.findings.push(Finding { file: file.to_owned(), object, offset, what, versions });
    }

    /// Reads a manifest; what it names is to be looked at.
    fn version(&mut self, epoch: Epoch) -> Result<(), TierError> {
        let file = names::manifest_name(epoch);
        let read = match self.place.manifest(epoch) {
            Ok(bytes) => decode(&bytes, epoch, self.options.record),
            Err(TierError::NotFound { .. }) if self.options.epoch.is_none() => return Ok(()),
            Err(error @ TierError::NotFound { .. }) => return Err(error),
            Err(error) => Err(segment::of_tier(error, 0)?),
        };
        match read {
            Err(problem) => {
                self.found.versions.insert(epoch.0, 0);
                self.finding(&file, problem, BTreeSet::from([epoch.0]));
            }
            Ok(tables) => {
                let bytes =
                    tables.segments.iter().fold(tables.manifest_len, |sum, s| sum.saturating_add(s.len));
                self.found.versions.insert(epoch.0, bytes);
                self.wanted.add(epoch.0, &tables);
            }
        }
        Ok(())
    }

    fn segment(&mut self, file: &str, all: &[Wanted]) -> Result<(), TierError> {
        let blob = match self.place.open(file) {
            Ok(blob) => blob,
            Err(error) => {
                let missing = matches!(error, TierError::NotFound { .. });
                let problem = segment::of_tier(error, 0)?;
                let mut versions = all.iter().flat_map(|wanted| wanted.versions.iter().copied()).collect();
                if missing {
                    self.forget_removed(&mut versions)?;
                }
                if !versions.is_empty() {
                    self.finding(file, problem, versions);
                }
                return Ok(());
            }
        };
        for wanted in all {
            let problems = segment::check(&*blob, &wanted.entry, &wanted.frames, self.options.passed)?;
            let frames: Vec<Frame> = problems.iter().filter_map(|problem| problem.frame).collect();
            let users = self.users(file, &frames, &wanted.versions)?;
            for (count, problem) in problems.into_iter().enumerate() {
                if count == segment::MOST_PROBLEMS {
                    let more = Problem::new(problem.offset, "more from here on");
                    self.finding(file, more, wanted.versions.clone());
                    break;
                }
                let needed = match &problem.frame {
                    None => wanted.versions.clone(),
                    Some(frame) => users.get(&frame.offset).cloned().unwrap_or_default(),
                };
                self.finding(file, problem, needed);
            }
        }
        Ok(())
    }

    /// Versions that were removed while they were looked at need nothing any more.
    fn forget_removed(&mut self, versions: &mut BTreeSet<u64>) -> Result<(), TierError> {
        let there = self.place.inventory()?.versions;
        for gone in versions.iter().filter(|version| !there.contains(version)) {
            self.found.versions.remove(gone);
        }
        versions.retain(|version| there.contains(version));
        Ok(())
    }

    /// Which of `versions` need each of these frames, by their offset.
    fn users(
        &self,
        file: &str,
        frames: &[Frame],
        versions: &BTreeSet<u64>,
    ) -> Result<BTreeMap<u64, BTreeSet<u64>>, TierError> {
        let mut users: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        if frames.is_empty() {
            return Ok(users);
        }
        for &version in versions {
            let bytes = match self.place.manifest(Epoch(version)) {
                Err(TierError::NotFound { .. }) => continue,
                bytes => bytes?,
            };
            let Ok(tables) = decode(&bytes, Epoch(version), &|_| Ok(())) else { continue };
            let at = tables.segments.iter().position(|s| names::segment_name(s.epoch, s.number) == file);
            let own: BTreeSet<(u64, u64)> =
                at.iter().flat_map(|&at| tables.frames_of(at)).map(|f| (f.offset, f.checksum)).collect();
            for frame in frames.iter().filter(|frame| own.contains(&(frame.offset, frame.checksum))) {
                users.entry(frame.offset).or_default().insert(version);
            }
        }
        Ok(users)
    }

    /// What is wrong with a member's stream of a set, if anything is: what versions need is looked at with them.
    fn stream(
        &self,
        set: &SetState,
        wanted: &BTreeMap<(u64, u32), Vec<Wanted>>,
    ) -> Result<Option<String>, TierError> {
        let files = set.file.as_ref().ok().and_then(|file| file.own()).map_or(&[][..], |own| &own.files);
        for SetFile { name, len } in files {
            let bad = |problem: Problem| {
                let Problem { offset, what, .. } = problem;
                Ok(Some(format!("{}: at byte {offset}: {what}", self.place.object(name))))
            };
            let blob = match self.place.open(name) {
                Err(TierError::NotFound { object }) => return Ok(Some(format!("{object}: it is missing"))),
                Err(error) => return bad(segment::of_tier(error, 0)?),
                Ok(blob) => blob,
            };
            if blob.len() != *len {
                let what = format!("it has {} bytes, not {len}", blob.len());
                return bad(Problem::new(blob.len().min(*len), what));
            }
            let Some(FileName::Segment(epoch, number)) = names::parse_name(name) else {
                match redundancy::check_head(self.place, set.number)? {
                    None => continue,
                    problem => return Ok(problem),
                }
            };
            if wanted.contains_key(&(epoch.0, number)) {
                continue;
            }
            let problems = segment::own_problems(&*blob, epoch, number, self.options.passed)?;
            if let Some(problem) = problems.into_iter().next() {
                return bad(problem);
            }
        }
        Ok(None)
    }

    /// A segment that no manifest names: what it says of itself.
    fn loose(&mut self, epoch: Epoch, number: u32, len: u64) -> Result<(), TierError> {
        let file = names::segment_name(epoch, number);
        let blob = match self.place.open(&file) {
            Err(TierError::NotFound { .. }) => return Ok(()),
            Err(error) => {
                let problem = segment::of_tier(error, 0)?;
                self.finding(&file, problem, BTreeSet::new());
                return Ok(());
            }
            Ok(blob) => blob,
        };
        let problems = segment::own_problems(&*blob, epoch, number, self.options.passed)?;
        self.found.unneeded.push((file.clone(), len));
        for problem in problems.into_iter().take(segment::MOST_PROBLEMS) {
            self.finding(&file, problem, BTreeSet::new());
        }
        Ok(())
    }

    /// `job-N`: what a host that has nothing of the job needs.
    fn recipes(&mut self, there: &BTreeSet<u64>) -> Result<(), TierError> {
        for &number in there {
            let file = names::recipe_name(Epoch(number));
            let is_needed = self.found.versions.contains_key(&number);
            if !is_needed && self.options.epoch.is_some() {
                continue;
            }
            let problem = match self.place.recipe(Epoch(number)) {
                Err(TierError::NotFound { .. }) => continue,
                Err(error) => Some(segment::of_tier(error, 0)?),
                Ok(bytes) => bad_recipe(&bytes).map(|what| Problem::new(0, what)),
            };
            if !is_needed {
                self.found.unneeded.push((file.clone(), 0));
            }
            if let Some(problem) = problem {
                let versions = Some(number).filter(|_| is_needed).into_iter().collect();
                self.finding(&file, problem, versions);
            }
        }
        Ok(())
    }
}

/// Why bytes are no `job.json`.
pub(super) fn bad_recipe(bytes: &[u8]) -> Option<String> {
    match serde_json::from_slice::<serde_json::Value>(bytes) {
        Ok(value) if value.is_object() => None,
        Ok(_) => Some("it does not hold the settings of a job".into()),
        Err(error) => Some(error.to_string()),
    }
}
