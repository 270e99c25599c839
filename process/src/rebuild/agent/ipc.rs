//! System V semaphores and message queues: those that are still there, or new ones, with what was in them.
//!
//! They outlive the programs, unless they were removed. Runs in the agent: [`IpcObjects::claim`] before there
//! is a process, [`IpcObjects::write_ids`] for each, [`IpcObjects::fill`] when nothing else can fail any more,
//! [`IpcObjects::keep`] when the program runs. One that another agent's program uses ([`crate::job::names`]) is
//! left alone.
//!
//! What must hold: what is found is not written to before `fill`, and never if it is another user's ([`ipc_owner`]).
//! Who may not choose an id ([`choose_id`]) gets another one, and libholdfast shows the programs the old one. How it
//! fails: an error names the object; what was made is removed.

use super::{choose_id, ipc_owner};
use crate::capture::ipc::{self as tables, kind_of};
use crate::job::names;
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Job;
use holdfast_abi::SharedPage;
use holdfast_image::record::{IpcContent, IpcObject, ProcessRecord};
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::sysv_sem_msg::{self, IpcKind, IpcSettings};
use holdfast_sys::unix_socket;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

/// Permission without which its own user cannot fill it.
const OWNER: u32 = 0o600;
/// How long an agent may take to end that had the program before.
const LEAVING: Duration = Duration::from_millis(400);

/// All of a job, in the agent.
#[derive(Debug, Default)]
pub struct IpcObjects(Vec<Claimed>);

#[derive(Debug)]
struct Claimed {
    kind: IpcKind,
    /// The kernel's id now.
    id: i32,
    about: IpcObject,
    name: Option<UnixDatagram>,
    /// It is new, and goes if the restart fails.
    made: bool,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if self.made
            && let Err(error) = self.kind.remove(self.id)
        {
            tracing::warn!("{}, made anew as {}, stays behind: {error}", self.about.name(), self.id);
        }
    }
}

/// See [`choose_id`].
fn next_id(kind: IpcKind) -> &'static str {
    match kind {
        IpcKind::Semaphores => "/proc/sys/kernel/sem_next_id",
        IpcKind::Messages => "/proc/sys/kernel/msg_next_id",
    }
}

impl IpcObjects {
    /// Finds or makes all.
    ///
    /// # Errors
    /// Names the object that another restart works on, or that cannot be made.
    pub fn claim(job: &Job<'_>) -> Result<IpcObjects, RebuildError> {
        let host = &job.record.host;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let same_boot = boot.trim() == host.boot_id;
        job.record
            .files
            .ipc
            .iter()
            .map(|about| claim(about, same_boot))
            .collect::<Result<_, _>>()
            .map(IpcObjects)
    }

    /// What the user should know, one line each.
    pub fn notes(&self) -> Vec<String> {
        let other = self.0.iter().filter(|claimed| claimed.id != claimed.about.id);
        let note = |claimed: &Claimed| {
            format!(
                "{} was gone, or is in use, and is {} now: the program is shown the old id, but not one \
                 that it executes from \
                 now on",
                claimed.about.name(),
                claimed.id
            )
        };
        other.map(note).collect()
    }

    /// Tells libholdfast in a process which ids the kernel has for them now.
    ///
    /// # Errors
    /// Its page cannot be written.
    pub fn write_ids(&self, memory: &ForcedMemory, record: &ProcessRecord) -> Result<(), RebuildError> {
        let page = record.inject.shared.0;
        if page == 0 || self.0.is_empty() {
            return Ok(());
        }
        for (kind, table) in tables::PLACES {
            self.rewrite(kind, table, memory, page)
                .map_err(RebuildError::io("writing the page of libholdfast in the program"))?;
        }
        Ok(())
    }

    fn rewrite(&self, kind: IpcKind, table: usize, memory: &ForcedMemory, page: u64) -> std::io::Result<()> {
        let at = page + table as u64;
        let mut bytes = [0; tables::TABLE_LEN];
        memory.read(at, &mut bytes)?;
        let old = tables::table(&bytes)?;
        let now = |kernel: i32| {
            let is_it = |claimed: &&Claimed| claimed.kind == kind && claimed.about.id == kernel;
            self.0.iter().find(is_it).map(|claimed| claimed.id)
        };
        // Those that were removed are not used any more.
        let kept: Vec<(i32, i32)> =
            old.into_iter().filter_map(|(known, kernel)| Some((known, now(kernel)?))).collect();
        let mut bytes = (kept.len() as u64).to_le_bytes().to_vec();
        for (known, kernel) in kept {
            bytes.extend(known.to_le_bytes());
            bytes.extend((kernel.cast_unsigned() | SharedPage::IPC_VALID).to_le_bytes());
        }
        bytes.resize(tables::TABLE_LEN, 0);
        memory.write(at, &bytes)
    }

