//! All descriptors of the program, at their numbers, before it exists.
//!
//! The first process makes every object of the job at a number that the program does not have, from the *floor* on
//! ([`OpenFiles::all`]; above all of the program's, or in a gap: [`holdfast_image::spare_numbers`]). The others are
//! forked then; in each of them everything else is closed and what it has is duplicated to its numbers
//! ([`OpenFiles::put_in_place`]). What stays is close-on-exec and goes with the exec. Runs in the new processes
//! ([`super::child`]). How it fails: an error names the descriptor or file; nothing but file lengths was changed then.

use super::namespaces::MadeNamespaces;
use super::networks::Networks;
use super::objects::ObjectBuilder;
use super::open::{open_process, raise};
use super::queues::Queues;
use super::regular::{self, OldUnlinkedFiles};
use super::shared_memory;
use super::terminals::Ptys;
use super::unlinked::UnlinkedFiles;
use crate::rebuild::error::RebuildError;
use crate::rebuild::file_role::Role;
use crate::rebuild::handshake::{self, Message};
use crate::rebuild::inotify;
use crate::rebuild::job::{Job, Member};
use crate::rebuild::kept_fds::{self, SharedObject};
use crate::rebuild::paths::{Opener, c_path};
use crate::rebuild::proc_self::{self, NOT_AGAIN};
use holdfast_image::bytes::Name;
use holdfast_image::record::{Description, FileTable, Object, SocketState, Within};
use holdfast_sys::{at, attributes, fd, objects};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;

/// All objects of the job.
pub struct OpenFiles {
    /// Lowest of the numbers that the program does not use, nor what is left open for the agent.
    floor: i32,
    /// Every description; `None` for what is restored as closed, and for processes, which there are not yet.
    descriptions: Vec<Option<OwnedFd>>,
    unlinked: UnlinkedFiles,
    ptys: Ptys,
    shared: BTreeMap<u64, (SharedObject, OwnedFd)>,
    common: Option<OwnedFd>,
    namespaces: MadeNamespaces,
}

/// The table under construction.
struct OpenFilesBuilder<'a> {
    job: &'a Job<'a>,
    /// As in [`OpenFiles`].
    floor: i32,
    /// Descriptors of the front that the program takes over, by number.
    inherited: HashMap<i32, OwnedFd>,
    object_builder: ObjectBuilder,
    /// One for each process.
    openers: Vec<Opener>,
    old_unlinked: OldUnlinkedFiles,
    unlinked: UnlinkedFiles,
    ptys: Ptys,
    queues: Queues,
    notes: Vec<String>,
    namespaces: &'a MadeNamespaces,
}

/// Whether it is a socket that is to be bound to a name that is not its own any more. Ends of connections are there
/// already, and are given out in the order of the table.
fn has_lost_its_name(object: &Object) -> bool {
    let Object::Socket(socket) = object else { return false };
    (socket.deleted || socket.renamed.is_some()) && !matches!(socket.state, SocketState::Connected { .. })
}

/// Whether it is a connection to another member of the gang.
fn leads_to_member(object: &Object) -> bool {
    matches!(object, Object::Socket(socket) if matches!(socket.state, SocketState::Member { .. }))
}

/// Descriptors of the front that the record names. Those above 2 count only if the front was started with them: what it
/// opened itself is close-on-exec.
fn take_inherited(table: &FileTable, floor: i32) -> HashMap<i32, OwnedFd> {
    let mut taken = HashMap::new();
    for description in &table.descriptions {
        let Object::Inherited { from, .. } = description.object else { continue };
        let Ok(copy) = objects::duplicate_above(from, floor) else { continue };
        if from <= 2 || objects::descriptor_flags(from).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0) {
            taken.insert(from, copy);
        }
    }
    taken
}

/// The lowest number that the program does not use, nor what is left open for the agent; from it on there are numbers
/// for everything that is made, and no others until it is put in place.
///
/// # Errors
/// RLIMIT_NOFILE is too low.
pub fn floor(job: &Job<'_>) -> Result<i32, RebuildError> {
    let several = kept_fds::of_several(job);
    raise_limit(job)?;
    Ok(kept_fds::of_namespace(job, &several, job.record.made_namespaces.len()))
}

