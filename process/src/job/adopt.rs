//! Processes in which libholdfast cannot register: statically linked, for another C library, or started without
//! LD_PRELOAD; those in which it registers with the agent of another job ([`registers_elsewhere`]); those that are no
//! longer root, and cannot reach root's agent ([`cannot_reach`]); those whose seccomp filters forbid it
//! ([`is_filtered`]); children that are stopped since their birth; and
//! those made by the bare system call clone(2) ([`is_bare_copy`]). The agent makes itself the room there that the
//! library would have told it of.
//!
//! Called by `cut` before the stop, for those that it knows of, and by `stopped_group` for those that are born
//! meanwhile, on the tracer thread; [`cannot_register`] by `check` and by the commands, too. A process is adopted
//! once: the room stays, its children inherit it. What must hold: the process is stopped as a whole while it is done,
//! and goes on as after any stop. One that shares its memory with another (a child of vfork) is left alone: it executes
//! a program in a moment. Fails by: [`CutError`]; the process runs on.

use crate::capture::{filter_counts, filters};
use crate::error::{CutError, TraceError};
use crate::inject::area;
use crate::inject::vdso_call::VdsoCalls;
use crate::job::library_page::{LIBRARY, LibraryPage, has_library, maps_of};
use crate::job::lineage::Lineages;
use crate::job::membership::{self, Marks};
use crate::job::orphans::Orphans;
use crate::job::process_age;
use crate::job::relatives;
use crate::job::target::{Adopted, Roster, Target};
use crate::job::tracer_state::TracerState;
use crate::options::CutOptions;
use crate::refuse;
use crate::stop::interrupt::{self, Interrupted, StopFailure, Stopped, Stragglers, Whom};
use crate::stop::process_errors;
use crate::stop::resume::{self, StoppedProgram};
use crate::stop::{syscall_restart, threads};
use crate::track::tracking::Tracking;
use holdfast_abi::inject;
use holdfast_image::Addr;
use holdfast_image::record::InjectArea;
use holdfast_sys::clone::{self, Common, have_in_common};
use holdfast_sys::elf::{self, ElfError, Running};
use holdfast_sys::environment::{self, Environment};
use holdfast_sys::procfs::{self, Mapping, Status};
use holdfast_sys::procmem::{self, ForcedMemory};
use holdfast_sys::ptrace::{self, Registers};
use holdfast_sys::unix_socket;
use holdfast_sys::userfault;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Lengths of the room, as libholdfast reserves it (`preload/src/area.rs`).
const CODE_LEN: u64 = inject::CODE_LEN as u64;
const SCRATCH_LEN: u64 = inject::SCRATCH_LEN as u64;

/// What the C library's fork has made registers sooner: its handler runs before anything of the program's.
const FORKED: Duration = Duration::from_millis(500);

/// Whether libholdfast can be loaded into a program: by the linker of the C library that it is made for.
///
/// # Errors
/// It is no program for this processor.
pub fn loads_libraries(program: &impl elf::Bytes) -> Result<bool, ElfError> {
    let linker = elf::interpreter(program)?;
    let name = linker.as_deref().and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    Ok(name.is_some_and(|name| name.starts_with(b"ld-linux-x86-64.")))
}

/// Whether a process is one of those that the head of the file lists. What has ended, or may not be looked at, is
/// not.
pub fn cannot_register(pid: i32) -> bool {
    let Ok(program) = Running::of(procfs::shown_by(pid)) else { return false };
    match loads_libraries(&program) {
        Err(_) => return false,
        Ok(false) => return true,
        Ok(true) => {}
    }
    // One that executes a program just now is seen the next time.
    let Ok(Environment::Is(environment)) = environment::of(pid) else { return false };
    let preloads = |entry: &[u8]| {
        entry.starts_with(b"LD_PRELOAD=") && entry.windows(LIBRARY.len()).any(|part| part == LIBRARY)
    };
    let is_told = environment.split(|byte| *byte == 0).any(preloads);
    match maps_of(pid) {
        // Some programs write over their environment.
        Ok(maps) if has_library(&maps) => {
            let is_untold = || !Marks::name_a_job(&environment) && process_age::is_silent(pid);
            cannot_reach(pid) || is_job_stopped(pid) || is_filtered(pid) || is_untold()
        }
        Ok(_) if is_told => process_age::is_silent(pid),
        Ok(_) => true,
        Err(_) => false,
    }
}

