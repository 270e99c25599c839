//! What of an address space is not mapped as it was, and by which calls it becomes so again.
//!
//! Pure, but that files which are to be mapped again are looked at. Ranges are compared, not mappings: the kernel joins
//! and splits those. What differs in more than its protection is unmapped and mapped anew. Invariant: both records were
//! checked. How it fails: a refusal names the mapping that cannot be made again.

use super::compare::Pair;
use crate::rebuild::paths::Opener;
use crate::rebuild::preflight;
use holdfast_image::Addr;
use holdfast_image::attributes::{GuardRegion, MemoryPolicy};
use holdfast_image::bytes::Name;
use holdfast_image::record::{Backing, FileIdentity, FileTable, Inode, ProcessRecord, Region};
use holdfast_image::refusal::{Refusal, Subject};
use std::ops::Range;

/// See the head of the file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Layout {
    /// What is mapped now and must not be.
    pub unmap: Vec<Range<u64>>,
    /// What is to be mapped: parts of regions of the image, ascending.
    pub missing: Vec<Region>,
    /// What is mapped with another protection: with which it was.
    pub protect: Vec<(Range<u64>, u32)>,
    /// Guard regions that there were not.
    pub open: Vec<GuardRegion>,
    /// Guard regions that there were.
    pub guard: Vec<GuardRegion>,
}

/// What a range shows, and of what kind the memory is.
#[derive(PartialEq)]
struct Kind<'a> {
    spot: Spot<'a>,
    flags: Vec<&'a str>,
    name: Option<&'a Name>,
    policy: Option<&'a MemoryPolicy>,
}

/// What backs the byte at address 0 of a mapping, if it began there: offsets wrap around.
#[derive(PartialEq)]
enum Spot<'a> {
    Anonymous,
    File { path: &'a Name, inode: Option<&'a Inode>, base: u64, shared: bool },
    Nameless { inode: u64, base: u64, shared: bool },
    Shared { object: u64, base: u64 },
    SystemV { id: i32, base: u64 },
    Kernel { name: &'a str },
}

