//! System V semaphores and message queues: their values and messages.
//!
//! Called by the cut inside the stop, and by `check`. Which of them a process uses only libholdfast knows, from the
//! calls that it makes (`preload/src/ipc.rs`). Others on the host may use them too: what these do after the cut is
//! lost at a restart, as cannot be known. Fails by: a refusal that names the object.

use super::files::Look;
use super::sysv_shm::is_elsewhere;
use crate::refuse;
use crate::stop::xstate;
use holdfast_abi::SharedPage;
use holdfast_image::bytes::Blob;
use holdfast_image::record::{InjectArea, IpcContent, IpcObject, Message, Ownership};
use holdfast_image::refusal::Refusal;
use holdfast_sys::procmem;
use holdfast_sys::sysv_sem_msg::{self, IpcKind};
use std::collections::BTreeMap;
use std::io;

/// Where the tables of both kinds are in libholdfast's page: the number of entries, then the entries.
pub const PLACES: [(IpcKind, usize); 2] =
    [(IpcKind::Semaphores, SharedPage::SEMAPHORE_COUNT), (IpcKind::Messages, SharedPage::QUEUE_COUNT)];
/// Bytes of a table, and that the entries follow their number.
pub const TABLE_LEN: usize = 8 + SharedPage::IPC_MAX * 8;
const _: () = assert!(
    SharedPage::SEMAPHORE_TABLE == SharedPage::SEMAPHORE_COUNT + 8
        && SharedPage::QUEUE_TABLE == SharedPage::QUEUE_COUNT + 8
        && SharedPage::QUEUE_COUNT == SharedPage::SEMAPHORE_COUNT + TABLE_LEN
);

/// The kind of an object.
pub fn kind_of(about: &IpcObject) -> IpcKind {
    match about.content {
        IpcContent::Semaphores(_) => IpcKind::Semaphores,
        IpcContent::Messages { .. } => IpcKind::Messages,
    }
}

/// A process that may use some.
#[derive(Clone, Copy, Debug)]
pub struct User<'a> {
    /// Its pid.
    pub pid: i32,
    /// Any thread of it that lives.
    pub tid: i32,
    /// Where libholdfast reserved memory, if it did.
    pub area: Option<&'a InjectArea>,
}

/// What cannot be restored, each with the place of its process.
#[derive(Debug)]
pub struct Unreadable {
    /// All.
    pub refusals: Vec<(usize, Refusal)>,
    /// It may be another matter in a moment: semaphores are held with SEM_UNDO, nothing else.
    pub passing: bool,
}

/// The objects that processes use; refusals with the place of the process. A process that runs on ([`Look::Running`])
/// may have become another, or have ended.
///
/// # Errors
/// What cannot be restored.
pub fn used<'a>(processes: impl Iterator<Item = User<'a>>, look: Look) -> Result<Vec<IpcObject>, Unreadable> {
    let (mut found, mut refusals, mut to_be_undone) = (BTreeMap::new(), Vec::new(), Vec::new());
    for (place, User { pid, tid, area }) in processes.enumerate() {
        let page = match area.map(|area| area.shared.0) {
            None => continue,
            Some(0) => {
                refusals.extend(used_by(pid).into_iter().map(|refusal| (place, refusal)));
                continue;
            }
            Some(page) => page,
        };
        match outstanding(tid, page) {
            Ok(reason) => to_be_undone.extend(reason.map(|reason| (place, refuse::process(pid, reason)))),
            Err(error) if look == Look::Running && error.raw_os_error().is_some() => continue,
            Err(error) => refusals.push((place, refuse::process(pid, error))),
        }
        match both_tables(tid, page) {
            Ok(used) if used.is_empty() => {}
            Ok(_) if is_elsewhere(pid) => {
                let reason = "System V semaphores or queues of another IPC namespace: not supported";
                refusals.push((place, refuse::process(pid, reason)));
            }
            Ok(used) => {
                for object in used {
                    found.entry(object).or_insert((place, pid));
                }
            }
            Err(error) if look == Look::Running && error.raw_os_error().is_some() => {}
            Err(error) => refusals.push((place, refuse::process(pid, error))),
        }
    }
    let mut all: Vec<IpcObject> = Vec::new();
    for ((kind, id), (place, pid)) in found {
        match object(kind, id) {
            Ok(object) => all.push(object),
            // It was removed.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIDRM)) => {}
            Err(error) => {
                let reason = format!("System V {kind} {id} cannot be read: {error}");
                refusals.push((place, refuse::process(pid, reason)));
            }
        }
    }
    let passing = refusals.is_empty();
    refusals.append(&mut to_be_undone);
    if refusals.is_empty() { Ok(all) } else { Err(Unreadable { refusals, passing }) }
}

