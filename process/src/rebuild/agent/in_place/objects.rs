//! What the processes have open: whether it is what they had open, and what of it is put back in the agent.
//!
//! [`obstacles`] is pure but for the lengths of files. [`put_back`] works on duplicates of the descriptors, which share
//! offset and flags with those of the processes. What needs calls of the processes themselves (close-on-exec, timers)
//! is in [`super::state`]; what is in files is put back as at a restart ([`super::restore`]).

use super::compare::Pair;
use crate::rebuild::error::RebuildError;
use crate::rebuild::file_role::{Role, may_write};
use holdfast_image::bytes::Name;
use holdfast_image::record::{Description, FileLock, FileTable, LockKind, Object, ProcessRecord};
use holdfast_image::refusal::{Refusal, Subject};
use holdfast_sys::fd;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;

/// What fcntl(2) can change of a description (fs/fcntl.c, SETFL_MASK).
const SETTABLE: u32 =
    (libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC).cast_unsigned();
/// A semaphore of eventfd(2) gives its count one by one.
const MOST_TICKS: u64 = 4096;

/// Everything that is open otherwise than in the image, and cannot be put back.
pub fn obstacles(now: &ProcessRecord, then: &ProcessRecord, pairs: &[Pair<'_>]) -> Vec<Refusal> {
    let mut found = Vec::new();
    // Which description of now is which of then: what several descriptors share they must share still.
    let (mut forth, mut back) = (BTreeMap::new(), BTreeMap::new());
    for pair in pairs {
        let own = descriptors(pair, (&now.files, &then.files), &mut forth, &mut back);
        found.extend(own.into_iter().map(|refusal| pair.named(refusal, pairs.len() > 1)));
    }
    found.extend(of_job(now, then));
    found
}

/// Things that belong to the job as a whole.
fn of_job(now: &ProcessRecord, then: &ProcessRecord) -> Vec<Refusal> {
    let (is, was) = (&now.files, &then.files);
    let mut found = Vec::new();
    let mut differs = |differs: bool, what: &str| {
        if differs {
            let comm = then.threads.first().map(|leader| leader.comm.to_string()).unwrap_or_default();
            let subject = Subject::Process { pid: then.pid, comm };
            found.push(Refusal { subject, reason: what.to_owned() });
        }
    };
    let ids = |table: &FileTable| -> Vec<i32> { table.segments.iter().map(|segment| segment.id).collect() };
    differs(
        ids(is) != ids(was) || is.segment_contents != was.segment_contents,
        "its System V shared memory is another one now, or what is in it and attached nowhere has changed",
    );
    differs(is.ipc != was.ipc, "its System V semaphores or messages are not as they were");
    differs(is.ptys != was.ptys, "its pseudo-terminals, or what waits in them, are not as they were");
    differs(
        now.processes().zip(then.processes()).any(|(is, was)| is.files.controlling != was.files.controlling),
        "its controlling terminal is another one",
    );
    differs(is.queues != was.queues, "its message queues, or what waits in them, are not as they were");
    for file in &was.nameless {
        let same = is.nameless.iter().find(|other| other.inode == file.inode && other.kind == file.kind);
        let is_same = same.is_some_and(|other| {
            (other.size, other.seals, &other.content) == (file.size, file.seals, &file.content)
        });
        differs(!is_same, &format!("{} (a file without a name) was written since, or closed", file.name));
    }
    found
}

/// The descriptors of one process.
fn descriptors(
    pair: &Pair<'_>,
    (is, was): (&FileTable, &FileTable),
    forth: &mut BTreeMap<u32, u32>,
    back: &mut BTreeMap<u32, u32>,
) -> Vec<Refusal> {
    let all = |record: &ProcessRecord, once: &FileTable| -> BTreeMap<i32, u32> {
        let own =
            |index: u32| once.descriptions.get(index as usize).is_none_or(|one| one.object == Object::Own);
        let all = record.files.descriptors.iter().filter(|one| !own(one.description));
        all.map(|one| (one.fd, one.description)).collect()
    };
    let (now, then) = (all(pair.now, is), all(pair.then, was));
    let mut found = Vec::new();
    let mut refuse = |fd: i32, one: Option<&Description>, reason: String| {
        let name = one.map(|one| name(&one.object)).unwrap_or_default();
        found.push(Refusal { subject: Subject::Descriptor { fd, name }, reason });
    };
    for (fd, index) in &now {
        if !then.contains_key(fd) {
            refuse(*fd, is.descriptions.get(*index as usize), "it was opened since".into());
        }
    }
    for (fd, index) in &then {
        let before = was.descriptions.get(*index as usize);
        let Some(now_index) = now.get(fd) else {
            refuse(*fd, before, "it was closed since".into());
            continue;
        };
        let (Some(is_one), Some(was_one)) = (is.descriptions.get(*now_index as usize), before) else {
            continue;
        };
        let known = (*forth.entry(*now_index).or_insert(*index), *back.entry(*index).or_insert(*now_index));
        if known != (*index, *now_index) {
            refuse(*fd, before, "it was closed since and is a duplicate of another descriptor now".into());
        } else if let Some(reason) = obstacle((is, is_one), (was, was_one)) {
            refuse(*fd, before, reason);
        } else if !are_passed_alike((is, is_one), (was, was_one), forth, back) {
            refuse(
                *fd,
                before,
                "other descriptors are in messages in it, or they lead to what has changed".into(),
            );
        }
    }
    found
}

/// Whether the descriptors in messages that wait are those that did: what leads nowhere else must be as it was.
fn are_passed_alike(
    (is, is_one): (&FileTable, &Description),
    (was, was_one): (&FileTable, &Description),
    forth: &mut BTreeMap<u32, u32>,
    back: &mut BTreeMap<u32, u32>,
) -> bool {
    let (now, then): (Vec<u32>, Vec<u32>) =
        (is_one.object.passed().collect(), was_one.object.passed().collect());
    let mut pairs = now.iter().zip(&then);
    now.len() == then.len()
        && pairs.all(|(now, then)| {
            let is_new = !forth.contains_key(now) && !back.contains_key(then);
            let known = (*forth.entry(*now).or_insert(*then), *back.entry(*then).or_insert(*now));
            let of = |table: &'_ FileTable, index: u32| table.descriptions.get(index as usize).cloned();
            known == (*then, *now) && (!is_new || of(is, *now) == of(was, *then))
        })
}

/// What an object is called in a refusal.
fn name(object: &Object) -> String {
    match object {
        Object::Regular { path, .. }
        | Object::Directory { path, .. }
        | Object::Device { path }
        | Object::Link { path, .. }
        | Object::RemovedFolder { path, .. } => path.to_string(),
        Object::ProcessFile { pid, rest, .. } => format!("/proc/{pid}{rest}"),
        Object::Inherited { was, .. } => was.to_string(),
        Object::Inside { .. } => "a file of a mount namespace".into(),
        Object::Nameless { .. } => "a file without a name".into(),
        Object::PtyMaster { .. } | Object::PtySlave { .. } => "pseudo-terminal".into(),
        Object::Pipe { path: Some(path), .. } => path.to_string(),
        Object::Pipe { .. } => "pipe".into(),
        Object::SocketPair { .. } | Object::Socket(_) => "socket".into(),
        Object::EventFd { .. } => "eventfd".into(),
        Object::Epoll { .. } => "epoll".into(),
        Object::TimerFd { .. } => "timerfd".into(),
        Object::SignalFd { .. } => "signalfd".into(),
        Object::Inotify { .. } => "inotify".into(),
        Object::PidFd { pid, .. } => format!("pidfd of process {pid}"),
        Object::MessageQueue { .. } => "message queue".into(),
        Object::Own => "libholdfast".into(),
    }
}

/// Why a description cannot become what it was.
fn obstacle(
    (is, now): (&FileTable, &Description),
    (was, then): (&FileTable, &Description),
) -> Option<String> {
    if (now.flags & !SETTABLE) != (then.flags & !SETTABLE) {
        return Some("it was closed since and opened anew in another way".into());
    }
    let sorted = |locks: &[FileLock]| {
        let mut locks: Vec<String> = locks.iter().map(|lock| format!("{lock:?}")).collect();
        locks.sort();
        locks
    };
    if sorted(&now.locks) != sorted(&then.locks) {
        return Some("its locks are not as they were".into());
    }
    if then.locks.iter().any(|lock| lock.kind == LockKind::Lease) {
        return Some("it has a lease (F_SETLEASE), which putting files back would break".into());
    }
    if now.owner != then.owner {
        return Some("who gets its signals (F_SETOWN) is not as it was".into());
    }
    of_objects((is, &now.object), (was, then))
}

fn of_objects((is, now): (&FileTable, &Object), (was, then): (&FileTable, &Description)) -> Option<String> {
    let another = || Some("it was closed since, and leads to something else now".into());
    match (now, &then.object) {
        (
            Object::Regular { path, device, inode, size, .. },
            Object::Regular { path: old, device: was_device, inode: was_inode, size: was_size, .. },
        ) => {
            if (device, inode) != (was_device, was_inode) {
                return another();
            }
            if path != old {
                return Some(format!("it was renamed since, to {path}: give it its old name"));
            }
            shrunk((was, then), (path, *size, *was_size))
        }
        (Object::Nameless { file, .. }, Object::Nameless { file: old, .. }) => {
            let inode = |table: &FileTable, file: u32| Some(table.nameless.get(file as usize)?.inode);
            if inode(is, *file) == inode(was, *old) { None } else { another() }
        }
        (Object::Directory { path, inode, .. }, Object::Directory { path: old, inode: was_inode, .. }) => {
            if (path, inode) == (old, was_inode) { None } else { another() }
        }
        (Object::EventFd { count, semaphore }, Object::EventFd { semaphore: old, .. }) => {
            let long = *semaphore && *count > MOST_TICKS;
            if semaphore == old && !long { None } else { another() }
        }
        (Object::TimerFd { clock, .. }, Object::TimerFd { clock: old, .. }) => {
            if clock == old {
                None
            } else {
                another()
            }
        }
        (Object::Pipe { data, pipe, .. }, Object::Pipe { data: old, pipe: was_pipe, .. })
            if pipe == was_pipe && data != old =>
        {
            Some(format!("{} bytes wait in it now, and {} others did then", data.0.len(), old.0.len()))
        }
        (Object::SocketPair { data, pair, .. }, Object::SocketPair { data: old, pair: was_pair, .. })
            if pair == was_pair && data != old =>
        {
            Some(format!("{} messages wait in it now, and {} others did then", data.len(), old.len()))
        }
        (Object::Epoll { entries }, Object::Epoll { entries: old }) if entries != old => {
            Some("it watches other descriptors than it did".into())
        }
        (Object::Socket(_), Object::Socket(_)) if now != &then.object => {
            Some("it is not as it was: connected, shut down, or with other data or options".into())
        }
        (now, then) if now == then => None,
        (now, then) if std::mem::discriminant(now) == std::mem::discriminant(then) => {
            Some("it is not as it was".into())
        }
        _ => another(),
    }
}

/// A file that has lost what the program would write behind, by the rule of a restart.
fn shrunk((table, then): (&FileTable, &Description), (path, _, was): (&Name, u64, u64)) -> Option<String> {
    let role = Role::of(table, &then.object);
    if !may_write(then.flags) || role == Role::Saved || role == Role::Appended {
        return None;
    }
    let now = fs::metadata(path.as_path()).map_or(0, |now| now.len());
    (now < was).then(|| {
        format!(
            "it has {now} bytes now, and had {was}; what is missing is in no image (`holdfast run --save-files=SIZE` \
             saves it)"
        )
    })
}

/// Puts offset, flags and counters back. `file`: a duplicate of a descriptor of the description.
///
/// # Errors
/// Names what could not be put back.
pub fn put_back(now: &Description, then: &Description, file: &mut File) -> Result<(), RebuildError> {
    let failed = |what: &str| RebuildError::io(format!("putting back {what} of {}", name(&then.object)));
    if now.flags & SETTABLE != then.flags & SETTABLE {
        let flags = i64::from(then.flags & SETTABLE);
        fd::fcntl(file.as_fd(), libc::F_SETFL, flags).map_err(failed("the flags"))?;
    }
    match (&now.object, &then.object) {
        (Object::Regular { position: now, .. }, Object::Regular { position, .. })
        | (Object::Nameless { position: now, .. }, Object::Nameless { position, .. })
        | (Object::Directory { position: now, .. }, Object::Directory { position, .. })
            if now != position =>
        {
            file.seek(SeekFrom::Start(*position)).map(drop).map_err(failed("the offset"))
        }
        (Object::EventFd { count, semaphore }, Object::EventFd { count: old, .. }) if count != old => {
            set_count(file, (*count, *old), *semaphore).map_err(failed("the counter"))
        }
        _ => Ok(()),
    }
}

fn set_count(file: &mut File, (now, then): (u64, u64), semaphore: bool) -> io::Result<()> {
    let reads = if now == 0 {
        0
    } else if semaphore {
        now
    } else {
        1
    };
    for _ in 0..reads {
        file.read_exact(&mut [0; 8])?;
    }
    if then > 0 { file.write_all(&then.to_ne_bytes()) } else { Ok(()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::{Folder, record};
    use holdfast_image::bytes::Blob;
    use holdfast_image::record::Descriptor;
    use holdfast_image::testing::regular;

    fn description(flags: i32, object: Object) -> Description {
        Description {
            flags: flags.cast_unsigned(),
            object,
            locks: Vec::new(),
            owner: None,
            streams: 0,
            within: None,
        }
    }

    fn with(descriptors: &[(i32, u32)], descriptions: Vec<Description>) -> ProcessRecord {
        let mut record = record(Vec::new());
        record.files.descriptors = descriptors
            .iter()
            .map(|&(fd, description)| Descriptor { fd, cloexec: false, description })
            .collect();
        record.files.descriptions = descriptions;
        record
    }

    fn said(now: &ProcessRecord, then: &ProcessRecord) -> Vec<String> {
        let pairs = [Pair { pid: 1, now, then }];
        obstacles(now, then, &pairs).iter().map(ToString::to_string).collect()
    }

    fn event(count: u64) -> Description {
        description(libc::O_RDWR, Object::EventFd { count, semaphore: false })
    }

    fn pipe(data: &[u8]) -> Description {
        let data = Blob(data.to_vec());
        let (path, packets, inode) = (None, Vec::new(), None);
        let object =
            Object::Pipe { pipe: 9, capacity: 65536, data, path, mode: 0, packets, deleted: false, inode };
        description(libc::O_RDONLY, object)
    }

    #[test]
    fn descriptors_must_be_those_of_the_image() {
        let then = with(&[(0, 0), (5, 1)], vec![event(0), event(7)]);
        assert_eq!(said(&then, &then), [""; 0]);
        let counted = with(&[(0, 0), (5, 1)], vec![event(9), event(0)]);
        assert_eq!(said(&counted, &then), [""; 0], "a counter is put back");
        let found = said(&with(&[(0, 0), (6, 1)], vec![event(0), event(7)]), &then);
        assert!(found.len() == 2 && found[0].contains("fd 6") && found[1].contains("fd 5"), "{found:?}");
        let found = said(&with(&[(0, 0), (5, 0)], vec![event(0)]), &then);
        assert!(found.len() == 1 && found[0].contains("duplicate"), "{found:?}");
        let other = description(libc::O_RDONLY, Object::Device { path: Name::from("/dev/null") });
        let found = said(&with(&[(0, 0), (5, 1)], vec![event(0), other]), &then);
        assert!(found.len() == 1 && found[0].contains("closed since"), "{found:?}");
    }

    #[test]
    fn what_is_on_its_way_is_refused_unless_it_is_the_same() {
        let then = with(&[(3, 0)], vec![pipe(b"abc")]);
        assert_eq!(said(&with(&[(3, 0)], vec![pipe(b"abc")]), &then), [""; 0]);
        let found = said(&with(&[(3, 0)], vec![pipe(b"")]), &then);
        assert!(found.len() == 1 && found[0].contains("0 bytes wait in it now, and 3 others"), "{found:?}");
    }

    #[test]
    fn a_file_is_known_by_its_inode_and_must_have_its_name_and_length() {
        let folder = Folder::new("in-place");
        let path = folder.0.join("data");
        fs::write(&path, b"0123456789").unwrap();
        let is = fs::metadata(&path).unwrap();
        let file = |size| description(libc::O_RDWR, regular(&path, &is, size));
        let then = with(&[(3, 0)], vec![file(10)]);
        assert_eq!(said(&with(&[(3, 0)], vec![file(99)]), &then), [""; 0]);
        fs::write(&path, b"0123").unwrap();
        assert!(said(&then, &then)[0].contains("4 bytes now, and had 10"));
        let mut moved = file(10);
        let Object::Regular { path, .. } = &mut moved.object else { unreachable!() };
        *path = Name::from("/elsewhere");
        assert!(said(&with(&[(3, 0)], vec![moved]), &then)[0].contains("renamed"));
    }

    #[test]
    fn offset_flags_and_counter_come_back() {
        let folder = Folder::new("in-place-offset");
        let path = folder.0.join("data");
        fs::write(&path, b"0123456789").unwrap();
        let mut file = File::options().read(true).append(true).open(&path).unwrap();
        let is = file.metadata().unwrap();
        let mut then = description(libc::O_RDWR, regular(&path, &is, 10));
        if let Object::Regular { position, .. } = &mut then.object {
            *position = 4;
        }
        let now = description(libc::O_RDWR | libc::O_APPEND, regular(&path, &is, 10));
        put_back(&now, &then, &mut file).unwrap();
        assert_eq!(file.stream_position().unwrap(), 4);
        file.write_all(b"x").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"0123x56789", "it does not append any more");
    }
}
