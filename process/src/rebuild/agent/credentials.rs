//! Gives threads the ids and capabilities that the program had taken or left (`credentials(7)`), by calls of their own.
//!
//! Runs in the agent when nothing is left to be done that needs more: after files, locks and privileged settings,
//! before the program may no longer be looked at. The kernel has these of each thread, and takes away with a change
//! of ids what was allowed and asked for: capabilities, PR_SET_PDEATHSIG, PR_SET_DUMPABLE. They are set again. How
//! it fails: an error, as a program must not go on with more rights than it had.

use super::remote_calls::{Batch, Need};
use super::threads::NewThread;
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Member;
use holdfast_image::credentials::Credentials;
use holdfast_image::namespaces::{IdMaps, inside, user_of};
use holdfast_image::record::ThreadRecord;

const PR_SET_PDEATHSIG: u64 = 1;
const PR_SET_DUMPABLE: u64 = 4;
const PR_SET_KEEPCAPS: u64 = 8;
const PR_CAPBSET_DROP: u64 = 24;
const PR_CAP_AMBIENT: u64 = 47;
const PR_CAP_AMBIENT_RAISE: u64 = 2;
const VERSION_3: u32 = 0x2008_0522;
/// CAP_LAST_CAP of Linux 6.18; the kernel refuses those that it does not know.
const CAPABILITIES: u64 = 41;

/// Nothing to do unless the record says so.
///
/// # Errors
/// What the kernel did not take: the restart lacks the right to it.
pub fn restore(threads: &[NewThread<'_>], member: Member<'_>) -> Result<(), RebuildError> {
    let record = member.own;
    let Some(rights) = &record.rights else { return Ok(()) };
    let user = user_of(&member.job.record.made_namespaces, &record.namespaces);
    let (rights, may_set_groups) = match user {
        Some(maps) => (&as_known_inside(rights, maps), maps.setgroups),
        None => (rights, true),
    };
    for NewThread { seed, record: thread } in threads {
        let mut batch = seed.batch();
        drop_bounding_set(&mut batch, rights)?;
        if may_set_groups {
            set_groups(&mut batch, rights, thread)?;
        }
        set_ids(&mut batch, rights, thread)?;
        capabilities(&mut batch, rights, thread)?;
        if thread.attributes.parent_death_signal != 0 {
            let args = [PR_SET_PDEATHSIG, u64::from(thread.attributes.parent_death_signal)];
            batch.call(libc::SYS_prctl, &args, Need::May)?;
        }
        batch.finish()?;
    }
    let Some(leader) = threads.first() else { return Ok(()) };
    let mut batch = leader.seed.batch();
    let dumpable = u64::from(record.attributes.dumpable == Some(1));
    batch.call(libc::SYS_prctl, &[PR_SET_DUMPABLE, dumpable], Need::May)?;
    batch.finish().map(|_| ())
}

/// The bounding set, which only root can make smaller.
fn drop_bounding_set(batch: &mut Batch, rights: &Credentials) -> Result<(), RebuildError> {
    let lacking = (0..CAPABILITIES).filter(|capability| rights.capabilities[3] >> capability & 1 == 0);
    for capability in lacking {
        batch.call(libc::SYS_prctl, &[PR_CAPBSET_DROP, capability], Need::May)?;
    }
    Ok(())
}

/// Ids as a user namespace has them. One that it does not know is that of the restart, and stays: -1 changes nothing
/// (setresuid(2)).
fn as_known_inside(rights: &Credentials, maps: &IdMaps) -> Credentials {
    let user = |id: u32| inside(&maps.users, id).unwrap_or(u32::MAX);
    let group = |id: u32| inside(&maps.groups, id).unwrap_or(u32::MAX);
    let known = |id: &u32| inside(&maps.groups, *id);
    Credentials {
        users: rights.users.map(user),
        groups: rights.groups.map(group),
        files: rights.files.map(|[of_user, of_group]| [user(of_user), group(of_group)]),
        more_groups: rights.more_groups.iter().filter_map(known).collect(),
        capabilities: rights.capabilities,
    }
}

fn set_groups(batch: &mut Batch, rights: &Credentials, thread: &ThreadRecord) -> Result<(), RebuildError> {
    let id = u64::from(thread.tid.cast_unsigned());
    let groups: Vec<u8> = rights.more_groups.iter().flat_map(|group| group.to_le_bytes()).collect();
    batch.reserve(groups.len())?;
    let count = rights.more_groups.len() as u64;
    let address = batch.data(&groups);
    batch.row(
        Row::new(libc::SYS_setgroups, &[count, address]),
        Need::Must("set the supplementary groups of thread", id),
    );
    Ok(())
}

fn set_ids(batch: &mut Batch, rights: &Credentials, thread: &ThreadRecord) -> Result<(), RebuildError> {
    let id = u64::from(thread.tid.cast_unsigned());
    let wide = |ids: [u32; 3]| ids.map(u64::from);
    batch.reserve(0)?;
    batch.call(libc::SYS_setresgid, &wide(rights.groups), Need::Must("set the group ids of thread", id))?;
    // Those of files follow the effective ones, unless they were set by themselves (setfsuid(2)).
    let of_files = rights.files.filter(|files| *files != [rights.users[1], rights.groups[1]]);
    if let Some([_, group]) = of_files {
        batch.call(libc::SYS_setfsgid, &[u64::from(group)], Need::May)?;
    }
    // Else they would go with the ids; `capabilities` says which of them stay.
    batch.call(libc::SYS_prctl, &[PR_SET_KEEPCAPS, 1], Need::May)?;
    batch.call(libc::SYS_setresuid, &wide(rights.users), Need::Must("set the user ids of thread", id))?;
    if let Some([user, _]) = of_files {
        batch.call(libc::SYS_setfsuid, &[u64::from(user)], Need::May)?;
    }
    Ok(())
}

fn capabilities(batch: &mut Batch, rights: &Credentials, thread: &ThreadRecord) -> Result<(), RebuildError> {
    /// SECBIT_KEEP_CAPS (include/uapi/linux/securebits.h).
    const KEEP_CAPS: u32 = 1 << 4;
    let id = u64::from(thread.tid.cast_unsigned());
    let [inheritable, permitted, effective, _, ambient] = rights.capabilities;
    // Two structures of effective, permitted, inheritable: the low and the high halves.
    let words = [0, 32].map(|shift| [effective, permitted, inheritable].map(|set| (set >> shift) as u32));
    let bytes: Vec<u8> = words.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    let header: Vec<u8> = [VERSION_3, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    batch.reserve(bytes.len() + header.len())?;
    let (header, data) = (batch.data(&header), batch.data(&bytes));
    batch.row(Row::new(libc::SYS_capset, &[header, data]), Need::Must("set the capabilities of thread", id));
    let keeps = u64::from(thread.attributes.securebits & KEEP_CAPS != 0);
    batch.call(libc::SYS_prctl, &[PR_SET_KEEPCAPS, keeps], Need::May)?;
    for capability in (0..64_u64).filter(|capability| ambient >> capability & 1 == 1) {
        let args = [PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0];
        batch.call(libc::SYS_prctl, &args, Need::Must("raise an ambient capability in thread", id))?;
    }
    Ok(())
}
