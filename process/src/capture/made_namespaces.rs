//! What is in the namespaces that programs of the job have made: asked of the process inside the stop, because only
//! who is in one is told its host name and its System V objects.
//!
//! Called by `capture_process`; [`list`] by `build_record`, which has what all processes have told. What must hold: a
//! process without namespaces of its own is asked nothing. Fails by: [`CutError`].

use super::mounts::{self, View};
use super::namespaces::{self, Other};
use super::pid_namespaces::{self, Inits, PidNamespaces};
use crate::error::CutError;
use crate::inject::live_thread::{BUFFERS, LiveThread};
use crate::inject::stub::{PREVIOUS, PREVIOUS_BUT_ONE, Row};
use crate::namespaces::Namespaces;
use crate::refuse;
use holdfast_image::bytes::Name;
use holdfast_image::mounts::{MountSource, MountTree, Within};
use holdfast_image::namespaces::{NamespaceContent, NamespaceRecord, mounts_of};
use holdfast_image::record::{Backing, InjectArea, ProcessRecord};
use holdfast_sys::procmem;
use std::collections::{HashMap, HashSet};

/// More are not made at a restart, which has each open at a number of its own.
const MOST: usize = 16;
/// Bytes of each field of struct utsname (include/uapi/linux/utsname.h), and places of two of them.
const FIELD: usize = 65;
const HOST: usize = FIELD;
const DOMAIN: usize = 5 * FIELD;
/// Room for each answer, and where it tells how many objects there are: `used_ids` of struct shm_info, `semusz` of
/// struct seminfo, `msgpool` of struct msginfo (shmctl(2), semctl(2), msgctl(2)).
const ROOM: usize = 512;
const COUNTS: [usize; 3] = [ROOM, 2 * ROOM + 28, 3 * ROOM];
const IN_USE: &str =
    "there are System V objects in its ipc namespace, which is not supported: start `holdfast run` inside";
const SHOWN: &str = "a /proc of a pid namespace whose process 1 is not of the job, or of a second one, which is not \
                     supported";
const BLIND: &str = "it has mapped a file without a name, and its /proc shows the pid namespace of its children, which \
                     is not supported: start `holdfast run` inside";
/// Why [`are_nested`] is refused.
pub const NESTED: &str = "it has processes in a user namespace and in one below that, which is not supported: start \
                          `holdfast run` inside";
/// What tells of control groups (cgroups(7)), and room for that of one in the root of all.
const GROUPS: &[u8] = b"/proc/thread-self/cgroup\0";
const GROUPS_LEN: usize = 2048;
const OTHER_GROUP: &str = "its cgroup namespace has another root than its control group, or it has no /proc to tell, \
                           which is not supported: start `holdfast run` inside";
const SHM_INFO: u64 = 14;
const SEM_INFO: u64 = 19;
const MSG_INFO: u64 = 12;

/// One that a process is in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    other: Other,
    content: NamespaceContent,
    /// Of a mount namespace: devices of file systems that are nowhere else.
    devices: Vec<u64>,
}

/// What is in mount namespaces, by their inodes: each is read once in a stop.
pub type MountTrees = HashMap<u64, (MountTree, Vec<u64>)>;

impl Made {
    /// Whether it is a user namespace.
    pub fn is_user(&self) -> bool {
        matches!(self.content, NamespaceContent::User(_))
    }
}

