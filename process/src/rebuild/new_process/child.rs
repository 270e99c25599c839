//! The new processes from their start to their exec: an ordinary program that gives itself what the old one had.
//!
//! Runs in a child of the single-threaded front (so all of std may be used), inside the namespaces where there are
//! any, and then in all processes that it makes ([`super::fork_tree`]). Everything that can be said by ordinary
//! calls is done here: session, folder, umask, all descriptors at their numbers. Whatever goes wrong is told to the
//! front in words, and the process ends.

use super::cwd::{self, RemovedDirs};
use super::files::{self, OpenFiles};
use super::fork_tree::ForkTree;
use super::front_terminal::FrontTerminal;
use super::missing_folders::MissingFolders;
use super::namespaces::MadeNamespaces;
use super::open::raise;
use crate::rebuild::error::{Peer, RebuildError};
use crate::rebuild::front::ids::Ids;
use crate::rebuild::handshake::{self, GO, Message, ReadyMessage};
use crate::rebuild::job::{Job, Member};
use crate::rebuild::paths::{Opener, explain};
use crate::rebuild::shared_files::{SharedFiles, shown};
use holdfast_image::fork_plan;
use holdfast_image::namespaces::mounts_of;
use holdfast_image::record::{FileIdentity, ProcessRecord, Within};
use holdfast_sys::{attributes, clock, fd, objects, scm, signals};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

/// CAP_CHECKPOINT_RESTORE (include/uapi/linux/capability.h).
const CAP_CHECKPOINT_RESTORE: u32 = 40;

/// What the process needs to know.
pub struct NewProcess<'a> {
    /// What it shall become.
    pub record: &'a ProcessRecord,
    /// Leads to the agent.
    pub agent: OwnedFd,
    /// Leads to the front.
    pub report: OwnedFd,
    /// The file of a page server.
    pub served: Option<OwnedFd>,
    /// What the front has.
    pub terminal: FrontTerminal,
    /// How it has got its id.
    pub ids: Ids,
    /// It is in a user namespace of its own, and must keep one capability over the exec.
    pub own_user_namespace: bool,
}