impl<'a> Kind<'a> {
    /// `once`: the file table of the first process.
    fn of(region: &'a Region, own: &'a FileTable, once: &'a FileTable) -> Option<Kind<'a>> {
        let base = |offset: u64| offset.wrapping_sub(region.start.0);
        let file = |file: u32, offset: u64, shared: bool| {
            let FileIdentity { path, inode, .. } = own.mapped.get(file as usize)?;
            Some(Spot::File { path, inode: inode.as_ref(), base: base(offset), shared })
        };
        let spot = match &region.backing {
            Backing::Anonymous => Spot::Anonymous,
            Backing::PrivateFile { file: number, offset } => file(*number, *offset, false)?,
            Backing::SharedFile { file: number, offset, .. } => file(*number, *offset, true)?,
            Backing::Nameless { file, offset, shared, .. } => {
                let inode = once.nameless.get(*file as usize)?.inode;
                Spot::Nameless { inode, base: base(*offset), shared: *shared }
            }
            Backing::SharedAnonymous { object, offset, .. } => {
                Spot::Shared { object: *object, base: base(*offset) }
            }
            Backing::SystemV { segment, offset, .. } => {
                Spot::SystemV { id: once.segments.get(*segment as usize)?.id, base: base(*offset) }
            }
            Backing::Kernel { name } => Spot::Kernel { name },
        };
        // Whether the kernel counts it follows its protection.
        let flags = region.vm_flags.iter().map(String::as_str).filter(|flag| !["ac", "nr"].contains(flag));
        Some(Kind {
            spot,
            flags: flags.collect(),
            name: region.name.as_ref(),
            policy: region.memory_policy.as_ref(),
        })
    }
}

/// What is to be done. The file tables are those of the first process, now and then.
///
/// # Errors
/// What cannot be mapped again.
pub fn layout(pair: &Pair<'_>, (now, then): (&FileTable, &FileTable)) -> Result<Layout, Vec<Refusal>> {
    let (mut layout, mut refusals) = (Layout::default(), Vec::new());
    let kind_now = |region| Kind::of(region, &pair.now.files, now);
    let kind_then = |region| Kind::of(region, &pair.then.files, then);
    let prot = |region: &Region| region.prot;
    for (range, is, was) in sweep(&pair.now.regions, &pair.then.regions) {
        let same = is.is_some() && was.is_some() && is.and_then(kind_now) == was.and_then(kind_then);
        let is_sealed = is.is_some_and(|is| is.has("sl")) && (!same || is.map(prot) != was.map(prot));
        if is_sealed {
            refusals.push(refused(&range, "sealed by mseal(2)", "it was sealed, or mapped otherwise, since"));
            continue;
        }
        if same {
            if let Some((_, was)) = is.zip(was).filter(|(is, was)| is.prot != was.prot) {
                push(&mut layout.protect, (range, was.prot));
            }
            continue;
        }
        let kernel = |region: &Region| matches!(region.backing, Backing::Kernel { .. });
        if is.is_some_and(kernel) || was.is_some_and(kernel) {
            refusals.push(refused(&range, "a mapping of the kernel's", "it was moved or unmapped"));
            continue;
        }
        if is.is_some() {
            join(&mut layout.unmap, range.clone());
        }
        if let Some(region) = was {
            let missing = part(region, &range);
            refusals.extend(obstacle(pair.then, &missing));
            layout.missing.push(missing);
        }
    }
    let without = |all: &[GuardRegion], others: &[GuardRegion]| -> Vec<GuardRegion> {
        all.iter().filter(|guard| !others.contains(guard)).copied().collect()
    };
    layout.open = without(&pair.now.guards, &pair.then.guards);
    layout.guard = without(&pair.then.guards, &pair.now.guards);
    // One in memory that is unmapped goes with it; one in memory that is mapped anew is to be made again.
    let touches = |ranges: &[Range<u64>], guard: &GuardRegion| {
        ranges.iter().any(|range| range.start < guard.end.0 && guard.start.0 < range.end)
    };
    let fresh: Vec<Range<u64>> = layout.missing.iter().map(|region| region.start.0..region.end.0).collect();
    let again = pair.then.guards.iter().filter(|guard| touches(&fresh, guard));
    let more: Vec<GuardRegion> = again.filter(|guard| !layout.guard.contains(guard)).copied().collect();
    layout.guard.extend(more);
    layout.open.retain(|guard| !touches(&layout.unmap, guard));
    if refusals.is_empty() { Ok(layout) } else { Err(refusals) }
}

/// All ranges in which neither list has a border, with the region of each that they lie in.
fn sweep<'a>(
    now: &'a [Region],
    then: &'a [Region],
) -> Vec<(Range<u64>, Option<&'a Region>, Option<&'a Region>)> {
    let mut borders: Vec<u64> =
        now.iter().chain(then).flat_map(|region| [region.start.0, region.end.0]).collect();
    borders.sort_unstable();
    borders.dedup();
    let within = |regions: &'a [Region], at: u64| {
        let found = regions.get(regions.partition_point(|region| region.end.0 <= at));
        found.filter(|region| region.start.0 <= at)
    };
    let ranges = borders.array_windows::<2>().map(|&[start, end]| start..end);
    let found = ranges.map(|range| {
        let at = range.start;
        (range, within(now, at), within(then, at))
    });
    found.filter(|(_, is, was)| is.is_some() || was.is_some()).collect()
}