/// What a process without libholdfast was the last to use: nothing could show it another id after a restart.
fn used_by(pid: i32) -> Vec<Refusal> {
    let refusal = |kind: IpcKind, id: i32| {
        refuse::process(
            pid,
            format!("it uses System V {kind} {id}, which is not supported in a program without libholdfast"),
        )
    };
    if is_elsewhere(pid) {
        return Vec::new();
    }
    let mut refusals = Vec::new();
    for kind in [IpcKind::Semaphores, IpcKind::Messages] {
        let all = kind.last_users().unwrap_or_default();
        let own = all.into_iter().filter(|(_, users)| users.contains(&pid));
        refusals.extend(own.map(|(id, _)| refusal(kind, id)));
    }
    refusals
}

/// What the kernel would undo at the end of a process (SEM_UNDO), in the words of a refusal: it could not be given
/// back, and the value that it belongs to would be changed twice. An older libholdfast tells nothing of it.
fn outstanding(tid: i32, page: u64) -> io::Result<Option<String>> {
    const ENTRIES: usize = SharedPage::UNDO_TABLE - SharedPage::UNDO_CALLS;
    let mut bytes = [0; ENTRIES + SharedPage::UNDO_MAX * 8];
    procmem::read(tid, page + SharedPage::UNDO_CALLS as u64, &mut bytes)?;
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (&[calls, lost], entries) = words.split_first_chunk().unwrap_or((&[0; 2], &[]));
    if lost != 0 {
        let most = SharedPage::UNDO_MAX;
        return Ok(Some(format!(
            "it has changed more than {most} System V semaphores with SEM_UNDO: not supported"
        )));
    }
    let adjusted = adjusted(entries).into_iter().find(|(set, _)| IpcKind::Semaphores.facts(*set).is_ok());
    Ok(match adjusted {
        Some((set, number)) => Some(format!(
            "it holds System V semaphore {number} of set {set} with SEM_UNDO, and what the kernel would undo at its \
             end cannot be restored: try again when it has released it"
        )),
        None if calls != 0 => Some(
            "it waits for a System V semaphore with SEM_UNDO, which cannot be restored: try again when it \
             has it no more"
                .to_owned(),
        ),
        None => None,
    })
}

/// The semaphores that have an adjustment: set and number.
fn adjusted(entries: &[u64]) -> Vec<(i32, u16)> {
    let mut sums: BTreeMap<u64, i32> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| **entry != 0) {
        let [low, high, ..] = entry.to_le_bytes();
        *sums.entry(entry >> 16).or_default() += i32::from(i16::from_le_bytes([low, high]));
    }
    let place = |which: u64| ((which >> 16) as u32 as i32, which as u16);
    sums.into_iter().filter(|(_, sum)| *sum != 0).map(|(which, _)| place(which)).collect()
}

/// The kernel's ids of all that a process uses. `page`: libholdfast's.
fn both_tables(tid: i32, page: u64) -> io::Result<Vec<(IpcKind, i32)>> {
    let mut bytes = [0; 2 * TABLE_LEN];
    procmem::read(tid, page + SharedPage::SEMAPHORE_COUNT as u64, &mut bytes)?;
    let mut used = Vec::new();
    for ((kind, _), bytes) in PLACES.iter().zip(bytes.chunks_exact(TABLE_LEN)) {
        used.extend(table(bytes)?.into_iter().map(|(_, kernel)| (*kind, kernel)));
    }
    Ok(used)
}