impl NewProcess<'_> {
    /// Does all of it; never returns. A panic ends the process like any other error: it must not unwind into a copy of
    /// the front.
    pub fn run(self) -> ! {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.live()));
        drop(outcome);
        attributes::exit_now(127)
    }

    fn live(mut self) {
        let record = self.record;
        let job = Job::new(record);
        let begun = handshake::announce(&self.report).and_then(|()| self.raise_own_descriptors(&job));
        let outcome = begun.and_then(|floor| {
            let (made, removed, index) = self.make_all(&job, floor)?;
            let member = job
                .member(index)
                .ok_or_else(|| RebuildError::Image(format!("there is no process {index}")))?;
            self.prepare_and_execute(member, floor, &made, &removed).map_err(|error| match (index, &error) {
                (0, _) | (_, RebuildError::PeerGone(_)) => error,
                _ => RebuildError::In { pid: member.own.pid, error: Box::new(error) },
            })
        });
        if let Err(error) = outcome {
            handshake::send(&self.report, &handshake::failure_message(&error));
        }
    }

    /// Moves its own descriptors above all numbers of the program.
    fn raise_own_descriptors(&mut self, job: &Job<'_>) -> Result<i32, RebuildError> {
        let floor = files::floor(job)?;
        self.agent = raise(&self.agent, floor)?;
        self.report = raise(&self.report, floor)?;
        self.served = self.served.take().map(|served| raise(&served, floor)).transpose()?;
        Ok(floor)
    }

    /// Makes all that the processes of the job have in common, and all other processes. Returns in each of them, with
    /// its index.
    fn make_all(&self, job: &Job<'_>, floor: i32) -> Result<(OpenFiles, RemovedDirs, usize), RebuildError> {
        for signal in 1..=64 {
            signals::set_ignored(signal, false);
        }
        signals::set_mask(!signals::bit(libc::SIGCHLD)); // see `fork_tree`
        attributes::allow_tracing();
        let plan = fork_plan::plan(job.record).map_err(RebuildError::Image)?;
        let plan = if self.ids == Ids::Counted { plan.by_id() } else { plan };
        self.keep_clocks_forward();
        attributes::umask(0o077);
        let folders = MissingFolders::make(job)?;
        let removed = RemovedDirs::make(job.record.processes().skip(1), |fd| raise(&fd, floor))?;
        cwd::enter(self.record)?;
        let shared = SharedFiles::of(job.record);
        for process in job.record.processes() {
            for note in create_shared_files(process, &shared)? {
                handshake::send(&self.report, &Message::Note(note));
            }
        }
        let made = OpenFiles::all(job, floor, (&self.report, &self.agent), self.served.as_ref())?;
        for note in folders.keep() {
            handshake::send(&self.report, &Message::Note(note));
        }
        let tree = ForkTree::new(job, &plan, self.ids, &self.report)?;
        let index = tree.make(
            &plan,
            || self.make_session(),
            |index| job.member(index).map_or(Ok(()), |member| made.ptys().take_control(member.own)),
        )?;
        Ok((made, removed, index))
    }

    /// What each process does for itself.
    fn prepare_and_execute(
        &self,
        member: Member<'_>,
        floor: i32,
        made: &OpenFiles,
        removed: &RemovedDirs,
    ) -> Result<(), RebuildError> {
        let Member { index, own, .. } = member;
        self.settle_terminals(member, made)?;
        if own.is_init() {
            made.namespaces().finish_mounts(&member.job.record.made_namespaces, own)?;
        }
        // Nothing may be open below the floor from here on.
        let mounts = mounts_of(&member.job.record.made_namespaces, &own.namespaces);
        let executable = raise(&executable(own, mounts, made.namespaces())?, floor)?;
        if index > 0 {
            removed.enter(own)?;
        }
        let apart = match mounts {
            Some(mounts) => Some((mounts, raise(&folder(own, made.namespaces())?, floor)?)),
            None => None,
        };
        made.put_in_place(member, &self.report)?;
        attributes::umask(own.umask);
        if self.own_user_namespace && holdfast_sys::unix_socket::effective_user() != 0 {
            attributes::keep_capability(CAP_CHECKPOINT_RESTORE)
                .map_err(RebuildError::io("keeping the right to choose thread ids"))?;
        }
        let ready = ReadyMessage {
            inner_pid: attributes::own_pid(),
            job_pid: if own.inner.is_some() { own.pid } else { attributes::own_pid() },
            ids_chosen: matches!(self.ids, Ids::Same | Ids::Namespace),
            drop_capabilities: self.own_user_namespace,
        };
        scm::send(self.agent.as_fd(), &ready.to_bytes(), None)
            .map_err(|_| RebuildError::PeerGone(Peer::Agent))?;
        let mut answer = [0_u8; 16];
        let len = fd::receive(self.agent.as_fd(), &mut answer, 0).unwrap_or(0);
        if answer[..len] != *GO {
            return Err(RebuildError::PeerGone(Peer::Agent));
        }
        if index == 0 {
            handshake::send(&self.report, &Message::Ready);
        }
        made.namespaces().enter_early(&member.job.record.made_namespaces, &own.namespaces)?;
        if let Some((mounts, folder)) = apart {
            made.namespaces().enter_mounts(mounts, folder.as_fd())?;
        }
        let error = attributes::execute(executable.as_fd(), c"holdfast-seed");
        Err(RebuildError::Io { what: format!("executing {}", own.exe.path), source: error })
    }

    /// What waits until all processes are in their places: no terminal is opened any more, and all groups are there.
    fn settle_terminals(&self, member: Member<'_>, made: &OpenFiles) -> Result<(), RebuildError> {
        let wanted = &member.job.record.files.ptys;
        if let Some(note) = made.ptys().set_foreground(wanted, member.own) {
            handshake::send(&self.report, &Message::Note(note));
        }
        if member.index == 0 {
            let notes = made.ptys().settle(wanted);
            let notes = notes.map_err(RebuildError::io("setting up a pseudo-terminal"))?;
            for note in notes.into_iter().chain(self.terminal.give_to(self.record)) {
                handshake::send(&self.report, &Message::Note(note));
            }
        }
        Ok(())
    }

    /// After a reboot, or on another host, CLOCK_MONOTONIC may be behind what the program has seen: deadlines in its
    /// memory would be far away, differences negative. A time namespace moves it ahead.
    fn keep_clocks_forward(&self) {
        let (was, now) = (self.record.host.monotonic_ns, clock::monotonic_ns());
        if now >= was {
            return;
        }
        if let Err(error) = clock::move_ahead_at_exec(was - now) {
            let note = format!(
                "CLOCK_MONOTONIC goes back by {} s for the program (another boot or host), and it cannot be moved \
                 ahead: {error}",
                (was - now) / 1_000_000_000
            );
            handshake::send(&self.report, &Message::Note(note));
        }
    }

    /// Session and process group of the first process.
    fn make_session(&self) -> Result<(), RebuildError> {
        let record = self.record;
        if record.sid == record.pid {
            attributes::new_session().map_err(RebuildError::io("making a session"))?;
        } else if record.pgid == record.pid && self.terminal.makes_group_of(record) {
            attributes::own_group().map_err(RebuildError::io("making a process group"))?;
        }
        Ok(())
    }
}

