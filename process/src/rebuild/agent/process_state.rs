//! What belongs to the process as a whole and comes after its memory: heap and stack, close-on-exec, signal
//! handlers, pending signals, timers, limits, and the library's own page. Runs in the agent.

use super::remote_calls::{Batch, Need, SeedThread};
use super::threads::NewThread;
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Member;
use holdfast_abi::SharedPage;
use holdfast_image::attributes::Deadline;
use holdfast_image::record::{LockKind, Object, ProcessRecord, ThreadRecord};
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::{attributes, clock, sched};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes of struct prctl_mm_map (include/uapi/linux/prctl.h).
const MM_MAP_LEN: u64 = 104;

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Unmaps the seed and tells the kernel the [`layout`]. The executable is right already: it
/// is what the process executed.
///
/// # Errors
/// Names what the kernel refused.
pub fn identity(leader: SeedThread, record: &ProcessRecord, seed: (u64, u64)) -> Result<(), RebuildError> {
    let mut batch = leader.batch();
    batch
        .row(Row::new(libc::SYS_munmap, &[seed.0, seed.1 - seed.0]), Need::Must("unmap the seed at", seed.0));
    batch.finish()?;
    layout(leader, record)
}

/// Tells the kernel where heap, stack, arguments and auxv are.
///
/// # Errors
/// Names what the kernel refused.
pub fn layout(leader: SeedThread, record: &ProcessRecord) -> Result<(), RebuildError> {
    let layout = &record.layout;
    let mut batch = leader.batch();
    batch.reserve(layout.auxv.0.len() + 256)?;
    let auxv = batch.data(&layout.auxv.0);
    let mut map = words(&[
        layout.start_code.0,
        layout.end_code.0,
        layout.start_data.0,
        layout.end_data.0,
        layout.start_brk.0,
        layout.brk.0,
        layout.start_stack.0,
        layout.arg_start.0,
        layout.arg_end.0,
        layout.env_start.0,
        layout.env_end.0,
        auxv,
    ]);
    map.extend(u32::try_from(layout.auxv.0.len()).unwrap_or(0).to_le_bytes());
    map.extend(u32::MAX.to_le_bytes()); // exe_fd: none
    let map = batch.data(&map);
    let args = [libc::PR_SET_MM as u64, libc::PR_SET_MM_MAP as u64, map, MM_MAP_LEN, 0];
    let need = Need::Must("tell the kernel its heap and stack, break", layout.brk.0);
    batch.row(Row::new(libc::SYS_prctl, &args), need);
    batch.finish().map(|_| ())
}

/// Close-on-exec flags (an exec, that of the seed, would have closed them), signal handlers, no_new_privs.
///
/// # Errors
/// Names what the kernel refused.
pub fn descriptors_and_signals(leader: SeedThread, member: Member<'_>) -> Result<(), RebuildError> {
    let record = member.own;
    let mut batch = leader.batch();
    let own = |description: u32| member.job.descriptions()[description as usize].object == Object::Own;
    for descriptor in record.files.descriptors.iter().filter(|d| d.cloexec && !own(d.description)) {
        let fd = u64::from(descriptor.fd.cast_unsigned());
        let args = [fd, libc::F_SETFD as u64, libc::FD_CLOEXEC as u64];
        batch.call(libc::SYS_fcntl, &args, Need::Must("mark close-on-exec the descriptor", fd))?;
    }
    for action in &record.signals.actions {
        batch.reserve(32)?;
        let address = batch.data(&words(&[action.handler, action.flags, action.restorer, action.mask]));
        let args = [u64::from(action.signal), address, 0, 8];
        let need = Need::Must("set the handler of signal", u64::from(action.signal));
        batch.row(Row::new(libc::SYS_rt_sigaction, &args), need);
    }
    if record.flags.no_new_privs {
        let args = [libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0];
        batch.call(libc::SYS_prctl, &args, Need::Must("set no_new_privs", 1))?;
    }
    batch.finish().map(|_| ())
}

