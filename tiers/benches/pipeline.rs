//! How fast the store is on this machine: `cargo bench -p holdfast-tiers -- DIR [MiB]`.
//!
//! Stores noise and half-compressible pages, verifies and reads them back, and prints GB/s beside what the hardware
//! does without us (the floor): a plain write of the same bytes, and the checksum alone.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../tests/all/common/mod.rs"]
mod common;

use common::{PAGE, commit_record, options, run};
use holdfast_image::pages::{
    ExtentSource, Inherited, PageError, PageProvider, PageRun, PageSource, TakeList,
};
use holdfast_image::{Addr, Epoch, PAGE_SIZE, PageCount};
use holdfast_tiers::codec::{Codec, Compression};
use holdfast_tiers::{Job, PipelineOptions, Store};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Pages that are made when they are read.
struct Made<F> {
    runs: TakeList,
    fill: F,
}

const BASE: u64 = 1 << 40;

impl<F: Fn(Addr, &mut [u8]) + Sync> PageSource for Made<F> {
    fn pages(&self) -> PageCount {
        self.runs.pages()
    }
    fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        self.runs.take(most, into);
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<bool, PageError> {
        (self.fill)(start, buffer);
        Ok(true)
    }
    fn release(&self, _: PageRun) {}
    fn is_urgent(&self) -> bool {
        false
    }
    fn has_several(&self) -> bool {
        false
    }
}

fn rate(bytes: usize, time: Duration) -> String {
    format!("{:6.2} GB/s ({:4} ms)", bytes as f64 / time.as_secs_f64() / 1e9, time.as_millis())
}

/// Pages of noise; with `text`, the second half of each page repeats.
fn fill(len: usize, text: bool) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut bytes = vec![0; len];
    for (at, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = if text && at % 512 >= 256 { *b"holdfast" } else { state.to_le_bytes() };
    }
    bytes
}

fn floor(dir: &Path, bytes: &[u8]) {
    let aligned = bytes.as_ptr().addr().next_multiple_of(PAGE) - bytes.as_ptr().addr();
    let body = &bytes[aligned..bytes.len() - 2 * PAGE + aligned];
    let body = &body[..body.len() / (4 << 20) * (4 << 20)];
    for (name, flags) in [("buffered + fsync", 0), ("O_DIRECT + fsync", libc::O_DIRECT)] {
        let path = dir.join("floor");
        let start = Instant::now();
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(flags)
            .open(&path)
            .unwrap();
        let written =
            body.chunks(4 << 20).try_for_each(|part| file.write_all(part)).and_then(|()| file.sync_all());
        match written {
            Ok(()) => println!("floor: one thread, 4 MiB, {name}: {}", rate(body.len(), start.elapsed())),
            Err(error) => println!("floor: {name}: {error}"),
        }
        std::fs::remove_file(path).unwrap();
    }
    let start = Instant::now();
    std::hint::black_box(xxhash_rust::xxh3::xxh3_64(bytes));
    println!("floor: xxh3-64, one thread: {}", rate(bytes.len(), start.elapsed()));
}

fn measure(job: &Job, epoch: Epoch, runs: &[PageRun], bytes: &[u8], options: PipelineOptions) {
    let lock = job.lock().unwrap();
    let fill = |start: Addr, buffer: &mut [u8]| {
        let from = (start.0 - BASE) as usize;
        buffer.copy_from_slice(&bytes[from..from + buffer.len()]);
    };
    let source = &Made { runs: TakeList::new(runs.to_vec()), fill };
    let len = runs.iter().map(|run| run.pages.bytes() as usize).sum();
    let start = Instant::now();
    let mut writer = job.begin(&lock, epoch, None).unwrap();
    writer.write_pages(source, &Inherited::default(), &options, &|_, _| ()).unwrap();
    let flushed = start.elapsed();
    let (info, _) = writer.commit(commit_record()).unwrap();
    println!(
        "{options:?}\n  write_pages {}, with commit {}, {} MiB on disk",
        rate(len, flushed),
        rate(len, start.elapsed()),
        info.bytes >> 20
    );
    let image = job.open_image(epoch).unwrap();
    let start = Instant::now();
    image.verify(&|_| ()).unwrap();
    println!("  verify (first time) {}", rate(len, start.elapsed()));
    let start = Instant::now();
    for segment in (0..).map_while(|number| image.segment(number)) {
        std::io::copy(&mut &*segment.file, &mut std::io::sink()).unwrap();
    }
    println!("  floor: reading the segments, one thread, 8 KiB {}", rate(len, start.elapsed()));
    let start = Instant::now();
    let mapped = image.extents().iter().filter(|e| matches!(e.source, ExtentSource::Mappable { .. }));
    image.check_mapped(&mapped.map(|extent| extent.run).collect::<Vec<_>>()).unwrap();
    println!("  check_mapped (cached) {}, {} extents", rate(len, start.elapsed()), image.extents().len());
    let mut buffer = vec![0; 1 << 20];
    let start = Instant::now();
    for run in source.runs.runs() {
        for at in (run.start.0..run.end().0).step_by(buffer.len()) {
            let here = ((run.end().0 - at) as usize).min(buffer.len());
            image.read(Addr(at), &mut buffer[..here]).unwrap();
        }
    }
    println!("  read, one thread (cached) {}", rate(len, start.elapsed()));
    job.remove_image(&lock, epoch).unwrap();
}

