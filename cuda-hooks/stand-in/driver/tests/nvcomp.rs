//! The whole way of packed chunks: from a cache on the device through nvCOMP (`holdfast_sys::nvcomp`, here a stand-in
//! for it), over a link, and unpacked by the processor as any frame of an image. Which go packed is decided by the
//! tiers' policy, in which format by their choice of codecs.
//!
//! With CONFORMANCE_LIBCUDA and CONFORMANCE_NVCOMP, which name the true libraries, all but the injected faults asks
//! those (`tests/gpu/run`): whether `lz4_flex` and `zstd` unpack what they pack, and how fast they are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "conformance/driver.rs"]
mod driver;

use driver::{allocate, get, put, start, stream};
use holdfast_stand_in_nvcomp as _;
use holdfast_sys::nvcomp::{Chunk, Format, MOST_BYTES, Nvcomp, NvcompError, Plan};
use holdfast_tiers::codec::choice::{Relief, Trial, best};
use holdfast_tiers::codec::{Codec, decode};
use holdfast_tiers::policy::{
    BufferLimits, Choice, CodecCurve, Objective, Profile, Sample, SegmentId, schedule,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const CHUNK: usize = 65_536;
/// Chunks of a segment.
const CHUNKS: usize = 8;
const SEGMENTS: u64 = 12;
/// CU_STREAM_NON_BLOCKING
const NON_BLOCKING: u32 = 1;

/// The true library.
fn real() -> Option<PathBuf> {
    std::env::var_os("CONFORMANCE_NVCOMP").map(PathBuf::from)
}

fn nvcomp() -> Result<Nvcomp, NvcompError> {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    Nvcomp::load(&real().unwrap_or_else(|| folder.join("libholdfast_stand_in_nvcomp.so")))
}

fn codec(format: Format) -> Codec {
    match format {
        Format::Lz4 => Codec::Lz4,
        Format::Zstd => Codec::Zstd,
    }
}

/// Every fourth chunk cannot be packed; the others can, some very well.
fn content(number: usize) -> Vec<u8> {
    let mut state = number as u64 + 1;
    let mut word = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state
    };
    let kinds: [fn(u64, u64) -> u64; 4] =
        [|_, _| 0, |random, _| random.rotate_left(29), |_, at| at / 7, |random, _| random >> 56];
    (0..CHUNK as u64 / 8).flat_map(|at| kinds[number % 4](word(), at).to_le_bytes()).collect()
}

/// A chunk as it lies in an image.
struct Stored {
    codec: Codec,
    bytes: Vec<u8>,
}

/// The cache on the device, the codec, and what has gone over the link.
struct Flush {
    nvcomp: Nvcomp,
    stream: usize,
    segments: BTreeMap<SegmentId, Vec<Chunk>>,
    relief: Relief,
    below: BTreeMap<u64, Stored>,
    raw_segments: usize,
}

impl Flush {
    fn new(link: f64) -> Flush {
        start();
        let segments = (0..SEGMENTS).map(|id| {
            let chunks = (0..CHUNKS).map(|index| {
                let bytes = content(id as usize * CHUNKS + index);
                Chunk { address: put(&bytes), bytes: CHUNK }
            });
            (SegmentId(id), chunks.collect())
        });
        Flush {
            nvcomp: nvcomp().unwrap(),
            stream: stream(NON_BLOCKING),
            segments: segments.collect(),
            relief: Relief { link, processors: 1.0, threads: 2.0 },
            below: BTreeMap::new(),
            raw_segments: 0,
        }
    }

