//! System V semaphores and message queues (sysvipc(7)).
//!
//! # Safety
//! Calls take numbers, and arrays and structures that live across them with room for all that the kernel writes: the
//! number of semaphores of a set never changes, and no message is longer than asked for.
#![allow(unsafe_code)]

use crate::check;
use std::fmt;
use std::io;

/// Commands of semctl(2) (include/uapi/linux/sem.h).
const GETPID: i32 = 11;
const GETALL: i32 = 13;
const SETALL: i32 = 17;
/// Of msgrcv(2): leave the message where it is; its number is given instead of its type.
const MSG_COPY: i32 = 0o40000;

/// What the kernel knows of a semaphore set or a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpcFacts {
    /// Key; 0: IPC_PRIVATE.
    pub key: i32,
    /// Permission bits.
    pub mode: u32,
    /// Number of semaphores, or of messages.
    pub count: usize,
    /// Bytes that a queue may hold.
    pub room: u64,
    /// User and group that own it.
    pub owner: (u32, u32),
    /// The user that has made it, who may do what the owner may.
    pub creator: u32,
}

/// What its owner may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpcSettings {
    /// Permission bits.
    pub mode: u32,
    /// Bytes that a queue may hold.
    pub room: u64,
    /// User and group that are to own it; `None`: those that do.
    pub owner: Option<(u32, u32)>,
}

/// Semaphore sets or queues: their calls are alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum IpcKind {
    /// Semaphore sets.
    Semaphores,
    /// Message queues.
    Messages,
}

impl fmt::Display for IpcKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IpcKind::Semaphores => "semaphore set",
            IpcKind::Messages => "message queue",
        })
    }
}

fn set_status(id: i32) -> io::Result<libc::semid_ds> {
    // SAFETY: all-zero bytes are a valid semid_ds.
    let mut facts: libc::semid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one semid_ds.
    check(i64::from(unsafe { libc::semctl(id, 0, libc::IPC_STAT, &raw mut facts) }))?;
    Ok(facts)
}

fn queue_status(id: i32) -> io::Result<libc::msqid_ds> {
    // SAFETY: all-zero bytes are a valid msqid_ds.
    let mut facts: libc::msqid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one msqid_ds.
    check(i64::from(unsafe { libc::msgctl(id, libc::IPC_STAT, &raw mut facts) }))?;
    Ok(facts)
}

fn number(result: i64) -> i32 {
    i32::try_from(result).unwrap_or(-1)
}

impl IpcKind {
    /// What the kernel knows of one.
    ///
    /// # Errors
    /// EINVAL, EIDRM: there is none with this id; EACCES.
    pub fn facts(self, id: i32) -> io::Result<IpcFacts> {
        let (permissions, count, room) = match self {
            IpcKind::Semaphores => {
                let facts = set_status(id)?;
                (facts.sem_perm, facts.sem_nsems, 0)
            }
            IpcKind::Messages => {
                let facts = queue_status(id)?;
                (facts.msg_perm, facts.msg_qnum, facts.msg_qbytes)
            }
        };
        let mode = u32::from(permissions.mode) & 0o777;
        Ok(IpcFacts {
            key: permissions.__key,
            mode,
            count: usize::try_from(count).unwrap_or(0),
            room,
            owner: (permissions.uid, permissions.gid),
            creator: permissions.cuid,
        })
    }

    /// All of this kind, each with the processes that the kernel remembers: who was the last to operate on a semaphore,
    /// or to send and to receive a message (ipc/sem.c, ipc/msg.c). Those that may not be looked at have none.
    ///
    /// # Errors
    /// The list cannot be read (proc_sysvipc(5)).
    pub fn last_users(self) -> io::Result<Vec<(i32, Vec<i32>)>> {
        /// Longer sets are rare, and looked at in part.
        const MOST: i32 = 1024;
        let list = std::fs::read_to_string(match self {
            IpcKind::Semaphores => "/proc/sysvipc/sem",
            IpcKind::Messages => "/proc/sysvipc/msg",
        })?;
        let users = |line: &str| {
            let fields: Vec<i64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
            let field = |at: usize| fields.get(at).and_then(|number| i32::try_from(*number).ok());
            let id = field(1)?;
            let pids = match self {
                // SAFETY: numbers only.
                IpcKind::Semaphores => (0..field(3)?.min(MOST))
                    .map(|number| unsafe { libc::semctl(id, number, GETPID) })
                    .filter(|pid| *pid > 0)
                    .collect(),
                IpcKind::Messages => vec![field(5)?, field(6)?],
            };
            Some((id, pids))
        };
        Ok(list.lines().skip(1).filter_map(users).collect())
    }