/// Raises the hard limit of descriptors, as far as needed and allowed, and lets none be made at numbers that the
/// program has behind the gap. The agent sets the program's own limits at the end.
fn raise_limit(job: &Job<'_>) -> Result<(), RebuildError> {
    let wanted = job.spare.limit;
    let (_, hard) =
        attributes::limit(0, libc::RLIMIT_NOFILE).map_err(RebuildError::io("asking for RLIMIT_NOFILE"))?;
    let hard = hard.max(wanted);
    let soft = hard.min(u64::from(job.spare.end.cast_unsigned()));
    attributes::set_limit(0, libc::RLIMIT_NOFILE, soft, hard).map_err(|error| {
        RebuildError::Refused(format!(
            "the program's descriptors need RLIMIT_NOFILE {wanted} at a restart, which cannot be had here ({error}): \
             raise the hard limit of `holdfast restart` (ulimit -Hn {wanted})"
        ))
    })
}

/// Who has each message queue.
fn of_queues<'a>(job: &Job<'_>, openers: &'a [Opener]) -> Vec<&'a Opener> {
    let opener = |wanted: u32| {
        let is_it =
            |one: &Description| matches!(one.object, Object::MessageQueue { queue } if queue == wanted);
        let index = job.descriptions().iter().position(is_it);
        let place = index.and_then(|index| job.holder(index)).map_or(0, |(place, _)| place);
        openers.get(place).or(openers.first())
    };
    (0..).zip(&job.record.files.queues).filter_map(|(queue, _)| opener(queue)).collect()
}

impl OpenFiles {
    /// Makes and opens everything. `report` leads to the front, `agent` to the agent; `served` is the file of a page
    /// server.
    ///
    /// # Errors
    /// Names the descriptor or file and what to do.
    pub fn all(
        job: &Job<'_>,
        floor: i32,
        (report, agent): (&OwnedFd, &OwnedFd),
        served: Option<&OwnedFd>,
    ) -> Result<OpenFiles, RebuildError> {
        let table = &job.record.files;
        let inherited = take_inherited(table, floor);
        let openers: Vec<Opener> = job.record.processes().map(Opener::of).collect();
        let mut notes = Vec::new();
        let namespaces = MadeNamespaces::make(&job.record.made_namespaces, &Opener::of(job.record), floor)?;
        let networks = Networks::of(&job.record.made_namespaces, &namespaces)
            .map_err(RebuildError::io("keeping network namespaces"))?;
        // First, so that no listener is where the agent had one for them.
        let members = if table.descriptions.iter().any(|one| leads_to_member(&one.object)) {
            handshake::ask_for_members(agent, |end| raise(end, floor))?
        } else {
            BTreeMap::new()
        };
        let mut builder = OpenFilesBuilder {
            job,
            floor,
            inherited,
            object_builder: ObjectBuilder::new(job, &openers, networks)?.with_members(members),
            old_unlinked: OldUnlinkedFiles::default(),
            unlinked: UnlinkedFiles::make(job, &openers, floor)?,
            ptys: Ptys::make(&table.ptys, floor, &mut notes)?,
            queues: Queues::make(&table.queues, &of_queues(job, &openers), floor)?,
            notes,
            openers,
            namespaces: &namespaces,
        };
        let descriptions = builder.make_all();
        for note in builder.notes.drain(..) {
            handshake::send(report, &Message::Note(note));
        }
        let shared = shared_memory::make(&kept_fds::of_several(job), floor)?;
        let common = match served {
            Some(served) => Some(raise(served, floor)?),
            None => shared_memory::make_common(job, floor)?,
        };
        let OpenFilesBuilder { unlinked, ptys, .. } = builder;
        Ok(OpenFiles { floor, descriptions: descriptions?, unlinked, ptys, shared, common, namespaces })
    }

    /// The namespaces of the job.
    pub fn namespaces(&self) -> &MadeNamespaces {
        &self.namespaces
    }

    /// The terminals of the job.
    pub fn ptys(&self) -> &Ptys {
        &self.ptys
    }