    /// From the device, on the stream.
    fn read(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0u8; len as usize];
        ok!("cuMemcpyDtoHAsync" 3020, bytes.as_mut_slice(), at, bytes.len(), self.stream);
        ok!("cuStreamSynchronize" 2000, self.stream);
        bytes
    }

    /// Has chunks packed together: the memory of the batch, which is the caller's then, and how long it took.
    #[allow(unsafe_code)]
    fn batch(&self, format: Format, chunks: &[Chunk]) -> Result<(Plan, u64, Duration), NvcompError> {
        let stream = self.stream as u64;
        let plan = self.nvcomp.plan(format, chunks.len(), CHUNK, stream)?;
        let workspace = allocate(plan.bytes() as usize);
        assert!(workspace.is_multiple_of(Plan::ALIGNMENT));
        let head = plan.head(workspace, chunks)?;
        ok!("cuMemcpyHtoDAsync" 3020, workspace, head.as_slice(), head.len(), self.stream);
        ok!("cuStreamSynchronize" 2000, self.stream);
        let begun = Instant::now();
        // SAFETY: the workspace is the plan's, has its head, and is freed after the stream is done.
        unsafe { self.nvcomp.compress(&plan, workspace, stream)? };
        ok!("cuStreamSynchronize" 2000, self.stream);
        Ok((plan, workspace, begun.elapsed()))
    }

    /// Packs chunks together; those that nvCOMP does not make smaller stay as they are.
    fn pack(&self, format: Format, chunks: &[Chunk]) -> Result<Vec<Stored>, NvcompError> {
        let (plan, workspace, _) = self.batch(format, chunks)?;
        let at = plan.results_at();
        let results = plan.results(chunks, &self.read(workspace + at.start, at.end - at.start));
        let stored = chunks.iter().zip(results).map(|(chunk, place)| match place {
            Some(place) => {
                let bytes = self.read(workspace + place.start, place.end - place.start);
                Stored { codec: codec(format), bytes }
            }
            None => Stored { codec: Codec::Raw, bytes: self.read(chunk.address, chunk.bytes as u64) },
        });
        let stored = stored.collect();
        ok!("cuMemFree" 3020, workspace);
        Ok(stored)
    }

    /// What each format makes of a segment; on a device both are taken to be as fast as nothing else is.
    fn choose(&self, chunks: &[Chunk]) -> Option<Format> {
        let trial = |format| {
            let stored = self.pack(format, chunks).unwrap();
            let bytes: usize = stored.iter().map(|stored| stored.bytes.len()).sum();
            let cost = if format == Format::Lz4 { 0.02 } else { 0.1 };
            Trial { codec: codec(format), size: bytes as f64 / (chunks.len() * CHUNK) as f64, cost }
        };
        match best(&[Format::Lz4, Format::Zstd].map(trial), self.relief).codec {
            Codec::Lz4 => Some(Format::Lz4),
            Codec::Zstd => Some(Format::Zstd),
            _ => None,
        }
    }

    /// These segments go over the link, packed together.
    fn send_packed(&mut self, ids: &[SegmentId]) {
        let chunks: Vec<Chunk> = ids.iter().flat_map(|id| self.segments[id].clone()).collect();
        let format = self.choose(&chunks[..CHUNKS]).unwrap_or(Format::Lz4);
        let stored = self.pack(format, &chunks).unwrap();
        self.below.extend(chunks.iter().map(|chunk| chunk.address).zip(stored));
    }

    /// This one goes as it is.
    fn send_raw(&mut self, id: SegmentId) {
        self.raw_segments += 1;
        for chunk in &self.segments[&id] {
            let bytes = get::<u8>(chunk.address, chunk.bytes);
            self.below.insert(chunk.address, Stored { codec: Codec::Raw, bytes });
        }
    }

    /// All segments, one every 100 microseconds, by the plan for a run that packs to two fifths.
    fn run(&mut self) {
        let bytes = (CHUNKS * CHUNK) as u64;
        let sample = Sample { interval_ns: 100_000, bytes, compressed: bytes * 2 / 5 };
        let profile = Profile {
            samples: vec![sample; SEGMENTS as usize],
            codec: CodecCurve { curve: vec![(1, 10_000), (1 << 30, 20_000)], temporary_per_mille: 1000 },
            rate: self.relief.link as u64,
        };
        let limits = BufferLimits { buffer: 8 << 20, most_together: 8, grain_ns: 100 };
        let ids: Vec<SegmentId> = (0..SEGMENTS).map(SegmentId).collect();
        let mut left = &ids[..];
        for choice in schedule(&profile, &limits, Objective::FlushEnd).unwrap().choices {
            let (now, later) = left.split_at(if let Choice::Compress(count) = choice { count } else { 1 });
            match choice {
                Choice::Raw => self.send_raw(now[0]),
                Choice::Compress(_) => self.send_packed(now),
            }
            left = later;
        }
        assert!(left.is_empty());
    }

    /// Everything is below, and unpacked by the processor is what it was. Returns the bytes that it took.
    fn check(&self) -> usize {
        for (index, chunk) in self.segments.values().flatten().enumerate() {
            let stored = &self.below[&chunk.address];
            let mut raw = vec![0; chunk.bytes];
            decode(stored.codec, &stored.bytes, &mut raw).unwrap();
            assert!(raw == content(index), "chunk {index} by {:?}", stored.codec);
        }
        self.below.values().map(|stored| stored.bytes.len()).sum()
    }

    fn count(&self, codec: Codec) -> usize {
        self.below.values().filter(|stored| stored.codec == codec).count()
    }
}