fn object(kind: IpcKind, id: i32) -> io::Result<IpcObject> {
    let facts = kind.facts(id)?;
    let content = match kind {
        IpcKind::Semaphores => IpcContent::Semaphores(sysv_sem_msg::values(id)?),
        IpcKind::Messages => {
            let message = |(kind, data)| Message { kind, data: Blob(data) };
            let messages = sysv_sem_msg::messages(id)?.into_iter().map(message).collect();
            IpcContent::Messages { room: facts.room, messages }
        }
    };
    let owner = Ownership { user: facts.owner.0, group: facts.owner.1 };
    let (owner, creator) = (Some(owner), Some(facts.creator));
    Ok(IpcObject { id, key: facts.key, mode: facts.mode, owner, creator, content })
}

/// A table of libholdfast's page, [`TABLE_LEN`] bytes: ids that the program knows, each with the kernel's.
///
/// # Errors
/// There are more than it has room for.
pub fn table(bytes: &[u8]) -> io::Result<Vec<(i32, i32)>> {
    let count = usize::try_from(u64::from_le_bytes(xstate::array(bytes, 0))).unwrap_or(usize::MAX);
    if count > SharedPage::IPC_MAX {
        let most = SharedPage::IPC_MAX;
        return Err(io::Error::other(format!(
            "more than {most} System V semaphore sets, or message queues: not supported"
        )));
    }
    let (_, pairs) = bytes.as_chunks::<8>().0.split_first().unwrap_or((&[0; 8], &[]));
    let pair = |&[a, b, c, d, e, f, g, h]: &[u8; 8]| {
        let kernel = u32::from_le_bytes([e, f, g, h]);
        let id = (kernel & !SharedPage::IPC_VALID).cast_signed();
        (kernel != id.cast_unsigned()).then_some((i32::from_le_bytes([a, b, c, d]), id))
    };
    Ok(pairs.iter().take(count).filter_map(pair).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_entries_count_and_too_many_are_refused() {
        let with = |count: u64, pairs: &[(i32, u32)]| {
            let mut page = count.to_le_bytes().to_vec();
            pairs.iter().for_each(|(known, kernel)| {
                page.extend(known.to_le_bytes());
                page.extend(kernel.to_le_bytes());
            });
            page.resize(TABLE_LEN, 0);
            table(&page)
        };
        let valid = SharedPage::IPC_VALID;
        assert_eq!(with(0, &[(1, 1 | valid)]).unwrap(), []);
        assert_eq!(with(3, &[(1, 7 | valid), (0, 0), (0, valid)]).unwrap(), [(1, 7), (0, 0)]);
        assert!(with(SharedPage::IPC_MAX as u64 + 1, &[]).unwrap_err().to_string().contains("126"));
        assert!(with(u64::MAX, &[]).is_err());
    }

    #[test]
    fn adjustments_of_one_semaphore_add_up() {
        let entry = |set: u64, number: u64, by: i16| set << 32 | number << 16 | u64::from(by.cast_unsigned());
        let all = [entry(7, 2, 1), 0, entry(7, 2, -1), entry(8, 0, -5), entry(0, 1, 1), entry(0, 1, 1)];
        assert_eq!(adjusted(&all), [(0, 1), (8, 0)]);
        assert!(adjusted(&[]).is_empty());
    }

    #[test]
    fn an_object_is_read_with_all_that_is_in_it() {
        let set = IpcKind::Semaphores.create(libc::IPC_PRIVATE, 0o600, 2).unwrap();
        sysv_sem_msg::set_values(set, &[4, 5]).unwrap();
        assert_eq!(object(IpcKind::Semaphores, set).unwrap().content, IpcContent::Semaphores(vec![4, 5]));
        IpcKind::Semaphores.remove(set).unwrap();
        assert!(object(IpcKind::Semaphores, set).is_err());
        let queue = IpcKind::Messages.create(libc::IPC_PRIVATE, 0o600, 0).unwrap();
        sysv_sem_msg::send(queue, 9, b"text").unwrap();
        let content = object(IpcKind::Messages, queue).unwrap().content;
        let messages = vec![Message { kind: 9, data: Blob(b"text".to_vec()) }];
        assert_eq!(
            content,
            IpcContent::Messages { room: IpcKind::Messages.facts(queue).unwrap().room, messages }
        );
        IpcKind::Messages.remove(queue).unwrap();
    }
}
