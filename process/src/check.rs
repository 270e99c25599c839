//! What of a process could not be checkpointed now, found while it runs on.
//!
//! Called by the agent for `holdfast check JOB`, and by the command itself for a process that belongs to no job. What
//! must hold: nothing is stopped, set or consumed in the process; what is refused here is refused by the cut, in the
//! same words (`refuse`, `capture`). A thing that is there for an instant only (a descriptor of libholdfast, a child
//! that the agent makes during a cut) must not count, so a finding is one that a second look finds too. What only a
//! stopped thread tells is not seen.
//!
//! Fails by: [`CheckError`], when there is nothing to look at, or it may not be looked at.

use crate::capture::files::inotify::{self, Watching};
use crate::capture::files::{Covered, FileReader, Holder, Look, Outside};
use crate::capture::hardlinks;
use crate::capture::identity::SharedFiles;
use crate::capture::made_namespaces::{NESTED, are_nested};
use crate::capture::maps::{self, Kind, Mapped};
use crate::capture::mounts;
use crate::capture::pid_namespaces::{self, Inits};
use crate::capture::shared_memory;
use crate::capture::written_files::{self, Saving};
use crate::capture::{aio, contents, cwd, ipc, landlock, namespaces, own_folder, sysv_shm};
use crate::cuda::uses;
use crate::error::CutError;
use crate::inject::area;
use crate::job::membership::Descendants;
use crate::job::orphans::Orphans;
use crate::job::{adopt, process_age};
use crate::mapped_files::MappedFiles;
use crate::namespaces::Namespaces;
use crate::refuse;
use crate::stop::interrupt;
use holdfast_image::addresses::{of_one_without_library, used_by};
use holdfast_image::bytes::Name;
use holdfast_image::record::{FileTable, InjectArea};
use holdfast_image::refusal::{Checked, Finding, Refusal};
use holdfast_image::spare_numbers::OpenNumbers;
use holdfast_sys::procfs::{self, Mapping, Status};
use holdfast_sys::{attributes, children, clone, unix_socket};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Between the two looks: longer than libholdfast needs for a step.
const PAUSE: Duration = Duration::from_millis(3);
/// Longest wait for the end of a stop of the agent's.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a look is begun anew because a thread or the memory went away under it.
const TRIES: u32 = 4;

/// What to look at.
#[derive(Clone, Debug, Default)]
pub struct CheckOptions {
    /// The process.
    pub pid: i32,
    /// Where its libholdfast told the caller that it may work; `None`: it has told the caller nothing.
    pub area: Option<InjectArea>,
    /// The other processes of its job, likewise.
    pub others: Vec<(i32, InjectArea)>,
    /// Socket of the job's agent.
    pub socket: PathBuf,
    /// See [`crate::CutOptions::namespaces`]; `None`: the caller's.
    pub namespaces: Option<Arc<Namespaces>>,
    /// See [`crate::CutOptions::mapped`].
    pub mapped: Arc<MappedFiles>,
    /// See [`crate::CutOptions::inherited`].
    pub inherited: Vec<(i32, u64, u64)>,
    /// See [`crate::CutOptions::lose_connections`].
    pub lose_connections: bool,
    /// It is a member of a gang, of which the others are not asked: TCP connections that may lead to them are no
    /// finding.
    pub in_gang: bool,
    /// Which files are to be saved, if any are: see [`crate::Contents`].
    pub save_files: Option<Saving>,
    /// Only protected memory is stored: other memory may be as large as it likes.
    pub only_protected: bool,
    /// Processes whose CUDA state the driver will bring into their memory before a cut: their devices are no finding.
    pub cuda: Vec<i32>,
}

impl CheckOptions {
    /// Whether a cut makes itself room in the process, which tells the agent of none.
    fn will_be_adopted(&self, pid: i32) -> bool {
        let areas: Vec<InjectArea> = self.others.iter().map(|(_, area)| *area).chain(self.area).collect();
        let is_known = || pid == self.pid || self.others.iter().any(|(other, _)| *other == pid);
        adopt::cannot_register(pid)
            || adopt::registers_elsewhere(pid, &areas, &self.socket)
            || !is_known() && adopt::is_bare_copy(pid, &areas)
    }
}

