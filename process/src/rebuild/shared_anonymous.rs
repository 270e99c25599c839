//! Shared memory without a name that several processes map: a file in memory, made by the first of the new processes.
//!
//! All inherit it at a number that both halves of a restart know (the numbers right above those of [`super::unlinked`]): over
//! the exec to the seed, which maps it where the process had it, and closes it. Memory that one process has alone is
//! made by its seed ([`super::address_space`]).

use super::error::RebuildError;
use super::member::Job;
use super::unlinked;
use holdfast_image::record::{Backing, Region};
use holdfast_sys::{fd, objects};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

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
            let (place, several, largest) = seen.entry(object).or_insert((member.place, false, 0));
            *several |= *place != member.place;
            (*place, *largest) = (member.place, size.max(*largest));
        }
    }
    let several = seen.into_iter().filter(|(_, (_, several, _))| *several);
    let numbered = several.zip(unlinked::number(job, job.record.files.nameless.len())..);
    numbered.map(|((object, (_, _, size)), number)| (object, SharedObject { number, size })).collect()
}

/// The first number after theirs.
pub fn end(job: &Job<'_>, several: &BTreeMap<u64, SharedObject>) -> i32 {
    let last = several.values().map(|object| object.number + 1).max();
    last.unwrap_or_else(|| unlinked::number(job, job.record.files.nameless.len()))
}

/// Makes them, with numbers of at least `floor`.
///
/// # Errors
/// There is no room for so large a file.
pub fn make(
    wanted: &BTreeMap<u64, SharedObject>,
    floor: i32,
) -> Result<BTreeMap<u64, (SharedObject, OwnedFd)>, RebuildError> {
    let make = |object: &SharedObject| {
        let file = File::from(fd::memfd(c"holdfast-shared")?);
        file.set_len(object.size)?;
        objects::duplicate_above(file.as_raw_fd(), floor)
    };
    let io =
        |size: u64| RebuildError::io(format!("making {size} bytes of memory that several processes share"));
    wanted
        .iter()
        .map(|(number, object)| Ok((*number, (*object, make(object).map_err(io(object.size))?))))
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::pages::tests::{record, region};
    use holdfast_image::record::Descriptor;

    #[test]
    fn only_what_several_processes_map_is_made_for_all() {
        let shared = |object, offset| Backing::SharedAnonymous { object, offset, object_size: 8192 };
        let mut first =
            record(vec![region(0x10000, 2, 3, shared(7, 0)), region(0x20000, 1, 3, shared(8, 0))]);
        let mut other = record(vec![
            region(0x10000, 1, 3, shared(9, 0)),
            region(0x30000, 1, 3, shared(9, 4096)),
            region(0x40000, 4, 1, shared(7, 0)),
        ]);
        other.files.descriptors.push(Descriptor { fd: 40, cloexec: false, description: 0 });
        first.others.push(other);
        let job = Job::new(&first);
        let several = of_several(&job);
        assert_eq!(several, BTreeMap::from([(7, SharedObject { number: 41, size: 4 * 4096 })]));
        let made = make(&several, 50).unwrap();
        let (_, file) = &made[&7];
        assert!(file.as_raw_fd() >= 50);
        assert_eq!(File::from(file.try_clone().unwrap()).metadata().unwrap().len(), 4 * 4096);
    }
}
