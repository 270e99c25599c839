//! What the kernel knows of each stopped thread, and what is done so that it does not notice the stop.
//!
//! Sampling happens *before* the stop (who sleeps in a timed call, and since when), reading and repairing inside it.
//! Called by the tracer thread.

use crate::error::TraceError;
use crate::inject::live_thread::{LiveThread, Marker, choose_marker};
use crate::inject::permission::Permission;
use crate::inject::remote_thread::RemoteThread;
use crate::stop::continuation::{self, Slot, Slots};
use crate::stop::interrupt::Held;
use crate::stop::syscall_restart::{self, Buffers, ERESTART_RESTARTBLOCK, ERESTARTNOHAND, Timeout};
use crate::stop::xstate;
use holdfast_image::confinement::Confinement;
use holdfast_image::record::{InjectArea, TimedWait};
use holdfast_sys::procmem::{self, ForcedMemory};
use holdfast_sys::ptrace::{self, Registers};
use holdfast_sys::{clock, procfs};
use std::collections::HashMap;
use std::sync::Arc;

/// A thread found asleep in a timed call before the stop.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    call: [u64; 9],
    /// When it went to sleep, CLOCK_MONOTONIC.
    since_ns: u64,
    /// Its voluntary context switches then.
    switches: u64,
}

/// Samples of all threads, by tid.
pub type Samples = HashMap<i32, Sample>;

/// Difference between CLOCK_MONOTONIC and the scheduler's clock of one processor, measured now on that processor.
fn clock_offset_ns(cpu: usize) -> Option<i64> {
    let mut words = vec![0_u64; cpu / 64 + 1];
    words[cpu / 64] = 1 << (cpu % 64);
    clock::set_affinity(0, &words).ok()?;
    // Sleeping makes the scheduler note the time at which it puts us back (kernel/sched/fair.c, set_next_entity).
    std::thread::sleep(std::time::Duration::from_micros(1));
    let now = clock::monotonic_ns();
    let own = procfs::own_sched_facts()?;
    Some(now.cast_signed() - own.exec_start_ns.cast_signed())
}

/// Looks who sleeps in a timed call and since when. Takes some microseconds per thread, outside the stop.
pub fn sample(pid: i32) -> Samples {
    let mut samples = Samples::new();
    let mut found = Vec::new();
    for tid in procfs::tasks(pid).unwrap_or_default() {
        let Ok(Some(call)) = procfs::current_call(pid, tid) else { continue };
        let args = [call[1], call[2], call[3], call[4], call[5]];
        if syscall_restart::timeout_of(call[0].cast_signed(), &args).is_none() {
            continue;
        }
        let Some(facts) = procfs::sched_facts(pid, tid) else { continue };
        let cpu = procfs::stat_fields(pid, tid).ok().and_then(|fields| fields.get(36)?.parse::<usize>().ok());
        if let Some(cpu) = cpu {
            found.push((tid, call, facts, cpu));
        }
    }
    if found.is_empty() {
        return samples;
    }
    let mut offsets: HashMap<usize, Option<i64>> = HashMap::new();
    let usual = clock::affinity(0);
    for (tid, call, facts, cpu) in found {
        let offset = *offsets.entry(cpu).or_insert_with(|| clock_offset_ns(cpu));
        if let Some(offset) = offset {
            let since_ns = facts.exec_start_ns.saturating_add_signed(offset);
            samples.insert(tid, Sample { call, since_ns, switches: facts.voluntary_switches });
        }
    }
    if let Ok(words) = usual {
        let _ = clock::set_affinity(0, &words);
    }
    samples
}

/// One stopped thread.
#[derive(Clone, Debug)]
pub struct Thread {
    /// As the agent sees it.
    pub tid: i32,
    /// As the program sees it.
    pub inner: i32,
    /// As it is seen right below the agent's pid namespace, if it is not in that.
    pub below: Option<i32>,
    /// The signal of the group stop that it takes part in.
    pub stop_signal: Option<i32>,
    /// At the stop.
    pub regs: Registers,
    /// Blocked signals.
    pub mask: u64,
    /// Cut to size.
    pub xstate: Vec<u8>,
    /// Pending for this thread.
    pub pending: Vec<[u8; 128]>,
    /// Registers with which it goes on here, if they differ.
    pub repaired: Option<Registers>,
    /// Registers for the image.
    pub stored: Registers,
    /// The slot and the rest of its timeout, for the image.
    pub wait: Option<TimedWait>,
    /// Restartable sequence registration.
    pub rseq: Option<(u64, u32, u32)>,
    /// Robust list head and length.
    pub robust: (u64, u64),
    /// What it has forbidden itself, and what calls of ours may be made in it all the same.
    pub confinement: Confinement,
    /// See `confinement`.
    pub permission: Permission,
}