    /// Puts in what was in them.
    ///
    /// # Errors
    /// Names the object.
    pub fn fill(&self) -> Result<(), RebuildError> {
        for Claimed { kind, id, about, made, .. } in &self.0 {
            let fill = || -> std::io::Result<()> {
                match &about.content {
                    IpcContent::Semaphores(values) => sysv_sem_msg::set_values(*id, values)?,
                    IpcContent::Messages { messages, .. } => {
                        sysv_sem_msg::empty(*id)?;
                        messages
                            .iter()
                            .try_for_each(|message| sysv_sem_msg::send(*id, message.kind, &message.data.0))?;
                    }
                }
                if *made { settle(*kind, *id, about) } else { Ok(()) }
            };
            fill().map_err(RebuildError::io(format!("putting back the content of {}", about.name())))?;
        }
        Ok(())
    }

    /// Leaves them to the program. Their names stay with the agent as long as it lives.
    pub fn keep(mut self) {
        for claimed in &mut self.0 {
            claimed.made = false;
            claimed.name.take().into_iter().for_each(std::mem::forget);
        }
    }
}

/// Gives a new one, which is filled, the bits and the owner that it had.
fn settle(kind: IpcKind, id: i32, about: &IpcObject) -> std::io::Result<()> {
    // An ordinary user's is his own; who else owns it here may be another user.
    let owner = about.owner.filter(|_| unix_socket::effective_user() == 0);
    let owner = owner.map(|owner| (owner.user, owner.group));
    if owner.is_none() && about.mode & OWNER == OWNER {
        return Ok(());
    }
    kind.set(id, IpcSettings { mode: about.mode, room: queue_len(about), owner })
}

fn queue_len(about: &IpcObject) -> u64 {
    match about.content {
        IpcContent::Semaphores(_) => 0,
        IpcContent::Messages { room, .. } => room,
    }
}

/// Takes the name of an object; `None`: another agent has it, and not only because it is just ending.
fn take_name(kind: IpcKind, id: i32) -> Result<Option<UnixDatagram>, RebuildError> {
    let begun = Instant::now();
    loop {
        let name = names::take(kind, id).map_err(RebuildError::io("taking the name of a System V object"))?;
        if name.is_some() || begun.elapsed() > LEAVING {
            return Ok(name);
        }
        std::thread::sleep(LEAVING / 20);
    }
}

/// That with its id, or the one that has its key now, or a new one.
fn claim(about: &IpcObject, same_boot: bool) -> Result<Claimed, RebuildError> {
    let kind = kind_of(about);
    // Ids are given again after a reboot: to an object of another program, perhaps.
    let old = Some(about.id).filter(|_| same_boot);
    let with_key = Some(about.key).filter(|key| *key != 0).and_then(|key| kind.find(key).ok());
    for id in old.into_iter().chain(with_key) {
        let Ok(facts) = kind.facts(id) else { continue };
        let as_many = match &about.content {
            IpcContent::Semaphores(values) => values.len() == facts.count,
            IpcContent::Messages { .. } => true,
        };
        if facts.key != about.key || !as_many {
            continue;
        }
        let whose = ipc_owner::Recorded { owner: about.owner, creator: about.creator };
        match whose.another_user(facts.owner.0, facts.creator) {
            None => {}
            // Its id was given again.
            Some(_) if about.key == 0 => continue,
            Some(other) => {
                let option = if kind == IpcKind::Semaphores { "-s" } else { "-q" };
                return Err(whose.refusal(
                    &format!("System V {kind} {id}"),
                    other,
                    &format!("{option} {id}"),
                ));
            }
        }
        match take_name(kind, id)? {
            name @ Some(_) => return Ok(Claimed { kind, id, about: about.clone(), name, made: false }),
            None if about.key == 0 => {}
            None => {
                return Err(RebuildError::Refused(format!(
                    "{} belongs to a program that was restarted from an image: end that first",
                    about.name()
                )));
            }
        }
    }
    make(about, kind)
}

