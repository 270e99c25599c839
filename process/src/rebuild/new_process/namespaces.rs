//! Namespaces that programs of the job had made, made anew by the first new process.
//!
//! Called by [`super::files`]. Each is made by a process of its own, which is in the user namespace that it shall
//! belong to, and ends as soon as the namespace is open here. All new processes have them open over their exec; the
//! agent has each go into its own (`agent::namespaces`) when all that needs the rights of the restart is done.
//! How it fails: names the kind; nothing is left.

use super::mounts::{self, Judged};
use super::open::raise;
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Job;
use crate::rebuild::kept_fds;
use crate::rebuild::paths::Opener;
use holdfast_image::namespaces::{IdMaps, IdRange, NamespaceContent, NamespaceRecord, is_early, user_of};
use holdfast_image::record::ProcessRecord;
use holdfast_sys::{at, attributes, clone, fd, namespaces, objects, spawn};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

/// Told by who has made one.
const MADE: &str = "made";

/// All of them, by their places.
#[derive(Debug, Default)]
pub struct MadeNamespaces {
    all: Vec<OwnedFd>,
    /// The roots of mount namespaces.
    roots: HashMap<u64, Arc<OwnedFd>>,
}

impl MadeNamespaces {
    /// Makes them. No descriptor lies below `floor`.
    ///
    /// # Errors
    /// The kernel, or its administrator, forbids it.
    /// `opener`: of the first process.
    pub fn make(
        all: &[NamespaceRecord],
        opener: &Opener,
        floor: i32,
    ) -> Result<MadeNamespaces, RebuildError> {
        let mut made = MadeNamespaces::default();
        for (place, one) in (0..).zip(all) {
            let (kind, _) = kind(&one.content);
            let (opened, root) = made.one(one, (all, opener)).map_err(|error| {
                RebuildError::Refused(format!(
                    "a namespace of the program ({kind}) cannot be made here: {error} (user.max_{kind}_namespaces, \
                     kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; an image of \
                     root's by root)"
                ))
            })?;
            made.all.push(raise(&opened, floor)?);
            if let Some(root) = root {
                made.roots.insert(place, Arc::new(raise(&root, floor)?));
            }
        }
        Ok(made)
    }

    /// The root of the mount namespace at a place.
    ///
    /// # Errors
    /// There is none.
    pub fn root(&self, place: u64) -> Result<&Arc<OwnedFd>, RebuildError> {
        self.roots
            .get(&place)
            .ok_or_else(|| RebuildError::Image(format!("namespace {place} is none of mounts")))
    }

    /// The one at a place.
    pub fn get(&self, place: u32) -> Option<&OwnedFd> {
        self.all.get(place as usize)
    }

    /// Has the calling process be in the mount namespace of a process, in the folder that is open.
    ///
    /// # Errors
    /// The restart lacks the right to it.
    pub fn enter_mounts(&self, place: u32, folder: BorrowedFd<'_>) -> Result<(), RebuildError> {
        let none = || RebuildError::Image(format!("there is no namespace {place}"));
        let namespace = self.all.get(place as usize).ok_or_else(none)?;
        namespaces::join(namespace.as_fd())
            .and_then(|()| at::enter(folder))
            .map_err(RebuildError::io("going into the mount namespace of the program"))
    }

    /// Makes those mounts that show the pid namespace of which the caller is process 1, and what lies on them. By a
    /// child, which ends.
    ///
    /// # Errors
    /// Names the mount.
    pub fn finish_mounts(&self, all: &[NamespaceRecord], own: &ProcessRecord) -> Result<(), RebuildError> {
        for (one, opened) in all.iter().zip(&self.all) {
            let NamespaceContent::Mount(tree) = &one.content else { continue };
            if !mounts::shows(tree, own.pid) {
                continue;
            }
            let judged = Judged::of(tree, &Opener::of(own))?;
            let (is_made, tell) = fd::pipe(0).map_err(RebuildError::io("making a pipe"))?;
            match clone::fork_with(0, 0).map_err(RebuildError::io("making a process for mounts"))? {
                0 => {
                    drop(is_made);
                    let made = mounts::finish(tree, &judged, || namespaces::join(opened.as_fd()));
                    let why = made.map_or_else(|error| error.to_string(), |()| MADE.to_owned());
                    let _ = File::from(tell).write_all(why.as_bytes());
                    attributes::exit_now(0)
                }
                child => {
                    drop(tell);
                    let told = io::read_to_string(File::from(is_made));
                    let _ = spawn::wait(child, true);
                    match told.map_err(RebuildError::io("hearing of mounts"))? {
                        told if told == MADE => {}
                        why => return Err(RebuildError::Refused(why)),
                    }
                }
            }
        }
        Ok(())
    }

    /// Has the calling process be in those of its own that it goes into before its exec.
    ///
    /// # Errors
    /// The restart lacks the right to it.
    pub fn enter_early(&self, all: &[NamespaceRecord], own: &[u32]) -> Result<(), RebuildError> {
        for place in own.iter().filter(|place| is_early(all, **place)) {
            let none = || RebuildError::Image(format!("there is no namespace {place}"));
            namespaces::join(self.get(*place).ok_or_else(none)?.as_fd())
                .map_err(RebuildError::io("going into a namespace of the program"))?;
        }
        Ok(())
    }