    /// Makes a new one; key 0: without a key. `count`: of semaphores.
    ///
    /// # Errors
    /// EEXIST: the key is taken; ENOSPC, EINVAL: the system allows no more, or none so large.
    pub fn create(self, key: i32, mode: u32, count: usize) -> io::Result<i32> {
        let flags = libc::IPC_CREAT | libc::IPC_EXCL | (mode & 0o777).cast_signed();
        let count = i32::try_from(count).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: numbers only.
        let id = unsafe {
            match self {
                IpcKind::Semaphores => libc::semget(key, count, flags),
                IpcKind::Messages => libc::msgget(key, flags),
            }
        };
        check(i64::from(id)).map(number)
    }

    /// The id of the one with this key.
    ///
    /// # Errors
    /// ENOENT: there is none.
    pub fn find(self, key: i32) -> io::Result<i32> {
        // SAFETY: numbers only.
        let id = unsafe {
            match self {
                IpcKind::Semaphores => libc::semget(key, 0, 0),
                IpcKind::Messages => libc::msgget(key, 0),
            }
        };
        check(i64::from(id)).map(number)
    }

    /// Removes one.
    ///
    /// # Errors
    /// EINVAL: there is none; EPERM: it is another user's.
    pub fn remove(self, id: i32) -> io::Result<()> {
        // SAFETY: numbers only; IPC_RMID ignores what follows.
        let result = unsafe {
            match self {
                IpcKind::Semaphores => libc::semctl(id, 0, libc::IPC_RMID),
                IpcKind::Messages => libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()),
            }
        };
        check(i64::from(result)).map(|_| ())
    }

    /// Gives it other settings.
    ///
    /// # Errors
    /// EPERM: it is another user's, or so many bytes need a privilege.
    pub fn set(self, id: i32, IpcSettings { mode, room, owner }: IpcSettings) -> io::Result<()> {
        let mode = u16::try_from(mode & 0o777).unwrap_or(0);
        let change = |permissions: &mut libc::ipc_perm| {
            permissions.mode = mode;
            if let Some((user, group)) = owner {
                (permissions.uid, permissions.gid) = (user, group);
            }
        };
        let result = match self {
            IpcKind::Semaphores => {
                let mut facts = set_status(id)?;
                change(&mut facts.sem_perm);
                // SAFETY: the call reads one semid_ds.
                unsafe { libc::semctl(id, 0, libc::IPC_SET, &raw mut facts) }
            }
            IpcKind::Messages => {
                let mut facts = queue_status(id)?;
                change(&mut facts.msg_perm);
                facts.msg_qbytes = room;
                // SAFETY: the call reads one msqid_ds.
                unsafe { libc::msgctl(id, libc::IPC_SET, &raw mut facts) }
            }
        };
        check(i64::from(result)).map(|_| ())
    }
}

/// The values of a set.
///
/// # Errors
/// As [`IpcKind::facts`].
pub fn values(id: i32) -> io::Result<Vec<u16>> {
    let mut values = vec![0_u16; IpcKind::Semaphores.facts(id)?.count];
    // SAFETY: the call writes one number for each semaphore of the set.
    check(i64::from(unsafe { libc::semctl(id, 0, GETALL, values.as_mut_ptr()) }))?;
    Ok(values)
}

/// Gives the semaphores of a set values.
///
/// # Errors
/// EINVAL: it has another number of them; ERANGE: a value is too large.
pub fn set_values(id: i32, values: &[u16]) -> io::Result<()> {
    if IpcKind::Semaphores.facts(id)?.count != values.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the call reads one number for each semaphore of the set.
    check(i64::from(unsafe { libc::semctl(id, 0, SETALL, values.as_ptr()) })).map(|_| ())
}