/// Why nothing can be said.
#[derive(Debug, Error)]
pub enum CheckError {
    /// It has ended, or never was.
    #[error("there is no process {pid}")]
    Gone {
        /// Its id.
        pid: i32,
    },
    /// The id is one of a thread.
    #[error("{tid} is a thread of process {pid}: name that")]
    Thread {
        /// The id.
        tid: i32,
        /// The process.
        pid: i32,
    },
    /// It belongs to another user.
    #[error("process {pid} ({comm}) belongs to user {uid}: only that user and root may look into it")]
    Foreign {
        /// Its id.
        pid: i32,
        /// Its name.
        comm: String,
        /// Its user.
        uid: i64,
    },
    /// The system forbids it.
    #[error(
        "process {pid} ({comm}) cannot be inspected: {error}; it is protected from its own user, or this system \
         forbids it: see `holdfast doctor`"
    )]
    Closed {
        /// Its id.
        pid: i32,
        /// Its name.
        comm: String,
        /// What the system said.
        error: io::Error,
    },
}

/// Looks at a process.
///
/// # Errors
/// See [`CheckError`].
pub fn check(options: &CheckOptions) -> Result<Checked, CheckError> {
    let pid = options.pid;
    let gone = || CheckError::Gone { pid };
    let status = Status::read(pid, pid).map_err(|_| gone())?;
    if let Some(process) = status.number("Tgid").and_then(|id| i32::try_from(id).ok()).filter(|&id| id != pid)
    {
        return Err(CheckError::Thread { tid: pid, pid: process });
    }
    let comm = refuse::name_of(pid);
    if let Some(uid) = status.number("Uid").filter(|&uid| uid != i64::from(unix_socket::effective_user()))
        && unix_socket::effective_user() != 0
    {
        return Err(CheckError::Foreign { pid, comm, uid });
    }
    let (mut found, notes) = look(options, &comm)?;
    if !found.is_empty() {
        pause(pid);
        let (again, _) = look(options, &comm)?;
        let is = |one: &Found, other: &Found| one.0 == other.0 && one.1.subject.is(&other.1.subject);
        found.retain(|one| again.iter().any(|other| is(one, other)));
    }
    // What a program loses while it ends says nothing of it.
    if interrupt::has_ended(pid) {
        return Err(gone());
    }
    let finding = |(pid, refusal): Found| Finding::new(pid, &refuse::name_of(pid), refusal);
    let mut findings: Vec<Finding> = found.into_iter().map(finding).collect();
    findings.sort_by_key(|finding| finding.pid != pid);
    Ok(Checked { pid, comm, findings, left_out: 0, device_memory: None, notes, estimate: None })
}

/// A refusal, and the process that it is about.
type Found = (i32, Refusal);
/// All of a look, and what else is to be known.
type Looked = (Vec<Found>, Vec<String>);

/// Waits between the looks, and until the program is not in a stop of a cut any more: in that it has children that are
/// the agent's.
fn pause(pid: i32) {
    let begun = Instant::now();
    let is_ours = |(_, status): &(i32, Status)| status.tracer().is_some_and(refuse::is_own_thread);
    loop {
        thread::sleep(PAUSE);
        let stopped = threads(pid).is_ok_and(|all| all.iter().any(is_ours));
        if !stopped || begun.elapsed() > PATIENCE {
            return;
        }
    }
}

/// One look, begun anew when something went away under it. The files of a process that is ending are root's as soon as
/// it has no memory (fs/proc/base.c, task_dump_owner): what is forbidden counts if it is so at each look.
fn look(options: &CheckOptions, comm: &str) -> Result<Looked, CheckError> {
    let pid = options.pid;
    let mut tries = 0;
    loop {
        tries += 1;
        match look_once(options) {
            Ok(found) => return Ok(found),
            Err(_) if tries < TRIES => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(CheckError::Closed { pid, comm: comm.to_owned(), error });
            }
            Err(_) => return Err(CheckError::Gone { pid }),
        }
        thread::sleep(PAUSE);
    }
}

/// A process that can be looked into.
struct Open<'a> {
    pid: i32,
    live: i32,
    inner_pid: i32,
    job_pid: i32,
    own: Option<i32>,
    area: Option<&'a InjectArea>,
    /// Its mappings, if all of them are understood.
    mapped: Vec<Mapped>,
}

