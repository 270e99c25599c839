//! Open files: what each descriptor refers to, and the data in flight in pipes and socket pairs.
//!
//! Runs inside the stop, because all of it can change; a few microseconds per descriptor. Nothing is consumed: pipes
//! are read with tee(2), sockets with MSG_PEEK. What cannot be restored is refused by number and name.
//!
//! `check` looks at a program that runs on ([`Look::Running`]): then no content is read and nothing set, and what is
//! closed meanwhile is left out.

mod accept_queue;
mod covered;
mod datagrams;
mod epoll;
mod fd_owner;
mod find_passed;
mod found;
mod in_flight;
pub mod inotify;
mod internet;
mod locks;
mod members;
mod multicast;
mod networks;
mod objects;
mod obstacle;
mod packets;
mod passed;
mod pieces;
mod places;
mod proc_self;
mod queues;
mod shut;
mod socket_files;
mod socket_options;
mod sockets;
mod streams;
mod terminals;
pub mod unlinked;
mod urgent;

use super::mounts::View;
use super::watchers::Watchers;
use crate::cuda::uses;
use crate::inject::copied_files;
use crate::namespaces::Namespaces;
use crate::thread_pool;
use found::{Found, Members, Stream, StreamEnds, TcpEnds};
use holdfast_image::record::{
    Description, Descriptor, FileLock, FileTable, LockKind, NamelessFile, PosixQueue, Pty,
};
use holdfast_image::refusal::{Refusal, Subject};
use holdfast_sys::clone;
use holdfast_sys::procfs::{self, DescriptorFolder};
use networks::Net;
use obstacle::Obstacle;
use passed::Passed;
use std::cell::{Cell, OnceCell, RefCell};
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

pub use covered::Covered;
pub use found::{Holder, Look, Outside};

/// Content of a nameless file up to this size goes into the image.
pub const NAMELESS_LIMIT: u64 = 64 << 20;
/// Device, inode, flags, offset: descriptors that differ in one of them cannot share a description.
type ObjectKey = (u64, u64, u32, u64);

/// Why there are no tables.
#[derive(Debug)]
pub struct Unreadable {
    /// One per descriptor, with the place of its process.
    pub refusals: Vec<(usize, Refusal)>,
    /// All of it is for the moment: a little later there may be none.
    pub passing: bool,
}

/// Reads the descriptor tables of a job, all processes together: a pipe between two of them is theirs.
pub struct FileReader<'a> {
    /// The program first.
    holders: Vec<Holder<'a>>,
    outside: Outside<'a>,
    look: Look,
    found: Vec<Found>,
    /// The mount namespaces that programs have made.
    views: Vec<View>,
    /// Descriptors that are in messages.
    passed: Passed,
    /// Places in `found`, by inode.
    places: HashMap<u64, Vec<usize>>,
    /// The network namespaces that they are in, once they were asked for.
    nets: OnceCell<Vec<Net>>,
    /// TCP connections, once they were asked for.
    streams: OnceCell<HashMap<u64, Stream>>,
    /// Their inodes, by the address here and there.
    stream_ends: OnceCell<HashMap<StreamEnds, u64>>,
    /// Ends of TCP connections, the program's and others, by network namespace, once they were asked for.
    tcp_ends: RefCell<HashMap<Option<u64>, Option<Rc<TcpEnds>>>>,
    /// Connections to other members of the gang.
    members: Members,
    /// What shared mappings cover of files without a name.
    covered: Covered,
    /// Files without a name so far.
    nameless: RefCell<Vec<(covered::Key, NamelessFile)>>,
    /// POSIX message queues so far.
    queues: RefCell<Vec<PosixQueue>>,
    /// Pseudo-terminals so far.
    ptys: RefCell<Vec<Pty>>,
    /// Numbers of those of which it is known what waits in them.
    ptys_seen: RefCell<BTreeSet<u32>>,
    /// Who in the job would notice that a file is opened, once it matters.
    watchers: OnceCell<Watchers>,
    /// What was written to them has had time to come to the other end.
    written: Cell<bool>,
    /// A number for the description of each descriptor, by place of the process and number there, where kcmp(2) is
    /// forbidden as well.
    descriptions: Option<HashMap<(usize, i32), usize>>,
}

