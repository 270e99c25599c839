//! One scan of all private memory: which pages exist, which were written; what is reported is re-armed.
//!
//! Called by `tracking`, inside the stop or while the program runs. Cost (PAGEMAP_SCAN, Linux 6.18, 4 KiB pages): 1.2
//! ms per GiB that is clean, 3 ms that is wholly written, 6 ms of which every third page is; a quarter of the first
//! where only what is not write-protected is asked for; asking whether a page is its file's costs 6 ms more and up to
//! 28, because the kernel then looks at every struct page, so that is asked only of mappings of files, and not of what
//! is `known`. Large memory is scanned by several threads: the program is stopped and leaves them its processors.
//!
//! Invariant: a range whose scan failed half-way is reported as written, all of it.

use crate::thread_pool;
use crate::track::hugetlb;
use crate::track::pieces::{Piece, Swept};
use crate::track::scan_cache::Known;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE};
use holdfast_sys::pagemap::{
    self, IS_FILE, IS_GUARD, IS_PFNZERO, IS_PRESENT, IS_SWAPPED, IS_WRITTEN, ScanRegion,
};
use holdfast_sys::procfs::Mapping;
use std::fs::File;
use std::io;

/// A page exists.
pub const ANY: u64 = IS_PRESENT | IS_SWAPPED;
/// What is asked of each page; of mappings of files, also whether it is the file's.
const WANTED: u64 = ANY | IS_WRITTEN | IS_PFNZERO;
/// Large mappings are cut into pieces, the shares that threads take, of at least so many bytes. A multiple of the
/// largest page of a page table, so that no transparent huge page is split for it.
const SHARE: u64 = 64 << 20;
/// Into so many at most, and one more: programs reserve terabytes of which they use next to nothing (MariaDB, Java,
/// wasm).
const SHARES: u64 = 64;
/// From this many pieces on several threads scan.
const MANY: usize = 8;
/// Gaps that are scanned with what lies around them, bytes.
const GAP: u64 = 64 << 10;
/// The same for memory without a file. Of 4 GiB with 1 % written all over, a scan took 10.4 ms with 64 KiB, 7.9 with
/// 512 KiB, 7.6 with 1 MiB and 7.4 with 4 MiB: beyond, a longer way costs what fewer calls save.
const WIDE_GAP: u64 = 1 << 20;
/// Pieces that have pages in more page tables than this are asked in two steps where that is quicker. The second step
/// takes a call for each of them, less than one that is full costs in one step, but twice what one with a few pages
/// does (stacks). Less than a [`SHARE`] has.
const MANY_TABLES: usize = 16;
const _: () = assert!((MANY_TABLES as u64) * TABLE < SHARE);
/// What one page table is for, bytes.
const TABLE: u64 = 2 << 20;

/// Private memory whose pages an image may hold.
pub fn is_private(mapping: &Mapping) -> bool {
    let name = mapping.name.as_slice();
    let kernel = matches!(name, b"[vdso]" | b"[vvar]" | b"[vvar_vclock]" | b"[vsyscall]");
    !mapping.shared && !kernel && !name.starts_with(b"anon_inode:")
}

/// Registers the private ones among `maps` (the flag), and cuts them into pieces. Neighbours are registered together,
/// so that few calls do for thousands of mappings.
pub fn pieces<'a>(
    maps: impl Iterator<Item = (&'a Mapping, bool)>,
    mut register: impl FnMut(u64, u64) -> bool,
) -> Vec<Piece> {
    let mut all = Vec::new();
    let mut group: Vec<&Mapping> = Vec::new();
    let mut close = |group: &mut Vec<&Mapping>| {
        if let (Some(first), Some(last)) = (group.first(), group.last()) {
            let whole = register(first.start, last.end);
            for (number, mapping) in group.iter().enumerate() {
                let tracked = whole || register(mapping.start, mapping.end);
                add(&mut all, mapping, tracked, number > 0);
            }
        }
        group.clear();
    };
    for (mapping, private) in maps {
        if private {
            group.push(mapping);
        } else {
            close(&mut group);
        }
    }
    close(&mut group);
    all
}