/// Whether it is under seccomp filters of its own: those that were there before its program do not let libholdfast
/// register, and others may not. One that may has done so by now.
fn is_filtered(pid: i32) -> bool {
    Status::read(pid, pid).is_ok_and(|status| filter_counts::is_confined(&status))
        && process_age::of(pid).is_some_and(|age| age > FORKED)
}

/// Whether the socket of this agent, which is root's, is closed to a process: it is another user's.
fn cannot_reach(pid: i32) -> bool {
    unix_socket::effective_user() == 0 && membership::file_system_user(pid).is_ok_and(|user| user != 0)
}

/// Whether libholdfast in a process registers with another agent than that at `socket`, as its environment has it: what
/// a process of a job has executed that was restarted under another name. A child made by fork knows what its parent
/// has been told, if that is registered (`known`: the rooms of the job's processes).
pub fn registers_elsewhere(pid: i32, known: &[InjectArea], socket: &Path) -> bool {
    let Ok(Environment::Is(environment)) = environment::of(pid) else { return false };
    let told: Vec<InjectArea> = known.iter().filter(|area| area.shared.0 != 0).copied().collect();
    membership::leads_elsewhere(&environment, socket)
        && maps_of(pid).is_ok_and(|maps| has_library(&maps) && inherited(pid, pid, &told, &maps).is_none())
}

/// Whether a process that has not registered is a copy of one that has (`known`: the injection areas of the job's
/// processes), made by the bare system call clone(2): libholdfast follows the C library's fork alone.
pub fn is_bare_copy(pid: i32, known: &[InjectArea]) -> bool {
    let told: Vec<InjectArea> = known.iter().filter(|area| area.shared.0 != 0).copied().collect();
    let is_copy = |maps: Vec<Mapping>| has_library(&maps) && inherited(pid, pid, &told, &maps).is_some();
    process_age::of(pid).is_some_and(|age| age > FORKED) && maps_of(pid).is_ok_and(is_copy)
}

/// The room of the process that this one was forked from.
fn inherited(pid: i32, live: i32, known: &[InjectArea], maps: &[Mapping]) -> Option<InjectArea> {
    let is_there =
        |area: &&InjectArea| area::is_still_there(pid, area) && area::is_ours(live, area, maps.iter());
    known.iter().find(is_there).copied()
}

/// Whether job control has stopped it: a child may be stopped before its first instruction, and registers when it goes
/// on.
fn is_job_stopped(pid: i32) -> bool {
    procfs::stat_fields(pid, pid).is_ok_and(|fields| fields.first().is_some_and(|state| state == "T"))
}

/// Adopts those that need it before a stop: processes that the agent knows, but has no room in (any more), and their
/// children. Returns who is known then, and the orphans there are.
///
/// # Errors
/// A process cannot be adopted, or is silent though it could register.
pub fn all(
    roster: &dyn Roster,
    options: &CutOptions,
    state: &mut TracerState,
) -> Result<(Vec<Target>, Orphans), CutError> {
    let mut known = roster.targets();
    let mut tried = BTreeSet::new();
    loop {
        let pids: Vec<i32> = known.iter().map(|target| target.pid).collect();
        let lost = known.iter().filter(|target| !area::is_still_there(target.pid, &target.area));
        let mut all: Vec<i32> = lost.map(|target| target.pid).collect();
        let (mut orphans, mut silent) = (Orphans::default(), Vec::new());
        if options.only.is_none() {
            let children = relatives::relatives(&known).err();
            let children = children.as_ref().map(strangers).unwrap_or_default();
            // Their parents may end before the next look.
            state.descendants.forget_gone();
            state.descendants.see(&children);
            orphans = Orphans::look(
                (LibraryPage::of(&known), Lineages::of(&known)),
                &pids,
                (&options.socket, &options.key),
                &state.descendants,
            )?;
            all.extend(children.iter().copied().chain(orphans.besides(&pids)?));
            silent.extend(
                children.into_iter().filter(|pid| process_age::is_silent(*pid)).map(refuse::stranger),
            );
        }
        all.retain(|pid| will_not_register(*pid, &known, &options.socket) && tried.insert(*pid));
        if all.is_empty() {
            refuse::unless_empty(silent)?;
            return Ok((known, orphans));
        }
        for pid in all {
            one(pid, (&known, &orphans), roster, options, state)
                .map_err(|error| process_errors::named(error, pids != [pid], pid))?;
        }
        known = roster.targets();
    }
}