fn look_once(options: &CheckOptions) -> io::Result<Looked> {
    let (mut found, mut open) = (Vec::new(), Vec::new());
    let others = options.others.iter().map(|(pid, area)| (*pid, Some(area)));
    let (adoptable, strangers) = unknown(options);
    // Room is made in them at a cut.
    let nowhere = InjectArea::default();
    let adoptable = adoptable.into_iter().map(|pid| (pid, options.area.map(|_| &nowhere)));
    for (pid, area) in std::iter::once((options.pid, options.area.as_ref())).chain(others).chain(adoptable) {
        let mut own = Vec::new();
        match look_at(options, pid, area, &mut own) {
            Ok(looked) => open.extend(looked),
            // One of several has ended.
            Err(error) if pid != options.pid && error.kind() != io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
        found.extend(own.into_iter().map(|refusal| (pid, refusal)));
    }
    let (of_files, used) = files(options, &open)?;
    found.extend(of_files);
    found.extend(in_namespaces(options, &open));
    if !options.only_protected {
        found.extend(attached(&open));
    }
    found.extend(strangers.into_iter().chain(hidden(options)?).map(|pid| (pid, refuse::stranger(pid))));
    let without = open.iter().find(|one| one.area.is_some_and(|area| area.shared.0 == 0));
    let note = without.and_then(|one| of_one_without_library(one.pid, &refuse::name_of(one.pid), &used));
    Ok((found, note.into_iter().collect()))
}

/// Those in a pid namespace whose process 1 is not of the job, and whether all are in user namespaces that a restart
/// makes. What else is wrong with one is found with it.
fn in_namespaces(options: &CheckOptions, open: &[Open<'_>]) -> Vec<Found> {
    let of_job = options.namespaces.clone().unwrap_or_else(|| Arc::new(Namespaces::own()));
    let own: Vec<_> = open.iter().map(|one| Namespaces::of(one.pid, one.live)).collect();
    let of =
        |(one, own): (&Open<'_>, &Namespaces)| pid_namespaces::of(one.pid, own, &of_job).unwrap_or_default();
    let all: Vec<_> = open.iter().zip(&own).map(of).collect();
    let inits = Inits::of(all.iter().zip(open).map(|(of, one)| (of, one.inner_pid, one.pid)));
    let lacking = open.iter().zip(&all).filter(|(_, of)| inits.lack(of));
    let lacking = lacking.map(|(one, _)| (one.pid, pid_namespaces::NO_INIT));
    let others =
        open.iter().zip(&own).filter_map(|(one, own)| namespaces::others(one.live, own, &of_job).ok());
    let others: Vec<_> = others.flatten().collect();
    let nested = are_nested(others.iter()).then_some((options.pid, NESTED));
    lacking.chain(nested).map(|(pid, why)| (pid, refuse::process(pid, why))).collect()
}

/// Everything but open files. `None`: it cannot be looked into, and that is found.
fn look_at<'a>(
    options: &CheckOptions,
    pid: i32,
    area: Option<&'a InjectArea>,
    found: &mut Vec<Refusal>,
) -> io::Result<Option<Open<'a>>> {
    let threads = threads(pid)?;
    let living = threads.iter().find(|(_, status)| !status.has_ended());
    let (live, status) = living.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    let live = *live;
    let tids: Vec<i32> = threads.iter().map(|(tid, _)| *tid).collect();
    let of_job = options.namespaces.clone().unwrap_or_else(|| Arc::new(Namespaces::own()));
    found.extend(refuse::confined(pid, &tids, area, &of_job).refusals);
    found.extend(refuse::shared_with_parent(pid, status));
    found.extend(traced(pid, &threads));
    let others = threads.iter().filter(|(_, status)| !status.has_ended());
    let ids: Vec<(i32, i32)> =
        others.map(|(tid, status)| (*tid, status.innermost("NSpid").unwrap_or(*tid))).collect();
    found.extend(refuse::unshared(&ids));
    let is_moved = || !Namespaces::of(live, live).differing(&of_job).is_empty();
    found.extend(own_folder::of_threads(&ids, &is_moved).err().unwrap_or_default());
    if let Some(area) = area {
        found.extend(refuse::area(pid, area).filter(|_| !options.will_be_adopted(pid)));
        // The same question that the kernel asks before it lets anybody trace.
        if let Err(error) = File::open(format!("/proc/{pid}/task/{live}/mem")) {
            found.push(refuse::closed(pid).unwrap_or_else(|| refuse::untraceable(live, &error)));
            return Ok(None);
        }
    }
    found.extend(area.and_then(|area| landlock::noted(pid, live, area)));
    let mapped = memory(options, pid, area, live, found)?;
    if let Some(area) = area {
        found.extend(aio::not_noted(live, area, &mapped));
        found.extend(shared_memory::refuse_hidden(live, area, &mapped));
    }
    let inner_pid = status.innermost("NStgid").unwrap_or(pid);
    found.extend(executable(pid, live));
    found.extend(folder((pid, live), inner_pid));
    // What cannot be told just now is told at the second look.
    let own = area.and_then(|area| area::own_descriptor(live, area).ok().flatten());
    let job_pid = status.at_depth("NStgid", of_job.depth()).unwrap_or(inner_pid);
    Ok(Some(Open { pid, live, inner_pid, job_pid, own, area, mapped }))
}

/// Processes of the job that have not registered: those that a cut takes in all the same, and others. Of a process
/// that is not of a job: none, and all its children.
fn unknown(options: &CheckOptions) -> (Vec<i32>, Vec<i32>) {
    let others = options.others.iter().map(|(pid, _)| *pid);
    let mut all: Vec<i32> = std::iter::once(options.pid).chain(others).collect();
    let (mut adoptable, mut strangers, mut at) = (Vec::new(), Vec::new(), 0);
    while let Some(&pid) = all.get(at) {
        at += 1;
        for child in children::children(pid).unwrap_or_default() {
            if all.contains(&child) || strangers.contains(&child) || interrupt::has_ended(child) {
                continue;
            }
            if options.area.is_some() && options.will_be_adopted(child) {
                adoptable.push(child);
                all.push(child);
            } else {
                strangers.push(child);
            }
        }
    }
    (adoptable, strangers)
}

/// Orphans that may be of the job and that its user may not look into. A process is like that for a moment, too,
/// between a change of its ids and its execve(2) (`setpriv`, `su`): a young one is looked at again. So is all where
/// processes come and go.
fn hidden(options: &CheckOptions) -> io::Result<Vec<i32>> {
    /// How long that moment may be, without what it waits for a processor.
    const MOMENT: Duration = Duration::from_millis(300);
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let found = hidden_now(options);
        let is_young = |pid: &i32| process_age::of(*pid).is_none_or(|age| age < MOMENT);
        let is_sure = found.as_ref().is_ok_and(|found| !found.iter().any(is_young));
        if is_sure || Instant::now() >= end {
            return found.map_err(io::Error::other);
        }
        sleep(Duration::from_millis(20));
    }
}

