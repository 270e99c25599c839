//! Standard streams at a restart: which of the program's descriptors become those of `holdfast restart`, by number.
//!
//! `process::rebuild::streams` decides, in the front; both halves of a restart call [`apply`], each on its own copy of
//! the process record, before anything is opened. Invariants: pure; a switch names descriptions by their index in the
//! record as it was read; indices stay valid (new descriptions come last). How it fails: a switch that fits nothing
//! changes nothing.

use crate::files::{Description, Object};
use crate::record::ProcessRecord;
use std::fmt;
use std::str::FromStr;

/// Numbers of standard streams.
pub const STREAMS: [i32; 3] = [0, 1, 2];

/// What becomes a descriptor of `holdfast restart`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switch {
    /// Index of the description.
    pub description: u32,
    /// Only those of its descriptors that were given as this stream; `None`: those that were given as none.
    pub number: Option<i32>,
    /// The descriptor of the restart.
    pub from: i32,
    /// The file that it leaves is not to be changed.
    pub whole: bool,
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Switch { description, number, from, whole } = self;
        write!(f, "{description}:{}:{from}:{}", number.unwrap_or(-1), u8::from(*whole))
    }
}

impl FromStr for Switch {
    type Err = String;
    fn from_str(text: &str) -> Result<Switch, String> {
        let wrong = || format!("{text:?} is not DESCRIPTION:NUMBER:FROM:WHOLE");
        let numbers: Option<Vec<i32>> = text.split(':').map(|part| part.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[description, number @ -1..=2, from @ 0..=2, whole @ 0..=1]) => Ok(Switch {
                description: u32::try_from(description).map_err(|_| wrong())?,
                number: (number >= 0).then_some(number),
                from,
                whole: whole == 1,
            }),
            _ => Err(wrong()),
        }
    }
}

/// A descriptor that leads to a standard stream as the program was given it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// Place of its process in the job.
    pub process: usize,
    /// Its number there.
    pub fd: i32,
    /// Index of its description.
    pub description: u32,
    /// The stream.
    pub number: i32,
}

/// As which streams a description was given.
fn numbers(record: &ProcessRecord, index: u32) -> Vec<i32> {
    let Some(description) = record.files.descriptions.get(index as usize) else { return Vec::new() };
    let told: Vec<i32> =
        STREAMS.into_iter().filter(|number| description.streams & 1 << number != 0).collect();
    match description.object {
        // Of an image that does not tell: by the numbers that the program has it under.
        Object::Inherited { from: from @ 0..=2, .. } if told.is_empty() => {
            let own = record.files.descriptors.iter();
            let own = own.filter(|own| own.description == index && STREAMS.contains(&own.fd));
            let own: Vec<i32> = own.map(|own| own.fd).collect();
            if own.is_empty() { vec![from] } else { own }
        }
        _ => told,
    }
}

/// The stream that each descriptor of one process to one description leads to. A shell that redirects a part of a
/// script keeps what it had under a number from 10 on: that is the stream which it has not at its own number.
fn streams_of(own: &[i32], given: &[i32], writes: bool) -> Vec<i32> {
    let is_own = |fd: &i32| given.contains(fd);
    let missing: Vec<i32> = given.iter().copied().filter(|number| !own.contains(number)).collect();
    let copies: Vec<i32> = own.iter().copied().filter(|fd| !is_own(fd)).collect();
    let among = if missing.is_empty() { given } else { &missing };
    let order = if writes { [1, 2, 0] } else { STREAMS };
    let likely = order.into_iter().find(|number| among.contains(number)).unwrap_or_default();
    let stream = |fd: i32| match copies.iter().position(|copy| *copy == fd) {
        None => fd,
        Some(at) if copies.len() == missing.len() => missing.get(at).copied().unwrap_or(likely),
        Some(_) => likely,
    };
    own.iter().map(|fd| stream(*fd)).collect()
}

/// Whether a description with these flags may write.
fn may_write(flags: u32) -> bool {
    flags & 3 != 0
}