/// Takes a message; its type and text. `flags`: with [`MSG_COPY`], `which` is its number.
fn receive(id: i32, buffer: &mut [u64], which: i64, flags: i32) -> io::Result<(i64, Vec<u8>)> {
    let room = buffer.len() * 8 - 8;
    // SAFETY: the buffer has the type's 8 bytes and `room` for the text.
    let len = check(unsafe { libc::msgrcv(id, buffer.as_mut_ptr().cast(), room, which, flags) } as i64)?;
    let text: Vec<u8> = buffer[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let len = usize::try_from(len).unwrap_or(0).min(text.len());
    Ok((buffer[0].cast_signed(), text[..len].to_vec()))
}

/// All messages of a queue, which keeps them: types and texts.
///
/// # Errors
/// ENOSYS: the kernel has no CONFIG_CHECKPOINT_RESTORE; as [`IpcKind::facts`].
pub fn messages(id: i32) -> io::Result<Vec<(i64, Vec<u8>)>> {
    let status = queue_status(id)?;
    let longest = usize::try_from(status.__msg_cbytes).unwrap_or(0).max(8);
    let mut buffer = vec![0_u64; longest.div_ceil(8) + 1];
    let flags = MSG_COPY | libc::IPC_NOWAIT;
    (0..status.msg_qnum)
        .map(|place| receive(id, &mut buffer, i64::try_from(place).unwrap_or(0), flags))
        .collect()
}

/// Throws away all messages of a queue.
///
/// # Errors
/// As [`IpcKind::facts`].
pub fn empty(id: i32) -> io::Result<()> {
    let mut buffer = [0_u64; 2];
    loop {
        match receive(id, &mut buffer, 0, libc::IPC_NOWAIT | libc::MSG_NOERROR) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOMSG) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Puts a message at the end of a queue.
///
/// # Errors
/// EAGAIN: it is full; EINVAL: the type or the length is not allowed.
pub fn send(id: i32, kind: i64, text: &[u8]) -> io::Result<()> {
    let mut buffer = vec![0_u64; text.len().div_ceil(8) + 1];
    buffer[0] = kind.cast_unsigned();
    for (word, bytes) in buffer[1..].iter_mut().zip(text.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(padded);
    }
    // SAFETY: the buffer has the type's 8 bytes and all of the text.
    let result = unsafe { libc::msgsnd(id, buffer.as_ptr().cast(), text.len(), libc::IPC_NOWAIT) };
    check(i64::from(result)).map(|_| ())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn own() -> i32 {
        std::process::id().cast_signed()
    }

    fn users(kind: IpcKind, id: i32) -> Vec<i32> {
        kind.last_users().unwrap().into_iter().find(|(other, _)| *other == id).unwrap().1
    }

    #[test]
    fn a_set_is_described_and_gets_values() {
        let kind = IpcKind::Semaphores;
        let id = kind.create(libc::IPC_PRIVATE, 0o600, 3).unwrap();
        set_values(id, &[1, 2, 30000]).unwrap();
        assert_eq!(values(id).unwrap(), [1, 2, 30000]);
        assert_eq!(users(kind, id), [own(); 3]);
        assert!(set_values(id, &[1]).is_err());
        let (user, group) = (crate::unix_socket::effective_user(), crate::unix_socket::effective_group());
        let owner = (user, group);
        kind.set(id, IpcSettings { mode: 0o640, room: 0, owner: Some(owner) }).unwrap();
        let facts = IpcFacts { key: 0, mode: 0o640, count: 3, room: 0, owner, creator: user };
        assert_eq!(kind.facts(id).unwrap(), facts);
        kind.remove(id).unwrap();
        assert!(kind.facts(id).is_err() && values(id).is_err());
    }

    #[test]
    fn messages_are_looked_at_where_they_are() {
        let kind = IpcKind::Messages;
        let id = kind.create(libc::IPC_PRIVATE, 0o600, 0).unwrap();
        let all = [(3, b"three".to_vec()), (1, vec![7; 1000]), (3, Vec::new())];
        for (kind, text) in &all {
            send(id, *kind, text).unwrap();
        }
        assert_eq!(messages(id).unwrap(), all);
        assert_eq!(messages(id).unwrap(), all, "they are still there");
        assert_eq!(kind.facts(id).unwrap().count, 3);
        assert_eq!(users(kind, id), [own(), 0]);
        empty(id).unwrap();
        assert_eq!(messages(id).unwrap(), []);
        kind.set(id, IpcSettings { mode: 0o600, room: 100, owner: None }).unwrap();
        assert_eq!(kind.facts(id).unwrap().room, 100);
        assert!(send(id, 1, &[0; 200]).is_err());
        kind.remove(id).unwrap();
    }
}
