//! Which pages may differ from the image, reading and checking them, and writing those that do differ.
//!
//! [`Plan::wanted`] is pure: what the image has and the newest one has too, in the same place, and what was not written
//! since, is left alone. [`Plan::stage`] runs while nothing was changed yet: every page that may be needed is read,
//! which checks it, and compared with the program's. Up to [`KEPT`] bytes of what differs are kept; the rest is read
//! once more when it is written. [`Staged::write`] is called by the tracer thread for one process after the other. How
//! it fails: names the file that could not be read, or the address that could not be written.

use super::plan::{Held, Plan};
use crate::rebuild::error::RebuildError;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{ExtentSource, PageError, PageProvider, PageRun};
use holdfast_image::record::{Backing, FileTable, ProcessRecord, Region};
use holdfast_image::{Addr, PAGE_SIZE, address_space};
use holdfast_sys::procfs::Mapping;
use holdfast_sys::procmem::{self, ForcedMemory};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// So much of what differs is kept in the agent's memory until it is written.
const KEPT: usize = 128 << 20;
/// Zeros are written by so many bytes.
const ZEROS: u64 = 1 << 20;
const PROT_WRITE: u32 = libc::PROT_WRITE.cast_unsigned();

/// Pages, at global addresses.
#[derive(Debug, Default)]
pub struct Wanted {
    /// They are in the image and may be other ones now.
    pub stored: PageSet,
    /// The same, and all zero in the image.
    zero: PageSet,
    /// They are there and not in the image: they are given back.
    given_back: PageSet,
    /// The same where that is not possible: they become zero.
    cleared: PageSet,
    /// How many the image has.
    pub of_image: u64,
}

impl Wanted {
    /// How many may differ.
    pub fn pages(&self) -> u64 {
        self.stored.pages().0 + self.zero.pages().0
    }
}

/// Pages that were read and checked.
#[derive(Debug, Default)]
pub struct Staged {
    /// What differs: global addresses and bytes.
    parts: Vec<(Addr, Vec<u8>)>,
    /// What differs and is to be read once more.
    later: PageSet,
    zero: PageSet,
    given_back: PageSet,
    cleared: PageSet,
    /// Shared memory that is made writable for it, as the process has it, with its protection of now.
    writable: BTreeMap<u32, Vec<(Range<u64>, u32)>>,
}

impl Staged {
    /// Pages that will be written.
    pub fn pages(&self) -> u64 {
        let parts = self.parts.iter().map(|(_, bytes)| bytes.len() as u64 / PAGE_SIZE).sum::<u64>();
        parts + self.later.pages().0 + self.zero.pages().0 + self.cleared.pages().0
    }
}

/// The region that an address lies in.
fn region_at(regions: &[Region], address: u64) -> Option<&Region> {
    let found = regions.get(regions.partition_point(|region| region.end.0 <= address));
    found.filter(|region| region.start.0 <= address)
}

fn is_writable(region: &Region) -> bool {
    region.prot & PROT_WRITE != 0
}

/// Whether a restart brings its pages from the image, or it is what its file is.
fn comes_from_image(region: &Region) -> bool {
    !matches!(region.backing, Backing::Kernel { .. } | Backing::SharedFile { writable: false, .. })
}

fn runs_of<'a>(regions: impl IntoIterator<Item = &'a Region>) -> PageSet {
    regions.into_iter().map(|region| PageRun::between(region.start, region.end)).collect()
}

fn ranges(ranges: &[Range<u64>]) -> PageSet {
    ranges.iter().map(|range| PageRun::between(Addr(range.start), Addr(range.end))).collect()
}

impl Plan {
    /// Which pages may differ from the image, whose `pages` they are; `common`: those that it has in common with the
    /// newest one.
    pub fn wanted(&self, held: &Held, pages: &dyn PageProvider, common: &PageSet) -> Wanted {
        wanted(self, held, pages, common)
    }

    /// Reads and checks them, and compares them with what is there.
    ///
    /// # Errors
    /// The image is damaged; a process cannot be read; memory that differs can be written by no process.
    pub fn stage(&self, wanted: &Wanted, pages: &dyn PageProvider) -> Result<Staged, RebuildError> {
        stage(self, wanted, pages)
    }
}