/// Locks on files. After everything that opens and closes files in the process: its POSIX locks on a file go with the
/// first descriptor of it that is closed (fcntl_locking(2)).
///
/// # Errors
/// Names the file: another program has locked it meanwhile.
pub fn locks(leader: SeedThread, member: Member<'_>) -> Result<(), RebuildError> {
    named(lock_all(leader, member, |kind| kind != LockKind::Lease))
}

/// Leases, after everything that opens files at all: that would break them, and tell the process so.
///
/// # Errors
/// Names the file: another program has it open.
pub fn leases(leader: SeedThread, member: Member<'_>) -> Result<(), RebuildError> {
    named(lock_all(leader, member, |kind| kind == LockKind::Lease))
}

fn named(locked: Result<(), RebuildError>) -> Result<(), RebuildError> {
    locked.map_err(|error| match error {
        RebuildError::Call { what, source }
            if matches!(source.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) =>
        {
            RebuildError::InUse(format!("the new process could not {what}: {source}"))
        }
        other => other,
    })
}

fn lock_all(
    leader: SeedThread,
    member: Member<'_>,
    is_wanted: impl Fn(LockKind) -> bool,
) -> Result<(), RebuildError> {
    const F_OFD_SETLK: u64 = 37;
    let mut batch = leader.batch();
    for (index, description) in member.job.descriptions().iter().enumerate() {
        for lock in description.locks.iter().filter(|lock| is_wanted(lock.kind)) {
            // A process's own is taken by that process, a description's by its holder.
            let number = match lock.kind {
                LockKind::Posix if lock.process as usize == member.index => member.number(index),
                LockKind::Posix => None,
                _ => member.held(index),
            };
            let Some(fd) = number.map(|fd| u64::from(fd.cast_unsigned())) else { continue };
            let name = match &description.object {
                Object::Regular { path, .. } | Object::Directory { path, .. } => path.to_string(),
                _ => format!("descriptor {fd}"),
            };
            let need = Need::MustOn("take its lock again (end the program that has it now) on", name);
            let kind = if lock.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
            // struct flock: type, whence (SEEK_SET), start, len, pid.
            let range = words(&[u64::from(kind.cast_unsigned()), lock.start, lock.len, 0]);
            batch.reserve(range.len())?;
            let (number, args) = match lock.kind {
                LockKind::Flock => {
                    let how = if lock.exclusive { libc::LOCK_EX } else { libc::LOCK_SH } | libc::LOCK_NB;
                    (libc::SYS_flock, [fd, u64::from(how.cast_unsigned()), 0])
                }
                LockKind::Posix => (libc::SYS_fcntl, [fd, libc::F_SETLK as u64, batch.data(&range)]),
                LockKind::Description => (libc::SYS_fcntl, [fd, F_OFD_SETLK, batch.data(&range)]),
                LockKind::Lease => {
                    (libc::SYS_fcntl, [fd, libc::F_SETLEASE as u64, u64::from(kind.cast_unsigned())])
                }
            };
            batch.row(Row::new(number, &args), need);
        }
    }
    batch.finish().map(|_| ())
}

