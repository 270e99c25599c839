//! Descriptors that the new processes have open over their exec, for the agent: their numbers, which both halves of
//! a restart compute from the record ([`holdfast_image::spare_numbers`]): unlinked files, then memory that several
//! processes share, then what processes have in common by copy-on-write, then namespaces.

use super::job::Job;
use holdfast_image::record::{Backing, Region};
use std::collections::BTreeMap;

/// The number at which a file stays open until all is mapped; the first of them is the first that no process uses.
pub fn of_unlinked(job: &Job<'_>, file: usize) -> i32 {
    job.spare.first + i32::try_from(file).unwrap_or(i32::MAX / 2)
}

/// One object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedObject {
    /// The descriptor at which the seed finds it.
    pub number: i32,
    /// Bytes.
    pub size: u64,
}

/// The object behind a region, and the least size that it has then.
pub fn object_of(region: &Region) -> Option<(u64, u64)> {
    let Backing::SharedAnonymous { object, offset, object_size } = region.backing else { return None };
    let end = offset.saturating_add(region.end.0.saturating_sub(region.start.0));
    Some((object, object_size.max(end)))
}

/// All objects that several processes map, by their numbers in the record.
pub fn of_several(job: &Job<'_>) -> BTreeMap<u64, SharedObject> {
    // Of each object: the last process that was seen to map it, whether another one did before, and the size.
    let mut seen: BTreeMap<u64, (usize, bool, u64)> = BTreeMap::new();
    for member in job.members() {
        for (object, size) in member.own.regions.iter().filter_map(object_of) {
            let (last, several, largest) = seen.entry(object).or_insert((member.index, false, 0));
            *several |= *last != member.index;
            (*last, *largest) = (member.index, size.max(*largest));
        }
    }
    let several = seen.into_iter().filter(|(_, (_, several, _))| *several);
    let numbered = several.zip(of_unlinked(job, job.record.files.nameless.len())..);
    numbered.map(|((object, (_, _, size)), number)| (object, SharedObject { number, size })).collect()
}

/// The first number after theirs.
fn end(job: &Job<'_>, several: &BTreeMap<u64, SharedObject>) -> i32 {
    let last = several.values().map(|object| object.number + 1).max();
    last.unwrap_or_else(|| of_unlinked(job, job.record.files.nameless.len()))
}

/// The number of the file in all new processes: the first after those of shared memory.
pub fn of_common(job: &Job<'_>, several: &BTreeMap<u64, SharedObject>) -> i32 {
    end(job, several)
}

/// The number of a namespace in all new processes, by its place: behind all others.
pub fn of_namespace(job: &Job<'_>, several: &BTreeMap<u64, SharedObject>, place: usize) -> i32 {
    of_common(job, several) + 1 + i32::try_from(place).unwrap_or(i32::MAX / 4)
}

/// Whether a job has such a file.
pub fn has_common(job: &Job<'_>) -> bool {
    !job.record.others.is_empty()
}