fn make(about: &IpcObject, kind: IpcKind) -> Result<Claimed, RebuildError> {
    let failed = || RebuildError::io(format!("making {} anew", about.name()));
    let count = match &about.content {
        IpcContent::Semaphores(values) => values.len(),
        IpcContent::Messages { .. } => 0,
    };
    let wanted = Some(about.id).filter(|id| kind.facts(*id).is_err());
    let create = || kind.create(about.key, about.mode | OWNER, count);
    let id = choose_id::with_id(next_id(kind), wanted, create, |id| kind.remove(id)).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::EEXIST) => RebuildError::Refused(format!(
                "{} is gone, and another object has its key {:#x} now: remove that (ipcrm), or restart again",
                about.name(),
                about.key
            )),
            _ => failed()(error),
        }
    })?;
    let mut claimed = Claimed { kind, id, about: about.clone(), name: None, made: true };
    if kind == IpcKind::Messages {
        let settings = IpcSettings { mode: about.mode | OWNER, room: queue_len(about), owner: None };
        kind.set(id, settings).map_err(failed())?;
    }
    claimed.name = take_name(kind, id)?;
    Ok(claimed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::record;
    use holdfast_image::bytes::Blob;
    use holdfast_image::record::Message;

    fn of(ipc: Vec<IpcObject>) -> ProcessRecord {
        let mut record = record(Vec::new());
        record.files.ipc = ipc;
        record.host.boot_id =
            fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned();
        record
    }

    fn set(id: i32, key: i32, values: &[u16]) -> IpcObject {
        let content = IpcContent::Semaphores(values.to_vec());
        IpcObject { id, key, mode: 0o600, owner: None, creator: None, content }
    }

    #[test]
    fn what_is_found_is_filled_and_a_copy_gets_its_own() {
        let kind = IpcKind::Semaphores;
        let id = kind.create(libc::IPC_PRIVATE, 0o600, 2).unwrap();
        let record = of(vec![set(id, 0, &[3, 4])]);
        let found = IpcObjects::claim(&Job::new(&record)).unwrap();
        assert_eq!((found.0[0].id, found.0[0].made), (id, false));
        assert_eq!(sysv_sem_msg::values(id).unwrap(), [0, 0], "nothing is changed yet");
        found.fill().unwrap();
        assert_eq!(sysv_sem_msg::values(id).unwrap(), [3, 4]);
        let copy = IpcObjects::claim(&Job::new(&record)).unwrap();
        let other = copy.0[0].id;
        assert!(other != id && copy.0[0].made && copy.notes().len() == 1);
        drop(copy);
        assert!(kind.facts(other).is_err(), "what was made goes if the restart fails");
        drop(found);
        let mut elsewhere = record.clone();
        elsewhere.host.boot_id = "another".into();
        assert_ne!(IpcObjects::claim(&Job::new(&elsewhere)).unwrap().0[0].id, id);
        kind.remove(id).unwrap();
    }

    #[test]
    fn a_queue_that_is_gone_is_made_anew_and_one_with_its_key_is_taken() {
        let key = (0x4c00_0000 | std::process::id()).cast_signed();
        let messages =
            vec![Message { kind: 2, data: Blob(b"a".to_vec()) }, Message { kind: 1, data: Blob(Vec::new()) }];
        let content = IpcContent::Messages { room: 5000, messages };
        let record =
            of(vec![IpcObject { id: i32::MAX, key, mode: 0o600, owner: None, creator: None, content }]);
        let made = IpcObjects::claim(&Job::new(&record)).unwrap();
        made.fill().unwrap();
        let id = made.0[0].id;
        assert_eq!(sysv_sem_msg::messages(id).unwrap(), [(2, b"a".to_vec()), (1, Vec::new())]);
        assert_eq!(IpcKind::Messages.facts(id).unwrap().room, 5000);
        let refused = IpcObjects::claim(&Job::new(&record)).unwrap_err().to_string();
        assert!(refused.contains("message queue") && refused.contains("end that first"), "{refused}");
        made.keep();
        IpcKind::Messages.remove(id).unwrap();
    }
}