/// Signals that wait for the process, then timers: their time runs from here.
///
/// # Errors
/// Names the signal, timer or descriptor.
pub fn pending_and_timers(leader: SeedThread, member: Member<'_>) -> Result<(), RebuildError> {
    let record = member.own;
    let mut batch = leader.batch();
    for info in &record.signals.pending {
        batch.reserve(info.0.len())?;
        let address = batch.data(&info.0);
        let signal = u64::from_le_bytes(crate::stop::xstate::array(&info.0, 0)) & 0xffff_ffff;
        // The sender must be the leader itself: then any si_code may be given (kernel/signal.c).
        let args = [u64::from(leader.remote.inner.0.cast_unsigned()), signal, address];
        batch.row(
            Row::new(libc::SYS_rt_sigqueueinfo, &args),
            Need::Must("queue for itself the signal", signal),
        );
    }
    for (which, timer) in (0_u64..).zip(&record.itimers) {
        // ITIMER_REAL rests from its expiry until its signal is taken from the queue (kernel/signal.c,
        // dequeue_signal): it has an interval and nothing left then, and goes on with the next period.
        let fired = which == 0 && timer.value_us == 0;
        let value = if fired { timer.interval_us } else { timer.value_us };
        if value == 0 {
            continue;
        }
        batch.reserve(32)?;
        let interval = timer.interval_us;
        let parts = [interval / 1_000_000, interval % 1_000_000, value / 1_000_000, value % 1_000_000];
        let address = batch.data(&words(&parts));
        batch.row(
            Row::new(libc::SYS_setitimer, &[which, address, 0]),
            Need::Must("set interval timer", which),
        );
    }
    posix_timers(&mut batch, record)?;
    for (index, description) in member.job.descriptions().iter().enumerate() {
        if let (Object::TimerFd { .. }, Some(fd)) = (&description.object, member.held(index)) {
            arm_timerfd(&mut batch, fd, &description.object)?;
        }
    }
    batch.finish().map(|_| ())
}

/// Timers of timer_create, with their old ids (PR_TIMER_CREATE_RESTORE_IDS, Linux 6.15; before, ids count up from 0,
/// and one that does not come out as it was is an error).
fn posix_timers(batch: &mut Batch, record: &ProcessRecord) -> Result<(), RebuildError> {
    const PR_TIMER_CREATE_RESTORE_IDS: u64 = 77;
    const SECOND: u64 = 1_000_000_000;
    if record.posix_timers.is_empty() {
        return Ok(());
    }
    batch.call(libc::SYS_prctl, &[PR_TIMER_CREATE_RESTORE_IDS, 1], Need::May)?;
    for timer in &record.posix_timers {
        let id = u64::from(timer.id.cast_unsigned());
        batch.reserve(160)?;
        // struct sigevent: value, signal, notify, thread id; 64 bytes.
        let mut event = [0_u8; 64];
        event[..8].copy_from_slice(&timer.value.to_le_bytes());
        event[8..12].copy_from_slice(&timer.signal.to_le_bytes());
        event[12..16].copy_from_slice(&timer.notify.to_le_bytes());
        event[16..20].copy_from_slice(&timer.tid.to_le_bytes());
        let event = batch.data(&event);
        let wanted = batch.data(&id.to_le_bytes());
        let clock = i64::from(timer.clock).cast_unsigned();
        let args = [clock, event, wanted];
        batch.row(Row::new(libc::SYS_timer_create, &args), Need::Must("make anew the POSIX timer", id));
        let parts = [
            timer.interval_ns / SECOND,
            timer.interval_ns % SECOND,
            timer.value_ns / SECOND,
            timer.value_ns % SECOND,
        ];
        let times = batch.data(&words(&parts));
        batch.row(
            Row::new(libc::SYS_timer_settime, &[id, 0, times, 0]),
            Need::Must("set the POSIX timer", id),
        );
    }
    batch.call(libc::SYS_prctl, &[PR_TIMER_CREATE_RESTORE_IDS, 0], Need::May)
}