    /// Everything that one process has to its number; then epoll instances learn what they watch, which they know by
    /// number. No descriptor of the caller but those above may be open.
    ///
    /// # Errors
    /// RLIMIT_NOFILE is too low.
    pub fn put_in_place(&self, member: Member<'_>, report: &OwnedFd) -> Result<(), RebuildError> {
        let (last, end) = (u32::try_from(self.floor - 1).unwrap_or(2), member.job.spare.end.cast_unsigned());
        objects::close_range(0, last)
            .and_then(|()| objects::close_range(end, u32::MAX))
            .map_err(RebuildError::io("closing the front's descriptors"))?;
        let (_, hard) = attributes::limit(0, libc::RLIMIT_NOFILE)
            .map_err(RebuildError::io("asking for RLIMIT_NOFILE"))?;
        attributes::set_limit(0, libc::RLIMIT_NOFILE, hard, hard)
            .map_err(RebuildError::io("raising RLIMIT_NOFILE"))?;
        let own = self.processes(member)?;
        let mut present = Vec::new();
        for descriptor in &member.own.files.descriptors {
            let index = descriptor.description as usize;
            let object = self.descriptions.get(index).and_then(Option::as_ref);
            if let Some(object) = object.or_else(|| own.get(&index)) {
                objects::duplicate_to(object.as_fd(), descriptor.fd)
                    .map_err(RebuildError::io(format!("making descriptor {}", descriptor.fd)))?;
                present.push(descriptor.fd);
            }
        }
        self.unlinked.put_in_place(member.job).map_err(RebuildError::io("keeping files without a name"))?;
        if let Some(common) = &self.common {
            let number = kept_fds::of_common(member.job, &kept_fds::of_several(member.job));
            objects::duplicate_to(common.as_fd(), number)
                .map_err(RebuildError::io("handing down what processes have in common"))?;
        }
        self.namespaces.put_in_place(member.job)?;
        for (object, _) in member.own.regions.iter().filter_map(kept_fds::object_of) {
            if let Some((SharedObject { number, .. }, file)) = self.shared.get(&object) {
                objects::duplicate_to(file.as_fd(), *number)
                    .map_err(RebuildError::io("handing down memory that several processes share"))?;
            }
        }
        let opener = Opener::of(member.own);
        for (index, description) in member.job.descriptions().iter().enumerate() {
            if let (Object::Inotify { watches }, Some(fd)) = (&description.object, member.held(index))
                && let Some(Some(made)) = self.descriptions.get(index)
            {
                debug_assert!(present.contains(&fd));
                for note in inotify::add(made.as_fd(), watches, &opener) {
                    handshake::send(report, &Message::Note(note));
                }
            }
        }
        self.watch(member, (&own, &present), report);
        Ok(())
    }

    /// Descriptors of processes of the job, by their descriptions, now that all processes are there. Each process
    /// opens its own: nothing tells them from a description that several have but kcmp(2).
    fn processes(&self, member: Member<'_>) -> Result<HashMap<usize, OwnedFd>, RebuildError> {
        let mut made = HashMap::new();
        for (index, description) in member.job.descriptions().iter().enumerate() {
            let Some(fd) = member.number(index) else { continue };
            if matches!(self.descriptions.get(index), Some(Some(_))) {
                continue;
            }
            // Its own id may be another one now.
            let known = |pid: i32| match pid == member.own.pid {
                true => attributes::own_pid(),
                false => member.job.record.id_for(pid, member.own).unwrap_or(pid),
            };
            let (opened, what) = match &description.object {
                Object::PidFd { pid, .. } => (open_process(known(*pid), description.flags), "pidfd".into()),
                Object::ProcessFile { pid, rest, position } => {
                    let (pid, flags) = (known(*pid), description.flags);
                    let opener = Opener::of(member.own);
                    (opener.open_process_file(pid, rest, flags, *position), format!("/proc/{pid}{rest}"))
                }
                _ => continue,
            };
            let raised = opened.and_then(|opened| objects::duplicate_above(opened.as_raw_fd(), self.floor));
            made.insert(index, raised.map_err(RebuildError::io(format!("making descriptor {fd} ({what})")))?);
        }
        Ok(made)
    }