/// What a process executes.
fn executable(
    own: &ProcessRecord,
    mounts: Option<u32>,
    namespaces: &MadeNamespaces,
) -> Result<OwnedFd, RebuildError> {
    let FileIdentity { path, inode, inside, .. } = &own.exe;
    let mut opener = Opener::of(own);
    if let (Some(inside), Some(mounts)) = (inside, mounts) {
        opener = opener.within(namespaces.root(u64::from(mounts))?, (path, &inside.path));
    }
    // One that was made with its namespace is another one.
    let was = inode.as_ref().filter(|_| !own.exe.is_only_inside());
    opener.open(path, was, libc::O_PATH.cast_unsigned()).map(|(executable, _)| executable)
}

/// The working folder, which a process has entered unless it is in a mount namespace of a program's own.
fn folder(own: &ProcessRecord, namespaces: &MadeNamespaces) -> Result<OwnedFd, RebuildError> {
    let flags = (libc::O_PATH | libc::O_DIRECTORY).cast_unsigned();
    let Some(Within { namespace, path }) = &own.cwd_within else {
        return objects::open(c".", flags, 0).map_err(RebuildError::io("opening the working folder"));
    };
    let opener = Opener::of(own).within(namespaces.root(*namespace)?, (&own.cwd, path));
    opener.open(&own.cwd, own.cwd_inode.as_ref(), flags).map(|(folder, _)| folder)
}

/// Files that the program wrote through shared mappings and that are gone (as a virtual machine's performance data is
/// after a kill) are made anew; their content comes with the pages. Those that are shorter than they were get their
/// length back. One line per file of which the image has a part only.
fn create_shared_files(
    record: &ProcessRecord,
    shared: &SharedFiles<'_>,
) -> Result<Vec<String>, RebuildError> {
    let (opener, mut notes) = (Opener::of(record), Vec::new());
    let written = record.regions.iter().filter(|region| region.is_written());
    let outside = |(identity, _): &(&FileIdentity, _)| !identity.is_only_inside();
    for (identity, _) in written.filter_map(|region| shown(record, region)).filter(outside) {
        let (path, was) = (&identity.path, identity.inode.as_ref());
        let made = match opener.find(path, was)? {
            None => {
                if !shared.has_whole(path, identity.size) {
                    notes.push(format!(
                        "{path}: it was gone; made anew with what the program has mapped of it for writing, the rest \
                         is zero"
                    ));
                }
                opener.create(path, was, identity.mode)
            }
            Some(found) => opener.open_found(&found, libc::O_RDWR.cast_unsigned()).map(File::from),
        };
        let lengthened = made.and_then(|file| {
            if file.metadata()?.len() < identity.size { file.set_len(identity.size) } else { Ok(()) }
        });
        lengthened.map_err(|error| {
            let what = "a file that the program shares cannot be made anew";
            RebuildError::file(path, format!("{what}: {}", explain(&error)))
        })?;
    }
    Ok(notes)
}