/// Pending signals as a mask.
pub fn pending_mask(infos: &[[u8; 128]]) -> u64 {
    infos.iter().fold(0, |mask, info| {
        let signal = i32::from_le_bytes([info[0], info[1], info[2], info[3]]);
        if (1..=64).contains(&signal) { mask | 1 << (signal - 1) } else { mask }
    })
}

/// Room for the largest extended state that a processor has today (AMX: 11 KiB).
pub const XSTATE_LEN_MAX: usize = 16 * 1024;

/// Reads one thread; `buffer` has [`XSTATE_LEN_MAX`] bytes.
///
/// # Errors
/// The thread is gone, or the kernel refuses.
pub fn read(tid: i32, inner: i32, held: Held, buffer: &mut [u8]) -> Result<Thread, TraceError> {
    let Held { stop_signal, regs } = held;
    let regs = regs.map_or_else(|| ptrace::registers(tid), Ok)?;
    let len = ptrace::xstate(tid, buffer)?;
    Ok(Thread {
        tid,
        inner,
        below: None,
        stop_signal,
        regs,
        mask: ptrace::signal_mask(tid)?,
        xstate: xstate::cut(&buffer[..len]).to_vec(),
        pending: ptrace::pending_signals(tid, false)?,
        repaired: None,
        stored: regs,
        wait: None,
        rseq: ptrace::rseq(tid)?,
        robust: ptrace::robust_list(tid)?,
        confinement: Confinement::default(),
        permission: Permission::default(),
    })
}

/// Where a restartable sequence that holds `rip` is to be abandoned to (struct rseq_cs, include/uapi/linux/rseq.h).
/// The kernel does the same to a preempted thread; a thread into which calls are injected, or that is created anew,
/// must not be seen by it outside the sequence first, for then the sequence would go on unprotected.
fn rseq_abort(tid: i32, area: u64, rip: u64) -> Result<Option<u64>, TraceError> {
    const RSEQ_CS: u64 = 8;
    let mut pointer = [0_u8; 8];
    procmem::read(tid, area + RSEQ_CS, &mut pointer)?;
    let pointer = u64::from_le_bytes(pointer);
    if pointer == 0 {
        return Ok(None);
    }
    let mut section = [0_u8; 32]; // version, flags, start_ip, post_commit_offset, abort_ip
    procmem::read(tid, pointer, &mut section)?;
    let word = |at: usize| u64::from_le_bytes(xstate::array(&section, at));
    let inside = rip.checked_sub(word(8)).is_some_and(|offset| offset < word(16));
    Ok(inside.then_some(word(24)))
}

impl Thread {
    /// Abandons the restartable sequence that it is in, if any.
    ///
    /// # Errors
    /// Its memory cannot be read.
    pub fn leave_rseq(&mut self) -> Result<(), TraceError> {
        if let Some((area, ..)) = self.rseq
            && !self.in_call()
            && let Some(rip) = rseq_abort(self.tid, area, self.regs.rip)?
        {
            self.regs.rip = rip;
            self.stored = self.regs;
            self.repaired = Some(self.regs);
        }
        Ok(())
    }

    /// Whether it is on its way out of a system call.
    pub fn in_call(&self) -> bool {
        self.regs.orig_rax.cast_signed() >= 0
    }

    /// The thread as a host of injected calls.
    pub fn host(&self, process: i32, inner_pid: i32, caught: u64, shared_pending: u64) -> LiveThread {
        let pending = pending_mask(&self.pending) | shared_pending;
        LiveThread {
            thread: RemoteThread { process, tid: self.tid, inner: (inner_pid, self.inner) },
            regs: self.repaired.unwrap_or(self.regs),
            alone: self.stored,
            mask: self.mask,
            xstate: self.xstate.clone(),
            marker: choose_marker(caught, self.mask, pending),
            permission: self.permission.clone(),
            resend: Arc::default(),
        }
    }
}

