//! Finds the descriptors in flight: those in messages that wait in unix sockets (SCM_RIGHTS of unix(7)).
//!
//! Called by [`FileReader::new`] and [`FileReader::tables`], inside the stop. A look at a message ([`super::pieces`])
//! gives copies of its descriptors (net/unix/af_unix.c, unix_peek_fds), and leaves the message as it is. The copies are
//! this process's, and are read as those of the processes of the job are, as the last; a description that a process
//! has, too, is known by then. Among them may be a socket in which there are others. How many wait in a socket the
//! kernel tells (scm_fds of its fdinfo, Linux 5.6): none other is looked at, and none is missed.
//!
//! How it fails: of a socket that cannot be looked into nothing is kept, and who reads its data finds the descriptors
//! in the way.

use super::in_flight::Seen;
use super::passed::{self, Carrier};
use super::pieces::look_into;
use super::sockets::leads_to_objects;
use super::{FileReader, Found, Obstacle, find};
use holdfast_image::record::{Description, Object};
use holdfast_sys::procfs::DescriptorFolder;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;

const ONLY_PASSED: &str =
    "a restart could not make it again, because no process has it: try again when it was received";

impl FileReader<'_> {
    /// Finds all that is in flight.
    ///
    /// # Errors
    /// A copy cannot be asked what it is.
    pub(super) fn find_passed(&mut self) -> io::Result<()> {
        let mut at = 0;
        while let Some(one) = self.found.get(at) {
            at += 1;
            let count = one.info.get("scm_fds").and_then(|count| count.parse::<usize>().ok()).unwrap_or(0);
            let is_own = self.holders.get(one.holder).is_some_and(|holder| holder.own == Some(one.fd));
            if !one.is_socket() || count == 0 || is_own || self.passed.seen.contains_key(&one.inode) {
                continue;
            }
            // What a server of objects has sent is asked for again.
            let taken = self.take(one).ok().filter(|socket| !leads_to_objects(socket));
            let Some((mut seen, copies)) = taken.and_then(|socket| look_into(&socket)) else { continue };
            if copies.iter().flatten().count() != count {
                continue;
            }
            let inode = one.inode;
            let carrier = self.passed.carrier_of(one).cloned();
            let own = || Carrier { holder: one.holder, fd: one.fd, target: one.target.clone() };
            let carrier = carrier.unwrap_or_else(own);
            for (message, copies) in seen.iter_mut().zip(copies) {
                message.passed = copies.iter().map(AsRawFd::as_raw_fd).collect();
                copies.into_iter().try_for_each(|copy| self.add_passed(copy, &carrier))?;
            }
            self.passed.seen.insert(inode, seen);
        }
        Ok(())
    }

    fn add_passed(&mut self, copy: OwnedFd, carrier: &Carrier) -> io::Result<()> {
        let ((pid, tid), number) = (passed::own(), copy.as_raw_fd());
        let found = find(self.holders.len(), &DescriptorFolder::open(pid, tid)?, number)?;
        self.places.entry(found.inode).or_default().push(self.found.len());
        let mut found = Found { is_passed: true, ..found };
        if !self.views.is_empty() {
            found.follow(&self.views);
        }
        self.found.push(found);
        self.passed.add(copy, carrier.clone());
        Ok(())
    }

    /// What waits in a socket with descriptors among it, if that is known.
    pub(super) fn seen(&self, taken: &OwnedFd) -> Option<&[Seen]> {
        if self.passed.seen.is_empty() {
            return None;
        }
        let inode = fs::File::from(taken.try_clone().ok()?).metadata().ok()?.st_ino();
        self.passed.seen.get(&inode).map(Vec::as_slice)
    }

    /// How a descriptor is told of: place of its process, number and name there, and why. Of what is in flight that is
    /// the socket in which it is.
    pub(super) fn named<'b>(&'b self, found: &'b Found, reason: String) -> (usize, i32, &'b [u8], String) {
        let Some(carrier) = self.passed.carrier_of(found) else {
            return (found.holder, found.fd, &found.target, reason);
        };
        let what = String::from_utf8_lossy(&found.target);
        let reason = format!("{what}, a descriptor in a message in it that was not read yet: {reason}");
        (carrier.holder, carrier.fd, &carrier.target, reason)
    }

    /// Refuses what is in flight only, and what a restart does in a process that has it: locks, timers, what it
    /// watches, the length of a file, who gets its signals.
    ///
    /// # Errors
    /// It is such a thing.
    pub(super) fn only_passed(&self, found: &Found, description: &Description) -> Result<(), Obstacle> {
        if !found.is_passed || can_be_passed(description) {
            return Ok(());
        }
        Err(Obstacle::Passing(ONLY_PASSED.into()))
    }
}

fn can_be_passed(description: &Description) -> bool {
    let flags = description.flags.cast_signed();
    let is_quiet = description.within.is_none()
        && description.locks.is_empty()
        && description.owner.is_none()
        && flags & libc::O_ASYNC == 0;
    let is_plain = match &description.object {
        Object::Regular { path, .. } => {
            flags & libc::O_ACCMODE == libc::O_RDONLY && !path.0.starts_with(b"/proc/")
        }
        Object::Directory { path, .. } | Object::Link { path, .. } => !path.0.starts_with(b"/proc/"),
        Object::Epoll { entries } => entries.is_empty(),
        Object::Inotify { watches } => watches.is_empty(),
        Object::TimerFd { ticks, value_ns, .. } => *ticks == 0 && *value_ns == 0,
        Object::PidFd { pid, .. } => *pid == -1,
        Object::ProcessFile { .. } | Object::MessageQueue { .. } | Object::Own => false,
        _ => true,
    };
    is_quiet && is_plain
}
