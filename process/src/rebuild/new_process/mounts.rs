//! The mounts of a namespace that a program of the job had made, made anew.
//!
//! Called by [`super::namespaces`], in the process that makes the namespace and ends then: it has all rights in it, and
//! nothing that it does is seen elsewhere. Order: what is a part of the job's mounts is taken hold of, before anything
//! lies over it; all is mounted, filled, and only then made read-only; a new root comes last. What must hold: what is
//! mounted is found without links, and is the program's ([`Opener`]). How it fails: names the mount.

use crate::rebuild::error::RebuildError;
use crate::rebuild::paths::{Opener, new_name};
use holdfast_image::bytes::Name;
use holdfast_image::mounts::{
    MountRecord, MountSource, MountTree, Propagation, TmpfsEntry, TmpfsKind, TmpfsRecord,
};
use holdfast_image::namespaces::{IdMaps, inside};
use holdfast_image::record::Ownership;
use holdfast_sys::{at, mountinfo, mounts};
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

/// What lies in the job's mounts and is mounted again: device and inode. Looked at by who sees whose it is, outside of
/// the program's user namespace.
#[derive(Debug, Default)]
pub struct Judged(HashMap<Name, (u64, u64)>);

impl Judged {
    /// Of a tree.
    ///
    /// # Errors
    /// It is gone, or not the program's.
    pub fn of(tree: &MountTree, opener: &Opener) -> Result<Judged, RebuildError> {
        let mut all = HashMap::new();
        for mount in &tree.mounts {
            let MountSource::Bind { from, inode, .. } = &mount.source else { continue };
            let (_, found) = opener.open(from, inode.as_ref(), libc::O_PATH.cast_unsigned())?;
            all.insert(from.clone(), (found.now.dev(), found.now.ino()));
        }
        Ok(Judged(all))
    }

    /// Another mount of it, in the namespace of the caller.
    fn again(&self, from: &Name, recursive: bool) -> io::Result<OwnedFd> {
        let path = CString::new(&from.0[..])?;
        let file = File::from(at::open_without_links(&path, libc::O_PATH.cast_unsigned())?);
        let now = file.metadata()?;
        if self.0.get(from) != Some(&(now.dev(), now.ino())) {
            return Err(io::Error::other("it was replaced while it was opened; restart again"));
        }
        mounts::another(file.as_fd(), recursive)
    }
}

/// Where something is mounted for the moment.
const STAGES: [&str; 4] = ["/tmp", "/mnt", "/var", "/run"];

/// What the kernel fills.
const OF_KERNEL: [&str; 4] = ["proc", "sysfs", "mqueue", "devpts"];

/// Makes all of it in the caller's mount namespace, which is new. `maps`: those of the user namespace that owns it, if
/// that is not the job's.
///
/// # Errors
/// See the head.
pub fn build(tree: &MountTree, judged: &Judged, maps: Option<&IdMaps>) -> Result<(), RebuildError> {
    let kind = match tree.propagation {
        Propagation::Shared => return Ok(()),
        Propagation::Slave => libc::MS_SLAVE,
        Propagation::Private => libc::MS_PRIVATE,
    };
    mounts::propagate_all(kind).map_err(RebuildError::io("making mounts private"))?;
    let held = held(tree, judged, maps)?;
    for point in &tree.removed {
        take_away(point)?;
    }
    let base =
        if tree.pivoted { Some(stage().map_err(RebuildError::io("making room for mounts"))?) } else { None };
    let mut builder =
        Builder { tree, maps, base: base.as_deref().unwrap_or(Path::new("/")), made: HashMap::new() };
    builder.make_all(held, false)?;
    builder.seal().map_err(RebuildError::io("making a file system read-only"))?;
    if let Some(base) = base {
        std::env::set_current_dir(base)
            .and_then(|()| mounts::pivot())
            .map_err(RebuildError::io("changing the root of a mount namespace"))?;
    }
    Ok(())
}