/// All descriptors that lead to standard streams.
pub fn uses(record: &ProcessRecord) -> Vec<Use> {
    let mut uses = Vec::new();
    for (index, description) in (0..).zip(&record.files.descriptions) {
        let given = numbers(record, index);
        if given.is_empty() {
            continue;
        }
        for (process, one) in record.processes().enumerate() {
            let own = one.files.descriptors.iter().filter(|own| own.description == index);
            let mut own: Vec<i32> = own.map(|own| own.fd).collect();
            own.sort_unstable();
            let streams = streams_of(&own, &given, may_write(description.flags));
            let one = own.into_iter().zip(streams);
            uses.extend(one.map(|(fd, number)| Use { process, fd, description: index, number }));
        }
    }
    uses
}

/// Has the restart's own descriptors in place of what leads outside, and of what is switched. Returns files that no
/// process has any more, as they were open for writing: their length is put back all the same.
pub fn apply(record: &mut ProcessRecord, switches: &[Switch]) -> Vec<Description> {
    let uses = uses(record);
    let mut left = Vec::new();
    for index in 0..u32::try_from(record.files.descriptions.len()).unwrap_or(0) {
        let Some(was) = record.files.descriptions.get(index as usize).cloned() else { break };
        let target = |process: usize, fd: i32| {
            let own = uses.iter().find(|own| (own.process, own.fd) == (process, fd));
            let number = own.map(|own| own.number);
            let switch = switches.iter().find(|one| (one.description, one.number) == (index, number));
            let outside = matches!(was.object, Object::Inherited { .. });
            switch.map(|switch| switch.from).or(number.filter(|_| outside))
        };
        let mut targets = Vec::new();
        for (process, one) in record.processes().enumerate() {
            let own = one.files.descriptors.iter().enumerate();
            let own = own.filter(|(_, descriptor)| descriptor.description == index);
            targets.extend(own.map(|(at, descriptor)| (process, at, target(process, descriptor.fd))));
        }
        let all = !targets.is_empty() && targets.iter().all(|(_, _, target)| target.is_some());
        replace(record, (index, &was), &targets, all);
        if matches!(was.object, Object::Regular { .. }) && all {
            leave(record, was, switches.iter().filter(|one| one.description == index), &mut left);
        }
    }
    left
}

/// A file that all its descriptors have left.
fn leave<'a>(
    record: &mut ProcessRecord,
    was: Description,
    mut switches: impl Iterator<Item = &'a Switch>,
    left: &mut Vec<Description>,
) {
    if switches.any(|switch| switch.whole) {
        record.files.contents.retain(|content| !was.object.is_saved_as(content));
    } else if may_write(was.flags) {
        left.push(was);
    }
}

/// Has descriptors lead to their targets, by descriptions that are made for that; the first takes the place of the old
/// one if that has no descriptor any more.
fn replace(
    record: &mut ProcessRecord,
    (index, was): (u32, &Description),
    targets: &[(usize, usize, Option<i32>)],
    all: bool,
) {
    let mut made: Vec<(i32, u32)> = Vec::new();
    for &(process, at, target) in targets {
        let Some(from) = target else { continue };
        let known = made.iter().find(|(other, _)| *other == from).map(|(_, index)| *index);
        let new = known.unwrap_or_else(|| {
            let own = of_restart(was, from);
            let all_descriptions = &mut record.files.descriptions;
            let place = all_descriptions.get_mut(index as usize).filter(|_| all && made.is_empty());
            let new = match place {
                Some(place) => {
                    *place = own;
                    index
                }
                None => {
                    all_descriptions.push(own);
                    u32::try_from(all_descriptions.len() - 1).unwrap_or(u32::MAX)
                }
            };
            made.push((from, new));
            new
        });
        let table = if process == 0 {
            Some(&mut record.files)
        } else {
            record.others.get_mut(process - 1).map(|other| &mut other.files)
        };
        if let Some(descriptor) = table.and_then(|table| table.descriptors.get_mut(at)) {
            descriptor.description = new;
        }
    }
}

