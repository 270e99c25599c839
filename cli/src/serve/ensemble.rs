//! Raw, compressed, or accumulated first: what becomes of a rank's versions on their way to the store.
//!
//! Used by the server's threads, with its state locked but where a function says otherwise. The first run of a program
//! is profiled: sizes, intervals, the codec's times, the store's rate; it is stored as the rank's settings say. That is
//! kept in the rank's folder by the program's build-id ([`holdfast_tiers::KnownRun`]), and the next run of the program
//! obeys the best plan for it ([`schedule`]). A run that differs from its profile by a tenth has no plan any more, and
//! the next one is profiled anew.
//! Invariants: a version is held for others no longer than [`MOST_HELD`], not while its client waits for the store or
//! has gone, nor while another rank has something for the store; a profile that is missing or broken costs speed alone.

use super::ranks::Committed;
use holdfast_image::PAGE_SIZE;
use holdfast_objects::buffer::Layout;
use holdfast_tiers::codec::choice::{Relief, Trial, best};
use holdfast_tiers::codec::{Codec, Coder, Compression};
use holdfast_tiers::policy::{
    BufferLimits, Choice, CodecCurve, Objective, Profile, Sample, SegmentId, part, schedule,
};
use holdfast_tiers::{Job, KnownRun, MOST_SAMPLES};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// What is put less often than this is not accumulated.
pub const MOST_HELD: Duration = Duration::from_secs(2);
/// Most versions that are accumulated.
const MOST_TOGETHER: usize = 8;
/// A plan is exact to this part of the run.
const GRAIN_PART: u64 = 500;
/// Bytes of a version by which codecs are measured.
const PROBES: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];

/// What is done with a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Letter {
    /// As the settings say; it is profiled, or there is no plan for it.
    Profiled,
    Raw,
    Compressed,
    /// With the others of this group: number of its first version.
    Together(usize),
}

/// What the plan says of a version.
#[derive(Clone, Copy, Debug)]
struct Step {
    letter: Letter,
    /// The last version of its group.
    last: usize,
}

/// A version of this run.
#[derive(Clone, Copy, Debug)]
struct Seen {
    sample: Sample,
    is_stored: bool,
    /// What was done.
    ran: Letter,
}

/// The run of one rank.
pub struct Course {
    job: Job,
    build: String,
    known: Option<KnownRun>,
    steps: Vec<Step>,
    codec: Option<Codec>,
    curve: Vec<(u64, u64)>,
    is_probed: bool,
    seen: Vec<Seen>,
    index_of: BTreeMap<SegmentId, usize>,
    /// The last version was put; since then the program has computed.
    since: Instant,
    /// It has asked for room.
    asked: Instant,
    /// Those before this one are held no longer.
    released: usize,
    drifted: bool,
    is_over: bool,
    /// Bytes that went to the store, and nanoseconds for them.
    sent: (u64, u64),
    /// What a version became that was packed last: bytes, and of how many.
    packed: (u64, u64),
}

/// The runs of all ranks that have a program with a build-id.
pub struct Courses {
    of: BTreeMap<(String, u32), Course>,
    /// See [`MOST_HELD`].
    pub most_held: Duration,
}

impl Default for Courses {
    fn default() -> Courses {
        Courses { of: BTreeMap::new(), most_held: MOST_HELD }
    }
}

/// The build-id of the program of a process, in hexadecimal digits.
pub fn build_of(pid: i32) -> Option<String> {
    let id = holdfast_process::build_id(Path::new(&format!("/proc/{pid}/exe")))?;
    let digits: String = id.0.iter().take(32).map(|byte| format!("{byte:02x}")).collect();
    (!digits.is_empty()).then_some(digits)
}