fn arm_timerfd(batch: &mut Batch, fd: i32, object: &Object) -> Result<(), RebuildError> {
    /// `_IOW('T', 0, __u64)` (include/uapi/linux/timerfd.h).
    const TFD_IOC_SET_TICKS: u64 = 0x4008_5400;
    const SECOND: u64 = 1_000_000_000;
    let Object::TimerFd { clock, ticks, settime_flags, value_ns, interval_ns } = object else {
        return Ok(());
    };
    let fd = u64::from(fd.cast_unsigned());
    batch.reserve(64)?;
    // Between an expiry and its being read a periodic timer shows nothing left (fs/timerfd.c): it goes on at once.
    let value_ns = &if *value_ns == 0 && *ticks > 0 && *interval_ns > 0 { 1 } else { *value_ns };
    if *value_ns > 0 {
        // fdinfo tells what is left; an absolute time matters only where a change of the clock must be noticed.
        let cancel = settime_flags & libc::TFD_TIMER_CANCEL_ON_SET.cast_unsigned() != 0;
        let (flags, value) = if cancel {
            (*settime_flags, clock::now_ns(*clock).saturating_add(*value_ns))
        } else {
            (0, *value_ns)
        };
        let parts = [interval_ns / SECOND, interval_ns % SECOND, value / SECOND, value % SECOND];
        let address = batch.data(&words(&parts));
        let args = [fd, u64::from(flags), address, 0];
        batch.row(Row::new(libc::SYS_timerfd_settime, &args), Need::Must("arm the timer of descriptor", fd));
    }
    if *ticks > 0 {
        let address = batch.data(&ticks.to_le_bytes());
        let need = Need::Must("set the expirations of the timer of descriptor", fd);
        batch.row(Row::new(libc::SYS_ioctl, &[fd, TFD_IOC_SET_TICKS, address]), need);
    }
    Ok(())
}

/// Tells the library in the program that it was restarted, and where its agent is now. Returns the number of restarts.
///
/// # Errors
/// The library's page cannot be written.
pub fn update_library_page(
    memory: &ForcedMemory,
    record: &ProcessRecord,
    socket: &Path,
) -> Result<u64, RebuildError> {
    let page = record.inject.shared.0;
    if page == 0 {
        return Ok(0);
    }
    let write = || -> std::io::Result<u64> {
        let mut restarts = [0_u8; 8];
        memory.read(page + SharedPage::RESTARTS as u64, &mut restarts)?;
        let restarts = u64::from_le_bytes(restarts).saturating_add(1);
        memory.write(page + SharedPage::RESTARTS as u64, &restarts.to_le_bytes())?;
        memory.write(page + SharedPage::OWN_FD as u64, &[0; 8])?;
        memory.write(page + SharedPage::WALKERS as u64, &[0; 8])?;
        let mut path = socket.as_os_str().as_bytes().to_vec();
        if path.len() >= SharedPage::SOCKET_PATH_LEN {
            return Err(std::io::Error::other("the path of the agent's socket is too long"));
        }
        path.resize(SharedPage::SOCKET_PATH_LEN, 0);
        memory.write(page + SharedPage::SOCKET_PATH as u64, &path)?;
        Ok(restarts)
    };
    write().map_err(RebuildError::io("writing the page of libholdfast in the program"))
}

