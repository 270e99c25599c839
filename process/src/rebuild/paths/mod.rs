//! The one way from a path of an image to a file, in both halves of a restart.
//!
//! A path that /proc has told has no symbolic link in it: one that has now leads elsewhere, and is refused. What has
//! the name is looked at by a descriptor (O_PATH), compared with the record ([`judge`]), and whatever is done then is
//! done by that descriptor, or by that of its folder: no path is resolved twice.
//!
//! Whose rights open it: where root restarts a process that is another user, or that has fewer capabilities, the very
//! file of the record (inode, time of birth, owner) is opened with the rights of the restart, for the record proves
//! that the process had it: a server opens its log before it becomes another user. All else is opened, made and
//! removed as the process itself ([`Opener::act`]).
//!
//! How it fails: an error names the path and what to do; nothing was changed.

mod judge;
mod place;

use judge::Owners;
pub use judge::Verdict;
use place::O_PATH;
pub use place::{Place, change_mode, change_owner, enter, is_of_root, new_name, open_folder, reopen};

use super::error::RebuildError;
use super::proc_self::NOT_AGAIN;
use holdfast_image::bytes::Name;
use holdfast_image::record::{Inode, Ownership, ProcessRecord};
use holdfast_sys::fs_ids::{self, ActingAs, FsIds};
use holdfast_sys::{at, objects, unix_socket};
use std::ffi::{CStr, CString, OsStr};
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

/// The family in an address of a unix socket.
const UNIX: u16 = libc::AF_UNIX as u16;

/// What is wrong with a path that has a symbolic link in it.
const LINKED: &str = "a part of this path is a symbolic link now, and none was at the checkpoint; give \
the new path of the file (restart --map OLD=NEW)";

/// A path as the kernel takes it.
pub fn c_path(path: &Name) -> Result<CString, RebuildError> {
    CString::new(path.0.clone()).map_err(|_| RebuildError::file(path, "the path has a zero byte in it"))
}

/// Of /proc, whose links are the kernel's, and where no user makes files.
fn is_of_kernel(path: &Name) -> bool {
    path.0.starts_with(b"/proc/")
}

/// Makes files for a user as root.
fn act_for(was: Ownership, with_roots_rights: bool) -> io::Result<ActingAs> {
    let capabilities = if with_roots_rights { u64::MAX } else { 0 };
    fs_ids::act_as(&FsIds { user: was.user, group: was.group, groups: Vec::new(), capabilities })
}

/// Until the answer is dropped sockets are made as of the one who had made them, if root restarts.
///
/// # Errors
/// EINVAL: there is no such user here.
pub fn act_as_maker(made_by: Option<Ownership>) -> io::Result<Option<ActingAs>> {
    made_by.filter(|_| unix_socket::effective_user() == 0).map(|made_by| act_for(made_by, true)).transpose()
}

/// What an error says of a path.
pub fn explain(error: &io::Error) -> String {
    if error.raw_os_error() == Some(libc::ELOOP) { LINKED.to_owned() } else { error.to_string() }
}

/// Opens the files of one process.
#[derive(Clone, Debug)]
pub struct Opener {
    owners: Owners,
    /// Whom the process is, if that is not who restarts it.
    ids: Option<FsIds>,
    /// Of a file in a mount namespace of a program's own: the root of that, its path here and there.
    within: Option<(Arc<OwnedFd>, Name, Name)>,
}

/// A file that may be used.
#[derive(Debug)]
pub struct Found {
    /// Opened with O_PATH.
    file: File,
    /// What it is.
    pub now: Metadata,
    /// What it is to the program.
    pub verdict: Verdict,
    /// It must be opened as the process.
    as_process: bool,
}

impl Opener {
    /// For a process.
    pub fn of(record: &ProcessRecord) -> Opener {
        let is_root = unix_socket::effective_user() == 0;
        let ids = record.rights.as_ref().filter(|_| is_root).map(|rights| {
            let [user, group] = rights.files.unwrap_or([rights.users[1], rights.groups[1]]);
            let [_, _, capabilities, ..] = rights.capabilities;
            FsIds { user, group, groups: rights.more_groups.clone(), capabilities }
        });
        let own = ids.as_ref().map_or_else(unix_socket::effective_user, |ids: &FsIds| ids.user);
        Opener { owners: Owners::here(own), ids, within: None }
    }