/// Whether a /proc of the pid namespace is in it that has this process 1.
pub fn shows(tree: &MountTree, init: i32) -> bool {
    let it = u64::try_from(init).ok();
    let is_it = |one: &MountRecord| match one.source {
        MountSource::Kernel { pid_namespace, .. } => pid_namespace.is_some() && pid_namespace == it,
        _ => false,
    };
    tree.mounts.iter().any(is_it)
}

/// Makes the mounts that [`build`] has left out, in a process of the pid namespace that they show; `enter` has it go
/// into the mount namespace. A /proc is made before that: in the namespace of a user, one can be mounted only where
/// there is one that shows everything (fs/namespace.c, mount_too_revealing).
///
/// # Errors
/// See the head.
pub fn finish(
    tree: &MountTree,
    judged: &Judged,
    enter: impl FnOnce() -> io::Result<()>,
) -> Result<(), RebuildError> {
    let mut all = Vec::new();
    for (place, mount) in tree.mounts.iter().enumerate() {
        let made = match &mount.source {
            _ if !tree.is_late(place) => None,
            MountSource::Bind { from, recursive, .. } => Some(judged.again(from, *recursive)),
            MountSource::Kernel { pid_namespace: Some(_), options, .. } => {
                Some(mounts::kernel_file_system(c"proc", options))
            }
            _ => None,
        };
        let made = made.transpose().map_err(of(&mount.point, "it cannot be mounted again"))?;
        all.push(made.map(|mount| Held { mount, file: None }));
    }
    enter()
        .and_then(|()| std::env::set_current_dir("/"))
        .map_err(RebuildError::io("going into the mount namespace of the program"))?;
    let mut builder = Builder { tree, maps: None, base: Path::new("/"), made: HashMap::new() };
    builder.make_all(all, true)?;
    builder.seal().map_err(RebuildError::io("making a file system read-only"))
}

/// Gives a mount its flags; where the restart's own has more of them that only who has mounted it may take away (the
/// /proc of an ordinary user's restart), those stay.
fn set_flags(at: &Path, flags: u64) -> io::Result<()> {
    const STRICT: u64 = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    match mounts::set_flags(at, flags) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let all = mountinfo::own()?;
            let now =
                all.iter().rev().find(|mount| mount.point == at).map_or(0, |mount| mount.flags & STRICT);
            if now & !flags == 0 { Err(error) } else { mounts::set_flags(at, flags | now) }
        }
        set => set,
    }
}

/// An error of a mount.
fn of(point: &Name, what: &'static str) -> impl Fn(io::Error) -> RebuildError {
    let point = point.clone();
    move |error| RebuildError::file(&point, format!("in the mount namespace of the program {what}: {error}"))
}

/// A mount that lies nowhere yet.
#[derive(Debug)]
struct Held {
    mount: OwnedFd,
    /// Its file, which is to have no name, by its folder. What has none cannot be put anywhere (fs/namespace.c,
    /// get_mountpoint).
    file: Option<(OwnedFd, CString)>,
}

impl Held {
    fn place(&self, at: &Path) -> io::Result<()> {
        place(&self.mount, at)?;
        self.file.as_ref().map_or(Ok(()), |(folder, name)| at::remove(folder.as_fd(), name, false))
    }
}

/// Takes hold of what is mounted and lies in the job's mounts, or nowhere; one for each mount.
fn held(tree: &MountTree, judged: &Judged, maps: Option<&IdMaps>) -> Result<Vec<Option<Held>>, RebuildError> {
    let mut all = Vec::new();
    for (place, mount) in tree.mounts.iter().enumerate() {
        all.push(match &mount.source {
            _ if tree.is_late(place) => None,
            MountSource::Bind { from, recursive, .. } => {
                let made = judged.again(from, *recursive);
                let mount = made.map_err(of(from, "it cannot be mounted again"))?;
                Some(Held { mount, file: None })
            }
            MountSource::File { content, mode, owner } => {
                let made = nameless(&content.0, *mode, *owner, maps);
                Some(made.map_err(of(&mount.point, "a file without a name cannot be made anew"))?)
            }
            _ => None,
        });
    }
    Ok(all)
}