/// Those of a process whose calls the host makes; the host is stopped at its marker afterwards. `threads`: how many it
/// has; `by`: see [`procfs::shown_by`].
///
/// # Errors
/// A restart could not make them again; the call failed.
pub fn ask(
    (pid, by): (i32, i32),
    (host, area, threads): (&LiveThread, &InjectArea, usize),
    job: &Namespaces,
    trees: &mut MountTrees,
) -> Result<(Vec<Made>, PidNamespaces), CutError> {
    let refused = |why: String| CutError::Refused(vec![refuse::process(pid, why)]);
    let own = Namespaces::of(by, by);
    let others = namespaces::others(by, &own, job).map_err(refused)?;
    let pids = pid_namespaces::of(by, &own, job).map_err(refused)?;
    if others.is_empty() {
        return Ok((Vec::new(), pids));
    }
    if threads > 1 && area.shared.0 == 0 && others.iter().any(|one| one.kind == "user") {
        return Err(refused(
            "it has threads in a user namespace of its own, where a restart cannot choose their ids, and no \
             libholdfast that could show it the old ones: start `holdfast run` inside"
                .into(),
        ));
    }
    let buffer = area.scratch.0 + BUFFERS;
    let at = |number: u64| buffer + number * ROOM as u64;
    let mut rows = vec![
        Row::new(libc::SYS_uname, &[buffer]),
        Row::new(libc::SYS_shmctl, &[0, SHM_INFO, at(1)]),
        Row::new(libc::SYS_semctl, &[0, 0, SEM_INFO, at(2)]),
        Row::new(libc::SYS_msgctl, &[0, MSG_INFO, at(3)]),
    ];
    if others.iter().any(|one| one.kind == "cgroup") {
        procmem::write(host.thread.tid, at(4), GROUPS)?;
        rows.extend(group_rows(at(4), at(5)));
    }
    let mut results = host.run(area, &rows, &mut |_| Ok(()))?;
    let groups = results.split_off(4);
    let mut told = vec![0; 5 * ROOM + GROUPS_LEN];
    procmem::read(host.thread.tid, buffer, &mut told)?;
    let text = |at: usize| {
        let field = &told[at..at + FIELD];
        Name(field.split(|byte| *byte == 0).next().unwrap_or_default().to_vec())
    };
    let is_there = |at: &usize| told[*at..at + 4] != [0; 4];
    let mut mounts = |inode: u64| -> Result<(MountTree, Vec<u64>), CutError> {
        if let Some(known) = trees.get(&inode) {
            return Ok(known.clone());
        }
        let view = View::of(by, job).map_err(refused)?.ok_or(CutError::Gone)?;
        let found = (view.contents().map_err(refused)?, view.devices().to_vec());
        trees.insert(inode, found.clone());
        Ok(found)
    };
    let content = |kind: &str| match kind {
        "uts" => Ok(NamespaceContent::Uts { host: text(HOST), domain: text(DOMAIN) }),
        "network" => namespaces::is_up(by)
            .map(|up| NamespaceContent::Network { up })
            .map_err(|error| refused(format!("the loopback device of its network namespace: {error}"))),
        "cgroup" if is_root(&groups, &told[5 * ROOM..]) => Ok(NamespaceContent::Cgroup),
        "cgroup" => Err(refused(OTHER_GROUP.into())),
        "user" => match namespaces::unless_ended(namespaces::id_maps(by)) {
            Ok(maps) => maps.map(NamespaceContent::User).ok_or(CutError::Gone),
            Err(error) => Err(refused(format!("the ids of its user namespace: {error}"))),
        },
        _ if results.iter().any(|result| *result < 0) => {
            Err(refused("the System V objects of its ipc namespace cannot be counted".into()))
        }
        _ if COUNTS.iter().any(is_there) => Err(refused(IN_USE.into())),
        _ => Ok(NamespaceContent::Ipc),
    };
    let made = others.into_iter().map(|other| {
        if other.kind == "mount" {
            let (tree, devices) = mounts(other.inode)?;
            return Ok(Made { content: NamespaceContent::Mount(tree), other, devices });
        }
        Ok(Made { content: content(other.kind)?, other, devices: Vec::new() })
    });
    made.collect::<Result<Vec<Made>, CutError>>().map(|made| (made, pids))
}

/// Calls that read in which control groups the caller is, as it sees them. `path`: where [`GROUPS`] is.
fn group_rows(path: u64, text: u64) -> [Row; 3] {
    let flags = u64::from((libc::O_RDONLY | libc::O_CLOEXEC).cast_unsigned());
    let open = [i64::from(libc::AT_FDCWD).cast_unsigned(), path, flags];
    [
        Row::new(libc::SYS_openat, &open),
        Row::new(libc::SYS_read, &[0, text, GROUPS_LEN as u64]).with(PREVIOUS),
        Row::new(libc::SYS_close, &[]).with(PREVIOUS_BUT_ONE),
    ]
}