impl<'a> FileReader<'a> {
    /// Looks at all descriptors.
    ///
    /// # Errors
    /// A process is gone, or not ours.
    pub fn new(holders: Vec<Holder<'a>>, outside: Outside<'a>, look: Look) -> io::Result<FileReader<'a>> {
        let numbered: Vec<(usize, &Holder<'_>)> = holders.iter().enumerate().collect();
        let all =
            thread_pool::map(&numbered, thread_pool::workers(), |&(at, holder)| find_all(at, holder, look));
        let mut found =
            all.into_iter().collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect::<Vec<_>>();
        let views = views(&holders, (outside.namespaces, look))?;
        if !views.is_empty() {
            found.iter_mut().for_each(|one| one.follow(&views));
        }
        let mut places: HashMap<u64, Vec<usize>> = HashMap::new();
        for (place, one) in found.iter().enumerate() {
            places.entry(one.inode).or_default().push(place);
        }
        let mut reader = FileReader {
            descriptions: None,
            holders,
            outside,
            look,
            found,
            views,
            passed: Passed::default(),
            places,
            nets: OnceCell::new(),
            streams: OnceCell::new(),
            stream_ends: OnceCell::new(),
            tcp_ends: RefCell::default(),
            members: Members::default(),
            covered: Covered::default(),
            nameless: RefCell::default(),
            queues: RefCell::default(),
            ptys: RefCell::default(),
            ptys_seen: RefCell::default(),
            watchers: OnceCell::new(),
            written: Cell::default(),
        };
        if look == Look::Stopped {
            reader.find_passed()?;
        }
        if reader.holders.iter().all(|one| one.copies.is_some()) {
            reader.descriptions = Some(reader.number()?);
        }
        Ok(reader)
    }

    /// What the pages of shared mappings hold of files without a name need not be read here.
    pub fn covering(self, covered: Covered) -> Self {
        FileReader { covered, ..self }
    }