fn wanted(plan: &Plan, held: &Held, pages: &dyn PageProvider, common: &PageSet) -> Wanted {
    let untouched = common.intersection(&held.unchanged);
    let mut wanted = Wanted::default();
    let of = |source: fn(&ExtentSource) -> bool| -> PageSet {
        let own = pages.extents().iter().filter(|extent| source(&extent.source));
        own.map(|extent| extent.run).collect()
    };
    let zero = of(|source| *source == ExtentSource::Zero);
    let stored = of(|source| *source != ExtentSource::Zero);
    let of_image = stored.union(&zero);
    let objects = shared_objects(&plan.then, &of_image);
    for (then, member) in plan.then.processes().zip(&plan.members) {
        let own = |set: &PageSet| address_space::own_set(then.space, set);
        let (stored, zero, present) = (own(&stored), own(&zero), own(&held.present));
        wanted.of_image += stored.pages().0 + zero.pages().0;
        let brought = runs_of(then.regions.iter().filter(|region| comes_from_image(region)));
        let missing = runs_of(&member.layout.missing);
        // What is mapped anew has nothing of it.
        let left = own(&untouched).difference(&missing);
        let may_differ = |set: &PageSet| set.intersection(&brought).difference(&left);
        let plain = |region: &&Region| matches!(region.backing, Backing::Anonymous);
        let fresh = runs_of(then.regions.iter().filter(plain));
        let there = present.difference(&ranges(&member.layout.unmap));
        // Memory that has no page reads as zero.
        let zero = may_differ(&zero);
        let zero = zero.difference(&fresh).union(&zero.intersection(&there));
        let surplus = there.difference(&own(&of_image)).difference(&area(then));
        let (given_back, cleared) = surplus_of(plan, &then.regions, &surplus);
        let cleared = cleared.difference(&shown_of(&objects, then, &plan.then));
        let global = |set| address_space::global_set(then.space, set);
        wanted.stored.append(global(may_differ(&stored)));
        wanted.zero.append(global(zero));
        wanted.given_back.append(global(given_back));
        wanted.cleared.append(global(cleared));
    }
    wanted
}

/// Where injected calls run: not to be taken away under them.
fn area(record: &ProcessRecord) -> PageSet {
    let area = &record.inject;
    let range = |start: Addr, len: u64| PageRun::between(start, Addr(start.0 + len));
    [range(area.code, area.code_len), range(area.scratch, area.scratch_len)].into_iter().collect()
}

/// Shared memory by what it is, and what the image has of it, by offset: several mappings may show it, and the image
/// has each of its pages once.
type Objects = BTreeMap<(u8, u64), PageSet>;

/// Which shared memory a region shows, and the offset of its first byte in it.
fn object_of(region: &Region, once: &FileTable) -> Option<((u8, u64), u64)> {
    match region.backing {
        Backing::SharedAnonymous { object, offset, .. } => Some(((0, object), offset)),
        Backing::SystemV { segment, offset, .. } => Some(((1, u64::from(segment)), offset)),
        Backing::Nameless { file, offset, shared: true, .. } => {
            Some(((2, once.nameless.get(file as usize)?.inode), offset))
        }
        _ => None,
    }
}

fn shared_objects(then: &ProcessRecord, of_image: &PageSet) -> Objects {
    let mut objects = Objects::new();
    for process in then.processes() {
        let own = address_space::own_set(process.space, of_image);
        for region in &process.regions {
            let Some((object, offset)) = object_of(region, &then.files) else { continue };
            let shown = own.intersection(&runs_of([region]));
            let by = offset.wrapping_sub(region.start.0);
            let at = |run: &PageRun| PageRun { start: Addr(run.start.0.wrapping_add(by)), ..*run };
            let set = objects.entry(object).or_default();
            *set = set.union(&shown.runs().iter().map(at).collect());
        }
    }
    objects
}

/// Where a process shows what the image has of shared memory, wherever it has it.
fn shown_of(objects: &Objects, process: &ProcessRecord, first: &ProcessRecord) -> PageSet {
    let shown = process.regions.iter().flat_map(|region| {
        let found = object_of(region, &first.files);
        let found = found.and_then(|(object, offset)| Some((objects.get(&object)?, offset)));
        let Some((set, offset)) = found else { return Vec::new() };
        let len = region.end.0 - region.start.0;
        let part = PageRun::between(Addr(offset), Addr(offset + len));
        let by = region.start.0.wrapping_sub(offset);
        let here = set.intersection(&PageSet::from(vec![part]));
        here.runs().iter().map(|run| PageRun { start: Addr(run.start.0.wrapping_add(by)), ..*run }).collect()
    });
    shown.collect()
}