impl Course {
    /// A run that begins. `room`: bytes of memory that its versions may take. Without the state's lock: it reads a
    /// file, and plans.
    pub fn begin(job: Job, build: String, room: u64) -> Course {
        let known = job.known_run(&build).unwrap_or_else(|error| {
            tracing::warn!("{error}; it is not used, and this run is profiled anew");
            None
        });
        let known = known.filter(|known| !known.profile.samples.is_empty());
        let codec = known.as_ref().and_then(|known| Codec::from_number(known.codec));
        let steps = known.as_ref().map(|known| plan(&known.profile, room)).unwrap_or_default();
        if let Some(codec) = codec {
            // What a codec needs once is there before a version waits for it.
            let _ = Coder::default().encode(codec, &vec![0; PROBES[0]]);
        }
        let now = Instant::now();
        Course {
            job,
            build,
            known,
            steps,
            codec,
            curve: Vec::new(),
            is_probed: false,
            seen: Vec::new(),
            index_of: BTreeMap::new(),
            since: now,
            asked: now,
            released: 0,
            drifted: false,
            is_over: false,
            sent: (0, 0),
            packed: (1, 1),
        }
    }

    fn step(&self, index: usize) -> Option<Step> {
        if self.drifted { None } else { self.steps.get(index).copied() }
    }

    /// What is done with a version if it is stored now.
    fn letter(&self, index: usize) -> Letter {
        match self.step(index) {
            None => Letter::Profiled,
            // The others have not come in time.
            Some(Step { letter: Letter::Together(_), last }) if last >= self.seen.len() => Letter::Compressed,
            Some(step) => step.letter,
        }
    }

    fn put(&mut self, segment: SegmentId, bytes: u64) {
        let now = Instant::now();
        // No program waits for a buffer that was given ahead.
        let until = if self.asked > self.since { self.asked } else { now };
        let interval = until.saturating_duration_since(self.since);
        self.since = now;
        if self.seen.len() == MOST_SAMPLES {
            return;
        }
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let sample = Sample { interval_ns, bytes: bytes.max(1), compressed: bytes.max(1) };
        self.index_of.insert(segment, self.seen.len());
        self.seen.push(Seen { sample, is_stored: false, ran: Letter::Profiled });
    }

    fn stored(&mut self, segment: SegmentId, made: &Committed, ns: u64) {
        let figures = &made.figures;
        let Some(index) = self.index_of.remove(&segment) else { return };
        let raw = (figures.pages_stored * PAGE_SIZE).max(1);
        let expected = self.known.as_ref().and_then(|known| known.profile.samples.get(index));
        let seen = &mut self.seen[index];
        seen.sample.bytes = raw;
        seen.sample.compressed = match expected {
            _ if !made.is_raw => {
                self.packed = (figures.bytes_stored.max(1), raw);
                figures.bytes_stored.max(1)
            }
            Some(expected) => expected.compressed,
            // As those before it.
            None => part(raw, self.packed.0, self.packed.1).max(1),
        };
        seen.is_stored = true;
        let curve = CodecCurve { curve: self.curve.clone(), temporary_per_mille: 0 };
        let packing = if self.curve.is_empty() { 0 } else { curve.ns(figures.bytes_compressed_from.max(1)) };
        self.sent.0 += figures.bytes_stored;
        self.sent.1 += ns.saturating_sub(packing).max(ns / 10);
        let so_far = || self.seen.iter().take_while(|seen| seen.is_stored).map(|seen| seen.sample);
        if let Some(known) = &self.known
            && !self.drifted
            && known.profile.drifted(&so_far().collect::<Vec<Sample>>())
        {
            tracing::info!("{}: this run is not as its profile says: no plan any more", self.job.name());
            self.drifted = true;
        }
    }

    /// What the next run is told.
    fn outcome(&self) -> KnownRun {
        let ran = letters(self.seen.iter().map(|seen| seen.ran));
        match &self.known {
            Some(known) if !self.drifted => KnownRun { ran, ..known.clone() },
            Some(_) => KnownRun { profile: Profile { rate: 1, ..Profile::default() }, codec: 0, ran },
            None => {
                let stored = self.seen.iter().take_while(|seen| seen.is_stored);
                let rate = u128::from(self.sent.0) * 1_000_000_000 / u128::from(self.sent.1.max(1));
                let profile = Profile {
                    samples: stored.map(|seen| seen.sample).collect(),
                    codec: CodecCurve { curve: self.curve.clone(), temporary_per_mille: 0 },
                    rate: u64::try_from(rate).unwrap_or(u64::MAX).max(1),
                };
                KnownRun { profile, codec: self.codec.map_or(0, |codec| codec as u32), ran }
            }
        }
    }