    /// The file tables, one for each process; the first has the descriptions of all. Without content and data in flight
    /// unless the programs are stopped.
    ///
    /// # Errors
    /// Descriptors that cannot be restored.
    pub fn tables(&self) -> Result<Vec<FileTable>, Unreadable> {
        let mut tables = vec![FileTable::default(); self.holders.len()];
        let mut descriptions: Vec<Description> = Vec::new();
        let mut unreadable = Unreadable { refusals: Vec::new(), passing: true };
        let (mut apart, mut on_the_way) = (false, false);
        let mut firsts: Vec<&Found> = Vec::new();
        let mut passed: HashMap<i32, u32> = HashMap::new();
        let mut by_object: HashMap<ObjectKey, Vec<(&Found, u32)>> = HashMap::new();
        for found in &self.found {
            let flags = found.info.flags & !libc::O_CLOEXEC.cast_unsigned();
            let cloexec = found.info.flags != flags && !found.is_standard_terminal();
            let key = (found.device, found.inode, flags, found.info.position);
            let twins = by_object.entry(key).or_default();
            let twin = twins.binary_search_by(|(other, _)| self.order(other, found));
            let known = twin.ok().and_then(|at| {
                let index = twins.get(at)?.1;
                Some((index, descriptions.get_mut(index as usize)?))
            });
            let description = match known {
                Some((index, description)) => {
                    self.note_streams(found, false, description);
                    self.more_locks(found, description).map(|()| index)
                }
                None => self.describe(found, flags).and_then(|mut description| {
                    self.note_streams(found, true, &mut description);
                    self.place(found, &description)?;
                    self.only_passed(found, &description)?;
                    descriptions.push(description);
                    firsts.push(found);
                    Ok(u32::try_from(descriptions.len() - 1).unwrap_or(u32::MAX))
                }),
            };
            let description = match description {
                Ok(description) => description,
                Err(Obstacle::Closed(_)) if self.look == Look::Running => continue,
                Err(obstacle) => {
                    unreadable.passing &= !matches!(obstacle, Obstacle::Refused(_));
                    apart |= matches!(obstacle, Obstacle::Apart(_));
                    on_the_way |= matches!(obstacle, Obstacle::Passing(_));
                    let (Obstacle::Refused(reason)
                    | Obstacle::Passing(reason)
                    | Obstacle::Closed(reason)
                    | Obstacle::Apart(reason)) = obstacle;
                    let (holder, fd, target, reason) = self.named(found, reason);
                    let name = String::from_utf8_lossy(target).into_owned();
                    let subject = Subject::Descriptor { fd, name };
                    unreadable.refusals.push((holder, Refusal { subject, reason }));
                    continue;
                }
            };
            if let Err(at) = twin {
                twins.insert(at, (found, description));
            }
            match tables.get_mut(found.holder) {
                Some(table) => table.descriptors.push(Descriptor { fd: found.fd, cloexec, description }),
                None => _ = passed.insert(found.fd, description),
            }
        }
        passed::settle(&mut descriptions, &passed);
        for (holder, table) in self.holders.iter().zip(&mut tables) {
            (table.controlling, table.in_foreground) = self.controlling(holder).unwrap_or_default();
        }
        if self.look == Look::Stopped {
            self.find_watched(&mut descriptions, &firsts, &tables);
        }
        if let Some(first) = tables.first_mut() {
            first.descriptions = descriptions;
            first.ptys = self.ptys.take();
            first.queues = self.queues.take();
            first.nameless = self.nameless.take().into_iter().map(|(_, file)| file).collect();
        }
        unreadable.passing &= !apart || on_the_way;
        if unreadable.refusals.is_empty() { Ok(tables) } else { Err(unreadable) }
    }

    /// Descriptors with an inode; two file systems may have the same numbers.
    fn with_inode(&self, inode: u64) -> impl Iterator<Item = &Found> {
        self.places.get(&inode).into_iter().flatten().filter_map(|&place| self.found.get(place))
    }

    /// The order of open file descriptions. One that was closed meanwhile has no twin.
    fn order(&self, one: &Found, two: &Found) -> Ordering {
        if let Some(numbers) = &self.descriptions {
            let of = |found: &Found| numbers.get(&(found.holder, found.fd));
            return of(one).cmp(&of(two));
        }
        let pid = |found: &Found| self.leads_from(found).0;
        clone::order_of_descriptions(pid(one), one.fd, pid(two), two.fd).unwrap_or(Ordering::Less)
    }

    /// The process and the thread in which the number leads to it: one of the job, or this one.
    fn leads_from(&self, found: &Found) -> (i32, i32) {
        self.holders.get(found.holder).map_or_else(passed::own, |holder| (holder.tid, holder.tid))
    }