/// A mount of a file that is nowhere.
fn nameless(content: &[u8], mode: u32, owner: Ownership, maps: Option<&IdMaps>) -> io::Result<Held> {
    let stage = stage()?;
    let name = new_name();
    let path = stage.join(&name);
    fs::write(&path, content)?;
    give(&path, owner, maps)?;
    fs::set_permissions(&path, Permissions::from_mode(mode))?;
    let path_only = |path: &Path| File::options().read(true).custom_flags(libc::O_PATH).open(path);
    let (file, folder) = (path_only(&path)?, path_only(&stage)?);
    let mount = mounts::another(file.as_fd(), false)?;
    mounts::remove(stage.parent().unwrap_or(&stage))?;
    Ok(Held { mount, file: Some((folder.into(), CString::new(name)?)) })
}

/// A folder for the moment, in a file system of its own.
fn stage() -> io::Result<PathBuf> {
    let folder = STAGES.iter().map(Path::new).find(|folder| folder.is_dir());
    let folder = folder.ok_or(io::ErrorKind::NotFound)?;
    mounts::mount("tmpfs", Path::new("holdfast"), folder, 0, "mode=0700")?;
    let stage = folder.join("root");
    fs::create_dir(&stage)?;
    Ok(stage)
}

/// A mount of the job's that the program did not have, if this host has it.
fn take_away(point: &Name) -> Result<(), RebuildError> {
    let all = mountinfo::own().map_err(RebuildError::io("reading the mounts"))?;
    if !all.iter().any(|mount| mount.point == point.as_path()) {
        return Ok(());
    }
    mounts::remove(point.as_path())
        .map_err(of(point, "it was not mounted, and cannot be taken away (unmount it, or start inside)"))
}

struct Builder<'a> {
    tree: &'a MountTree,
    maps: Option<&'a IdMaps>,
    /// Where its root is now.
    base: &'a Path,
    /// Of each file system, where it was mounted first, and what of it.
    made: HashMap<u32, (PathBuf, &'a Name)>,
}

impl<'a> Builder<'a> {
    fn at(&self, point: &Name) -> PathBuf {
        match point.as_path().strip_prefix("/") {
            Ok(rest) if rest != Path::new("") => self.base.join(rest),
            _ => self.base.to_owned(),
        }
    }

    /// Makes all, or those that come late.
    fn make_all(&mut self, held: Vec<Option<Held>>, late: bool) -> Result<(), RebuildError> {
        let tree = self.tree;
        let wanted = |place: &usize| tree.is_late(*place) == late;
        for (place, (mount, held)) in tree.mounts.iter().zip(held).enumerate() {
            if wanted(&place) {
                self.make(mount, held).map_err(of(&mount.point, "it cannot be mounted again"))?;
            }
        }
        for (_, mount) in tree.mounts.iter().enumerate().filter(|(place, _)| wanted(place)) {
            let set = set_flags(&self.at(&mount.point), mount.flags);
            set.map_err(of(&mount.point, "the mount cannot get the flags that it had"))?;
        }
        Ok(())
    }

    fn make(&mut self, mount: &'a MountRecord, held: Option<Held>) -> io::Result<()> {
        let at = self.at(&mount.point);
        match &mount.source {
            MountSource::Kept => Ok(()),
            MountSource::Bind { .. } | MountSource::File { .. } => match held {
                Some(held) => held.place(&at),
                None => Err(io::ErrorKind::NotFound.into()),
            },
            // Image files are not trusted.
            MountSource::Kernel { file_system, .. } if !OF_KERNEL.contains(&file_system.as_str()) => {
                Err(io::ErrorKind::InvalidInput.into())
            }
            MountSource::Kernel { pid_namespace: Some(_), .. } => match held {
                Some(held) => held.place(&at),
                None => Err(io::ErrorKind::NotFound.into()),
            },
            MountSource::Kernel { file_system, options, .. } => {
                mounts::mount(file_system, Path::new(file_system), &at, 0, options)
            }
            MountSource::Part { of, root } => {
                let whole = self.tree.mounts.get(*of as usize).ok_or(io::ErrorKind::NotFound)?;
                let rest = root.as_path().strip_prefix("/").map_err(io::Error::other)?;
                place(&another(&self.at(&whole.point).join(rest))?, &at)
            }
            MountSource::Tmpfs { file_system, root } => self.tmpfs(*file_system, root, at),
        }
    }

