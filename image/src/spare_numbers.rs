//! At which numbers a restart keeps descriptors besides the program's own, from the record alone.
//!
//! A restart makes every open file of the job in the first process, at numbers that no process has, and puts each in
//! place from there. These lie above all of the program's where RLIMIT_NOFILE allows that, else in the first gap that
//! is large enough: some programs keep their files right below the limit (valgrind). Called by both halves of a
//! restart, which must find the same numbers, and at a checkpoint and by `check`, which refuse what has none.
//! Invariants: pure; no overflow, however hostile the record is.

use crate::files::{FileTable, Object, SocketState};
use crate::record::{Backing, ProcessRecord};
use std::collections::BTreeSet;

/// RLIMIT_NOFILE (asm-generic/resource.h).
const RLIMIT_NOFILE: u32 = 7;
/// Pairs in the making, folders, ends of sockets to the agent and the front.
const SPARE: i64 = 64;
/// What a process has open when it begins: standard streams, its own sockets.
const AT_FIRST: i64 = 16;
/// No descriptor may be larger (fs/file.c, sysctl_nr_open_max); a hostile record may have any.
const LARGEST: i64 = 1 << 30;

/// Numbers from `first` on, but for `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpareNumbers {
    /// The first. No process has it, nor the next ones.
    pub first: i32,
    /// The first behind them that a process has; `i32::MAX`: none has.
    pub end: i32,
    /// The least RLIMIT_NOFILE with which a restart can have them, and the program its own.
    pub limit: u64,
}

/// How much there is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpenNumbers {
    /// Of all processes.
    used: BTreeSet<i32>,
    /// What is kept while the processes are made.
    kept: i64,
    /// What is open besides until all is made: both ends of pipes and connections.
    passing: i64,
    /// The largest number under which a file is watched that has another one by now: it has it again for a moment.
    watched: i64,
}

impl OpenNumbers {
    /// Of the tables of all processes, the first of which has all descriptions. `shared`: pieces of shared memory.
    pub fn of<'a>(tables: impl IntoIterator<Item = &'a FileTable>, shared: usize) -> OpenNumbers {
        let mut open = OpenNumbers::default();
        let (mut kept, mut pairs) = (2 * shared, BTreeSet::new());
        for table in tables {
            open.used.extend(table.descriptors.iter().map(|descriptor| descriptor.fd));
            kept +=
                table.descriptions.len() + 2 * table.nameless.len() + table.ptys.len() + table.queues.len();
            pairs.extend(table.descriptions.iter().filter_map(|description| pair(&description.object)));
            let watched =
                table.descriptions.iter().filter_map(|description| watched(&description.object)).max();
            open.watched = open.watched.max(watched.map_or(0, i64::from).min(LARGEST));
        }
        open.kept = i64::try_from(kept).unwrap_or(LARGEST).min(LARGEST);
        open.passing = 2 * i64::try_from(pairs.len()).unwrap_or(LARGEST).min(LARGEST);
        open
    }

    /// Where. `hard`: the limit of the program, if it is known.
    pub fn spare(&self, hard: Option<u64>) -> SpareNumbers {
        let place = self.place(hard);
        SpareNumbers { limit: place.limit.max((self.watched + 1).unsigned_abs()), ..place }
    }

    fn place(&self, hard: Option<u64>) -> SpareNumbers {
        let highest = self.used.last().map_or(2, |last| i64::from(*last).clamp(2, LARGEST));
        let at = |first: i64, end: i64| SpareNumbers {
            first: i32::try_from(first).unwrap_or(i32::MAX),
            end: i32::try_from(end).unwrap_or(i32::MAX),
            limit: (first + self.needed(first)).max(highest + 1).unsigned_abs(),
        };
        let above = at(highest + 1, i64::MAX);
        if hard.is_none_or(|hard| above.limit <= hard) {
            return above;
        }
        let mut first = 3;
        for &used in self.used.range(3..) {
            if i64::from(used) - first >= self.needed(first) {
                return at(first, i64::from(used));
            }
            first = i64::from(used) + 1;
        }
        above
    }

    /// How many numbers from `first` on.
    fn needed(&self, first: i64) -> i64 {
        // Nothing of the program is below that yet.
        self.kept + SPARE + (self.passing - (first - AT_FIRST).max(0)).max(0)
    }
}

/// The largest number under which an epoll instance watches what has another one by now.
fn watched(object: &Object) -> Option<i32> {
    let Object::Epoll { entries } = object else { return None };
    entries.iter().filter(|entry| entry.description.is_some()).map(|entry| entry.fd).max()
}

/// The number of what is made with both ends.
fn pair(object: &Object) -> Option<(u8, u64)> {
    match object {
        Object::Pipe { pipe, .. } => Some((0, *pipe)),
        Object::SocketPair { pair, .. } => Some((1, *pair)),
        Object::Socket(socket) => match &socket.state {
            SocketState::Connected { connection, .. } => Some((2, *connection)),
            // It comes from the agent.
            SocketState::Member { connection, .. } => {
                let number = connection.0.first_chunk().copied().map_or(0, u64::from_le_bytes);
                Some((3, number))
            }
            _ => None,
        },
        _ => None,
    }
}

/// Those of a job.
pub fn of(record: &ProcessRecord) -> SpareNumbers {
    let regions = record.processes().flat_map(|process| &process.regions);
    let shared = regions.filter_map(|region| match region.backing {
        Backing::SharedAnonymous { object, .. } => Some(object),
        _ => None,
    });
    let shared: BTreeSet<u64> = shared.collect();
    let hard = record.limits.iter().find(|limit| limit.resource == RLIMIT_NOFILE).map(|limit| limit.hard);
    OpenNumbers::of(record.processes().map(|process| &process.files), shared.len()).spare(hard)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::files::{Description, Descriptor};

    fn table(numbers: impl IntoIterator<Item = i32>) -> FileTable {
        let descriptor = |fd| Descriptor { fd, cloexec: false, description: 0 };
        let object = Object::EventFd { count: 0, semaphore: false };
        let one = Description { flags: 2, object, locks: Vec::new(), owner: None, streams: 0, within: None };
        FileTable {
            descriptors: numbers.into_iter().map(descriptor).collect(),
            descriptions: vec![one],
            ..FileTable::default()
        }
    }

    #[test]
    fn they_lie_above_all_where_the_limit_allows_it() {
        let open = OpenNumbers::of([&table([0, 1, 2, 9])], 0);
        let expected = SpareNumbers { first: 10, end: i32::MAX, limit: 10 + 1 + 64 };
        assert_eq!((open.spare(None), open.spare(Some(75))), (expected, expected));
        assert_eq!(OpenNumbers::default().spare(None).first, 3);
    }

    #[test]
    fn they_lie_in_a_gap_where_files_are_right_below_the_limit() {
        let open = OpenNumbers::of([&table([0, 1, 2, 5, 1020, 1023]), &table([7])], 1);
        let expected = SpareNumbers { first: 8, end: 1020, limit: 1024 };
        assert_eq!(open.spare(Some(1024)), expected);
    }

    #[test]
    fn where_there_is_no_gap_the_limit_says_so() {
        let open = OpenNumbers::of([&table(0..1000)], 0);
        assert_eq!(open.spare(Some(1024)), SpareNumbers { first: 1000, end: i32::MAX, limit: 1065 });
        let hostile = OpenNumbers::of([&table([i32::MIN, -1, i32::MAX])], usize::MAX / 4);
        assert!(hostile.spare(Some(0)).limit > 1 << 30);
    }
}