/// Records in the library's page which kernel ids belong to the ids that the program knows, and puts the former into
/// the place where libc keeps them: the word that the kernel clears at a thread's end is the thread's own copy of its
/// id (glibc, nptl/allocatestack.c).
///
/// # Errors
/// The page or a thread's word cannot be written; the program has more threads than the page holds.
pub fn virtual_ids(
    memory: &ForcedMemory,
    record: &ProcessRecord,
    threads: &[NewThread<'_>],
) -> Result<(), RebuildError> {
    let page = record.inject.shared.0;
    if page == 0 {
        return Err(RebuildError::Ids("libholdfast in the program has no table of ids".into()));
    }
    if threads.len() > SharedPage::ID_MAX {
        return Err(RebuildError::Ids(format!("{} threads are more than the table holds", threads.len())));
    }
    let write = || -> std::io::Result<()> {
        let known = known_ids(memory, page)?;
        let mut table = Vec::with_capacity(threads.len() * 8);
        for NewThread { seed, record: thread } in threads {
            let inner = seed.remote.inner.1;
            let known =
                known.iter().find(|(_, kernel)| *kernel == thread.tid).map_or(thread.tid, |(id, _)| *id);
            table.extend(known.to_le_bytes());
            table.extend(inner.to_le_bytes());
            if thread.clear_tid.0 != 0 {
                memory.write(thread.clear_tid.0, &inner.to_le_bytes())?;
            }
        }
        memory.write(page + SharedPage::ID_TABLE as u64, &table)?;
        memory.write(page + SharedPage::ID_COUNT as u64, &(threads.len() as u64).to_le_bytes())?;
        memory.write(page + SharedPage::VIRTUAL_IDS as u64, &1_u64.to_le_bytes())
    };
    write().map_err(RebuildError::io("writing the ids into the program"))
}

/// The table that an earlier restart left: pairs of the id that the program knows and the one of the kernel.
fn known_ids(memory: &ForcedMemory, page: u64) -> std::io::Result<Vec<(i32, i32)>> {
    let word = |at: usize| {
        let mut word = [0_u8; 8];
        memory.read(page + at as u64, &mut word).map(|()| u64::from_le_bytes(word))
    };
    if word(SharedPage::VIRTUAL_IDS)? != 1 {
        return Ok(Vec::new());
    }
    let count = usize::try_from(word(SharedPage::ID_COUNT)?).unwrap_or(0).min(SharedPage::ID_MAX);
    let mut table = vec![0_u8; count * 8];
    memory.read(page + SharedPage::ID_TABLE as u64, &mut table)?;
    let (pairs, _) = table.as_chunks::<8>();
    Ok(pairs
        .iter()
        .map(|&[a, b, c, d, e, f, g, h]| (i32::from_le_bytes([a, b, c, d]), i32::from_le_bytes([e, f, g, h])))
        .collect())
}

/// Scheduling of one thread, as far as this user may set it.
pub fn scheduling(tid: i32, thread: &ThreadRecord) {
    // Each is a matter of speed; what is refused stays as it is here: fewer processors, no privilege for a lower nice
    // value or a real-time policy.
    if !thread.affinity.is_empty() {
        let _ = clock::set_affinity(tid, &thread.affinity);
    }
    if let Some(Deadline { runtime_ns, deadline_ns, period_ns, flags }) = thread.attributes.deadline {
        let _ = sched::set_deadline(tid, [runtime_ns, deadline_ns, period_ns], flags);
    } else if thread.policy != 0 || thread.priority != 0 {
        let _ = attributes::set_scheduler(tid, thread.policy, thread.priority);
    }
    let _ = attributes::set_nice(tid, thread.nice);
    if let Some(turn_ns) = thread.attributes.turn_ns {
        let _ = sched::set_turn_ns(tid, turn_ns);
    }
    if let Some(priority) = thread.attributes.io_priority {
        let _ = sched::set_io_priority(tid, priority);
    }
}

/// What of its memory a core file has, if that is not as a new process has it here. While the process may be looked at.
pub fn coredump_filter(pid: i32, record: &ProcessRecord) {
    let Some(filter) = record.flags.coredump_filter else { return };
    let path = format!("/proc/{pid}/coredump_filter");
    let is_it = |now: String| u32::from_str_radix(now.trim(), 16) == Ok(filter);
    if !fs::read_to_string(&path).is_ok_and(is_it) {
        let _ = fs::write(path, format!("{filter:#x}"));
    }
}

/// Limits and out-of-memory score of the process, as far as this user may set them.
pub fn limits(pid: i32, record: &ProcessRecord) {
    for limit in &record.limits {
        let (resource, soft, hard) = (limit.resource, limit.soft, limit.hard);
        if attributes::set_limit(pid, resource, soft, hard).is_err()
            && let Ok((_, ceiling)) = attributes::limit(pid, resource)
        {
            // A hard limit cannot be raised again without privilege.
            let hard = hard.min(ceiling);
            let _ = attributes::set_limit(pid, resource, soft.min(hard), hard);
        }
    }
    let path = format!("/proc/{pid}/oom_score_adj");
    let score = record.flags.oom_score_adj.to_string();
    if fs::read_to_string(&path).is_ok_and(|now| now.trim() != score) {
        let _ = fs::write(path, score);
    }
}
