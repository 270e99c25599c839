//! Puts into the memory tier beside memcpy and a plain file in the same tmpfs: `make bench-memory-tier`.
//!
//! For each length as many puts as make 64 MiB, in rounds by turns, so that other work on the machine meets all alike;
//! median of the rounds. Sources and places rotate over more memory than the caches have. memcpy writes into memory
//! that was written before, and the tier into memory that it has used before: it has been given back by `remove`, whose
//! time is a column of its own.
#![allow(missing_docs, clippy::unwrap_used)]

use holdfast_tiers::tier::{BlobName, MemoryTier, Tier};
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TOTAL: usize = 64 << 20;
const SOURCE: usize = 256 << 20;
const ROUNDS: usize = 21;

struct Bench {
    tier: MemoryTier,
    root: PathBuf,
    source: Vec<u8>,
    copy: Vec<u8>,
    from: usize,
}

fn name(number: usize) -> BlobName {
    BlobName::new(&format!("job/blob-{number:06}")).unwrap()
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

impl Bench {
    fn next(&mut self, len: usize) -> std::ops::Range<usize> {
        self.from = if self.from + 2 * len > SOURCE { 0 } else { self.from + len };
        self.from..self.from + len
    }

    fn memcpy(&mut self, len: usize) -> f64 {
        timed(|| {
            for _ in 0..TOTAL / len {
                let range = self.next(len);
                self.copy[range.clone()].copy_from_slice(&self.source[range]);
                black_box(&mut self.copy);
            }
        })
    }

    /// A blob for each put.
    fn blobs(&mut self, len: usize) -> f64 {
        timed(|| {
            for number in 0..TOTAL / len {
                let range = self.next(len);
                let mut writer = self.tier.create(&name(number), Some(len as u64)).unwrap();
                writer.append(&self.source[range]).unwrap();
                writer.finish().unwrap();
            }
        })
    }

    fn remove(&self, count: usize) -> f64 {
        timed(|| (0..count).for_each(|number| self.tier.remove(&name(number)).unwrap()))
    }

    /// All puts into one blob, as the frames of a segment.
    fn appends(&mut self, len: usize) -> f64 {
        timed(|| {
            let mut writer = self.tier.create(&name(0), Some(TOTAL as u64)).unwrap();
            for _ in 0..TOTAL / len {
                let range = self.next(len);
                writer.append(&self.source[range]).unwrap();
            }
            writer.finish().unwrap();
        })
    }

    /// A new file for each put.
    fn files(&mut self, len: usize) -> f64 {
        let folder = self.root.join("plain");
        fs::create_dir(&folder).unwrap();
        let seconds = timed(|| {
            for number in 0..TOTAL / len {
                let range = self.next(len);
                File::create(folder.join(number.to_string()))
                    .unwrap()
                    .write_all(&self.source[range])
                    .unwrap();
            }
        });
        fs::remove_dir_all(&folder).unwrap();
        seconds
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One line of the table.
fn line(bench: &mut Bench, len: usize) {
    let mut rounds: [Vec<f64>; 5] = Default::default();
    let count = TOTAL / len;
    bench.tier.prepare("job", TOTAL as u64).unwrap();
    bench.blobs(len);
    bench.remove(count);
    for _ in 0..ROUNDS {
        rounds[0].push(bench.memcpy(len));
        rounds[1].push(bench.appends(len));
        bench.remove(1);
        rounds[2].push(bench.blobs(len));
        rounds[3].push(bench.remove(count));
        rounds[4].push(bench.files(len));
    }
    bench.tier.clean("job").unwrap();
    let [memcpy, appends, blobs, remove, files] = rounds.map(median);
    let rate = |seconds: f64| TOTAL as f64 / seconds / 1e9;
    println!(
        "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} |",
        if len < 1 << 20 { format!("{} KiB", len >> 10) } else { format!("{} MiB", len >> 20) },
        rate(memcpy),
        rate(appends),
        memcpy / appends,
        rate(blobs),
        memcpy / blobs,
        rate(files),
        blobs / count as f64 * 1e6,
        remove / count as f64 * 1e6,
    );
}

/// From the first byte of a version of 64 MiB to its being published.
fn commit(bench: &mut Bench, prepared: bool) -> Duration {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        if prepared {
            bench.tier.prepare("job", TOTAL as u64).unwrap();
        }
        times.push(timed(|| {
            bench.appends(1 << 20);
            bench.tier.publish(&BlobName::new("job/manifest").unwrap(), &[1; 16 << 10]).unwrap();
        }));
        bench.tier.remove(&name(0)).unwrap();
        bench.tier.remove(&BlobName::new("job/manifest").unwrap()).unwrap();
        bench.tier.clean("job").unwrap();
    }
    Duration::from_secs_f64(median(times))
}

fn main() {
    let root = Path::new("/dev/shm").join(format!("holdfast-bench-{}", std::process::id()));
    let tier = MemoryTier::open(&root, 1 << 30).unwrap();
    let source = (0..SOURCE / 8).flat_map(|n| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    let mut bench =
        Bench { tier, root: root.clone(), source: source.collect(), copy: vec![1; SOURCE], from: 0 };
    println!("GB/s; times memcpy; us for one blob.\n");
    println!(
        "| put of | memcpy | append to a blob | of memcpy | a blob each | of memcpy | a new file each | us: blob | us: \
         remove |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    for len in [4 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20, 64 << 20] {
        line(&mut bench, len);
    }
    println!("\n64 MiB in appends of 1 MiB, and the manifest published:");
    println!(
        "memory prepared: {:.1?}; new memory: {:.1?}",
        commit(&mut bench, true),
        commit(&mut bench, false)
    );
    drop(bench);
    fs::remove_dir_all(root).unwrap();
}