/// Whether it is in the root of all of them.
fn is_root(results: &[i64], text: &[u8]) -> bool {
    let len = results.get(1).and_then(|len| usize::try_from(*len).ok()).filter(|len| *len < GROUPS_LEN);
    let Some(text) = len.and_then(|len| text.get(..len)) else { return false };
    !text.is_empty() && text.trim_ascii_end().split(|byte| *byte == b'\n').all(|line| line.ends_with(b":/"))
}

/// All namespaces of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct List {
    /// The list for the record.
    pub records: Vec<NamespaceRecord>,
    /// For each process its places in it.
    pub places: Vec<Vec<u32>>,
    /// Of each place, the inode.
    pub inodes: Vec<u64>,
}

impl List {
    /// What was noted by an inode ([`Within`]), by the place in the list.
    ///
    /// # Errors
    /// No process is in that namespace any more.
    pub fn settle(&self, within: Option<&mut Within>) -> Result<(), String> {
        let Some(within) = within else { return Ok(()) };
        let place = self.inodes.iter().position(|inode| *inode == within.namespace);
        within.namespace = place.ok_or_else(|| format!("{} {}", within.path, mounts::DETACHED))? as u64;
        Ok(())
    }

    /// The place of the network namespace of a socket, by its inode.
    ///
    /// # Errors
    /// No process is in it any more.
    pub fn place(&self, network: u64) -> Result<u64, String> {
        let place = self.inodes.iter().position(|inode| *inode == network);
        let none = "a socket is of a network namespace in which no process of the job is any more; try again";
        place.map(|place| place as u64).ok_or_else(|| none.into())
    }

    /// Which pid namespaces are shown in them, noted by their inodes, by their processes 1.
    ///
    /// # Errors
    /// One is none of the job's; two are shown in one.
    pub fn settle_shown(&mut self, inits: &Inits) -> Result<(), String> {
        for record in &mut self.records {
            let NamespaceContent::Mount(tree) = &mut record.content else { continue };
            let mut found = None;
            for mount in &mut tree.mounts {
                let MountSource::Kernel { pid_namespace: Some(shown), .. } = &mut mount.source else {
                    continue;
                };
                let init = inits.named(*shown).and_then(|init| u64::try_from(init).ok());
                *shown = init
                    .filter(|init| found.is_none_or(|before| before == *init))
                    .ok_or_else(|| format!("{}: {SHOWN}", mount.point))?;
                found = init;
            }
        }
        Ok(())
    }
}

/// What a restart maps by way of /proc, who has one of its children alone could not map again.
///
/// # Errors
/// Such a process has it; which, and why.
pub fn check_maps(records: &[&ProcessRecord], all: &[NamespaceRecord]) -> Result<(), (i32, String)> {
    let is_blind = |record: &ProcessRecord| {
        let children = record.children_in.and_then(|init| u64::try_from(init).ok());
        let place = mounts_of(all, &record.namespaces).and_then(|place| all.get(place as usize));
        let Some(NamespaceRecord { content: NamespaceContent::Mount(tree), .. }) = place else {
            return false;
        };
        let is_it = |source: &MountSource| match source {
            MountSource::Kernel { pid_namespace, .. } => {
                pid_namespace.is_some() && *pid_namespace == children
            }
            _ => false,
        };
        tree.mounts.iter().any(|mount| mount.point.0 == b"/proc" && is_it(&mount.source))
    };
    let nameless = |record: &ProcessRecord| {
        record.regions.iter().any(|region| matches!(region.backing, Backing::Nameless { .. }))
    };
    match records.iter().find(|record| nameless(record) && is_blind(record)) {
        Some(record) => Err((record.pid, BLIND.into())),
        None => Ok(()),
    }
}

/// Whether one of the namespaces that all processes of a job are in is a user namespace that another of them is below
/// ([`NESTED`]).
pub fn are_nested<'a>(all: impl Iterator<Item = &'a Other> + Clone) -> bool {
    let mut below = all.clone().filter_map(|other| other.below);
    below.any(|above| all.clone().any(|other| other.inode == above))
}