/// The one of these threads that injected calls run in: one without filters of its own, and one that can be asked
/// quickly, if there is one. `None`: there are none.
pub fn host_of(
    threads: &[Thread],
    process: i32,
    inner_pid: i32,
    caught: u64,
    shared_pending: u64,
) -> Option<LiveThread> {
    let is_free = |thread: &&Thread| thread.permission == Permission::Free;
    let some_are_free = threads.iter().any(|thread| is_free(&thread));
    let suited = threads.iter().filter(|thread| !some_are_free || is_free(thread));
    let mut hosts = suited.map(|thread| thread.host(process, inner_pid, caught, shared_pending));
    let first = hosts.next()?;
    match first.marker {
        Marker::Signal(_) => Some(first),
        Marker::Call => Some(hosts.find(|host| host.marker != Marker::Call).unwrap_or(first)),
    }
}

/// A call that the kernel continues through `restart_syscall`, which hides its number from the next stop.
#[derive(Clone, Copy, Debug)]
pub struct Continued {
    rip: u64,
    rsp: u64,
    number: u64,
    deadline_ns: Option<u64>,
}

/// Calls that earlier stops interrupted, by tid.
pub type Continuing = HashMap<i32, Continued>;

/// Whether the descriptor is a blocking one whose short counts are ours: pipes and sockets for writing, the zero
/// and random devices for reading. Asked of the thread: it may have a table of its own.
fn blocks(tid: i32, number: i64, fd: u64) -> bool {
    let nonblocking = procfs::descriptor_info(tid, fd)
        .is_none_or(|info| info.flags & libc::O_NONBLOCK.cast_unsigned() != 0);
    if nonblocking {
        return false;
    }
    let target = procfs::link(&format!("/proc/{}/fd/{fd}", tid)).unwrap_or_default();
    match number {
        libc::SYS_read => matches!(target.as_slice(), b"/dev/zero" | b"/dev/urandom" | b"/dev/random"),
        libc::SYS_write | libc::SYS_writev => target.starts_with(b"pipe:") || target.starts_with(b"socket:"),
        _ => true,
    }
}

/// Repairs the calls of stopped threads.
#[derive(Debug)]
pub struct Repairer<'a> {
    /// Process, for its fd table.
    pub pid: i32,
    /// Injection area.
    pub area: &'a InjectArea,
    /// Its memory.
    pub memory: &'a ForcedMemory,
    /// Slots of the program.
    pub slots: &'a mut Slots,
    /// What was seen before the stop.
    pub samples: &'a Samples,
    /// What earlier stops interrupted.
    pub continuing: &'a mut Continuing,
    /// Signals pending for the process.
    pub shared_pending: u64,
}

