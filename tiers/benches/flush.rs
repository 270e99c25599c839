//! The flush of incompressible memory into the local tier beside fio with the same durability: `make bench-flush`.
//!
//! All write the same number of bytes into new files of one folder, past the page cache, and end when these are
//! durable: fio (blocks of 4 MiB, O_DIRECT, fsync at the end; one job, and as many as Holdfast has workers), a plain
//! writer of one thread, and a whole image, published. They take turns in each round. Time of fio is that of its jobs,
//! without its start. Processor time is user and system time of all threads; for Holdfast with the making of the bytes,
//! which a plain writer does not have.
//!
//! Environment: MIB=4096, ROUNDS=3, TMPDIR=/tmp (a disk).
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../tests/all/common/mod.rs"]
mod common;

use common::{PAGE, commit_record, options, run};
use holdfast_image::pages::{Inherited, PageError, PageRun, PageSource, TakeList};
use holdfast_image::{Addr, Epoch, PAGE_SIZE, PageCount};
use holdfast_tiers::Store;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const BLOCK: usize = 4 << 20;
const NOISE: usize = 256 << 20;
const BASE: u64 = 1 << 40;

/// Seconds of time and of processors.
#[derive(Clone, Copy)]
struct Took {
    seconds: f64,
    processor: f64,
}

/// Pages of noise, no two of them the same.
struct Noise<'a> {
    runs: TakeList,
    bytes: &'a [u8],
}

impl PageSource for Noise<'_> {
    fn pages(&self) -> PageCount {
        self.runs.pages()
    }
    fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        self.runs.take(most, into);
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<bool, PageError> {
        let mut at = (start.0 - BASE) as usize % NOISE;
        for part in buffer.chunks_mut(PAGE) {
            part.copy_from_slice(&self.bytes[at..at + part.len()]);
            at = (at + part.len()) % NOISE;
        }
        for (page, part) in (start.0 / PAGE_SIZE..).zip(buffer.chunks_mut(PAGE)) {
            part[..8].copy_from_slice(&page.to_le_bytes());
        }
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

/// Processor time so far, of this process and of children that have ended: proc_pid_stat(5), ticks of 10 ms.
fn processor() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..15].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

fn timed(work: impl FnOnce()) -> Took {
    let (start, before) = (Instant::now(), processor());
    work();
    Took { seconds: start.elapsed().as_secs_f64(), processor: processor() - before }
}

fn fio(dir: &Path, jobs: usize, mib: usize) -> Option<Took> {
    let before = processor();
    let output = Command::new("fio")
        .args(["--name=flush", "--rw=write", "--ioengine=psync", "--bs=4M", "--direct=1", "--end_fsync=1"])
        .args(["--group_reporting=0", "--output-format=json"])
        .args([format!("--numjobs={jobs}"), format!("--size={}M", mib / jobs)])
        .arg(format!("--directory={}", dir.display()))
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let millis = json["jobs"].as_array()?.iter().filter_map(|job| job["job_runtime"].as_f64());
    Some(Took { seconds: millis.fold(0.0, f64::max) / 1000.0, processor: processor() - before })
}

fn plain(dir: &Path, bytes: &[u8], mib: usize) -> Took {
    let aligned = bytes.as_ptr().addr().next_multiple_of(PAGE) - bytes.as_ptr().addr();
    let blocks = bytes[aligned..].chunks_exact(BLOCK).cycle().take((mib << 20) / BLOCK);
    timed(|| {
        let mut file = fs::OpenOptions::new();
        let file = file.write(true).create_new(true).custom_flags(libc::O_DIRECT).open(dir.join("plain"));
        let mut file = file.unwrap();
        blocks.for_each(|block| file.write_all(block).unwrap());
        file.sync_all().unwrap();
    })
}

fn holdfast(dir: &Path, bytes: &[u8], mib: usize, workers: usize) -> Took {
    let job = Store::open(&dir.join("store")).unwrap().create_job("bench").unwrap();
    let lock = job.lock().unwrap();
    let runs = vec![run(BASE / PAGE_SIZE, (mib << 20) as u64 / PAGE_SIZE)];
    timed(|| {
        let mut writer = job.begin(&lock, Epoch(1), None).unwrap();
        let source = Noise { runs: TakeList::new(runs), bytes };
        writer.write_pages(&source, &Inherited::default(), &options(workers), &|_, _| ()).unwrap();
        writer.commit(commit_record()).unwrap();
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let (mib, rounds) = (number("MIB", 4096), number("ROUNDS", 3));
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get().min(4));
    let (bytes, root) = (
        common::memory::bytes(NOISE, 1),
        std::env::temp_dir().join(format!("holdfast-bench-{}", std::process::id())),
    );
    let names =
        ["fio, 1 job".into(), format!("fio, {workers} jobs"), "a plain writer".into(), "Holdfast".into()];
    let mut took: [Vec<Took>; 4] = Default::default();
    for round in 0..rounds {
        for turn in 0..4 {
            let which = (round + turn) % 4;
            fs::create_dir(&root).unwrap();
            took[which].extend(match which {
                0 => fio(&root, 1, mib),
                1 => fio(&root, workers, mib),
                2 => Some(plain(&root, &bytes, mib)),
                _ => Some(holdfast(&root, &bytes, mib, workers)),
            });
            fs::remove_dir_all(&root).unwrap();
        }
    }
    println!("{mib} MiB of noise, durable; {rounds} rounds by turns; {workers} workers.\n");
    println!("| writer | GB/s: median | most | processor seconds per GiB |\n| --- | --- | --- | --- |");
    let all = (mib << 20) as f64 / 1e9;
    let rate = |took: &[Took]| median(took.iter().map(|one| all / one.seconds).collect());
    for (name, took) in names.iter().zip(&took) {
        if took.is_empty() {
            println!("| {name} | not measured: apt-get install fio | | |");
            continue;
        }
        let most = took.iter().map(|one| all / one.seconds).fold(0.0, f64::max);
        let processor = median(took.iter().map(|one| one.processor * 1024.0 / mib as f64).collect());
        println!("| {name} | {:.2} | {most:.2} | {processor:.2} |", rate(took));
    }
    let beside: Vec<String> = names[..3]
        .iter()
        .zip(&took)
        .filter(|(_, took)| !took.is_empty())
        .map(|(name, others)| format!("{:.0} % of {name}", 100.0 * rate(&took[3]) / rate(others)))
        .collect();
    println!("\nHoldfast has {}.", beside.join(", "));
}