/// Whether a process must be adopted: it cannot register, does so elsewhere, or does not know that it is a new one.
pub fn will_not_register(pid: i32, known: &[Target], socket: &Path) -> bool {
    let is_known = || known.iter().any(|target| target.pid == pid);
    cannot_register(pid)
        || registers_elsewhere(pid, &areas(known), socket)
        || !is_known() && is_bare_copy(pid, &areas(known))
}

fn areas(known: &[Target]) -> Vec<InjectArea> {
    known.iter().map(|target| target.area).collect()
}

/// Those that an error names.
pub fn strangers(error: &CutError) -> Vec<i32> {
    let CutError::Unsettled(refusals) = error else { return Vec::new() };
    refuse::processes(refusals)
}

/// Adopts one, and tells the agent. One that is gone, executes a program just now, or is not of the job after all
/// (who are its processes and its orphans?), is no failure.
///
/// # Errors
/// It cannot be, and why; not now.
pub fn one(
    pid: i32,
    (known, orphans): (&[Target], &Orphans),
    roster: &dyn Roster,
    options: &CutOptions,
    state: &mut TracerState,
) -> Result<(), CutError> {
    let is_known = |pid: i32| known.iter().any(|target| target.pid == pid);
    let parent = membership::parent(pid);
    // A process that has no environment for a moment may be anybody's.
    if !is_known(pid) && !parent.is_some_and(is_known) && !orphans.is_marked(pid) {
        return Ok(());
    }
    let others = known.iter().map(|target| target.pid).chain(parent).filter(|other| *other != pid);
    let have = |one, other| have_in_common(one, other, Common::Memory).unwrap_or(false);
    // Two main threads that have ended have none, both.
    let shares = |other| have(pid, other) && have(procfs::shown_by(pid), procfs::shown_by(other));
    if others.into_iter().any(shares) {
        return Ok(());
    }
    match adopt(pid, known, options, state) {
        Ok(adopted) => {
            tracing::debug!(pid, "adopted a process without libholdfast");
            roster.adopted(adopted);
            Ok(())
        }
        Err(CutError::Gone) => Ok(()),
        Err(CutError::Busy { .. }) if !is_known(pid) => Ok(()),
        // What was not found in it (any more) is no reason to refuse.
        Err(_) if interrupt::is_dying(pid) => Ok(()),
        Err(error) => Err(error),
    }
}