/// All of them.
///
/// # Errors
/// There are too many; two have one file system.
pub fn list(processes: &[&[Made]]) -> Result<List, String> {
    let mut all: Vec<&Made> = Vec::new();
    for made in processes.iter().copied().flatten() {
        if !all.iter().any(|known| known.other.inode == made.other.inode) {
            all.push(made);
        }
    }
    let mut devices = HashSet::new();
    if !all.iter().flat_map(|made| &made.devices).all(|device| devices.insert(device)) {
        return Err(
            "two mount namespaces have one file system in memory that no other has, which is not supported"
                .into(),
        );
    }
    if are_nested(all.iter().map(|made| &made.other)) {
        return Err(NESTED.into());
    }
    if all.len() > MOST {
        return Err(format!("the job has made {} namespaces, and a restart makes at most {MOST}", all.len()));
    }
    // What the job's user namespace owns is entered while the process has its rights, what others own afterwards.
    all.sort_by_key(|made| (made.other.owner.is_some(), made.other.kind == "user"));
    let place = |inode: u64| {
        let found = all.iter().position(|made| made.other.inode == inode);
        found.and_then(|place| u32::try_from(place).ok())
    };
    let record = |made: &&Made| NamespaceRecord {
        owner: made.other.owner.and_then(place),
        content: made.content.clone(),
    };
    let own = |made: &&[Made]| {
        let mut places: Vec<u32> = made.iter().filter_map(|made| place(made.other.inode)).collect();
        places.sort_unstable();
        places
    };
    Ok(List {
        records: all.iter().map(record).collect(),
        places: processes.iter().map(own).collect(),
        inodes: all.iter().map(|made| made.other.inode).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::namespaces::IdMaps;

    #[test]
    fn owners_come_before_what_they_own_and_after_what_the_job_owns() {
        let made = |kind, inode, owner, content| Made {
            other: Other { kind, inode, owner, below: None },
            content,
            devices: Vec::new(),
        };
        let user = made("user", 7, None, NamespaceContent::User(IdMaps::default()));
        let ipc = made("ipc", 5, Some(7), NamespaceContent::Ipc);
        let net = made("network", 9, None, NamespaceContent::Network { up: true });
        let first = [ipc.clone(), user.clone()];
        let found = list(&[&first, &[], &[user.clone(), net.clone()]]);
        let record = |made: Made, owner| NamespaceRecord { owner, content: made.content };
        let records = vec![record(net, None), record(user, None), record(ipc, Some(1))];
        let places = vec![vec![1, 2], vec![], vec![0, 1]];
        let list = List { records, places, inodes: vec![9, 7, 5] };
        assert_eq!(found, Ok(list.clone()));
        let mut within = Within { namespace: 7, path: Name::from("/mnt/file") };
        assert_eq!((list.settle(Some(&mut within)), within.namespace), (Ok(()), 1));
        let mut within = Within { namespace: 8, ..within };
        assert!(list.settle(Some(&mut within)).is_err() && list.settle(None).is_ok());
    }

    #[test]
    fn only_who_is_in_the_root_of_all_control_groups_is_in_it() {
        let told = |text: &str| is_root(&[3, text.len() as i64, 0], text.as_bytes());
        assert!(told("0::/\n") && told("2:cpu:/\n1:name=systemd:/\n"));
        assert!(!told("0::/a\n") && !told("2:cpu:/\n0::/../a\n") && !told(""));
        assert!(
            !is_root(&[-2, -9, -9], b"0::/\n") && !is_root(&[], b"") && !is_root(&[3, 4096, 0], b"0::/\n")
        );
    }

    #[test]
    fn a_user_namespace_below_another_is_made_if_no_process_is_in_that() {
        let made = |inode, below| Made {
            other: Other { kind: "user", inode, owner: None, below },
            content: NamespaceContent::User(IdMaps::default()),
            devices: Vec::new(),
        };
        assert!(
            list(&[&[made(3, Some(2))]]).is_ok() && list(&[&[made(3, Some(2))], &[made(2, None)]]).is_err()
        );
    }

    #[test]
    fn a_file_system_of_two_namespaces_is_refused() {
        let made = |inode| Made {
            other: Other { kind: "mount", inode, owner: None, below: None },
            content: NamespaceContent::Mount(MountTree::default()),
            devices: vec![40],
        };
        assert!(list(&[&[made(3)], &[made(4)]]).is_err() && list(&[&[made(3)], &[made(3)]]).is_ok());
    }
}