    /// The same for a file that is to be opened in a mount namespace with this root. `paths`: here and there.
    pub fn within(self, root: &Arc<OwnedFd>, (here, there): (&Name, &Name)) -> Opener {
        Opener { within: Some((Arc::clone(root), here.clone(), there.clone())), ..self }
    }

    /// Opens a path no part of which may be a symbolic link.
    fn open_straight(&self, path: &Name, name: &CStr, flags: u32) -> io::Result<OwnedFd> {
        match self.within.as_ref().filter(|(_, here, _)| here == path) {
            Some((root, _, there)) => at::open_within(root.as_fd(), &CString::new(&there.0[..])?, flags),
            None => at::open_without_links(name, flags),
        }
    }

    /// Until the answer is dropped the caller makes and opens files as the process.
    ///
    /// # Errors
    /// The restart lacks the right to it.
    pub fn act(&self) -> io::Result<Option<ActingAs>> {
        self.ids.as_ref().map(fs_ids::act_as).transpose()
    }

    /// The same, for a name that is to be made or removed. `was`: whose it was. What was root's is root's to make where
    /// no other user can change anything on the way. What another user had of a process of root's is made as that user:
    /// with root's rights on such a way, with that user's own on any other.
    ///
    /// # Errors
    /// The restart lacks the right to it.
    pub fn act_at(&self, path: &Path, was: Option<Ownership>) -> io::Result<Option<ActingAs>> {
        match was.filter(|_| unix_socket::effective_user() == 0) {
            Some(was) if self.ids.is_some() && was.user == 0 && is_of_root(path) => Ok(None),
            Some(was) if self.ids.is_none() && was.user != 0 => act_for(was, is_of_root(path)).map(Some),
            _ => self.act(),
        }
    }

    /// The same for a folder, which is empty. Where only root can change anything on the way, root makes it for
    /// whose it was: a server that has become another user found the folder in /run that root had made for it.
    ///
    /// # Errors
    /// The restart lacks the right to it.
    pub fn act_at_folder(&self, path: &Path, was: Option<Ownership>) -> io::Result<Option<ActingAs>> {
        match (unix_socket::effective_user() == 0 && is_of_root(path), was) {
            (true, was) => was.map(|was| act_for(was, true)).transpose(),
            (false, _) => self.act_at(path, was),
        }
    }

    /// The place of a name that the program has written itself, which may have links in it. The process follows them;
    /// the restart for root's process where they are root's alone. It is acted as by [`Opener::act_at`] until the first
    /// of the answers is dropped.
    ///
    /// # Errors
    /// ELOOP: see [`explain`]; as open.
    pub fn place_as_given(
        &self,
        path: &Path,
        was: Option<Ownership>,
    ) -> io::Result<(Option<ActingAs>, Place)> {
        let acting = self.act_at(path, was)?;
        let is_roots = acting.is_none() && unix_socket::effective_user() == 0;
        let place =
            if is_roots && !is_of_root(path) { Place::of(&Name::from(path)) } else { Place::as_given(path) };
        Ok((acting, place?))
    }

    /// The same for what is asked for at an address (connect(2)): a user who may lead the way to it elsewhere gets no
    /// more than the process may have. `address`: bytes of a struct sockaddr.
    ///
    /// # Errors
    /// The restart lacks the right to it.
    pub fn act_on_way(&self, address: &[u8]) -> io::Result<Option<ActingAs>> {
        let is_unix = address.first_chunk().is_some_and(|family| u16::from_ne_bytes(*family) == UNIX);
        let path = address.get(2..).filter(|_| is_unix).and_then(|path| path.split(|byte| *byte == 0).next());
        match path.map(|path| Path::new(OsStr::from_bytes(path))) {
            Some(path) if !path.as_os_str().is_empty() && !is_of_root(path) => self.act(),
            _ => Ok(None),
        }
    }

