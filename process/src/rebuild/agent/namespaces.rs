//! A new process goes into the namespaces that it was in.
//!
//! Called by [`super::rebuild_process`] when its memory and descriptors are there, and before it has threads: the
//! kernel lets a process with several go into no user namespace (kernel/user_namespace.c, `userns_install`). From then
//! on it has all rights in its own user namespace, and none outside. How it fails: names the kind.

use super::remote_calls::{Need, SeedThread};
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use crate::rebuild::handshake::ReadyMessage;
use crate::rebuild::job::Member;
use crate::rebuild::kept_fds::{self, SharedObject};
use holdfast_image::namespaces::{is_early, mounts_of, user_of};
use std::collections::BTreeMap;

/// Goes into them, in their order, and closes all that were handed down.
///
/// # Errors
/// The restart lacks the right to it.
pub fn join(
    leader: SeedThread,
    member: Member<'_>,
    several: &BTreeMap<u64, SharedObject>,
) -> Result<(), RebuildError> {
    let all = &member.job.record.made_namespaces;
    let number = |place: usize| u64::from(kept_fds::of_namespace(member.job, several, place).cast_unsigned());
    let mut batch = leader.batch();
    if let Some(rights) = member.own.rights.as_ref().filter(|_| is_apart(member)) {
        // Where setgroups(2) is forbidden they stay what they are outside.
        let groups: Vec<u8> = rights.more_groups.iter().flat_map(|group| group.to_le_bytes()).collect();
        batch.reserve(groups.len())?;
        let groups = batch.data(&groups);
        let count = rights.more_groups.len() as u64;
        batch.row(Row::new(libc::SYS_setgroups, &[count, groups]), Need::May);
    }
    // Into that of its mounts it went before its exec, and into some others.
    let mounts = mounts_of(all, &member.own.namespaces);
    let is_left = |place: &&u32| Some(**place) != mounts && !is_early(all, **place);
    for place in member.own.namespaces.iter().filter(is_left) {
        let need = Need::Must("go into the namespace at descriptor", number(*place as usize));
        batch.call(libc::SYS_setns, &[number(*place as usize), 0], need)?;
    }
    for place in 0..all.len() {
        batch.call(libc::SYS_close, &[number(place)], Need::Must("close descriptor", number(place)))?;
    }
    batch.finish().map(|_| ())
}

/// Whether it is in a user namespace of its own.
pub fn is_apart(member: Member<'_>) -> bool {
    user_of(&member.job.record.made_namespaces, &member.own.namespaces).is_some()
}

/// What then holds of a process: the ids of its threads cannot be chosen there, as the pid namespace belongs to another
/// user namespace; libholdfast shows it the old ones. What rights it keeps, its record says.
pub fn ready_inside(member: Member<'_>, ready: ReadyMessage) -> ReadyMessage {
    match is_apart(member) {
        true => ReadyMessage {
            ids_chosen: ready.ids_chosen && member.own.threads.len() == 1,
            drop_capabilities: false,
            ..ready
        },
        false => ready,
    }
}