/// What is there and is not in the image: what can be given back, and what becomes zero. A page of a shared file is as
/// the file is.
fn surplus_of(plan: &Plan, regions: &[Region], surplus: &PageSet) -> (PageSet, PageSet) {
    let fits = |region: &&Region| {
        // MADV_DONTNEED of locked memory fails, of huge pages it takes whole ones; where a restart has mapped the store
        // its bytes would show.
        !region.has("lo") && !region.has("sl") && region.huge_shift().is_none()
    };
    let private = |region: &&Region| match region.backing {
        Backing::Anonymous => !plan.mapped_from_store,
        Backing::PrivateFile { .. } | Backing::Nameless { shared: false, .. } => true,
        _ => false,
    };
    let other = |region: &&Region| match region.backing {
        Backing::Anonymous => !(fits(region) && private(region)),
        Backing::SharedAnonymous { .. } | Backing::SystemV { .. } => true,
        Backing::Nameless { shared, .. } => shared,
        _ => false,
    };
    let given_back = runs_of(regions.iter().filter(fits).filter(private));
    let cleared = runs_of(regions.iter().filter(other));
    (surplus.intersection(&given_back), surplus.intersection(&cleared))
}

/// The memory of one process as it is.
struct Living<'a> {
    memory: ForcedMemory,
    regions: &'a [Region],
    missing: PageSet,
    space: u32,
}

impl Living<'_> {
    /// The pages of `bytes`, which belong at `start`, that are other ones now: first byte of each run, and bytes.
    fn differing<'b>(&self, start: u64, bytes: &'b [u8], buffer: &mut Vec<u8>) -> Vec<(u64, &'b [u8])> {
        let page = usize::try_from(PAGE_SIZE).unwrap_or(4096);
        buffer.resize(bytes.len(), 0);
        let is_there = self.missing.touching(PageRun::between(Addr(start), Addr(start + bytes.len() as u64)));
        if !is_there.is_empty() || self.memory.read(start, buffer).is_err() {
            return vec![(start, bytes)];
        }
        let mut found: Vec<(usize, usize)> = Vec::new();
        for (at, (now, then)) in buffer.chunks(page).zip(bytes.chunks(page)).enumerate() {
            if now == then {
                continue;
            }
            match found.last_mut() {
                Some((_, end)) if *end == at * page => *end = at * page + now.len(),
                _ => found.push((at * page, at * page + now.len())),
            }
        }
        found.into_iter().map(|(from, to)| (start + from as u64, &bytes[from..to])).collect()
    }
}

impl Living<'_> {
    /// Bytes that belong at `start`, cut where mappings begin and end.
    fn by_region<'b>(&self, start: u64, bytes: &'b [u8]) -> Vec<(u64, &'b [u8])> {
        let (mut start, mut rest, mut parts) = (start, bytes, Vec::new());
        while !rest.is_empty() {
            let next = self.regions.get(self.regions.partition_point(|region| region.end.0 <= start));
            let border =
                next.map_or(u64::MAX, |next| if next.start.0 > start { next.start.0 } else { next.end.0 });
            let here = usize::try_from(border - start).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at(here);
            parts.push((start, now));
            (start, rest) = (start + here as u64, later);
        }
        parts
    }
}

/// What is being staged, by several threads.
#[derive(Default)]
struct Collector {
    parts: Vec<(Addr, Vec<u8>)>,
    bytes: usize,
    later: Vec<PageRun>,
    writable: BTreeMap<u32, Vec<(Range<u64>, u32)>>,
    refused: Option<String>,
}

impl Collector {
    fn add(&mut self, living: &Living<'_>, start: u64, bytes: &[u8]) {
        let global = address_space::global(living.space, Addr(start));
        // Where it is mapped anew it has what it is mapped with.
        let region = region_at(living.regions, start);
        let forced = region.is_none_or(|region| !is_writable(region));
        if let Some(region) = region.filter(|region| !is_writable(region)) {
            self.open(living.space, region);
        }
        if forced || self.bytes + bytes.len() <= KEPT {
            self.bytes += bytes.len();
            self.parts.push((global, bytes.to_vec()));
        } else {
            self.later.push(PageRun::between(global, Addr(global.0 + bytes.len() as u64)));
        }
    }