/// The same, all that are like that now.
fn hidden_now(options: &CheckOptions) -> Result<Vec<i32>, CutError> {
    if options.area.is_none() {
        return Ok(Vec::new());
    }
    let others = options.others.iter().map(|(pid, _)| *pid);
    let all: Vec<i32> = std::iter::once(options.pid).chain(others).collect();
    Orphans::look(Default::default(), &all, (&options.socket, &[]), &Descendants::default())?.hidden()
}

/// All threads with their status; those that end meanwhile are left out.
fn threads(pid: i32) -> io::Result<Vec<(i32, Status)>> {
    let mut tids = procfs::tasks(pid)?;
    tids.sort_unstable();
    Ok(tids.into_iter().filter_map(|tid| Some((tid, Status::read(pid, tid).ok()?))).collect())
}

/// A debugger at the process, or at single threads of it.
fn traced(pid: i32, threads: &[(i32, Status)]) -> Vec<Refusal> {
    let foreign = |status: &Status| status.tracer().filter(|&tracer| !refuse::is_own_thread(tracer));
    let of_process = threads.iter().find(|(tid, _)| *tid == pid).and_then(|(_, status)| foreign(status));
    let of_process = of_process.map(|tracer| refuse::traced(pid, tracer));
    let of_threads = threads.iter().filter(|(tid, _)| *tid != pid && of_process.is_none());
    let of_threads =
        of_threads.filter_map(|(tid, status)| Some(refuse::traced_thread(*tid, foreign(status)?)));
    let of_threads: Vec<Refusal> = of_threads.collect();
    of_process.into_iter().chain(of_threads).collect()
}