    /// Keeps what this run has shown. Without the state's lock.
    pub fn keep(&self) {
        if self.seen.is_empty() {
            return;
        }
        if let Err(error) = self.job.keep_known_run(&self.build, &self.outcome()) {
            tracing::warn!("{error}; the next run is planned without what this one has shown");
        }
    }
}

/// The plan for a profile, version by version.
fn plan(profile: &Profile, room: u64) -> Vec<Step> {
    let sum = |value: fn(&Sample) -> u64| profile.samples.iter().map(value).sum::<u64>();
    // At most so long: states of a plan are as many as parts of it.
    let packing =
        profile.samples.iter().fold(0, |all: u64, sample| all.saturating_add(profile.codec.ns(sample.bytes)));
    let packing = if profile.codec.curve.is_empty() { 0 } else { packing };
    let whole = [sum(|sample| sample.interval_ns), profile.link_ns(sum(|sample| sample.bytes)), packing];
    let whole = whole.into_iter().fold(0, u64::saturating_add);
    let limits =
        BufferLimits { buffer: room, most_together: MOST_TOGETHER, grain_ns: (whole / GRAIN_PART).max(1000) };
    let plan = schedule(profile, &limits, Objective::FlushEnd);
    let mut steps = Vec::new();
    for choice in plan.map(|plan| plan.choices).unwrap_or_default() {
        let first = steps.len();
        let (letter, count) = match choice {
            Choice::Raw => (Letter::Raw, 1),
            Choice::Compress(1) => (Letter::Compressed, 1),
            Choice::Compress(count) => (Letter::Together(first), count),
        };
        steps.extend(std::iter::repeat_n(Step { letter, last: first + count - 1 }, count));
    }
    steps
}

/// A run in letters: P as the settings say, U raw, C compressed, A3 three accumulated and compressed.
fn letters(of: impl IntoIterator<Item = Letter>) -> String {
    let all: Vec<Letter> = of.into_iter().collect();
    let words = all.chunk_by(|one, two| one == two && matches!(one, Letter::Together(_)));
    let words: Vec<String> = words
        .map(|same| match same[0] {
            Letter::Profiled => "P".into(),
            Letter::Raw => "U".into(),
            Letter::Compressed => "C".into(),
            Letter::Together(_) => format!("A{}", same.len()),
        })
        .collect();
    let runs = words.chunk_by(|one, two| one == two);
    let runs =
        runs.map(|run| if run.len() > 1 { format!("{} {}", run.len(), run[0]) } else { run[0].clone() });
    runs.collect::<Vec<_>>().join(", ")
}

impl Courses {
    /// A rank's run begins.
    pub fn begin(&mut self, set: &str, rank: u32, course: Course) {
        self.of.insert((set.to_owned(), rank), course);
    }

    /// A rank's run; it is ours no longer.
    pub fn take(&mut self, set: &str, rank: u32) -> Option<Course> {
        self.of.remove(&(set.to_owned(), rank))
    }

    fn course(&self, set: &str, rank: u32) -> Option<&Course> {
        self.of.get(&(set.to_owned(), rank))
    }

    fn course_mut(&mut self, set: &str, rank: u32) -> Option<&mut Course> {
        self.of.get_mut(&(set.to_owned(), rank))
    }

    /// A program asks for room: until now it has computed.
    pub fn asked(&mut self, set: &str, rank: u32) {
        if let Some(course) = self.course_mut(set, rank) {
            course.asked = Instant::now();
        }
    }

    /// A version was put.
    pub fn put(&mut self, set: &str, rank: u32, segment: SegmentId, bytes: u64) {
        if let Some(course) = self.course_mut(set, rank) {
            course.put(segment, bytes);
        }
    }

    /// What was put is held no longer: its client waits for it.
    pub fn release(&mut self, set: &str, rank: u32) {
        if let Some(course) = self.course_mut(set, rank) {
            course.released = course.seen.len();
        }
    }

    /// The client has gone.
    pub fn end(&mut self, set: &str, rank: u32) {
        if let Some(course) = self.course_mut(set, rank) {
            course.is_over = true;
        }
    }