/// `follows`: nothing else lies between this mapping and the last piece.
fn add(all: &mut Vec<Piece>, mapping: &Mapping, tracked: bool, follows: bool) {
    let of_file = mapping.inode != 0 || mapping.name.first() == Some(&b'/');
    let huge = mapping.name == hugetlb::NAME;
    let mut start = mapping.start;
    // Joined with the one before as long as that is short.
    if let Some(last) = all.last_mut()
        && (last.tracked, last.of_file, last.huge) == (tracked, of_file, huge)
        && tracked
        && follows
        && mapping.end - last.start <= SHARE
    {
        last.end = mapping.end;
        return;
    }
    // The kernel does not protect a part of a huge page.
    let least = if huge { hugetlb::LARGEST } else { SHARE };
    let share = (mapping.end - mapping.start).div_ceil(SHARES).next_multiple_of(least);
    while start < mapping.end {
        let end = mapping.end.min((start / share + 1) * share);
        all.push(Piece { start, end, tracked, of_file, huge });
        start = end;
    }
}

/// Scans one piece and re-arms what it reports.
fn scan(pagemap: &File, piece: &Piece, known: &Known) -> io::Result<Swept> {
    let wanted = WANTED | pagemap::guard_category() | if piece.of_file { IS_FILE } else { 0 };
    if piece.tracked {
        // Small pieces are many, and gain nothing from what is known.
        let before = match piece.of_file {
            true => known.of(piece.run()),
            false => known.plain(piece.run()).filter(|(present, _)| tables_of(present).len() > MANY_TABLES),
        };
        let scanned = match before {
            Some((own, files)) if piece.of_file => scan_known(pagemap, piece, &own, &files),
            Some((present, guards)) => scan_plain(pagemap, piece, &present, &guards),
            None => {
                let mut part = Swept::default();
                let each = |found| part.add(found, piece.of_file);
                pagemap::scan_and_protect(pagemap, piece.start, piece.end, ANY, wanted, each).map(|()| part)
            }
        };
        match scanned {
            Ok(part) => return Ok(part),
            Err(error) => tracing::debug!("{piece:x?} changed under a scan: {error}"),
        }
    }
    let mut part = Swept::default();
    pagemap::scan(pagemap, piece.start, piece.end, ANY, wanted, |found| {
        part.add(ScanRegion { categories: found.categories | IS_WRITTEN, ..found }, piece.of_file);
    })?;
    Ok(part)
}

/// The same for a piece without a file that had pages and guard regions at the scan before: first it is asked which
/// are not write-protected (written since, or given back), for which the kernel has a fast way (fs/proc/task_mmu.c,
/// pagemap_scan_pmd_entry), and then what these are. The rest is as it was, but where the page table itself is gone.
fn scan_plain(pagemap: &File, piece: &Piece, present: &PageSet, guards: &PageSet) -> io::Result<Swept> {
    let mut open = PageSet::new();
    pagemap::scan_unprotected(pagemap, piece.start, piece.end, |found| {
        open.insert(PageRun::between(Addr(found.start), Addr(found.end)));
    })?;
    let mut part = Swept::default();
    let wanted = WANTED | pagemap::guard_category();
    let mut told = PageSet::new();
    for (start, end) in near(&open, WIDE_GAP) {
        pagemap::scan_written_and_protect(pagemap, start, end, ANY, wanted, |found| {
            told.insert(PageRun::between(Addr(found.start), Addr(found.end)));
            part.add(found, piece.of_file);
        })?;
    }
    // What was open and is not told of is no page any more.
    let seen = open.union(&told);
    let (mut same, mut same_guards) = (present.difference(&seen), guards.difference(&seen));
    let mut gone = PageSet::new();
    for table in tables_of(&same.union(&same_guards)) {
        let (first, mut is_there) = (table.start.0, false);
        pagemap::scan(pagemap, first, first + PAGE_SIZE, ANY, ANY, |_| is_there = true)?;
        if !is_there {
            let each = |found| part.add(found, piece.of_file);
            pagemap::scan_and_protect(pagemap, first, table.end().0, ANY, wanted, each)?;
            gone.insert(table);
        }
    }
    if !gone.is_empty() {
        (same, same_guards) = (same.difference(&gone), same_guards.difference(&gone));
    }
    part.present = part.present.union(&same);
    part.guards = part.guards.union(&same_guards);
    Ok(part)
}