/// A range behind another one that it continues.
fn join(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

fn push(ranges: &mut Vec<(Range<u64>, u32)>, (next, prot): (Range<u64>, u32)) {
    match ranges.last_mut() {
        Some((last, its)) if last.end == next.start && *its == prot => last.end = next.end,
        _ => ranges.push((next, prot)),
    }
}

/// The part of a region in a range.
fn part(region: &Region, range: &Range<u64>) -> Region {
    let mut part = Region { start: Addr(range.start), end: Addr(range.end), ..region.clone() };
    let by = range.start - region.start.0;
    match &mut part.backing {
        Backing::PrivateFile { offset, .. }
        | Backing::SharedFile { offset, .. }
        | Backing::Nameless { offset, .. }
        | Backing::SharedAnonymous { offset, .. }
        | Backing::SystemV { offset, .. } => *offset += by,
        Backing::Anonymous | Backing::Kernel { .. } => {}
    }
    part
}

fn refused(range: &Range<u64>, name: &str, reason: impl Into<String>) -> Refusal {
    let subject = Subject::Mapping { start: range.start, end: range.end, name: name.to_owned() };
    Refusal { subject, reason: reason.into() }
}

/// Why memory cannot be mapped again.
fn obstacle(record: &ProcessRecord, missing: &Region) -> Option<Refusal> {
    let range = missing.start.0..missing.end.0;
    let shared =
        |name: &str| Some(refused(&range, name, "it was unmapped, and cannot be mapped again in place"));
    if missing.key().is_some() {
        let why = "it was unmapped, or has another key, and gets none in place";
        return Some(refused(&range, "memory with a protection key", why));
    }
    let file = match &missing.backing {
        Backing::Anonymous => return None,
        Backing::PrivateFile { file, .. } => record.files.mapped.get(*file as usize)?,
        Backing::SharedFile { file, .. } => record.files.mapped.get(*file as usize)?,
        Backing::Nameless { .. } => return shared("a file without a name"),
        Backing::SharedAnonymous { .. } => return shared("shared memory"),
        Backing::SystemV { .. } => return shared("System V shared memory"),
        Backing::Kernel { .. } => return shared("a mapping of the kernel's"),
    };
    if file.is_only_inside() {
        return None; // its namespace is as it was
    }
    let writable = matches!(missing.backing, Backing::SharedFile { writable: true, .. });
    let flags = if writable { libc::O_RDWR } else { libc::O_RDONLY }.cast_unsigned();
    let changed = if writable { None } else { preflight::changed(file) };
    let other = || Opener::of(record).open(&file.path, file.inode.as_ref(), flags).err();
    let why = changed.or_else(|| other().map(|error| error.to_string()))?;
    Some(refused(
        &range,
        &file.path.to_string(),
        format!("it was unmapped, and cannot be mapped again: {why}"),
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::{record, region};
    use holdfast_image::PAGE_SIZE;

    const BASE: u64 = 0x10_0000;

    fn at(page: u64) -> u64 {
        BASE + page * PAGE_SIZE
    }

    fn plain(page: u64, pages: u64, prot: u32) -> Region {
        region(at(page), pages, prot, Backing::Anonymous)
    }

    fn between(now: Vec<Region>, then: Vec<Region>) -> Result<Layout, Vec<Refusal>> {
        let (now, then) = (record(now), record(then));
        layout(&Pair { pid: 1, now: &now, then: &then }, (&now.files, &then.files))
    }

    #[test]
    fn joined_and_split_mappings_are_the_same_memory() {
        let whole = vec![plain(0, 9, 3)];
        let split = vec![plain(0, 2, 3), plain(2, 3, 3), plain(5, 4, 3)];
        assert_eq!(between(whole.clone(), split.clone()), Ok(Layout::default()));
        assert_eq!(between(split, whole), Ok(Layout::default()));
    }

    #[test]
    fn memory_is_mapped_unmapped_and_protected_range_by_range() {
        let now = vec![plain(0, 4, 3), plain(4, 2, 1), plain(20, 3, 3)];
        let then = vec![plain(0, 9, 3), plain(22, 2, 5)];
        let found = between(now, then).unwrap();
        assert!(found.unmap.iter().eq([&(at(20)..at(22))]));
        assert_eq!(found.missing, [plain(6, 3, 3), plain(23, 1, 5)]);
        assert_eq!(found.protect, [(at(4)..at(6), 3), (at(22)..at(23), 5)]);
    }

    #[test]
    fn memory_with_other_advice_is_made_anew() {
        let advised = Region { vm_flags: vec!["dc".into()], ..plain(0, 2, 3) };
        let found = between(vec![advised], vec![plain(0, 2, 3)]).unwrap();
        assert_eq!(found.missing, [plain(0, 2, 3)]);
        assert!(found.unmap.iter().eq([&(at(0)..at(2))]));
    }

    #[test]
    fn sealed_memory_stays_as_it_is() {
        let sealed = Region { vm_flags: vec!["sl".into()], ..plain(0, 2, 1) };
        assert!(between(vec![sealed.clone()], vec![sealed.clone()]).is_ok());
        assert!(between(vec![sealed], vec![plain(0, 2, 1)]).unwrap_err()[0].to_string().contains("mseal"));
    }

    #[test]
    fn shared_memory_that_is_gone_is_refused_by_name() {
        let shared = Backing::SharedAnonymous { object: 7, offset: 0, object_size: 2 * PAGE_SIZE };
        let gone = between(Vec::new(), vec![region(at(0), 2, 3, shared.clone())]).unwrap_err();
        assert!(gone[0].to_string().contains("shared memory"), "{gone:?}");
        // What is mapped in another place of the same object is another thing.
        let moved = Backing::SharedAnonymous { object: 7, offset: PAGE_SIZE, object_size: 2 * PAGE_SIZE };
        assert!(between(vec![region(at(0), 1, 3, moved)], vec![region(at(0), 1, 3, shared)]).is_err());
        let kernel = Backing::Kernel { name: "vdso".into() };
        assert!(between(Vec::new(), vec![region(at(0), 2, 5, kernel)]).is_err());
    }

    #[test]
    fn guards_follow_the_image() {
        let guard = |page| GuardRegion { start: Addr(at(page)), end: Addr(at(page + 1)) };
        let mut now = record(vec![plain(0, 9, 3)]);
        let mut then = now.clone();
        (now.guards, then.guards) = (vec![guard(1), guard(3)], vec![guard(3), guard(5)]);
        let found = layout(&Pair { pid: 1, now: &now, then: &then }, (&now.files, &then.files)).unwrap();
        assert_eq!((found.open, found.guard), (vec![guard(1)], vec![guard(5)]));
    }
}