fn adopt(
    pid: i32,
    known: &[Target],
    options: &CutOptions,
    state: &mut TracerState,
) -> Result<Adopted, CutError> {
    let status = Status::read(pid, pid).map_err(|_| CutError::Gone)?;
    // Before anything is called in it.
    let tracer = status.tracer().filter(|tracer| !refuse::is_own_thread(*tracer));
    let tracer = tracer.map(|tracer| refuse::traced(pid, tracer));
    let tids = procfs::tasks(pid).map_err(|_| CutError::Gone)?;
    let area = inherited(pid, pid, &areas(known), &maps_of(pid).map_err(|_| CutError::Gone)?);
    let confined = refuse::confined(pid, &tids, area.as_ref(), &options.namespaces);
    let shared = refuse::shared_with_parent(pid, &status);
    refuse::unless_empty(
        confined.refusals.into_iter().chain(shared).chain(tracer).chain(refuse::closed(pid)),
    )?;
    let maps = maps_of(pid).map_err(|_| CutError::Gone)?;
    let vdso = vdso_of(&maps);
    let samples = threads::sample(pid);
    // The kernel maps the vdso last (load_elf_binary, fs/binfmt_elf.c).
    let executing = || CutError::Busy { what: "it executes another program, or has no vdso".into() };
    if vdso.is_empty() {
        return Err(executing());
    }
    // Before it is stopped for nothing.
    VdsoCalls::find(&vdso, |at, bytes| procmem::read(pid, at, bytes))
        .map_err(|_| executing())?
        .ok_or_else(|| no_area(pid, NO_FOOTHOLD))?;
    let room = |stopped: &Stopped| make_area(pid, stopped, known);
    let target = |area| Target { pid, space: 0, area, tracking: Arc::new(Tracking::new(None)) };
    match interrupt::stop(&[Whom { pid, vdso, spared: Vec::new() }], options.deadline) {
        Ok((stopped, _)) => {
            let stopped = stopped.into_iter().next().unwrap_or_default();
            let made = room(&stopped);
            let mut held = StoppedProgram::new(pid, stopped);
            let made = made.and_then(|(area, userfault)| {
                let target = target(area);
                resume::ready(&target, state.of(&target), &samples, &mut held, true)?;
                Ok(Adopted { pid, area, userfault })
            });
            if made.is_err() {
                restart_waits(&held.stopped);
            }
            held.resume(&mut state.stragglers);
            made
        }
        Err(failure) => match failure.interrupted.first().map(|one| room(&one.stopped)) {
            Some(Ok((area, _))) => {
                let target = target(area);
                Err(resume::resume_interrupted(failure, [(&target, &samples)].into_iter(), state))
            }
            _ => Err(abandon(failure, &mut state.stragglers)),
        },
    }
}

const NO_FOOTHOLD: &str = "its vdso has no empty bytes";

fn no_area(pid: i32, why: &str) -> CutError {
    CutError::Refused(vec![refuse::no_area(pid, why)])
}

fn abandon(failure: StopFailure, stragglers: &mut Stragglers) -> CutError {
    let StopFailure { why, interrupted } = failure;
    for Interrupted { stopped, late } in interrupted {
        restart_waits(&stopped);
        stragglers.add(stopped.detach_all(&[]));
        stragglers.add(late);
    }
    resume::error_of(why)
}

fn vdso_of(maps: &[Mapping]) -> Range<u64> {
    maps.iter().find(|mapping| mapping.name == b"[vdso]").map_or(0..0, |vdso| vdso.start..vdso.end)
}

/// Where no room can be made: waits that a stop ends are begun anew, with all of their time.
fn restart_waits(stopped: &Stopped) {
    for &tid in stopped.threads.keys() {
        let Ok(regs) = ptrace::registers(tid) else { continue };
        let was_interrupted = regs.rax.cast_signed() == -i64::from(libc::EINTR);
        if was_interrupted && syscall_restart::eintr_is_ours(regs.orig_rax.cast_signed()) {
            let regs = Registers { rax: syscall_restart::ERESTARTNOHAND.cast_unsigned(), ..regs };
            let _ = ptrace::set_registers(tid, &regs);
        }
    }
}