/// The restart's descriptor, in place of another.
fn of_restart(was: &Description, from: i32) -> Description {
    const NONBLOCK: u32 = 0o4000;
    let (name, outside) = match &was.object {
        Object::Inherited { was, .. } => (was.clone(), true),
        Object::Regular { path, .. } | Object::Device { path } => (path.clone(), false),
        _ => Default::default(),
    };
    Description {
        // Of a file the flag means nothing, and others have what it would be set on.
        flags: if outside { was.flags } else { was.flags & !NONBLOCK },
        object: Object::Inherited { from, was: name },
        locks: Vec::new(),
        owner: was.owner.filter(|_| outside),
        streams: was.streams,
        within: None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bytes::Name;
    use crate::files::Descriptor;
    use crate::testing::empty_record;

    fn outside(from: i32, streams: u8) -> Description {
        let object = Object::Inherited { from, was: Name::from("/dev/pts/1") };
        Description { flags: 2, object, locks: Vec::new(), owner: None, streams, within: None }
    }

    fn file(path: &str, streams: u8) -> Description {
        let object = Object::Regular {
            path: Name::from(path),
            position: 7,
            size: 7,
            device: 1,
            inode: 2,
            mtime_ns: 0,
            born_ns: None,
            now: None,
            mode: 0o600,
            owner: None,
            deleted_content: None,
        };
        Description { flags: 0o102_001, object, locks: Vec::new(), owner: None, streams, within: None }
    }

    fn record(descriptions: Vec<Description>, descriptors: &[(i32, u32)]) -> ProcessRecord {
        let mut record = empty_record();
        record.files.descriptions = descriptions;
        let descriptor = |&(fd, description)| Descriptor { fd, cloexec: false, description };
        record.files.descriptors = descriptors.iter().map(descriptor).collect();
        record
    }

    fn leads(record: &ProcessRecord) -> Vec<(i32, i32)> {
        let from = |descriptor: &Descriptor| {
            let object = &record.files.descriptions[descriptor.description as usize].object;
            let from = if let Object::Inherited { from, .. } = object { *from } else { -1 };
            (descriptor.fd, from)
        };
        record.files.descriptors.iter().map(from).collect()
    }

    #[test]
    fn switches_survive_the_command_line() {
        for number in [None, Some(0), Some(2)] {
            let switch = Switch { description: 3, number, from: 2, whole: number.is_none() };
            assert_eq!(switch.to_string().parse(), Ok(switch));
        }
        for text in ["", "1:2:1", "1:3:1:0", "1:1:3:0", "-1:1:1:0", "1:1:1:2", "1:1:1:0:0", "x:1:1:1"] {
            assert!(text.parse::<Switch>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_terminal_that_is_all_three_becomes_three() {
        for streams in [0, 7] {
            // 255: as bash keeps its terminal.
            let mut record = record(vec![outside(0, streams)], &[(0, 0), (1, 0), (2, 0), (255, 0)]);
            assert!(apply(&mut record, &[]).is_empty());
            assert_eq!(leads(&record), [(0, 0), (1, 1), (2, 2), (255, 1)]);
            assert_eq!(record.files.descriptions.len(), 3);
        }
    }

    #[test]
    fn what_a_shell_keeps_elsewhere_is_known_by_what_is_missing() {
        let of = |own: &[(i32, u32)]| {
            let mut record = record(vec![outside(0, 7), file("/x", 0)], own);
            apply(&mut record, &[]);
            leads(&record)
        };
        assert_eq!(of(&[(0, 0), (1, 1), (2, 0), (10, 0)])[3], (10, 1));
        assert_eq!(of(&[(0, 1), (1, 0), (2, 0), (10, 0)])[3], (10, 0));
        assert_eq!(of(&[(0, 0), (1, 1), (2, 1), (10, 0), (11, 0)])[3..], [(10, 1), (11, 2)]);
    }

    #[test]
    fn files_are_left_number_by_number() {
        let both = || record(vec![file("/a", 6)], &[(1, 0), (2, 0), (10, 0)]);
        let switch = |number, whole| Switch { description: 0, number: Some(number), from: number, whole };
        let mut one = both();
        assert!(apply(&mut one, &[switch(2, false)]).is_empty(), "descriptor 1 has it still");
        assert_eq!(leads(&one), [(1, -1), (2, 2), (10, -1)]);
        let mut all = both();
        let left = apply(&mut all, &[switch(1, false), switch(2, false)]);
        assert_eq!((left.len(), leads(&all)), (1, vec![(1, 1), (2, 2), (10, 1)]));
        let mut whole = both();
        assert!(apply(&mut whole, &[switch(1, true), switch(2, true)]).is_empty());
        let mut own = record(vec![file("/a", 0)], &[(5, 0)]);
        let joined = Switch { description: 0, number: None, from: 2, whole: true };
        assert!(apply(&mut own, &[switch(1, false)]).is_empty());
        assert_eq!(leads(&own), [(5, -1)]);
        apply(&mut own, &[joined]);
        assert_eq!(leads(&own), [(5, 2)]);
    }
}