const ALL_BYTES: usize = SEGMENTS as usize * CHUNKS * CHUNK;

isolated! {
    chunks_go_packed_over_a_slow_link_and_are_unpacked_by_the_processor {
        let mut flush = Flush::new(2e9);
        flush.run();
        let bytes = flush.check();
        assert!(bytes < ALL_BYTES / 2, "{bytes} of {ALL_BYTES}");
        // One chunk of four is noise, and as it was.
        let packed = flush.count(Codec::Lz4) + flush.count(Codec::Zstd);
        assert!(packed > 0 && packed <= SEGMENTS as usize * CHUNKS * 3 / 4, "{packed}");
    }
}

isolated! {
    nothing_is_packed_in_front_of_a_link_that_keeps_up {
        let mut flush = Flush::new(50e9);
        flush.run();
        assert_eq!((flush.check(), flush.raw_segments), (ALL_BYTES, SEGMENTS as usize));
    }
}

isolated! {
    the_slower_the_link_the_smaller_the_format {
        let mut flush = Flush::new(0.0);
        let chunks = flush.segments[&SegmentId(0)].clone();
        let mut choice = |link| {
            flush.relief.link = link;
            flush.choose(&chunks)
        };
        assert_eq!(choice(200e9), None);
        assert_eq!(choice(12e9), Some(Format::Lz4));
        assert_eq!(choice(100e6), Some(Format::Zstd));
    }
}

isolated! {
    version_5_does_the_same ["NVCOMP_STAND_IN_VERSION" = "5000"] {
        if real().is_some() {
            return;
        }
        let mut flush = Flush::new(2e9);
        assert_eq!(flush.nvcomp.version(), "5.0.0");
        flush.run();
        assert!(flush.check() < ALL_BYTES / 2);
    }
}

isolated! {
    other_versions_are_refused_by_name ["NVCOMP_STAND_IN_VERSION" = "7100"] {
        if real().is_some() {
            return;
        }
        let why = nvcomp().err().map(|error| error.to_string()).unwrap();
        assert!(why.contains("nvCOMP 7.1.0 is not known; install version 5 or 6"), "{why}");
    }
}

isolated! {
    a_chunk_that_is_not_packed_stays_as_it_is ["NVCOMP_STAND_IN_FAULT" = "status"] {
        if real().is_some() {
            return;
        }
        let mut flush = Flush::new(2e9);
        flush.run();
        assert!(flush.check() < ALL_BYTES);
    }
}

isolated! {
    sizes_that_cannot_be_are_not_believed ["NVCOMP_STAND_IN_FAULT" = "size"] {
        if real().is_some() {
            return;
        }
        let mut flush = Flush::new(2e9);
        flush.run();
        assert_eq!(flush.check(), ALL_BYTES);
    }
}

isolated! {
    a_call_that_fails_says_which ["NVCOMP_STAND_IN_FAULT" = "launch"] {
        if real().is_some() {
            return;
        }
        let flush = Flush::new(2e9);
        let why = flush.pack(Format::Lz4, &flush.segments[&SegmentId(0)]).err().unwrap().to_string();
        assert!(why.starts_with("CompressAsync: a call of CUDA failed (status 1000);"), "{why}");
        let long = flush.nvcomp.plan(Format::Zstd, 1, MOST_BYTES + 1, flush.stream as u64);
        assert!(matches!(long, Err(NvcompError::Chunks { .. })));
    }
}

/// Prints; `CONFORMANCE_CHILD=rates` shows it.
fn print_rates(flush: &Flush) {
    // The same chunks again and again: 64 MiB, as long as they are there.
    let all: Vec<Chunk> = flush.segments.values().flatten().copied().cycle().take(1024).collect();
    for format in [Format::Lz4, Format::Zstd] {
        let mut least = Duration::MAX;
        for _ in 0..if real().is_some() { 5 } else { 1 } {
            let (_, workspace, took) = flush.batch(format, &all).unwrap();
            least = least.min(took);
            ok!("cuMemFree" 3020, workspace);
        }
        let bytes = (all.len() * CHUNK) as f64;
        let stored: usize = flush.pack(format, &all[..96]).unwrap().iter().map(|it| it.bytes.len()).sum();
        println!(
            "| 7 | {format:?} by nvCOMP {}, 64 MiB in chunks of 64 KiB | {:.2} GB/s, to {:.3} |",
            flush.nvcomp.version(),
            bytes / least.as_nanos() as f64,
            stored as f64 / (96 * CHUNK) as f64
        );
    }
}

isolated! {
    rates {
        if real().is_some() {
            print_rates(&Flush::new(2e9));
        }
    }
}