    fn tmpfs(&mut self, number: u32, root: &'a Name, at: PathBuf) -> io::Result<()> {
        if let Some((first, shown)) = self.made.get(&number) {
            let rest = root.as_path().strip_prefix(shown.as_path()).map_err(io::Error::other)?;
            return place(&another(&first.join(rest))?, &at);
        }
        let one = self.tree.file_systems.get(number as usize).ok_or(io::ErrorKind::NotFound)?;
        mounts::mount("tmpfs", one.source.as_path(), &at, 0, &one.options)?;
        let rest = root.as_path().strip_prefix("/").map_err(io::Error::other)?;
        if rest == Path::new("") {
            fill(one, &at, self.maps)?;
        } else {
            let folder = at.join(rest);
            fs::create_dir_all(&folder)?;
            fill(one, &folder, self.maps)?;
            let part = another(&folder)?;
            mounts::remove(&at)?;
            place(&part, &at)?;
        }
        self.made.insert(number, (at, root));
        Ok(())
    }

    /// What cannot be written to anywhere.
    fn seal(&self) -> io::Result<()> {
        let sealed =
            |number: &u32| self.tree.file_systems.get(*number as usize).is_some_and(|one| one.read_only);
        let mut all = self.made.iter().filter(|(number, _)| sealed(number));
        all.try_for_each(|(_, (at, _))| mounts::make_read_only(at))
    }
}

fn another(path: &Path) -> io::Result<OwnedFd> {
    let file = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    mounts::another(file.as_fd(), false)
}

fn place(mount: &OwnedFd, at: &Path) -> io::Result<()> {
    mounts::place(mount.as_fd(), &CString::new(at.as_os_str().as_bytes())?)
}

/// Makes what is in a file system. Whose it is is said as the caller sees it.
fn fill(one: &TmpfsRecord, base: &Path, maps: Option<&IdMaps>) -> io::Result<()> {
    let path = |entry: &TmpfsEntry| match entry.path.0.is_empty() {
        true => base.to_owned(),
        false => base.join(entry.path.as_path()),
    };
    for entry in &one.entries {
        let at = path(entry);
        match &entry.kind {
            TmpfsKind::Folder if entry.path.0.is_empty() => {}
            TmpfsKind::Folder => fs::create_dir(&at)?,
            TmpfsKind::Link { to } => symlink(to.as_path(), &at)?,
            TmpfsKind::Fifo => at::make_fifo_at(&at, 0o600)?,
            TmpfsKind::Same { of } => {
                let first = one.entries.get(*of as usize).ok_or(io::ErrorKind::NotFound)?;
                fs::hard_link(path(first), &at)?;
                continue;
            }
            TmpfsKind::File { size, content } => {
                let file = File::options().write(true).create_new(true).mode(0o600).open(&at)?;
                file.set_len(*size)?;
                content.iter().try_for_each(|piece| file.write_all_at(&piece.data.0, piece.offset))?;
            }
        }
        give(&at, entry.owner, maps)?;
        if !matches!(entry.kind, TmpfsKind::Link { .. }) {
            fs::set_permissions(&at, Permissions::from_mode(entry.mode))?;
        }
    }
    // What was made in a folder has changed its time.
    let kept = one.entries.iter().filter(|entry| !matches!(entry.kind, TmpfsKind::Same { .. })).rev();
    kept.into_iter().try_for_each(|entry| at::set_written(&path(entry), entry.mtime_ns))
}

/// Gives a file to whom it belonged.
fn give(path: &Path, owner: Ownership, maps: Option<&IdMaps>) -> io::Result<()> {
    let none =
        || io::Error::other(format!("user {} or group {} is not known there", owner.user, owner.group));
    let (user, group) = match maps {
        None => (owner.user, owner.group),
        Some(maps) => (
            inside(&maps.users, owner.user).ok_or_else(none)?,
            inside(&maps.groups, owner.group).ok_or_else(none)?,
        ),
    };
    lchown(path, Some(user), Some(group))
}