/// Mappings, and libholdfast among them. Returns them, or none if one is not understood.
fn memory(
    options: &CheckOptions,
    pid: i32,
    area: Option<&InjectArea>,
    live: i32,
    found: &mut Vec<Refusal>,
) -> io::Result<Vec<Mapped>> {
    let flags = procfs::vm_flags(pid, live)?;
    let mut maps = procfs::maps(pid, live)?;
    if options.cuda.contains(&pid) {
        maps.retain(|mapping| !uses::is_device(&mapping.name));
    }
    hardlinks::name_mappings(&mut maps);
    let of_job = options.namespaces.clone().unwrap_or_else(|| Arc::new(Namespaces::own()));
    found.extend(mounts::survey(live, &of_job, &mut maps).err().map(|why| refuse::process(pid, why)));
    match area {
        None => found.push(refuse::process(pid, not_under_holdfast(&maps))),
        Some(area)
            if area.is_valid()
                && !area::is_ours(live, area, maps.iter())
                && !options.will_be_adopted(pid) =>
        {
            // The cut lets another process go on and waits for its registration.
            let other = pid != options.pid;
            found.push(if other { refuse::stranger(pid) } else { refuse::process(pid, area::NOT_OURS) });
        }
        Some(_) => {}
    }
    match maps::classify(maps, &flags, &options.mapped) {
        Ok(mapped) => {
            if !options.only_protected {
                found.extend(shared_memory::refuse_large(&mapped));
                found.extend(SharedFiles::of(&mapped).missing(&mapped));
                let pagemap = File::open(format!("/proc/{pid}/task/{live}/pagemap"))?;
                found.extend(maps::refuse_guards(&pagemap, &mapped));
            }
            Ok(mapped)
        }
        Err(refusals) => {
            found.extend(refusals);
            Ok(Vec::new())
        }
    }
}

/// System V objects of all of them together. Frozen copies do not attach shared memory.
fn attached(open: &[Open<'_>]) -> Vec<Found> {
    let processes =
        open.iter().map(|one| sysv_shm::Process { pid: one.pid, area: one.area, mapped: &one.mapped });
    let sysv_shm::Used { refusals, shared, .. } = sysv_shm::used(processes, Look::Running);
    let users = open.iter().map(|one| ipc::User { pid: one.pid, tid: one.live, area: one.area });
    let unread =
        ipc::used(users, Look::Running).err().map(|unreadable| unreadable.refusals).unwrap_or_default();
    let all = refusals.into_iter().chain(shared).chain(unread);
    all.filter_map(|(place, refusal)| Some((open.get(place)?.pid, refusal))).collect()
}

fn not_under_holdfast(maps: &[Mapping]) -> &'static str {
    if maps.iter().any(|mapping| mapping.name.ends_with(b"/libholdfast.so")) {
        "libholdfast is loaded, but it serves no running job of this store: name the store with --store; if its agent \
         was killed, the program cannot be checkpointed any more"
    } else {
        "libholdfast is not loaded: the program was not started by `holdfast run`"
    }
}

/// Open files of all of them together, and the addresses of sockets among them. The library's own connections are not
/// the programs'.
fn files(options: &CheckOptions, open: &[Open<'_>]) -> io::Result<(Vec<Found>, BTreeSet<IpAddr>)> {
    let mut used = BTreeSet::new();
    let pidfds = open.iter().map(|one| clone::pidfd_open(one.pid)).collect::<io::Result<Vec<_>>>()?;
    let holders = open.iter().zip(&pidfds).map(|(one, pidfd)| Holder {
        pid: one.pid,
        inner_pid: one.job_pid,
        own_pid: one.inner_pid,
        tid: one.live,
        pidfd,
        copies: None,
        own: one.own,
        uses_cuda: options.cuda.contains(&one.pid),
    });
    let namespaces = options.namespaces.clone().unwrap_or_else(|| Arc::new(Namespaces::own()));
    let outside = Outside {
        inherited: &options.inherited,
        lose_connections: options.lose_connections,
        in_gang: options.in_gang,
        front: None,
        namespaces: &namespaces,
    };
    let mut covered = Covered::default();
    open.iter().for_each(|one| covered.add(&one.mapped));
    let reader = FileReader::new(holders.collect(), outside, Look::Running)?.covering(covered);
    let refusals = match reader.tables() {
        Ok(mut tables) => {
            used.extend(tables.iter().flat_map(|table| used_by(&table.descriptions)));
            let folder = |pid: i32| fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
            let watching = |one: &Open<'_>| {
                let shared = one.area.map_or(0, |area| area.shared.0);
                Watching { pid: one.live, cwd: folder(one.live), shared }
            };
            let processes: Vec<Watching> = open.iter().map(watching).collect();
            let mut refusals = inotify::find_paths(&mut tables.iter_mut().collect::<Vec<_>>(), &processes);
            refusals.extend(too_many(&tables, open).map(|refusal| (0, refusal)));
            if let Some(saving) = options.save_files.filter(|_| !options.only_protected) {
                refusals.extend(unsaved(saving, &tables, open));
            }
            refusals
        }
        Err(unreadable) => unreadable.refusals,
    };
    let found = refusals.into_iter().filter_map(|(place, refusal)| Some((open.get(place)?.pid, refusal)));
    Ok((found.collect(), used))
}