    /// The process of the job that has it, or the socket in which it waits.
    fn holder_of(&self, found: &Found) -> &Holder<'a> {
        &self.holders[self.passed.holder_of(found)]
    }

    /// Numbers for the descriptions of all descriptors, by copies of these.
    fn number(&self) -> io::Result<HashMap<(usize, i32), usize>> {
        let copy = |one: &Found| {
            let copies = self.holders.get(one.holder).map(|holder| holder.copies.as_ref());
            let copies = copies.unwrap_or(Some(self.passed.copies()));
            copies
                .and_then(|copies| copies.get(&one.fd))
                .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
        };
        let mut firsts: HashMap<(u64, u64), Vec<(&OwnedFd, usize)>> = HashMap::new();
        let mut numbers = HashMap::new();
        for (place, one) in self.found.iter().enumerate() {
            let copy = copy(one)?;
            let alike = firsts.entry((one.device, one.inode)).or_default();
            let mut known = None;
            for &(first, number) in alike.iter() {
                if copied_files::are_one(first, copy)? {
                    known = Some(number);
                    break;
                }
            }
            if known.is_none() {
                alike.push((copy, place));
            }
            numbers.insert((one.holder, one.fd), known.unwrap_or(place));
        }
        Ok(numbers)
    }

    fn describe(&self, found: &Found, flags: u32) -> Result<Description, Obstacle> {
        let object = self.object(found)?;
        let locks = self.locks(found)?;
        let owner = self.owner(found, flags, &locks)?;
        let within = found.within.clone();
        Ok(Description { flags, object, locks, owner, streams: 0, within })
    }

    fn locks(&self, found: &Found) -> Result<Vec<FileLock>, Obstacle> {
        let mut locks = locks::of(&found.info)?;
        for lock in locks.iter_mut().filter(|lock| lock.kind == LockKind::Posix) {
            lock.process = u32::try_from(found.holder).unwrap_or(u32::MAX);
        }
        Ok(locks)
    }

    /// Those that another process holds through a description that is known already: each process has its own.
    fn more_locks(&self, found: &Found, description: &mut Description) -> Result<(), Obstacle> {
        for lock in self.locks(found)? {
            if !description.locks.contains(&lock) {
                description.locks.push(lock);
            }
        }
        Ok(())
    }

    /// Who in the job would notice that a file is opened.
    fn watchers(&self) -> &Watchers {
        self.watchers.get_or_init(|| {
            let mut watchers = Watchers::default();
            self.found.iter().for_each(|one| watchers.add(&one.info.text));
            watchers
        })
    }
}

/// The mount namespaces that programs have made. Of a program that runs, what is wrong with one is said elsewhere.
fn views(holders: &[Holder<'_>], (job, look): (&Namespaces, Look)) -> io::Result<Vec<View>> {
    let mut views: Vec<View> = Vec::new();
    for holder in holders {
        if job.other_mounts(holder.tid).is_none_or(|inode| views.iter().any(|view| view.inode == inode)) {
            continue;
        }
        match View::of(holder.tid, job) {
            Err(why) if look == Look::Stopped => return Err(io::Error::other(why)),
            found => views.extend(found.ok().flatten()),
        }
    }
    Ok(views)
}

/// One descriptor. `folder`: of its process.
fn find(at: usize, folder: &DescriptorFolder, fd: i32) -> io::Result<Found> {
    let info = folder.info(fd).ok_or_else(|| io::Error::other(format!("fd {fd}: no fdinfo")))?;
    let (device, inode) = folder.identity(fd).unwrap_or_default();
    let target = folder.target(fd)?;
    Ok(Found {
        holder: at,
        is_passed: false,
        fd,
        info,
        target,
        device,
        inode,
        within: None,
        only_inside: false,
        detached: false,
    })
}

/// Finds all descriptors of a process.
fn find_all(at: usize, holder: &Holder<'_>, look: Look) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    let folder = DescriptorFolder::open(holder.tid, holder.tid)?;
    for fd in procfs::descriptors(holder.tid, holder.tid)? {
        match find(at, &folder, fd) {
            Ok(one) if holder.uses_cuda && uses::is_device(&one.target) => {}
            Ok(one) if look == Look::Stopped || is_still(&folder, &one) => found.push(one),
            Err(error) if look == Look::Stopped => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(found)
}

/// Whether the number has led to the same thing all the while: the facts of it belong together.
fn is_still(folder: &DescriptorFolder, found: &Found) -> bool {
    let again = find(found.holder, folder, found.fd);
    again.is_ok_and(|again| (again.inode, &again.target) == (found.inode, &found.target))
}