    /// Whether a version waits for others that are compressed with it.
    pub fn holds(&self, (set, rank): (&str, u32), segment: SegmentId, put_at: Instant) -> bool {
        self.course(set, rank).is_some_and(|course| {
            let Some(&index) = course.index_of.get(&segment) else { return false };
            let awaits =
                |step: Step| matches!(step.letter, Letter::Together(_)) && step.last >= course.seen.len();
            course.step(index).is_some_and(awaits)
                && index >= course.released
                && !course.is_over
                && put_at.elapsed() < self.most_held
        })
    }

    /// How a version is stored; `None`: as the settings of the rank say.
    pub fn decide(&mut self, set: &str, rank: u32, segment: SegmentId) -> Option<Compression> {
        let course = self.course_mut(set, rank)?;
        let index = *course.index_of.get(&segment)?;
        let letter = course.letter(index);
        course.seen[index].ran = letter;
        match letter {
            Letter::Profiled => None,
            Letter::Raw => Some(Compression::By(Codec::Raw)),
            Letter::Compressed | Letter::Together(_) => course.codec.map(Compression::By),
        }
    }

    /// A version is in the store.
    pub fn stored(&mut self, (set, rank): (&str, u32), segment: SegmentId, made: &Committed, took: Duration) {
        if let Some(course) = self.course_mut(set, rank) {
            course.stored(segment, made, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Whether the codecs have yet to be measured.
    pub fn wants_probe(&self, set: &str, rank: u32) -> bool {
        self.course(set, rank).is_some_and(|course| course.known.is_none() && !course.is_probed)
    }

    /// The codecs were measured; `None`: none is worth it.
    pub fn probed(&mut self, set: &str, rank: u32, found: Option<(Codec, Vec<(u64, u64)>)>) {
        let Some(course) = self.course_mut(set, rank) else { return };
        course.is_probed = true;
        if let Some((codec, curve)) = found {
            (course.codec, course.curve) = (Some(codec), curve);
        }
    }

    /// The runs that are over and have nothing for the store any more, or all; they are ours no longer.
    pub fn take_over(&mut self, is_pending: impl Fn(&str, u32) -> bool, all: bool) -> Vec<Course> {
        let over = |(set, rank): &(String, u32), course: &mut Course| {
            all || course.is_over && !is_pending(set, *rank)
        };
        self.of.extract_if(.., over).map(|(_, course)| course).collect()
    }

    /// What was done with the versions of a rank so far, in letters.
    #[cfg(test)]
    pub fn ran(&self, set: &str, rank: u32) -> String {
        letters(self.course(set, rank).iter().flat_map(|course| &course.seen).map(|seen| seen.ran))
    }
}

/// Measures the codecs by the first object of a version, where the store takes so many bytes in a second: the codec
/// that makes it durable soonest, and how long that takes by size. Without the state's lock.
pub fn probe(file: &File, layout: &Layout, rate: f64) -> Option<(Codec, Vec<(u64, u64)>)> {
    let place = *layout.places.first()?;
    let most = usize::try_from(layout.len.saturating_sub(place)).unwrap_or(PROBES[2]).min(PROBES[2]);
    let mut bytes = vec![0; most];
    file.read_exact_at(&mut bytes, place).ok()?;
    let mut coder = Coder::default();
    let mut timed = |codec: Codec, raw: &[u8]| {
        let begun = Instant::now();
        let size = coder.encode(codec, raw).map_or(raw.len(), <[u8]>::len);
        (size as f64, u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    };
    let len = bytes.len().max(1) as f64;
    let packs = Codec::ALL.into_iter().filter(|codec| *codec != Codec::Raw);
    let trials: Vec<Trial> = packs
        .map(|codec| {
            // The first call makes what the codec needs once.
            timed(codec, &bytes);
            let (size, ns) = timed(codec, &bytes);
            Trial { codec, size: size / len, cost: ns as f64 / len }
        })
        .collect();
    let codec = best(&trials, Relief { link: rate, processors: 1.0, threads: 1.0 }).codec;
    let mut curve: Vec<(u64, u64)> = Vec::new();
    for size in PROBES.into_iter().map(|size| size.min(most)) {
        let ns = timed(codec, &bytes[..size]).1;
        if curve.last().is_none_or(|last| last.0 < size as u64) {
            curve.push((size as u64, ns.max(curve.last().map_or(1, |last| last.1))));
        }
    }
    (codec != Codec::Raw && !curve.is_empty()).then_some((codec, curve))
}