/// A set by page tables: of each that has pages in it, from the first to the last of them.
fn tables_of(set: &PageSet) -> Vec<PageRun> {
    let mut tables: Vec<PageRun> = Vec::new();
    for run in set.runs() {
        let mut start = run.start.0;
        while start < run.end().0 {
            let end = run.end().0.min((start / TABLE + 1) * TABLE);
            match tables.last_mut() {
                Some(last) if last.start.0 / TABLE == start / TABLE => {
                    *last = PageRun::between(last.start, Addr(end))
                }
                _ => tables.push(PageRun::between(Addr(start), Addr(end))),
            }
            start = end;
        }
    }
    tables
}

/// The same for a piece whose pages were the program's `own` or its `files` at the scan before: of the rest only it
/// is asked whose they are.
fn scan_known(pagemap: &File, piece: &Piece, own: &PageSet, files: &PageSet) -> io::Result<Swept> {
    let mut part = Swept::default();
    // What is in swap may be a marker: see `Swept::doubtful`.
    let (mut clean, mut doubtful) = (PageSet::new(), PageSet::new());
    let mut written = PageSet::new();
    let wanted = WANTED | pagemap::guard_category();
    pagemap::scan_and_protect(pagemap, piece.start, piece.end, ANY, wanted, |found| {
        let run = PageRun::between(Addr(found.start), Addr(found.end));
        match found.categories {
            guard if guard & IS_GUARD != 0 => part.guards.insert(run),
            some if some & IS_WRITTEN != 0 => written.insert(run),
            some if some & (IS_SWAPPED | IS_PFNZERO) != 0 => doubtful.insert(run),
            _ => clean.insert(run),
        }
    })?;
    let open = clean.difference(own).difference(files).union(&doubtful).union(&written);
    let mut asked = Swept::default();
    for (start, end) in near(&open, GAP) {
        pagemap::scan(pagemap, start, end, ANY, wanted | IS_FILE, |found| asked.add(found, piece.of_file))?;
    }
    let fresh = asked.present.intersection(&open);
    part.written = fresh.intersection(&written).union(&asked.doubtful.intersection(&open));
    part.doubtful = asked.doubtful.intersection(&open);
    part.files = clean.intersection(files).union(&asked.files.intersection(&open));
    part.present = clean.intersection(own).union(&fresh);
    Ok(part)
}

/// Ranges to scan for a set: a call per run would cost more than gaps of less than `gap` bytes.
pub fn near(set: &PageSet, gap: u64) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for run in set.runs() {
        match ranges.last_mut() {
            Some(last) if run.start.0 - last.1 < gap => last.1 = run.end().0,
            _ => ranges.push((run.start.0, run.end().0)),
        }
    }
    ranges
}