/// Makes the room, or finds that of the process that this one was forked from; and what is to note its writes.
fn make_area(
    pid: i32,
    stopped: &Stopped,
    known: &[Target],
) -> Result<(InjectArea, Option<OwnedFd>), CutError> {
    let (&live, &held) = stopped.threads.first_key_value().ok_or(CutError::Gone)?;
    let status = Status::read(pid, live)?;
    let only = Stopped { threads: [(live, held)].into() };
    let mut threads = resume::read_threads(pid, &only, status.is_nested())?;
    let maps = procfs::maps(pid, live)?;
    let room = inherited(pid, live, &areas(known), &maps);
    filters::settle(pid, &mut threads, &room.unwrap_or_default(), &status, true)?;
    let thread = threads.first().ok_or(CutError::Gone)?;
    let inner = status.innermost("NStgid").unwrap_or(pid);
    let host = thread.host(pid, inner, status.mask("SigCgt"), 0);
    let memory = ForcedMemory::open(pid, live)?;
    let foothold = VdsoCalls::take(&host, &memory, &vdso_of(&maps), b"holdfast")?
        .ok_or_else(|| no_area(pid, NO_FOOTHOLD))?;
    let (made, is_new) = match room {
        Some(area) => (Ok(area), false),
        None => (map(pid, &foothold), true),
    };
    let made = made.and_then(|area| match descriptor(pid, &foothold) {
        Err(error) if is_new => Err(without(&foothold, area.scratch.0, error)),
        descriptor => Ok((area, descriptor?)),
    });
    foothold.leave()?;
    made
}

const ROOM_LEN: u64 = SCRATCH_LEN + CODE_LEN;

/// After a failure: the room is given back.
fn without(foothold: &VdsoCalls<'_>, room: u64, error: CutError) -> CutError {
    if let Err(second) = foothold.call(libc::SYS_munmap, [room, ROOM_LEN, 0, 0, 0, 0]) {
        tracing::warn!(%second, "memory for injected calls stays in a process");
    }
    error
}

fn map(pid: i32, foothold: &VdsoCalls<'_>) -> Result<InjectArea, CutError> {
    const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    const READ_EXECUTE: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    const PRIVATE: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    let refused = |result: i64, what: &str| {
        let error = io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(0));
        no_area(pid, &format!("{what}: {error}"))
    };
    let result = foothold.call(libc::SYS_mmap, [0, ROOM_LEN, READ_WRITE, PRIVATE, u64::MAX, 0])?;
    let scratch = u64::try_from(result).map_err(|_| refused(result, "mmap"))?;
    let code = scratch + SCRATCH_LEN;
    let ready = || -> Result<(), CutError> {
        let result = foothold.call(libc::SYS_mprotect, [code, CODE_LEN, READ_EXECUTE, 0, 0, 0])?;
        if result != 0 {
            return Err(refused(result, "mprotect"));
        }
        // For those who look at its mappings; some kernels cannot.
        for (start, len) in [(scratch, SCRATCH_LEN), (code, CODE_LEN)] {
            let (what, name) = (libc::PR_SET_VMA as u64, libc::PR_SET_VMA_ANON_NAME as u64);
            foothold.call(libc::SYS_prctl, [what, name, start, len, foothold.name(), 0])?;
        }
        if holdfast_sys::fault::fails("foothold-made") {
            return Err(TraceError::Stuck { tid: pid }.into());
        }
        Ok(())
    };
    ready().map_err(|error| without(foothold, scratch, error))?;
    Ok(InjectArea {
        code: Addr(code),
        code_len: CODE_LEN,
        scratch: Addr(scratch),
        scratch_len: SCRATCH_LEN,
        shared: Addr(0),
    })
}