    /// What the epoll instances that one process holds watch. An entry under a number that it does not have is the
    /// matter of the first process that has both. `own`: what it has made itself, by description.
    fn watch(
        &self,
        member: Member<'_>,
        (own, present): (&HashMap<usize, OwnedFd>, &[i32]),
        report: &OwnedFd,
    ) {
        for (index, description) in member.job.descriptions().iter().enumerate() {
            let (Object::Epoll { entries }, Some(epoll)) = (&description.object, member.number(index)) else {
                continue;
            };
            let has = |other: &Member<'_>, fd: i32| {
                other.number(index).is_some() && other.own.files.descriptors.iter().any(|d| d.fd == fd)
            };
            for entry in entries {
                let by_number = entry.description.is_none();
                let whose = member.job.members().find(|other| by_number && has(other, entry.fd));
                let place = whose
                    .or_else(|| member.job.holder(index).and_then(|(place, _)| member.job.member(place)));
                if place.is_none_or(|other| other.index != member.index) {
                    continue;
                }
                let add = || objects::epoll_add(epoll, entry.fd, entry.events, entry.data);
                let made = |index: usize| self.descriptions.get(index)?.as_ref().or_else(|| own.get(&index));
                let watched = entry.description.and_then(|index| made(index as usize));
                let outcome = match watched {
                    // What was made is at numbers like that, too.
                    Some(watched) => objects::with_number(watched.as_fd(), entry.fd, self.floor, add),
                    None if present.contains(&entry.fd) => add(),
                    None => Err(std::io::Error::other("it is closed")),
                };
                if let Err(why) = outcome {
                    let note = format!("epoll descriptor {epoll} no longer watches {}: {why}", entry.fd);
                    handshake::send(report, &Message::Note(note));
                }
            }
        }
    }
}