    /// Shared memory cannot be written past its protection.
    fn open(&mut self, space: u32, region: &Region) {
        let (shared, may_be_written) = match region.backing {
            Backing::SharedAnonymous { .. } => (true, true),
            Backing::SharedFile { writable, .. }
            | Backing::SystemV { writable, .. }
            | Backing::Nameless { shared: true, writable, .. } => (true, writable),
            _ => (false, true),
        };
        if !may_be_written {
            self.refused.get_or_insert_with(|| {
                let (start, end) = (region.start, region.end);
                format!("shared memory at {start}-{end} has changed, and the process may not write it")
            });
        } else if shared {
            let range = region.start.0..region.end.0;
            let all = self.writable.entry(space).or_default();
            if !all.iter().any(|(known, _)| *known == range) {
                all.push((range, region.prot));
            }
        }
    }
}

fn stage(plan: &Plan, wanted: &Wanted, pages: &dyn PageProvider) -> Result<Staged, RebuildError> {
    let mut living = BTreeMap::new();
    for member in &plan.members {
        let memory = ForcedMemory::open(member.pid, member.pid)
            .map_err(RebuildError::io(format!("opening the memory of process {}", member.pid)))?;
        let (regions, space) = (&member.now.regions[..], member.space);
        let missing = runs_of(&member.layout.missing);
        living.insert(space, Living { memory, regions, missing, space });
    }
    let collector = Mutex::new(Collector::default());
    let put = |runs: &[(Addr, &[u8])]| -> Result<(), PageError> {
        let mut buffer = Vec::new();
        for (start, bytes) in runs {
            let (space, own) = address_space::split(*start);
            let Some(living) = living.get(&space) else { continue };
            let differing = living.differing(own.0, bytes, &mut buffer);
            let mut collector = collector.lock();
            let parts = differing.into_iter().flat_map(|(start, bytes)| living.by_region(start, bytes));
            parts.for_each(|(start, bytes)| collector.add(living, start, bytes));
        }
        Ok(())
    };
    pages.gather(wanted.stored.runs(), &put).map_err(RebuildError::pages("reading the image"))?;
    let zero = not_zero(&living, &wanted.zero, &collector);
    let cleared = not_zero(&living, &wanted.cleared, &collector);
    let Collector { parts, later, writable, refused, .. } = collector.into_inner();
    match refused {
        Some(what) => Err(RebuildError::Refused(what)),
        None => Ok(Staged {
            parts,
            later: PageSet::from(later),
            zero,
            given_back: wanted.given_back.clone(),
            cleared,
            writable,
        }),
    }
}

/// Those pages that are not zero now.
fn not_zero(living: &BTreeMap<u32, Living<'_>>, all: &PageSet, collector: &Mutex<Collector>) -> PageSet {
    let zeros = vec![0; usize::try_from(ZEROS).unwrap_or(0)];
    let (mut buffer, mut found) = (Vec::new(), Vec::new());
    for run in pieces(all) {
        let (space, own) = address_space::split_run(run);
        let Some(living) = living.get(&space) else { continue };
        let len = usize::try_from(own.pages.bytes()).unwrap_or(0);
        let differing = living.differing(own.start.0, &zeros[..len], &mut buffer);
        for (start, bytes) in differing.into_iter().flat_map(|(start, bytes)| living.by_region(start, bytes))
        {
            let run = PageRun::between(Addr(start), Addr(start + bytes.len() as u64));
            found.push(address_space::global_run(space, run));
            if let Some(region) = region_at(living.regions, start).filter(|region| !is_writable(region)) {
                collector.lock().open(space, region);
            }
        }
    }
    PageSet::from(found)
}

/// The runs of a set, none longer than [`ZEROS`].
fn pieces(set: &PageSet) -> impl Iterator<Item = PageRun> {
    set.runs().iter().flat_map(|run| {
        let (start, end) = (run.start.0, run.end().0);
        let starts = (start..end).step_by(usize::try_from(ZEROS).unwrap_or(1));
        starts.map(move |at| PageRun::between(Addr(at), Addr((at + ZEROS).min(end))))
    })
}

