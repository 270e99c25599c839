//! Namespaces that programs of a job have made (namespaces(7)), and that a restart makes anew; root directories.
//!
//! Part of the process record: the list of all is in the record of the first process, and each process says which of
//! them it is in. Written by `process::capture::namespaces`, read by `process::rebuild`. Invariants: plain data; what a
//! user namespace owns comes behind it, and what the job's owns before all user namespaces, so that a process that
//! enters them in this order has the right to each ([`check`]).

use crate::bytes::Name;
use crate::inode::Inode;
use crate::mounts::{self, MountTree};
use serde::{Deserialize, Serialize};

/// One namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamespaceRecord {
    /// The user namespace that it belongs to, by its place in the list. `None`: that of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// What it is.
    #[serde(flatten)]
    pub content: NamespaceContent,
}

/// What is in one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NamespaceContent {
    /// user_namespaces(7), below that of the job.
    User(IdMaps),
    /// uts_namespaces(7).
    Uts {
        /// sethostname(2).
        host: Name,
        /// setdomainname(2).
        domain: Name,
    },
    /// ipc_namespaces(7), without objects.
    Ipc,
    /// network_namespaces(7), with a loopback device alone.
    Network {
        /// The device is up.
        up: bool,
    },
    /// cgroup_namespaces(7), whose root is the control group that its processes are in.
    Cgroup,
    /// mount_namespaces(7).
    Mount(MountTree),
}

/// Which ids there are in a user namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IdMaps {
    /// User ids.
    pub users: Vec<IdRange>,
    /// Group ids.
    pub groups: Vec<IdRange>,
    /// setgroups(2) is allowed.
    pub setgroups: bool,
}

/// A range of ids (user_namespaces(7), `uid_map`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IdRange {
    /// The first as its processes know it.
    pub inside: u32,
    /// The same, as the job knows it.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

/// What an id of the job is inside.
pub fn inside(ranges: &[IdRange], outside: u32) -> Option<u32> {
    let of = |range: &IdRange| {
        let behind = outside.checked_sub(range.outside).filter(|behind| *behind < range.count)?;
        range.inside.checked_add(behind)
    };
    ranges.iter().find_map(of)
}

/// The user namespace among those at these places.
pub fn user_of<'a>(all: &'a [NamespaceRecord], own: &[u32]) -> Option<&'a IdMaps> {
    own.iter().find_map(|place| match &all.get(*place as usize)?.content {
        NamespaceContent::User(maps) => Some(maps),
        _ => None,
    })
}

/// The mount namespace among those at these places, by its place.
pub fn mounts_of(all: &[NamespaceRecord], own: &[u32]) -> Option<u32> {
    let is_one = |place: &u32| {
        let one = all.get(*place as usize);
        one.is_some_and(|one| matches!(one.content, NamespaceContent::Mount(_)))
    };
    own.iter().copied().find(is_one)
}

/// Whether a process goes into the one at a place before its exec: into one that belongs to the job's user namespace,
/// an ordinary user's process has no right to go afterwards.
pub fn is_early(all: &[NamespaceRecord], place: u32) -> bool {
    let early = |one: &NamespaceRecord| {
        let is_one = matches!(one.content, NamespaceContent::Uts { .. } | NamespaceContent::Network { .. });
        one.owner.is_none() && is_one
    };
    all.get(place as usize).is_some_and(early)
}

/// A root directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RootFolder {
    /// Where it is, from the root of the job. All other paths of the process begin there, too.
    pub path: Name,
    /// Which directory it was, and whose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<Inode>,
}

/// Whether a list, and the places of a process in it, can be computed with.
///
/// # Errors
/// Says what is wrong.
pub(crate) fn check(all: &[NamespaceRecord], own: &[u32]) -> Result<(), String> {
    let is_user = |one: &NamespaceRecord| matches!(one.content, NamespaceContent::User(_));
    for (place, one) in (0_u32..).zip(all) {
        let owner = one.owner.map(|owner| all.get(owner as usize).filter(|it| owner < place && is_user(it)));
        if owner == Some(None) || one.owner.is_some() && is_user(one) {
            return Err(format!("namespace {place} belongs to one that there is not"));
        }
        if let NamespaceContent::Mount(tree) = &one.content {
            mounts::check(tree)?;
        }
    }
    let mut last = None;
    for place in own {
        let one = all.get(*place as usize).ok_or_else(|| format!("there is no namespace {place}"))?;
        if last.is_some_and(|last| last >= place) {
            return Err("its namespaces are out of order".into());
        }
        if one.owner.is_some_and(|owner| !own.contains(&owner)) {
            return Err(format!("it is in namespace {place}, and not in the one that owns it"));
        }
        last = Some(place);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> NamespaceRecord {
        let of_ten = IdRange { inside: 5, outside: 10, count: 3 };
        let users = vec![IdRange { inside: 0, outside: 1000, count: 1 }, of_ten];
        let maps = IdMaps { groups: users.clone(), users, setgroups: false };
        NamespaceRecord { owner: None, content: NamespaceContent::User(maps) }
    }

    #[test]
    fn owners_come_first_and_are_user_namespaces() {
        let ipc = |owner| NamespaceRecord { owner, content: NamespaceContent::Ipc };
        let all = [ipc(None), user(), ipc(Some(1))];
        for right in [&[0, 1, 2][..], &[], &[1], &[0]] {
            assert_eq!(check(&all, right), Ok(()));
        }
        for wrong in [&[2][..], &[1, 3], &[1, 2, 0]] {
            assert!(check(&all, wrong).is_err(), "{wrong:?}");
        }
        assert!(check(&[ipc(Some(1)), user()], &[]).is_err() && check(&[ipc(Some(0))], &[]).is_err());
        assert!(check(&[user(), NamespaceRecord { owner: Some(0), ..user() }], &[]).is_err());
        assert!(user_of(&all, &[0, 1]).is_some() && user_of(&all, &[0]).is_none());
    }

    #[test]
    fn ids_are_found_in_their_ranges() {
        let all = [user()];
        let found = user_of(&all, &[0]).map(|maps| [1000, 10, 12, 13, 0].map(|id| inside(&maps.users, id)));
        assert_eq!(found, Some([Some(0), Some(5), Some(7), None, None]));
    }

    #[test]
    fn what_was_written_is_read() {
        let lo = NamespaceRecord { owner: Some(0), content: NamespaceContent::Network { up: true } };
        let all = vec![user(), lo];
        let text = serde_json::to_string(&all).unwrap_or_default();
        assert_eq!(serde_json::from_str::<Vec<NamespaceRecord>>(&text).ok(), Some(all), "{text}");
    }
}