impl Repairer<'_> {
    /// Decides with what registers the thread goes on, here and in the image.
    ///
    /// # Errors
    /// The program's memory cannot be read or written.
    pub fn repair(&mut self, thread: &mut Thread) -> Result<(), TraceError> {
        if !thread.in_call() {
            return Ok(());
        }
        let number = thread.regs.orig_rax.cast_signed();
        let result = thread.regs.rax.cast_signed();
        let eintr = -i64::from(libc::EINTR);
        if result == eintr && syscall_restart::eintr_is_ours(number) {
            self.interrupted(thread, true)
        } else if result == ERESTART_RESTARTBLOCK {
            self.interrupted(thread, false)
        } else if result > 0 {
            self.short(thread, result.cast_unsigned())
        } else {
            Ok(())
        }
    }

    /// A wait that was interrupted. `live`: it must go on through a slot here too (the kernel would return EINTR).
    fn interrupted(&mut self, thread: &mut Thread, live: bool) -> Result<(), TraceError> {
        let mut plain = thread.regs;
        plain.rax = ERESTARTNOHAND.cast_unsigned();
        if live {
            thread.repaired = Some(plain);
        }
        let continued = self.continued(thread)?;
        plain.orig_rax = continued.number;
        thread.stored = plain;
        let number = continued.number.cast_signed();
        let known = self.slots.at(self.area, thread.regs.rip);
        let original = known.map_or_else(|| syscall_restart::args(&thread.regs), |(_, slot)| slot.args);
        let Some(timeout) = syscall_restart::timeout_of(number, &original) else { return Ok(()) };
        let now = clock::monotonic_ns();
        let deadline_ns = match known {
            Some((_, slot)) if slot.deadline_ns != 0 => slot.deadline_ns,
            _ => match continued.deadline_ns {
                Some(deadline_ns) => deadline_ns,
                None => {
                    let Some(full_ns) = self.full_timeout_ns(thread, timeout)? else { return Ok(()) };
                    self.since_ns(thread).unwrap_or(now).saturating_add(full_ns)
                }
            },
        };
        if !live {
            self.continuing.insert(thread.tid, Continued { deadline_ns: Some(deadline_ns), ..continued });
        }
        let remaining_ns = deadline_ns.saturating_sub(now).max(1);
        let Some(number) = known.map(|(number, _)| number).or_else(|| self.slots.free()) else {
            return Ok(());
        };
        let mut slot = match known {
            Some((_, slot)) => Slot { deadline_ns, ..slot },
            None => syscall_restart::slot_for(&thread.regs, thread.inner, 0, deadline_ns),
        };
        slot.image_only = !live && known.is_none();
        self.slots.set(self.memory, self.area, number, slot, remaining_ns)?;
        let entry = continuation::entry(self.area, number);
        let timespec = continuation::timespec_address(self.area, number);
        let mut going_on =
            syscall_restart::continue_wait(&thread.regs, timeout, remaining_ns, entry, timespec);
        going_on.orig_rax = continued.number;
        if live {
            thread.repaired = Some(going_on);
        }
        thread.stored = going_on;
        thread.wait = Some(TimedWait { slot: number, remaining_ns });
        Ok(())
    }

    /// The call that was interrupted: after an earlier stop the kernel shows `restart_syscall` in its place.
    fn continued(&mut self, thread: &Thread) -> Result<Continued, TraceError> {
        let regs = &thread.regs;
        let fresh = Continued { rip: regs.rip, rsp: regs.rsp, number: regs.orig_rax, deadline_ns: None };
        if regs.orig_rax != libc::SYS_restart_syscall.cast_unsigned() {
            self.continuing.insert(thread.tid, fresh);
            return Ok(fresh);
        }
        match self.continuing.get(&thread.tid) {
            Some(earlier) if earlier.rip == regs.rip && earlier.rsp == regs.rsp => Ok(*earlier),
            _ => Err(TraceError::UnknownCall { tid: thread.tid }),
        }
    }

    /// The timeout that the program asked for.
    fn full_timeout_ns(&self, thread: &Thread, timeout: Timeout) -> Result<Option<u64>, TraceError> {
        let args = syscall_restart::args(&thread.regs);
        match timeout {
            Timeout::Milliseconds(index) => Ok(Some((args[index] & 0x7fff_ffff) * 1_000_000)),
            Timeout::Timespec(index) => {
                let mut bytes = [0_u8; 16];
                procmem::read(thread.tid, args[index], &mut bytes)?;
                let seconds = u64::from_le_bytes(xstate::array(&bytes, 0));
                let nanoseconds = u64::from_le_bytes(xstate::array(&bytes, 8));
                Ok(seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(nanoseconds)))
            }
        }
    }

    /// Since when it sleeps, if it is still in the very sleep that was sampled: the interrupt woke it once (one more
    /// voluntary switch, into the trace stop), another call would have cost at least one more.
    fn since_ns(&self, thread: &Thread) -> Option<u64> {
        let sample = self.samples.get(&thread.tid)?;
        let same = sample.call[0] == thread.regs.orig_rax
            && sample.call[7] == thread.regs.rsp
            && sample.call[8] == thread.regs.rip;
        let switches = procfs::sched_facts(self.pid, thread.tid)?.voluntary_switches;
        (same && switches <= sample.switches + 1).then_some(sample.since_ns)
    }

    /// A transfer that may have been cut short by the interrupt.
    fn short(&mut self, thread: &mut Thread, count: u64) -> Result<(), TraceError> {
        let number = thread.regs.orig_rax.cast_signed();
        let now = syscall_restart::args(&thread.regs);
        let Some(short) = syscall_restart::transfer_of(number, &now) else { return Ok(()) };
        if short.kind == Buffers::Plain && count >= now[short.length] {
            return Ok(());
        }
        // With a signal pending the short count is the native one.
        if (pending_mask(&thread.pending) | self.shared_pending) & !thread.mask != 0 {
            return Ok(());
        }
        if let Some(index) = short.descriptor
            && !blocks(thread.tid, number, now[index])
        {
            return Ok(());
        }
        let known = self.slots.at(self.area, thread.regs.rip);
        let Some(slot_number) = known.map(|(number, _)| number).or_else(|| self.slots.free()) else {
            return Ok(());
        };
        let done = known.map_or(0, |(_, slot)| slot.done) + count;
        let rest = match short.kind {
            Buffers::Plain => Some((now[short.buffer] + count, now[short.length] - count)),
            Buffers::Vector => {
                self.rest_vector(thread.tid, (now[short.buffer], now[short.length]), count, slot_number, 0)?
            }
            Buffers::Message => self.rest_message(thread.tid, now[short.buffer], count, slot_number)?,
        };
        let Some((buffer, length)) = rest else { return Ok(()) };
        let slot = match known {
            Some((_, slot)) => Slot { done, ..slot },
            None => syscall_restart::slot_for(&thread.regs, thread.inner, done, 0),
        };
        self.slots.set(self.memory, self.area, slot_number, slot, 0)?;
        let entry = continuation::entry(self.area, slot_number);
        let going_on = syscall_restart::continue_transfer(&thread.regs, short, buffer, length, entry);
        thread.repaired = Some(going_on);
        thread.stored = going_on;
        Ok(())
    }

    /// Puts what is left of a vector (its address and number of entries) into the slot's piece of scratch, `skip`
    /// bytes into it; `None`: nothing is left, or too much to keep there.
    fn rest_vector(
        &self,
        tid: i32,
        (vector, entries): (u64, u64),
        count: u64,
        slot: u32,
        skip: u64,
    ) -> Result<Option<(u64, u64)>, TraceError> {
        let entries = usize::try_from(entries).unwrap_or(usize::MAX);
        let Some(at) = continuation::vector_address(self.area, slot) else { return Ok(None) };
        if entries > ((continuation::VECTOR_LEN - skip) / 16) as usize {
            return Ok(None);
        }
        let mut bytes = vec![0_u8; entries * 16];
        procmem::read(tid, vector, &mut bytes)?;
        let word = |offset: usize| u64::from_le_bytes(xstate::array(&bytes, offset));
        let all: Vec<(u64, u64)> = (0..entries).map(|i| (word(i * 16), word(i * 16 + 8))).collect();
        let rest = syscall_restart::rest_of_vector(&all, count);
        if rest.is_empty() {
            return Ok(None);
        }
        let raw: Vec<u8> =
            rest.iter().flat_map(|&(a, l)| [a.to_le_bytes(), l.to_le_bytes()]).flatten().collect();
        procmem::write(tid, at + skip, &raw)?;
        Ok(Some((at + skip, rest.len() as u64)))
    }

    /// The same for a message: a copy of the header without ancillary data (that went with the first part).
    fn rest_message(
        &self,
        tid: i32,
        header: u64,
        count: u64,
        slot: u32,
    ) -> Result<Option<(u64, u64)>, TraceError> {
        let Some(at) = continuation::vector_address(self.area, slot) else { return Ok(None) };
        let mut bytes = [0_u8; 56]; // struct msghdr: name, namelen, iov, iovlen, control, controllen, flags
        procmem::read(tid, header, &mut bytes)?;
        let (vector, entries) =
            (u64::from_le_bytes(xstate::array(&bytes, 16)), u64::from_le_bytes(xstate::array(&bytes, 24)));
        let Some((vector, entries)) = self.rest_vector(tid, (vector, entries), count, slot, 64)? else {
            return Ok(None);
        };
        bytes[16..24].copy_from_slice(&vector.to_le_bytes());
        bytes[24..32].copy_from_slice(&entries.to_le_bytes());
        bytes[32..48].fill(0);
        procmem::write(tid, at, &bytes)?;
        Ok(Some((at, entries)))
    }
}