/// Writes into one process.
pub struct Writer<'a> {
    /// Any thread of it.
    pub tid: i32,
    /// Its address space.
    pub space: u32,
    /// Its mappings, ascending.
    pub maps: &'a [Mapping],
    /// For memory that it may not write itself.
    pub forced: &'a ForcedMemory,
}

impl Writer<'_> {
    fn put(&self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let mut start = start;
        let mut rest = bytes;
        while !rest.is_empty() {
            let found = self.maps.get(self.maps.partition_point(|mapping| mapping.end <= start));
            let mapping = found.filter(|mapping| mapping.start <= start);
            let end = mapping.map_or(u64::MAX, |mapping| mapping.end);
            let here = usize::try_from(end - start).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at(here);
            let written = match mapping {
                Some(mapping) if mapping.prot & PROT_WRITE != 0 => procmem::write(self.tid, start, now),
                _ => self.forced.write(start, now),
            };
            written
                .map_err(|error| io::Error::new(error.kind(), format!("writing at {start:#x}: {error}")))?;
            (start, rest) = (start + here as u64, later);
        }
        Ok(())
    }
}

impl Staged {
    /// Pages of a process that are given back to the kernel, at its own addresses.
    pub fn given_back(&self, space: u32) -> PageSet {
        address_space::own_set(space, &self.given_back)
    }

    /// Shared memory that must be writable when [`Staged::write`] is called.
    pub fn to_be_writable(&self, space: u32) -> &[(Range<u64>, u32)] {
        self.writable.get(&space).map_or(&[], Vec::as_slice)
    }

    /// Writes all that belongs to one process. `pages`: the image.
    ///
    /// # Errors
    /// Names what could not be read or written; some of it may be.
    pub fn write(&self, writer: &Writer<'_>, pages: &dyn PageProvider) -> Result<(), RebuildError> {
        let own = |start: Addr| {
            let (space, own) = address_space::split(start);
            (space == writer.space).then_some(own.0)
        };
        let failed = || RebuildError::io("putting memory back");
        for (start, bytes) in &self.parts {
            if let Some(start) = own(*start) {
                writer.put(start, bytes).map_err(failed())?;
            }
        }
        let zeros = vec![0; usize::try_from(ZEROS).unwrap_or(0)];
        for run in pieces(&self.zero.union(&self.cleared)) {
            if let Some(start) = own(run.start) {
                let len = usize::try_from(run.pages.bytes()).unwrap_or(0);
                writer.put(start, &zeros[..len]).map_err(failed())?;
            }
        }
        let later: Vec<PageRun> =
            self.later.runs().iter().filter(|run| own(run.start).is_some()).copied().collect();
        if later.is_empty() {
            return Ok(());
        }
        let put = |runs: &[(Addr, &[u8])]| {
            let mut all = runs.iter().filter_map(|(start, bytes)| Some((own(*start)?, *bytes)));
            Ok(all.try_for_each(|(start, bytes)| writer.put(start, bytes))?)
        };
        pages.gather(&later, &put).map_err(RebuildError::pages("putting memory back"))
    }
}