impl OpenFilesBuilder<'_> {
    /// Every description, as a descriptor above the floor; `None` for what is restored as closed.
    fn make_all(&mut self) -> Result<Vec<Option<OwnedFd>>, RebuildError> {
        let job = self.job;
        let mut made: Vec<Option<OwnedFd>> = job.descriptions().iter().map(|_| None).collect();
        let mut order: Vec<(usize, &Description)> = job.descriptions().iter().enumerate().collect();
        // A socket whose name another one may have now comes before that.
        order.sort_by_key(|(_, description)| !has_lost_its_name(&description.object));
        for (index, description) in order {
            let (place, holder) = job.holder(index).unwrap_or((0, -1));
            let fd = match proc_self::stand_in(&description.object, place) {
                Some(path) => Some(self.opener(place)?.open(&path, None, description.flags)?.0),
                None => self.make(description, (place, holder))?,
            };
            let raised = fd
                .map(|fd| {
                    if fd.as_raw_fd() >= self.floor {
                        Ok(fd)
                    } else {
                        objects::duplicate_above(fd.as_raw_fd(), self.floor)
                    }
                })
                .transpose()
                .map_err(RebuildError::io(format!("descriptor {holder}")))?;
            made[index] = raised;
        }
        self.object_builder.fill(job, &made)?;
        self.notes.append(&mut self.object_builder.take_notes());
        // Their numbers are below the floor: they must be gone before those are given out.
        self.old_unlinked = OldUnlinkedFiles::default();
        Ok(made)
    }

    /// Who opens what a process has.
    fn opener(&self, place: usize) -> Result<&Opener, RebuildError> {
        let none = || RebuildError::Image(format!("there is no process {place}"));
        self.openers.get(place).ok_or_else(none)
    }

    fn make(
        &mut self,
        description: &Description,
        (place, holder): (usize, i32),
    ) -> Result<Option<OwnedFd>, RebuildError> {
        let mut opener = self.opener(place)?.clone();
        if let (Some(Within { namespace, path }), Some(outside)) =
            (&description.within, description.object.path())
        {
            opener = opener.within(self.namespaces.root(*namespace)?, (outside, path));
        }
        let io = || RebuildError::io(format!("making descriptor {holder}"));
        let flags = description.flags;
        Ok(Some(match &description.object {
            Object::Own => return Ok(None),
            // When it is there: see `OpenFiles::processes`.
            Object::PidFd { pid, .. } | Object::ProcessFile { pid, .. } if *pid != -1 => return Ok(None),
            Object::Link { path, inode } => opener.open_link(path, inode.as_ref())?,
            Object::Regular { deleted_content: Some(content), .. } => {
                let _acting = opener.acting()?;
                self.old_unlinked.open(&description.object, flags, &content.0)?
            }
            Object::Nameless { file, position } => {
                self.unlinked.open(*file, flags, *position).map_err(io())?
            }
            Object::MessageQueue { queue } => self.queues.open(*queue, flags).map_err(io())?,
            Object::PtyMaster { pty } => self.ptys.master(*pty, flags).map_err(io())?,
            Object::PtySlave { pty } => self.ptys.slave(*pty, flags).map_err(io())?,
            Object::Regular { .. } => {
                let role = Role::of(&self.job.record.files, &description.object);
                regular::open(&description.object, flags, role, &opener, &mut self.notes)?
            }
            Object::Directory { path, position, inode } => {
                let (folder, _) = opener.open(path, inode.as_ref(), flags)?;
                if *position != 0 {
                    objects::seek(folder.as_fd(), *position).map_err(io())?;
                }
                folder
            }
            Object::Inside { position } => self.inside(description, *position)?,
            Object::Device { path } => {
                let found = opener.find(path, None)?;
                let kind = found.as_ref().map(|found| found.now.file_type());
                if kind.is_some_and(|kind| !kind.is_char_device() && !kind.is_block_device()) {
                    return Err(RebuildError::file(path, "it is not a device any more"));
                }
                opener.open(path, None, flags)?.0
            }
            Object::Inherited { from, was } => return self.inherit(*from, was, flags, holder),
            other => self.object_builder.make(other, flags, holder, &opener)?,
        }))
    }

    /// What is in a mount namespace alone, and was made with that.
    fn inside(&self, description: &Description, position: u64) -> Result<OwnedFd, RebuildError> {
        let within = description.within.as_ref();
        let Within { namespace, path } =
            within.ok_or_else(|| RebuildError::Image("a file inside of nothing".into()))?;
        let root = self.namespaces.root(*namespace)?;
        let opened = at::open_within(root.as_fd(), &c_path(path)?, description.flags & !NOT_AGAIN);
        let opened = opened.and_then(|opened| {
            if position > 0 { objects::seek(opened.as_fd(), position).map(|()| opened) } else { Ok(opened) }
        });
        opened.map_err(|error| RebuildError::file(path, format!("in its mount namespace: {error}")))
    }

    /// One that the front was started with.
    fn inherit(
        &mut self,
        from: i32,
        was: &Name,
        flags: u32,
        holder: i32,
    ) -> Result<Option<OwnedFd>, RebuildError> {
        let Some(fd) = self.inherited.get(&from) else {
            let what = format!(
                "descriptor {holder} ({was}) came from outside the job and is closed now; descriptor {from} of \
                 `holdfast restart` would take its place"
            );
            self.notes.push(what);
            // A standard descriptor that is closed stays closed; one that a batch system handed down must be there.
            let null = || {
                objects::open(c"/dev/null", flags & !NOT_AGAIN, 0)
                    .map_err(RebuildError::io("opening /dev/null"))
            };
            return if from > 2 { null().map(Some) } else { Ok(None) };
        };
        let copy = objects::duplicate_above(fd.as_raw_fd(), self.floor)
            .map_err(RebuildError::io(format!("making descriptor {holder}")))?;
        let nonblocking = libc::O_NONBLOCK.cast_unsigned();
        if flags & nonblocking != 0 {
            let now = fd::fcntl(copy.as_fd(), libc::F_GETFL, 0).unwrap_or(0);
            let _ = fd::fcntl(copy.as_fd(), libc::F_SETFL, i64::from(now | libc::O_NONBLOCK));
        }
        Ok(Some(copy))
    }
}