/// A million runs of one page each, and an increment that leaves them as they are: what the index costs.
fn fragmented(job: &Job) {
    const RUNS: u64 = 1_000_000;
    let source = |runs: &[PageRun]| Made {
        runs: TakeList::new(runs.to_vec()),
        fill: |start: Addr, buffer: &mut [u8]| {
            buffer.fill(1);
            buffer[..8].copy_from_slice(&start.0.to_le_bytes());
        },
    };
    let lock = job.lock().unwrap();
    let runs: Vec<PageRun> = (0..RUNS).map(|n| run(BASE / PAGE_SIZE + 2 * n, 1)).collect();
    println!("--- {RUNS} runs of one page");
    let mut parent = None;
    for epoch in [Epoch(1), Epoch(2)] {
        let (made, unchanged) = match &parent {
            None => (source(&runs), Vec::new()),
            Some(_) => (source(&runs[..100]), runs[100..].to_vec()),
        };
        let mut writer = job.begin(&lock, epoch, parent.take()).unwrap();
        let start = Instant::now();
        let inherited = Inherited { unchanged, mapped: Vec::new() };
        writer.write_pages(&made, &inherited, &options(2), &|_, _| ()).unwrap();
        let written = start.elapsed();
        let (info, lineage) = writer.commit(commit_record()).unwrap();
        println!(
            "  image {epoch}: write_pages {} ms, commit {} ms, {} KiB on disk",
            written.as_millis(),
            (start.elapsed() - written).as_millis(),
            info.bytes >> 10
        );
        let start = Instant::now();
        job.open_image(epoch).unwrap();
        println!("  open {} ms", start.elapsed().as_millis());
        parent = Some(lineage);
    }
    for epoch in [Epoch(1), Epoch(2)] {
        job.remove_image(&lock, epoch).unwrap();
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let dir = std::path::PathBuf::from(arguments.next().unwrap_or_else(|| "target/pipeline-bench".into()));
    let mib: usize = arguments.next().map_or(1024, |text| text.parse().unwrap());
    let store = Store::open(&dir).unwrap();
    let job = store.create_job("bench").unwrap();
    let pages = (mib << 20) as u64 / PAGE_SIZE;
    for (name, text) in [("noise", false), ("half text", true)] {
        let bytes = fill(mib << 20, text);
        println!("--- {name}, {mib} MiB");
        if !text {
            floor(&dir, &bytes);
        }
        let runs = [run(BASE / PAGE_SIZE, pages)];
        let (lz4, none) = (Compression::By(Codec::Lz4), Compression::By(Codec::Raw));
        for (workers, compression) in [(1, lz4), (2, lz4), (4, lz4), (4, none), (4, Compression::Auto)] {
            measure(&job, Epoch(1), &runs, &bytes, PipelineOptions { compression, ..options(workers) });
        }
    }
    let bytes = fill(mib << 20, false);
    let scattered: Vec<PageRun> = (0..pages / 2).map(|n| run(BASE / PAGE_SIZE + 2 * n, 1)).collect();
    println!("--- every second page, {} MiB", mib / 2);
    measure(&job, Epoch(1), &scattered, &bytes, options(2));
    fragmented(&job);
    std::fs::remove_dir_all(&dir).unwrap();
}