    /// Permission bits that a file of this owner gets: the process could give set-user-id to what is its own, and
    /// set-group-id to what is of its groups.
    pub fn mode_of(&self, mode: u32, user: u32, group: u32) -> u32 {
        const SET_USER: u32 = 0o4000;
        const SET_GROUP: u32 = 0o2000;
        let Some(ids) = &self.ids else { return mode };
        let is_in = ids.group == group || ids.groups.contains(&group);
        let denied = if ids.user == user { 0 } else { SET_USER } | if is_in { 0 } else { SET_GROUP };
        mode & !denied
    }

    /// The same as [`Opener::act`], with words.
    ///
    /// # Errors
    /// The restart lacks the right to it.
    pub fn acting(&self) -> Result<Option<ActingAs>, RebuildError> {
        self.act().map_err(RebuildError::io("opening files as the user whom the process is"))
    }

    /// The user and group whose the files are that it makes, if they are not the caller's.
    pub fn ids(&self) -> Option<Ownership> {
        self.ids.as_ref().map(|ids| Ownership { user: ids.user, group: ids.group })
    }

    /// What is at a path; `None`: nothing.
    ///
    /// # Errors
    /// It is not the program's; a part of the path is a symbolic link; the process may not go there.
    pub fn find(&self, path: &Name, was: Option<&Inode>) -> Result<Option<Found>, RebuildError> {
        let name = c_path(path)?;
        let look = || {
            let opened = if is_of_kernel(path) {
                objects::open(&name, O_PATH, 0)
            } else {
                self.open_straight(path, &name, O_PATH)
            };
            let file = File::from(opened?);
            let now = file.metadata()?;
            Ok::<_, io::Error>((file, now))
        };
        let unfound = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            _ => Err(RebuildError::file(path, explain(&error))),
        };
        let (mut file, mut now) = match look() {
            Ok(found) => found,
            Err(error) => return unfound(error),
        };
        let is_proven = |now: &Metadata| {
            was.is_some_and(|was| was.owner.is_some() && judge::is_same(was, now, &self.owners))
        };
        let as_process = self.ids.is_some() && !is_proven(&now);
        if as_process {
            let _acting = self.acting()?;
            (file, now) = match look() {
                Ok(found) => found,
                Err(error) => return unfound(self.denied(error)),
            };
        }
        let verdict = match was.filter(|_| !is_of_kernel(path)) {
            None => Verdict::Same,
            Some(was) => judge::judge(was, &now, &self.owners)
                .map_err(|what| RebuildError::file(path, what.replace("PATH", &path.to_string())))?,
        };
        Ok(Some(Found { file, now, verdict, as_process }))
    }

    /// Why the process could not open what it had open, which is not there any more.
    fn denied(&self, error: io::Error) -> io::Error {
        let denied = [libc::EACCES, libc::EPERM].map(Some).contains(&error.raw_os_error());
        match self.ids.as_ref().filter(|_| denied) {
            None => error,
            Some(ids) => io::Error::other(format!(
                "it is another file than at the checkpoint, and user {}, whom the process is, may not open it \
                 ({error})",
                ids.user
            )),
        }
    }

    /// Why what is at a path could not be opened with the flags that it had, as far as that can be told before.
    pub fn obstacle(&self, path: &Name, was: Option<&Inode>, flags: u32) -> Option<RebuildError> {
        let found = match self.find(path, was) {
            Ok(found) => found.filter(|found| found.as_process && !found.now.file_type().is_fifo())?,
            Err(error) => return Some(error),
        };
        self.open_found(&found, flags).err().map(|error| RebuildError::file(path, error.to_string()))
    }

    /// What is at a path, opened with the flags that it had. What was found comes with it.
    ///
    /// # Errors
    /// As [`Opener::find`]; it is gone; it cannot be opened so.
    pub fn open(
        &self,
        path: &Name,
        was: Option<&Inode>,
        flags: u32,
    ) -> Result<(OwnedFd, Found), RebuildError> {
        let failed = |what: String| {
            RebuildError::file(path, format!("the program had it open, and it cannot be opened: {what}"))
        };
        let gone = || {
            let error = io::Error::from_raw_os_error(libc::ENOENT);
            failed(format!("{error}; put it back, or give its new path (restart --map OLD=NEW)"))
        };
        let found = self.find(path, was)?.ok_or_else(gone)?;
        let opened = self.open_found(&found, flags).map_err(|error| failed(error.to_string()))?;
        Ok((opened, found))
    }

    /// A symbolic link itself.
    ///
    /// # Errors
    /// As [`Opener::open`].
    pub fn open_link(&self, path: &Name, was: Option<&Inode>) -> Result<OwnedFd, RebuildError> {
        let name = c_path(path)?;
        let failed = |error: io::Error| {
            let why = explain(&error);
            RebuildError::file(path, format!("the program had this symbolic link open: {why}; put it back"))
        };
        let _acting = self.acting()?;
        let opened = self.open_straight(path, &name, O_PATH | libc::O_NOFOLLOW.cast_unsigned());
        let file = File::from(opened.map_err(failed)?);
        let now = file.metadata().map_err(failed)?;
        if let Some(was) = was {
            judge::judge(was, &now, &self.owners)
                .map_err(|what| RebuildError::file(path, what.replace("PATH", &path.to_string())))?;
        }
        Ok(file.into())
    }

    /// A file or folder of /proc about a process, as the process opens it that has it; no link of /proc is followed.
    ///
    /// # Errors
    /// As open.
    pub fn open_process_file(&self, pid: i32, rest: &Name, flags: u32, position: u64) -> io::Result<OwnedFd> {
        let path = [format!("/proc/{pid}").as_bytes(), &rest.0].concat();
        let _acting = self.act()?;
        let opened = at::open_without_links(&CString::new(path)?, flags & !NOT_AGAIN)?;
        if position != 0 {
            // Texts are made as they are read: where the offset was in the middle of one, it is as well as may be.
            let _ = objects::seek(opened.as_fd(), position);
        }
        Ok(opened)
    }

    /// What was found, opened.
    ///
    /// # Errors
    /// As open.
    pub fn open_found(&self, found: &Found, flags: u32) -> io::Result<OwnedFd> {
        let _acting = if found.as_process { self.act()? } else { None };
        let (o_noctty, o_noatime) = (libc::O_NOCTTY.cast_unsigned(), libc::O_NOATIME.cast_unsigned());
        if flags & O_PATH != 0 {
            return found.file.as_fd().try_clone_to_owned();
        }
        // The way leads through a link of /proc, and is not of the path.
        let wanted = flags & !(NOT_AGAIN | libc::O_NOFOLLOW.cast_unsigned()) | o_noctty;
        let opened = at::reopen(found.file.as_fd(), wanted);
        // O_NOATIME is for the owner only; the file may have another one here.
        let opened = opened.or_else(|error| {
            if flags & o_noatime != 0 {
                at::reopen(found.file.as_fd(), wanted & !o_noatime)
            } else {
                Err(error)
            }
        });
        opened.map_err(|error| if found.as_process { self.denied(error) } else { error })
    }

    /// Goes into a folder.
    ///
    /// # Errors
    /// As [`Opener::open`].
    pub fn enter(&self, path: &Name, was: Option<&Inode>) -> Result<(), RebuildError> {
        let (folder, found) = self.open(path, was, O_PATH)?;
        let _acting = if found.as_process { self.acting()? } else { None };
        enter(folder.as_fd())
            .map_err(|error| RebuildError::file(path, format!("the folder cannot be entered: {error}")))
    }

    /// What was made just now, opened once more.
    ///
    /// # Errors
    /// As open.
    pub fn open_made(&self, made: &File, flags: u32) -> io::Result<OwnedFd> {
        let _acting = self.act()?;
        at::reopen(made.as_fd(), flags & !(NOT_AGAIN | libc::O_NOFOLLOW.cast_unsigned()))
    }

    /// Makes a file ([`Opener::act_at`]), open for reading and writing.
    ///
    /// # Errors
    /// EEXIST; as open.
    pub fn create(&self, path: &Name, was: Option<&Inode>, mode: u32) -> io::Result<File> {
        let _acting = self.act_at(path.as_path(), was.and_then(|was| was.owner))?;
        let place = Place::of(path)?;
        let flags = (libc::O_CREAT | libc::O_EXCL | libc::O_RDWR).cast_unsigned();
        let made = File::from(at::open(place.folder(), &place.name, flags, 0o600)?);
        // Whatever the mask of the moment.
        made.set_permissions(Permissions::from_mode(mode))?;
        Ok(made)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::capture::identity::inode_of;
    use crate::rebuild::testing::{Folder, record};
    use holdfast_image::credentials::Credentials;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, chown, symlink};

    fn name(path: &Path) -> Name {
        Name::from(path)
    }

    fn inode(path: &Path) -> Inode {
        inode_of(&fs::metadata(path).unwrap())
    }

    #[test]
    fn a_folder_that_has_become_a_link_leads_nowhere() {
        let folder = Folder::new("linked");
        let (own, other) = (folder.0.join("own"), folder.0.join("other"));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(own.join("file"), "own").unwrap();
        fs::write(other.join("file"), "other").unwrap();
        let was = inode(&own.join("file"));
        let opener = Opener::of(&record(Vec::new()));
        let path = name(&own.join("file"));
        let (_, found) = opener.open(&path, Some(&was), 0).unwrap();
        assert_eq!(found.verdict, Verdict::Same);
        fs::rename(&own, folder.0.join("moved")).unwrap();
        symlink(&other, &own).unwrap();
        let error = opener.open(&path, Some(&was), 0).unwrap_err().to_string();
        assert!(error.contains("symbolic link") && error.contains("--map"), "{error}");
        let new = name(&own.join("new"));
        assert_eq!(opener.create(&new, None, 0o600).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        let moved = name(&folder.0.join("moved/file"));
        assert_eq!(opener.find(&moved, Some(&was)).unwrap().unwrap().verdict, Verdict::Same);
        assert!(opener.find(&name(&folder.0.join("none")), None).unwrap().is_none());
        assert!(opener.open(&Name::from("/proc/self/maps"), None, 0).is_ok());
    }

    /// A server that has become another user.
    #[test]
    fn files_are_opened_as_the_process_unless_they_are_the_very_same() {
        if unix_socket::effective_user() != 0 {
            return println!("not run: this test needs root");
        }
        let folder = Folder::new("rights");
        fs::set_permissions(&folder.0, Permissions::from_mode(0o777)).unwrap();
        let (log, secret) = (folder.0.join("log"), folder.0.join("secret"));
        for path in [&log, &secret] {
            fs::write(path, "x").unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        }
        let mut record = record(Vec::new());
        record.rights = Some(Credentials { users: [2102; 3], groups: [2102; 3], ..Credentials::default() });
        let opener = Opener::of(&record);
        let was = inode(&log);
        let read_write = libc::O_RDWR.cast_unsigned();
        assert!(opener.open(&name(&log), Some(&was), read_write).is_ok(), "it was opened before");
        // Another file of root's, whatever the image says of it.
        fs::rename(&secret, &log).unwrap();
        for was in [Some(&was), None] {
            let error = opener.open(&name(&log), was, read_write).unwrap_err().to_string();
            assert!(error.contains("2102"), "{error}");
        }
        let made = opener.create(&name(&folder.0.join("made")), Some(&was), 0o640).unwrap();
        let made = made.metadata().unwrap();
        assert_eq!((made.uid(), made.gid(), made.mode() & 0o7777), (2102, 2102, 0o640));
        // One's own.
        chown(&log, Some(2102), None).unwrap();
        let was = Inode { inode: 1, ..inode(&log) };
        let (_, found) = opener.open(&name(&log), Some(&was), read_write).unwrap();
        assert_eq!(found.verdict, Verdict::Replaced);
    }

    /// What a file system of the other user's says of an owner.
    #[test]
    fn a_process_gives_no_rights_that_it_has_not() {
        if unix_socket::effective_user() != 0 {
            return println!("not run: this test needs root");
        }
        let mut record = record(Vec::new());
        assert_eq!(Opener::of(&record).mode_of(0o6755, 5, 5), 0o6755);
        let more_groups = vec![2104];
        record.rights =
            Some(Credentials { users: [2102; 3], groups: [2103; 3], more_groups, ..Credentials::default() });
        let opener = Opener::of(&record);
        for ((user, group), mode) in
            [((2102, 2103), 0o6755), ((2102, 2104), 0o6755), ((2102, 0), 0o4755), ((0, 0), 0o755)]
        {
            assert_eq!(opener.mode_of(0o6755, user, group), mode, "{user} {group}");
        }
    }
}