/// Has the process make a userfaultfd, and takes it over.
fn descriptor(pid: i32, foothold: &VdsoCalls<'_>) -> Result<Option<OwnedFd>, CutError> {
    let flags = u64::from(userfault::FLAGS.cast_unsigned());
    if !foothold.allows(libc::SYS_userfaultfd, &[flags]) {
        return Ok(None);
    }
    let number = foothold.call(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0])?;
    let Ok(fd) = u64::try_from(number) else { return Ok(None) };
    let taken =
        clone::pidfd_open(pid).and_then(|pidfd| clone::pidfd_getfd(&pidfd, i32::try_from(fd).unwrap_or(-1)));
    foothold.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
    Ok(taken.ok())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::process::{Child, Command};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    fn options() -> CutOptions {
        CutOptions { deadline: Duration::from_secs(1), ..CutOptions::default() }
    }

    fn sleeper() -> Child {
        let child = Command::new("sleep").arg("20").env_remove("LD_PRELOAD").spawn().unwrap();
        let pid = child.id().cast_signed();
        let call = || procfs::current_call(pid, pid).ok().flatten().map(|call| call[0]);
        while call() != Some(libc::SYS_clock_nanosleep.cast_unsigned()) {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn a_process_gets_room_once_and_sleeps_on() {
        let mut child = sleeper();
        let pid = child.id().cast_signed();
        assert!(cannot_register(pid));
        let mut state = TracerState::default();
        let mut again = |known: &[Target]| adopt(pid, known, &options(), &mut state).unwrap();
        let before = (maps_of(pid).unwrap(), procfs::descriptors(pid, pid).unwrap());
        let adopted = again(&[]);
        let maps = maps_of(pid).unwrap();
        assert!(adopted.area.is_valid() && area::is_ours(pid, &adopted.area, maps.iter()));
        assert!(area::is_still_there(pid, &adopted.area));
        assert_eq!(adopted.userfault.is_some(), holdfast_sys::probe::Probe::ask().userfaultfd_user);
        assert_eq!(maps.len() - before.0.len(), 2);
        assert_eq!(procfs::descriptors(pid, pid).unwrap(), before.1);
        let vdso = area::read_vdso(pid, maps.iter()).unwrap();
        assert!(vdso.ends_with(&[0; 512]));
        // As a child would be, that was forked from it.
        let known = Target { pid: 1, space: 0, area: adopted.area, tracking: Arc::new(Tracking::new(None)) };
        assert_eq!(again(&[known]).area, adopted.area);
        assert_eq!(maps_of(pid).unwrap().len(), maps.len());
        assert!(!interrupt::has_ended(pid) && state.stragglers.is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn one_that_executes_programs_all_the_time_is_taken_in_or_busy() {
        let again = ["-c", "exec sh -c \"$0\" \"$0\"", "exec sh -c \"$0\" \"$0\""];
        let mut child = Command::new("sh").args(again).env_remove("LD_PRELOAD").spawn().unwrap();
        let pid = child.id().cast_signed();
        let mut state = TracerState::default();
        let mut taken = 0;
        for _ in 0..2000 {
            let outcome = adopt(pid, &[], &options(), &mut state);
            assert!(matches!(outcome, Ok(_) | Err(CutError::Busy { .. } | CutError::Gone)), "{outcome:?}");
            taken += u32::from(outcome.is_ok());
        }
        assert!(taken > 0 && child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Whether a process was taken in.
    #[derive(Default)]
    struct Taken(AtomicBool);

    impl Roster for Taken {
        fn targets(&self) -> Vec<Target> {
            Vec::new()
        }
        fn adopted(&self, _: Adopted) {
            self.0.store(true, Relaxed);
        }
    }

    #[test]
    fn a_stranger_is_left_alone_and_a_child_is_taken_in() {
        let mut child = sleeper();
        let pid = child.id().cast_signed();
        let mut state = TracerState::default();
        let taken = Taken::default();
        let options = options();
        let mut try_with = |known: &[Target]| {
            one(pid, (known, &Orphans::default()), &taken, &options, &mut state).unwrap();
            taken.0.load(Relaxed)
        };
        assert!(!try_with(&[]));
        let (own, area) = (std::process::id().cast_signed(), InjectArea::default());
        let tracking = Arc::new(Tracking::new(None));
        assert!(try_with(&[Target { pid: own, space: 0, area, tracking }]));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_loads_libraries_can_register() {
        let own = File::open("/proc/self/exe").unwrap();
        assert!(loads_libraries(&own).unwrap());
        assert!(loads_libraries(&File::open("/proc/self/cmdline").unwrap()).is_err());
        let mut child =
            Command::new("sleep").arg("20").env("LD_PRELOAD", "/x/libholdfast.so").spawn().unwrap();
        let pid = child.id().cast_signed();
        while refuse::name_of(pid) != "sleep" {
            std::thread::yield_now();
        }
        assert!(!cannot_register(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!cannot_register(pid), "it is gone");
    }
}