// Sets of one run are written as arrays of one range.
#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use crate::rebuild::agent::in_place::mappings::Layout;
    use crate::rebuild::agent::in_place::plan::Member;
    use crate::rebuild::testing::{record, region};
    use holdfast_image::PageCount;
    use holdfast_image::pages::Extent;
    use holdfast_image::testing::FakeImage;

    const BASE: u64 = 0x10_0000;
    const ALL: u32 = 3;

    /// Pages from the first number up to the second.
    fn run(pages: Range<u64>) -> PageRun {
        let start = Addr(BASE + pages.start * PAGE_SIZE);
        PageRun { start, pages: PageCount(pages.end - pages.start) }
    }

    fn set(runs: &[Range<u64>]) -> PageSet {
        runs.iter().map(|pages| run(pages.clone())).collect()
    }

    fn plain(pages: Range<u64>) -> Region {
        region(run(pages.clone()).start.0, pages.end - pages.start, ALL, Backing::Anonymous)
    }

    fn plan(then: Vec<Region>, layout: Layout) -> Plan {
        let then = record(then);
        let member = Member { pid: 1, space: then.space, now: then.clone(), layout };
        Plan { then, members: vec![member], mapped_from_store: false }
    }

    /// An image that has some pages, and of others that they are zero.
    fn image(stored: &[Range<u64>], zero: &[Range<u64>]) -> FakeImage {
        let of = |runs: &[Range<u64>], source| -> Vec<Extent> {
            runs.iter().map(|pages| Extent { run: run(pages.clone()), source }).collect()
        };
        let mut extents = of(stored, ExtentSource::Stored);
        extents.extend(of(zero, ExtentSource::Zero));
        FakeImage::new(extents, |_, page| page.fill(1))
    }

    /// As it is now: what there is, and what was not written since the newest image.
    fn held(present: &[Range<u64>], unchanged: &[Range<u64>]) -> Held {
        Held { present: set(present), unchanged: set(unchanged), mapped_from_store: false }
    }

    #[test]
    fn only_what_neither_the_newest_image_nor_a_write_has_changed_is_left_alone() {
        let plan = plan(vec![plain(0..10)], Layout::default());
        let (image, held) = (image(&[0..10], &[]), held(&[0..10], &[2..10]));
        // Pages 6 and 7 are others in the newest image, 0 and 1 were written since.
        let common = set(&[0..6, 8..10]);
        let wanted = plan.wanted(&held, &image, &common);
        assert_eq!((&wanted.stored, wanted.of_image), (&set(&[0..2, 6..8]), 10));
        assert_eq!(wanted.pages(), 4);
        // The newest image itself; and one that has nothing in common with it.
        assert_eq!(plan.wanted(&held, &image, &set(&[0..10])).stored, set(&[0..2]));
        assert_eq!(plan.wanted(&held, &image, &PageSet::new()).stored, set(&[0..10]));
    }

    #[test]
    fn memory_that_is_mapped_anew_has_nothing_of_the_image() {
        let layout = Layout { missing: vec![plain(3..5)], ..Layout::default() };
        let plan = plan(vec![plain(0..10)], layout);
        let (image, held) = (image(&[0..10], &[]), held(&[0..3, 5..10], &[0..3, 5..10]));
        assert_eq!(plan.wanted(&held, &image, &set(&[0..10])).stored, set(&[3..5]));
    }

    #[test]
    fn zeros_are_written_where_there_is_a_page_and_what_came_since_goes() {
        let plan = plan(vec![plain(0..10)], Layout::default());
        let (image, held) = (image(&[0..2], &[2..4]), held(&[0..3, 6..8], &[]));
        let wanted = plan.wanted(&held, &image, &PageSet::new());
        // Page 3 has none: it reads as zero.
        assert_eq!((&wanted.zero, &wanted.given_back), (&set(&[2..3]), &set(&[6..8])));
        assert!(wanted.cleared.is_empty());
        // Locked memory cannot be given back; nor can any where a restart has mapped the store.
        let locked = Region { vm_flags: vec!["lo".into()], ..plain(0..10) };
        let wanted =
            super::tests::plan(vec![locked], Layout::default()).wanted(&held, &image, &PageSet::new());
        assert_eq!((&wanted.cleared, wanted.given_back.is_empty()), (&set(&[6..8]), true));
        let wanted = Plan { mapped_from_store: true, ..plan }.wanted(&held, &image, &PageSet::new());
        assert_eq!((&wanted.cleared, wanted.given_back.is_empty()), (&set(&[6..8]), true));
    }

    #[test]
    fn what_an_unmapped_mapping_had_and_the_kernels_own_is_no_matter() {
        let gone = run(10..12);
        let layout = Layout { unmap: vec![gone.start.0..gone.end().0], ..Layout::default() };
        let kernel = region(run(20..21).start.0, 1, 5, Backing::Kernel { name: "vdso".into() });
        let plan = plan(vec![plain(0..10), kernel], layout);
        let (image, held) = (image(&[0..10, 20..21], &[]), held(&[0..12, 20..21], &[]));
        let wanted = plan.wanted(&held, &image, &PageSet::new());
        assert_eq!(wanted.stored, set(&[0..10]));
        assert!(wanted.given_back.is_empty() && wanted.cleared.is_empty());
    }
}
