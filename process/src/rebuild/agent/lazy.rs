//! What libholdfast must know of a lazy restart: where memory is mapped from segments, and from which files.
//!
//! [`write_ranges`] writes it into the library's page before the program runs; an eager restart writes that there
//! is nothing, because the image may be of a program that was restarted lazily before. See `preload/src/advice.rs`
//! for the use.

use super::pages::MappedRun;
use crate::mapped_files::FileNumber;
use crate::rebuild::error::RebuildError;
use holdfast_abi::SharedPage;
use holdfast_image::record::ProcessRecord;
use holdfast_sys::procfs::{self, Mapping};
use holdfast_sys::procmem::ForcedMemory;
use std::collections::{BTreeMap, BTreeSet};

/// Runs that are nearer to each other are one range: bytes.
const NEAR: u64 = 1 << 20;
/// Most ranges; the rest of the table is for memory that the program moves.
const MAX_RANGES: usize = SharedPage::LAZY_MAX / 2;

/// Ranges that cover all runs, which are ascending; at most `max`, the nearest neighbours joined.
fn ranges(runs: &[MappedRun], max: usize) -> Vec<(u64, u64)> {
    let mut gaps: Vec<u64> =
        runs.windows(2).map(|pair| pair[1].start.saturating_sub(pair[0].start + pair[0].len)).collect();
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    // Of n ranges n - 1 gaps are left. Gaps of the same size as the one too many are joined, all of them.
    let join = gaps.get(max.saturating_sub(1)).map_or(NEAR, |&gap| gap.max(NEAR));
    let mut all: Vec<(u64, u64)> = Vec::new();
    for run in runs {
        let end = run.start + run.len;
        match all.last_mut() {
            Some(last) if run.start.saturating_sub(last.1) <= join => last.1 = end,
            _ => all.push((run.start, end)),
        }
    }
    all
}

/// The file behind each segment that is mapped in the process of `pid`.
///
/// # Errors
/// The mappings cannot be read, or are not there.
pub fn files(pid: i32, runs: &[MappedRun]) -> Result<BTreeMap<u32, FileNumber>, RebuildError> {
    if runs.is_empty() {
        return Ok(BTreeMap::new());
    }
    let maps = procfs::maps(pid, pid).map_err(RebuildError::io("reading the mappings of the new process"))?;
    files_of(runs, &maps)
}

fn files_of(runs: &[MappedRun], maps: &[Mapping]) -> Result<BTreeMap<u32, FileNumber>, RebuildError> {
    let mut all = BTreeMap::new();
    for run in runs {
        // What the kernel has joined into one mapping is one file too.
        let at = maps.partition_point(|mapping| mapping.end <= run.start);
        let mapping = maps.get(at).filter(|m| m.start <= run.start && !m.shared && m.inode != 0);
        let mapping = mapping.ok_or_else(|| {
            RebuildError::Image(format!("no file is mapped at {:#x}, where the image was mapped", run.start))
        })?;
        all.insert(run.segment, (mapping.device, mapping.inode));
    }
    Ok(all)
}

/// Writes the tables into the page of the library in the program. `files`: those behind the runs.
///
/// # Errors
/// The page cannot be written.
pub fn write_ranges(
    memory: &ForcedMemory,
    record: &ProcessRecord,
    runs: &[MappedRun],
    files: &BTreeMap<u32, FileNumber>,
) -> Result<(), RebuildError> {
    let page = record.inject.shared.0;
    if page == 0 {
        return Ok(());
    }
    let io = || RebuildError::io("writing the page of libholdfast in the program");
    let write = |at: usize, bytes: &[u8]| memory.write(page + at as u64, bytes).map_err(io());
    if runs.is_empty() {
        return write(SharedPage::LAZY_COUNT, &[0; 8]);
    }
    let files: BTreeSet<FileNumber> = files.values().copied().collect();
    if files.len() > SharedPage::LAZY_FILE_MAX {
        return Err(RebuildError::Image(format!(
            "{} segments are mapped: restart with --eager",
            files.len()
        )));
    }
    let ranges = ranges(runs, MAX_RANGES);
    let table = |pairs: &mut dyn Iterator<Item = (u64, u64)>, max: usize| {
        let mut bytes: Vec<u8> =
            pairs.flat_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()]).flatten().collect();
        bytes.resize(max * 16, 0);
        bytes
    };
    write(SharedPage::LAZY_TABLE, &table(&mut ranges.iter().copied(), SharedPage::LAZY_MAX))?;
    write(SharedPage::LAZY_FILES, &table(&mut files.iter().copied(), SharedPage::LAZY_FILE_MAX))?;
    write(SharedPage::LAZY_FILE_COUNT, &(files.len() as u64).to_le_bytes())?;
    write(SharedPage::LAZY_COUNT, &(ranges.len() as u64).to_le_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const GAP: u64 = 2 * NEAR;

    fn run(start: u64, len: u64) -> MappedRun {
        MappedRun { start, len, prot: 3, segment: 0, offset: 0 }
    }

    #[test]
    fn near_runs_are_one_range() {
        let runs = [run(GAP, 4096), run(GAP + 8192, 4096), run(3 * GAP, NEAR)];
        assert_eq!(ranges(&runs, 10), [(GAP, GAP + 12288), (3 * GAP, 3 * GAP + NEAR)]);
        assert!(ranges(&[], 10).is_empty());
    }

    #[test]
    fn too_many_are_joined_where_the_gap_is_smallest() {
        let runs: Vec<MappedRun> =
            (1..=100).map(|n| run(n * 100 * GAP + if n % 2 == 0 { 0 } else { 90 * GAP }, 4096)).collect();
        let whole = ranges(&runs, 100);
        assert_eq!(whole.len(), 100);
        let some = ranges(&runs, 60);
        assert!(some.len() <= 60 && some.len() > 40, "{}", some.len());
        for run in &runs {
            assert!(some.iter().any(|(start, end)| *start <= run.start && run.start + run.len <= *end));
        }
        assert!(some.windows(2).all(|pair| pair[0].1 < pair[1].0));
        assert_eq!(ranges(&runs, 1).len(), 1);
        assert!(ranges(&runs, 0).len() <= 1);
    }

    #[test]
    fn files_are_those_of_the_mappings() {
        let text = b"1000-5000 rw-p 00000000 fd:01 7 /s\n5000-6000 rw-p 00000000 00:00 0 \n";
        let maps = procfs::parse_maps(text).unwrap();
        let found = files_of(&[run(0x1000, 0x1000), run(0x3000, 0x1000)], &maps).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [(0, (0xfd_0000_0001, 7))]);
        assert!(files_of(&[run(0x5000, 0x1000)], &maps).is_err());
        assert!(files_of(&[run(0x6000, 0x1000)], &maps).is_err());
    }
}