/// More descriptors than a restart can make.
fn too_many(tables: &[FileTable], open: &[Open<'_>]) -> Option<Refusal> {
    let first = open.first()?;
    let shared = open.iter().flat_map(|one| &one.mapped).filter(|one| one.kind == Kind::SharedAnonymous);
    let shared: BTreeSet<u64> = shared.map(|one| one.mapping.inode).collect();
    let (_, hard) = attributes::limit(first.pid, libc::RLIMIT_NOFILE).ok()?;
    refuse::open_numbers(first.pid, &OpenNumbers::of(tables, shared.len()).spare(Some(hard)))
}

/// Files that are to be saved and cannot be.
fn unsaved(saving: Saving, tables: &[FileTable], open: &[Open<'_>]) -> Vec<(usize, Refusal)> {
    let processes: Vec<written_files::Process<'_>> = open
        .iter()
        .map(|one| written_files::Process { pid: one.pid, tid: one.live, mapped: &one.mapped })
        .collect();
    contents::obstacles(saving, tables, &processes)
}

/// A working folder that a restart would not find.
fn folder((pid, live): (i32, i32), inner_pid: i32) -> Option<Refusal> {
    let other = cwd::current(live, [pid, inner_pid]).ok()?.foreign?;
    Some(refuse::folder_of_another(pid, other))
}

/// The program's file. A thread of the kernel has none.
fn executable(pid: i32, live: i32) -> Option<Refusal> {
    let path = procfs::link(&format!("/proc/{pid}/task/{live}/exe")).ok().map(Name)?;
    fs::metadata(path.as_path()).is_err().then(|| refuse::executable(&path.0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::refusal::Subject;
    use std::process::{Child, Command, Stdio};

    struct Sleeper(Child);
    impl Sleeper {
        fn start(command: &mut Command) -> Sleeper {
            Sleeper(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
        }
        fn check(&self) -> Checked {
            let pid = self.0.id().cast_signed();
            check(&CheckOptions { pid, ..CheckOptions::default() }).unwrap()
        }
    }
    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_program_that_was_not_started_under_holdfast_is_told_so() {
        let sleeper = Sleeper::start(Command::new("sleep").arg("20"));
        // It has not executed `sleep` yet, perhaps.
        let checked = loop {
            let checked = sleeper.check();
            if checked.comm == "sleep" {
                break checked;
            }
        };
        let process = Subject::Process { pid: checked.pid, comm: "sleep".into() };
        let of_process: Vec<_> =
            checked.findings.iter().filter(|finding| finding.refusal.subject == process).collect();
        assert_eq!(of_process.len(), 1, "{checked:?}");
        assert!(of_process[0].refusal.reason.contains("libholdfast is not loaded"), "{checked:?}");
    }

    #[test]
    fn children_are_found_and_come_last() {
        let mut command = Command::new("sh");
        let sleeper = Sleeper::start(command.args(["-c", "sleep 20 | sleep 20"]));
        let pid = sleeper.0.id().cast_signed();
        while children::children(pid).unwrap().len() < 2 {
            thread::yield_now();
        }
        let checked = sleeper.check();
        drop(sleeper);
        let children: Vec<i32> =
            checked.findings.iter().map(|finding| finding.pid).filter(|&found| found != pid).collect();
        for child in &children {
            let _ = Command::new("kill").arg(child.to_string()).status();
        }
        assert_eq!(children.len(), 2, "{checked:?}");
        assert_eq!(checked.findings[0].pid, pid, "the program comes first: {checked:?}");
    }

    #[test]
    fn what_cannot_be_looked_at_is_an_error_with_its_reason() {
        let fail = |pid| check(&CheckOptions { pid, ..CheckOptions::default() }).unwrap_err().to_string();
        assert!(fail(i32::MAX).contains("no process"));
        let thread = thread::spawn(|| {
            let tid = fs::read_link("/proc/thread-self").unwrap();
            let tid = tid.file_name().unwrap().to_string_lossy().parse().unwrap();
            check(&CheckOptions { pid: tid, ..CheckOptions::default() }).unwrap_err().to_string()
        });
        let own = std::process::id();
        assert!(thread.join().unwrap().contains(&format!("is a thread of process {own}")));
    }
}