    fn one(
        &self,
        one: &NamespaceRecord,
        (all, opener): (&[NamespaceRecord], &Opener),
    ) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
        let judged = match &one.content {
            NamespaceContent::Mount(tree) => Judged::of(tree, opener).map_err(io::Error::other)?,
            _ => Judged::default(),
        };
        let (is_made, tell) = fd::pipe(0)?;
        let (wait, go) = fd::pipe(0)?;
        match clone::fork_with(0, 0)? {
            0 => {
                drop((is_made, go));
                let why = self.enter(one, all, &judged).err();
                let why = why.map_or_else(|| MADE.to_owned(), |error| error.to_string());
                let _ = File::from(tell).write_all(why.as_bytes());
                let _ = File::from(wait).read(&mut [0]);
                attributes::exit_now(0)
            }
            child => {
                drop((tell, wait));
                let opened = match io::read_to_string(File::from(is_made)) {
                    Ok(told) if told == MADE => open(child, &one.content),
                    Ok(why) => Err(io::Error::other(why)),
                    Err(error) => Err(error),
                };
                drop(go);
                let _ = spawn::wait(child, true);
                opened
            }
        }
    }

    /// Has the calling process be in a new one.
    fn enter(&self, one: &NamespaceRecord, all: &[NamespaceRecord], judged: &Judged) -> io::Result<()> {
        if let Some(owner) = one.owner.and_then(|owner| self.all.get(owner as usize)) {
            namespaces::join(owner.as_fd())?;
        }
        namespaces::leave(kind(&one.content).1)?;
        match &one.content {
            NamespaceContent::Uts { host, domain } => {
                namespaces::set_host_name(host.as_path().as_os_str())?;
                namespaces::set_domain_name(domain.as_path().as_os_str())
            }
            NamespaceContent::Network { up: true } => namespaces::loopback_up(),
            NamespaceContent::Mount(tree) => {
                let owner = one.owner.and_then(|owner| user_of(all, &[owner]));
                mounts::build(tree, judged, owner).map_err(io::Error::other)
            }
            _ => Ok(()),
        }
    }

    /// Has them at the numbers where the agent finds them.
    ///
    /// # Errors
    /// RLIMIT_NOFILE is too low.
    pub fn put_in_place(&self, job: &Job<'_>) -> Result<(), RebuildError> {
        let several = kept_fds::of_several(job);
        for (place, one) in self.all.iter().enumerate() {
            objects::duplicate_to(one.as_fd(), kept_fds::of_namespace(job, &several, place))
                .map_err(RebuildError::io("handing down a namespace"))?;
        }
        Ok(())
    }
}

/// Its name under /proc/PID/ns, and the flag of unshare(2).
fn kind(content: &NamespaceContent) -> (&'static str, i32) {
    match content {
        NamespaceContent::User(_) => ("user", libc::CLONE_NEWUSER),
        NamespaceContent::Uts { .. } => ("uts", libc::CLONE_NEWUTS),
        NamespaceContent::Ipc => ("ipc", libc::CLONE_NEWIPC),
        NamespaceContent::Network { .. } => ("net", libc::CLONE_NEWNET),
        NamespaceContent::Cgroup => ("cgroup", libc::CLONE_NEWCGROUP),
        NamespaceContent::Mount(_) => ("mnt", libc::CLONE_NEWNS),
    }
}

/// The one that a process is in, and the root of one of mounts; of a user namespace its ids are given first, which only
/// who is outside may for all.
fn open(process: i32, content: &NamespaceContent) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    if let NamespaceContent::User(IdMaps { users, groups, setgroups }) = content {
        if !setgroups {
            fs::write(format!("/proc/{process}/setgroups"), "deny")?;
        }
        for (name, ranges) in [("uid_map", users), ("gid_map", groups)] {
            let line = |IdRange { inside, outside, count }: &IdRange| format!("{inside} {outside} {count}\n");
            let text: String = ranges.iter().map(line).collect();
            if !text.is_empty() {
                fs::write(format!("/proc/{process}/{name}"), text)?;
            }
        }
    }
    let root = match content {
        NamespaceContent::Mount(_) => {
            let folder = libc::O_PATH | libc::O_DIRECTORY;
            let root = format!("/proc/{process}/root");
            Some(File::options().read(true).custom_flags(folder).open(root)?.into())
        }
        _ => None,
    };
    Ok((File::open(format!("/proc/{process}/ns/{}", kind(content).0))?.into(), root))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// By a process of its own: the caller of `fork_with` must have no threads.
    #[test]
    fn they_are_made_in_a_user_namespace_and_belong_to_it() {
        let all = |user: u32, group: u32| {
            let one = |outside| vec![IdRange { inside: 0, outside, count: 1 }];
            let maps = IdMaps { users: one(user), groups: one(group), setgroups: false };
            let of_user = |content| NamespaceRecord { owner: Some(0), content };
            [
                NamespaceRecord { owner: None, content: NamespaceContent::User(maps) },
                of_user(NamespaceContent::Uts { host: "inside".into(), domain: "of".into() }),
                of_user(NamespaceContent::Network { up: true }),
            ]
        };
        let user = holdfast_sys::unix_socket::effective_user();
        let opener = Opener::of(&crate::rebuild::testing::record(Vec::new()));
        let child = clone::fork_with(0, 0).unwrap();
        if child == 0 {
            let group = attributes::effective_group();
            let right = MadeNamespaces::make(&all(user, group), &opener, 100).is_ok_and(|made| {
                let owner = namespaces::owner(made.all[2].as_fd()).map(File::from);
                let inode = |file: io::Result<File>| {
                    use std::os::unix::fs::MetadataExt;
                    file.and_then(|file| file.metadata()).map(|found| found.ino()).ok()
                };
                inode(owner).is_some_and(|it| Some(it) == inode(made.all[0].try_clone().map(File::from)))
            });
            attributes::exit_now(i32::from(!right));
        }
        let ended = spawn::wait(child, true).unwrap().unwrap();
        assert_eq!(ended.code(), Some(0));
    }
}