/// Scans all pieces.
///
/// # Errors
/// The pages cannot be looked at: some may have been re-armed without having been reported.
pub fn run(pagemap: &File, pieces: &[Piece], known: &Known) -> io::Result<Swept> {
    let large = pieces.iter().filter(|piece| piece.end - piece.start >= SHARE / 2).count();
    let workers = if large < MANY { 1 } else { thread_pool::workers() };
    let parts = thread_pool::map(pieces, workers, |piece| scan(pagemap, piece, known));
    let parts = parts.into_iter().collect::<io::Result<Vec<Swept>>>()?;
    Ok(Swept::concat(parts))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_sys::procfs::parse_maps;
    use holdfast_sys::userfault::Userfault;
    use std::sync::Mutex;

    #[test]
    fn neighbours_are_registered_together_and_large_memory_is_shared_out() {
        let text = b"1000-2000 r--p 00000000 fd:01 7 /bin/x\n\
            2000-3000 rw-p 00000000 00:00 0 \n\
            3000-5000 rw-p 00000000 00:00 0 [heap]\n\
            8000-9000 rw-s 00000000 00:01 9 /dev/zero (deleted)\n\
            10000000-19000000 rw-p 00000000 00:00 0 \n";
        let maps = parse_maps(text).unwrap();
        let calls = Mutex::new(Vec::new());
        let all = pieces(maps.iter().map(|m| (m, is_private(m))), |start, end| {
            calls.lock().unwrap().push((start, end));
            true
        });
        assert_eq!(*calls.lock().unwrap(), [(0x1000, 0x5000), (0x1000_0000, 0x1900_0000)]);
        let spans: Vec<(u64, u64, bool)> = all.iter().map(|p| (p.start, p.end, p.of_file)).collect();
        let large = [0x1000_0000, 0x1400_0000, 0x1800_0000];
        let ends = [0x1400_0000, 0x1800_0000, 0x1900_0000];
        let expected = large.into_iter().zip(ends).map(|(start, end)| (start, end, false));
        let small = [(0x1000, 0x2000, true), (0x2000, 0x5000, false)];
        assert_eq!(spans, small.into_iter().chain(expected).collect::<Vec<_>>());
    }

    #[test]
    fn reserved_terabytes_are_few_pieces() {
        let text = b"770000000000-7f0000000000 ---p 00000000 00:00 0 \n\
            7f0000000000-7f0004800000 rw-s 00000000 00:01 9 /x\n";
        let maps = parse_maps(text).unwrap();
        let all = pieces(maps.iter().map(|m| (m, is_private(m))), |_, _| true);
        assert!((2..=65).contains(&all.len()), "{}", all.len());
        let ends: Vec<u64> = all.iter().map(|piece| piece.end).collect();
        let starts: Vec<u64> = all.iter().map(|piece| piece.start).collect();
        assert_eq!((starts[0], *ends.last().unwrap()), (0x7700_0000_0000, 0x7f00_0000_0000));
        assert_eq!(starts[1..], ends[..ends.len() - 1]);
        assert!(starts.iter().all(|start| start % SHARE == 0));
    }

    #[test]
    fn each_page_table_is_asked_for_once() {
        let run = |start: u64, end: u64| PageRun::between(Addr(start), Addr(end));
        let set = PageSet::from(vec![
            run(0x1f_0000, 0x41_0000),
            run(0x42_0000, 0x43_0000),
            run(0x80_0000, 0x80_1000),
        ]);
        let expected = [
            run(0x1f_0000, 0x20_0000),
            run(0x20_0000, 0x40_0000),
            run(0x40_0000, 0x43_0000),
            run(0x80_0000, 0x80_1000),
        ];
        assert_eq!(tables_of(&set), expected);
        assert_eq!(tables_of(&PageSet::new()), []);
    }

    #[test]
    fn a_mapping_that_cannot_be_registered_is_alone() {
        let text = b"1000-2000 rw-p 00000000 00:00 0 \n2000-3000 rw-p 00000000 00:00 0 \n";
        let maps = parse_maps(text).unwrap();
        let all = pieces(maps.iter().map(|m| (m, true)), |start, end| (start, end) == (0x1000, 0x2000));
        let tracked: Vec<bool> = all.iter().map(|piece| piece.tracked).collect();
        assert_eq!(tracked, [true, false]);
    }

    #[test]
    fn scattered_pages_are_found_each_once_and_protected_again() {
        let Ok(userfault) = Userfault::of_this_process() else { return };
        let mut memory = vec![0_u8; 2 * SHARE as usize];
        let address = memory.as_ptr().addr() as u64;
        let start = address.next_multiple_of(SHARE);
        let piece = Piece { start, end: start + SHARE, tracked: true, of_file: false, huge: false };
        let mut write = |step: usize| {
            let pages = (start..piece.end).step_by(PAGE_SIZE as usize).step_by(step);
            pages.clone().for_each(|page| memory[(page - address) as usize] += 1);
            pages.map(|page| PageRun::between(Addr(page), Addr(page + PAGE_SIZE))).collect::<PageSet>()
        };
        let all = write(1); // so that there are pages
        userfault.register(piece.start, piece.end).unwrap();
        let own = File::open("/proc/self/pagemap").unwrap();
        let mut known = Known::default();
        // Many more runs than the kernel collects at a time, and one page alone.
        for step in [1, 3, 1 << 20, 2, 1] {
            let expected = write(step);
            let swept = run(&own, &[piece], &known).unwrap();
            assert_eq!((&swept.written, &swept.present), (&expected, &all));
            known = Known::after([].iter(), &[piece], &swept);
        }
    }
}
