//! State of the process and of its threads that is neither memory nor files.

use super::{attributes, landlock, last_pid, processor};
use crate::error::TraceError;
use crate::inject::live_thread::{BUFFERS, LiveThread, MAX_ROWS};
use crate::inject::stub::Row;
use crate::stop::threads::Thread;
use crate::stop::xstate;
use holdfast_abi::SharedPage;
use holdfast_image::Addr;
use holdfast_image::attributes::{Deadline, ProcessAttributes, ThreadAttributes};
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::host_addresses::HostAddresses;
use holdfast_image::record::{
    AltStack, HostRecord, InjectArea, IntervalTimer, LayoutRecord, Limit, OwnFolder, PosixTimer,
    ProcessFlags, Rseq, SignalAction, ThreadRecord,
};
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::{clock, procmem, proctext, sched};
use std::collections::HashMap;
use std::fs;
use std::io;

/// Facts of a thread that only the thread itself can tell, and that seldom change.
#[derive(Clone, Debug)]
pub struct ThreadFacts {
    /// `sigaltstack`.
    pub alt_stack: AltStack,
    /// clear_child_tid.
    pub clear_tid: u64,
    /// PR_GET_TIMERSLACK, nanoseconds.
    pub timer_slack_ns: u64,
    /// Its other settings.
    pub attributes: ThreadAttributes,
    /// It has keys of its own.
    pub has_keys: bool,
    /// It may not look out of its Landlock domain.
    pub is_confined: bool,
    fs_base: u64,
}

/// Bytes that the calls of [`ThreadFacts::rows`] write.
const THREAD_LEN: usize = DOMAIN + landlock::LEN;
/// Where that of Landlock's row is.
const DOMAIN: usize = 48 + attributes::THREAD_LEN;

impl ThreadFacts {
    /// `outsider`: see [`landlock::outsider`].
    fn rows(buffer: u64, outsider: Option<i32>) -> Vec<Row> {
        const PR_GET_TID_ADDRESS: u64 = 40;
        let mut rows = vec![
            Row::new(libc::SYS_sigaltstack, &[0, buffer]),
            Row::new(libc::SYS_prctl, &[PR_GET_TID_ADDRESS, buffer + 32]),
            Row::new(libc::SYS_prctl, &[libc::PR_GET_TIMERSLACK as u64]),
            attributes::thread_keyring(),
            landlock::row(outsider, buffer + DOMAIN as u64),
        ];
        rows.extend(attributes::thread_rows(buffer + 48));
        rows
    }

    /// Of what the rows returned and wrote.
    fn new(thread: &Thread, results: &[i64], bytes: &[u8]) -> ThreadFacts {
        let word = |at: usize| u64::from_le_bytes(xstate::array(bytes, at));
        // stack_t: pointer, int flags (and padding), size. SS_ONSTACK is computed from rsp, which is in our scratch
        // range during the call: whether it was on it is decided from the registers.
        let mut alt_stack =
            AltStack { sp: Addr(word(0)), flags: (word(8) & 0xffff_ffff) as u32, size: word(16) };
        let rsp = thread.regs.rsp;
        if alt_stack.size > 0 && rsp > alt_stack.sp.0 && rsp - alt_stack.sp.0 <= alt_stack.size {
            alt_stack.flags |= libc::SS_ONSTACK.cast_unsigned();
        }
        let (own, others) = results.split_at(5.min(results.len()));
        let mut attributes = attributes::of_thread(others, &bytes[48..]);
        attributes.personality = thread.permission.personality().unwrap_or(attributes.personality);
        ThreadFacts {
            alt_stack,
            clear_tid: word(32),
            timer_slack_ns: own.get(2).and_then(|&slack| u64::try_from(slack).ok()).unwrap_or(0),
            has_keys: attributes::has_keys(own.get(3)),
            is_confined: landlock::is_confined(own.get(4)),
            attributes,
            fs_base: thread.regs.fs_base,
        }
    }
}

/// What was asked of threads before: by tid, valid while fs_base and the count of calls that
/// change such facts are the same.
#[derive(Debug, Default)]
pub struct FactCache {
    generation: u64,
    outsider: Option<i32>,
    facts: HashMap<i32, ThreadFacts>,
}

impl FactCache {
    /// Drops everything if `sigaltstack` and the like were called since. The library counts those calls; `None`:
    /// no library does. `outsider`: see [`landlock::outsider`].
    pub fn renew(&mut self, generation: Option<u64>, outsider: Option<i32>) {
        if generation.is_none_or(|generation| self.generation != generation) || self.outsider != outsider {
            self.generation = generation.unwrap_or(0);
            self.outsider = outsider;
            self.facts.clear();
        }
    }
    /// What is known of a thread.
    pub fn get(&self, thread: &Thread) -> Option<ThreadFacts> {
        self.facts.get(&thread.tid).cloned().filter(|facts| facts.fs_base == thread.regs.fs_base)
    }
    /// Asks the thread itself. Inside the stop.
    ///
    /// # Errors
    /// As [`LiveThread::run`].
    pub fn ask(
        &mut self,
        host: &LiveThread,
        area: &InjectArea,
        thread: &Thread,
    ) -> Result<ThreadFacts, TraceError> {
        let buffer = area.scratch.0 + BUFFERS;
        let results = host.run(area, &ThreadFacts::rows(buffer, self.outsider), &mut |_| Ok(()))?;
        let mut bytes = [0_u8; THREAD_LEN];
        procmem::read(host.thread.tid, buffer, &mut bytes)?;
        host.put_back()?;
        let facts = ThreadFacts::new(thread, &results, &bytes);
        self.keep(thread, &facts);
        Ok(facts)
    }
    /// Remembers what a thread told in another way.
    pub fn keep(&mut self, thread: &Thread, facts: &ThreadFacts) {
        self.facts.insert(thread.tid, facts.clone());
    }
}

/// POSIX timers. Inside the stop; the host is stopped at its marker afterwards. `inner`: thread ids as the program sees
/// them, by what the agent sees.
///
/// # Errors
/// As [`LiveThread::run`]; a list that is not understood.
pub fn ask_timers(
    pid: i32,
    host: &LiveThread,
    area: &InjectArea,
    inner: impl Fn(i32) -> i32,
) -> Result<Vec<PosixTimer>, TraceError> {
    let facts = procfs::posix_timers(pid)?;
    let buffer = area.scratch.0 + BUFFERS;
    let mut timers = Vec::with_capacity(facts.len());
    for part in facts.chunks(MAX_ROWS.min(512)) {
        let at = |index: usize| buffer + index as u64 * 32;
        let id = |timer: &procfs::TimerFacts| u64::from(timer.id.cast_unsigned());
        let rows: Vec<Row> = part
            .iter()
            .enumerate()
            .map(|(index, timer)| Row::new(libc::SYS_timer_gettime, &[id(timer), at(index)]))
            .collect();
        host.run(area, &rows, &mut |_| Ok(()))?;
        let mut bytes = vec![0_u8; part.len() * 32];
        procmem::read(host.thread.tid, buffer, &mut bytes)?;
        for (timer, times) in part.iter().zip(bytes.chunks_exact(32)) {
            let word = |at: usize| u64::from_le_bytes(xstate::array(times, at));
            let time = |at: usize| word(at).saturating_mul(1_000_000_000).saturating_add(word(at + 8));
            timers.push(PosixTimer {
                id: timer.id,
                clock: timer.clock,
                notify: timer.notify,
                signal: timer.signal,
                value: timer.value,
                tid: inner(timer.target),
                interval_ns: time(0),
                value_ns: time(16),
            });
        }
    }
    Ok(timers)
}

/// What one batch in one thread tells of the process.
#[derive(Debug)]
pub struct ProcessFacts {
    /// Program break.
    pub brk: u64,
    /// Interval timers.
    pub itimers: [IntervalTimer; 3],
    /// Handlers that are not at their default.
    pub actions: Vec<SignalAction>,
    /// Its settings.
    pub attributes: ProcessAttributes,
    /// It has keys of its own.
    pub has_keys: bool,
    /// It has a local descriptor table.
    pub has_ldt: bool,
    /// The id that was given last where it lives, if that was asked for.
    pub last_id: Option<i32>,
}

/// Where what belongs to which rows of a [`Question`] is written, from the beginning of the buffers.
const ACTIONS: usize = 128;
const SETTINGS: usize = ACTIONS + 64 * 32;
const THREAD: usize = SETTINGS + attributes::PROCESS_LEN;
const IDS: usize = THREAD + THREAD_LEN;

/// Asks for brk, interval timers, handlers and settings, and for the facts of the host itself, which costs little more
/// and finds changes that were not counted. Inside the stop; the host is stopped at its marker afterwards.
#[derive(Debug)]
pub struct Question {
    rows: Vec<Row>,
    signals: Vec<u64>,
    /// Places of the first row for settings, of the first for the host itself, and of the first for ids.
    settings: usize,
    own: usize,
    ids: usize,
}

impl Question {
    /// `handled`: signals that may not be at their default; `with_ids`: which id was given last is asked too;
    /// `outsider`: see [`landlock::outsider`].
    pub fn new(area: &InjectArea, handled: u64, with_ids: bool, outsider: Option<i32>) -> Question {
        let buffer = area.scratch.0 + BUFFERS;
        let signals: Vec<u64> = (1..=64).filter(|signal| handled >> (signal - 1) & 1 == 1).collect();
        let mut rows = vec![Row::new(libc::SYS_brk, &[0])];
        rows.extend((0..3).map(|which| Row::new(libc::SYS_getitimer, &[which, buffer + which * 32])));
        let action_at = |index: usize| buffer + (ACTIONS + index * 32) as u64;
        rows.extend(
            signals
                .iter()
                .enumerate()
                .map(|(index, &signal)| Row::new(libc::SYS_rt_sigaction, &[signal, 0, action_at(index), 8])),
        );
        let settings = rows.len();
        rows.extend(attributes::process_rows(buffer + SETTINGS as u64));
        let own = rows.len();
        rows.extend(ThreadFacts::rows(buffer + THREAD as u64, outsider));
        let ids = rows.len();
        if with_ids {
            rows.extend(last_pid::rows(buffer + IDS as u64));
        }
        Question { rows, signals, settings, own, ids }
    }

    /// Asks it; [`Question::answer`] must follow.
    ///
    /// # Errors
    /// As [`LiveThread::begin`].
    pub fn ask(&self, host: &LiveThread, area: &InjectArea) -> Result<(), TraceError> {
        if self.ids < self.rows.len() {
            last_pid::prepare(host.thread.tid, area.scratch.0 + BUFFERS + IDS as u64)?;
        }
        host.begin(area, &self.rows)
    }

    /// What the process has told. `thread`: the host.
    ///
    /// # Errors
    /// As [`LiveThread::finish`].
    pub fn answer(
        &self,
        host: &LiveThread,
        thread: &Thread,
        area: &InjectArea,
    ) -> Result<(ProcessFacts, ThreadFacts), TraceError> {
        let buffer = area.scratch.0 + BUFFERS;
        let results = host.finish(area, self.rows.len(), &mut |_| Ok(()))?;
        let mut bytes = vec![0_u8; IDS + last_pid::LEN];
        procmem::read(host.thread.tid, buffer, &mut bytes)?;
        let word = |at: usize| u64::from_le_bytes(xstate::array(&bytes, at));
        // Of a call that was left out, as there are none (`inject::permission`), nothing is written.
        let is_told = |which: usize| results.get(1 + which) == Some(&0);
        let timer = |which: usize| match is_told(which) {
            false => IntervalTimer::default(),
            true => IntervalTimer {
                interval_us: word(which * 32).saturating_mul(1_000_000).saturating_add(word(which * 32 + 8)),
                value_us: word(which * 32 + 16)
                    .saturating_mul(1_000_000)
                    .saturating_add(word(which * 32 + 24)),
            },
        };
        let actions = self.signals.iter().enumerate().map(|(index, &signal)| {
            let at = ACTIONS + index * 32; // struct kernel_sigaction: handler, flags, restorer, mask
            SignalAction {
                signal: signal as u32,
                handler: word(at),
                flags: word(at + 8),
                restorer: word(at + 16),
                mask: word(at + 24),
            }
        });
        // One that was asked for and has nothing but its default.
        let actions = actions.filter(|action| (action.handler, action.flags) != (0, 0));
        let brk = results.first().copied().unwrap_or(0).cast_unsigned();
        let lock_future = match area.shared.0 {
            0 => 0,
            shared => procmem::read_u64(host.thread.tid, shared + SharedPage::LOCK_FUTURE as u64)?,
        };
        let attributes = attributes::of_process(
            &results[self.settings..self.own],
            &bytes[SETTINGS..THREAD],
            lock_future as u32,
        );
        let has_keys = attributes::process_has_keys(&results[self.settings..self.own]);
        let has_ldt = attributes::process_has_ldt(&results[self.settings..self.own]);
        let facts = ThreadFacts::new(thread, &results[self.own..self.ids], &bytes[THREAD..IDS]);
        let last_id = last_pid::told(&results[self.ids..], &bytes[IDS..]);
        let itimers = [timer(0), timer(1), timer(2)];
        let actions = actions.collect();
        Ok((ProcessFacts { brk, itimers, actions, attributes, has_keys, has_ldt, last_id }, facts))
    }
}

/// Layout fields, by any thread. Inside the stop.
///
/// # Errors
/// Not ours to look at.
pub fn layout(tid: i32, brk: u64) -> io::Result<LayoutRecord> {
    let fields = procfs::stat_fields(tid, tid)?;
    // Numbers of proc_pid_stat(5); fields[0] is number 3.
    let field =
        |number: usize| fields.get(number - 3).and_then(|text| text.parse().ok()).map_or(Addr(0), Addr);
    Ok(LayoutRecord {
        start_code: field(26),
        end_code: field(27),
        start_stack: field(28),
        start_data: field(45),
        end_data: field(46),
        start_brk: field(47),
        brk: Addr(brk),
        arg_start: field(48),
        arg_end: field(49),
        env_start: field(50),
        env_end: field(51),
        auxv: Blob(proctext::record(format!("/proc/{tid}/auxv"))?),
    })
}

/// Resource limits.
pub fn limits(pid: i32) -> Vec<Limit> {
    const RESOURCES: u32 = 16;
    (0..RESOURCES)
        .filter_map(|resource| {
            let (soft, hard) = holdfast_sys::attributes::limit(pid, resource).ok()?;
            Some(Limit { resource, soft, hard })
        })
        .collect()
}

/// Flags of the process, by any thread of it. Inside the stop.
pub fn flags(pid: i32, status: &Status) -> ProcessFlags {
    let score = proctext::record_text(format!("/proc/{pid}/oom_score_adj")).unwrap_or_default();
    let filter = proctext::record_text(format!("/proc/{pid}/coredump_filter")).unwrap_or_default();
    ProcessFlags {
        no_new_privs: status.number("NoNewPrivs") == Some(1),
        thp_disabled: status.number("THP_enabled") == Some(0),
        oom_score_adj: score.trim().parse().unwrap_or(0),
        coredump_filter: u32::from_str_radix(filter.trim(), 16).ok(),
        login_user: login_user(&pid.to_string()).filter(|user| login_user("self") != Some(*user)),
    }
}

/// The user that has logged in, as the audit system has it (proc_pid_loginuid(5)), by the name of a folder in /proc.
pub fn login_user(process: &str) -> Option<u32> {
    proctext::record_text(format!("/proc/{process}/loginuid")).ok()?.trim().parse().ok()
}

/// What of this host must be the same at a restart; `pid`: any thread. After the stop.
///
/// # Errors
/// The vdso cannot be read.
pub fn host(pid: i32, vdso: &[u8]) -> io::Result<HostRecord> {
    // As the program sees it: it may live in a time namespace of its own since a restart.
    let offset = |pid| clock::time_offsets_ns(pid)[0];
    let ahead = offset(pid).saturating_sub(offset(std::process::id().cast_signed()));
    let text = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let processor = processor::own();
    Ok(HostRecord {
        kernel_release: text("/proc/sys/kernel/osrelease"),
        hostname: text("/proc/sys/kernel/hostname"),
        vdso_hash: xxhash_rust::xxh3::xxh3_64(vdso),
        vdso: Blob(vdso.to_vec()),
        xcr0: xstate::enabled(),
        cpu: processor.model.clone(),
        instructions: processor.instructions.clone(),
        xstate: xstate::parts().to_vec(),
        baseline: None,
        key: Blob::default(),
        addresses: HostAddresses::default(),
        monotonic_ns: clock::monotonic_ns().saturating_add_signed(ahead),
        realtime_ns: clock::realtime_ns(),
        boot_id: text("/proc/sys/kernel/random/boot_id"),
    })
}

/// What of a thread others can set or see, and what therefore belongs to the instant like all else.
#[derive(Clone, Debug)]
pub struct Around {
    comm: Name,
    affinity: Vec<u64>,
    scheduling: sched::Scheduling,
    io_priority: Option<u32>,
    folder: Option<OwnFolder>,
}

/// Looks at it. Inside the stop; some microseconds. `comm`: its name; `folder`: its own, if it has one.
pub fn around(comm: Name, tid: i32, folder: Option<OwnFolder>) -> Around {
    Around {
        comm,
        affinity: clock::affinity(tid).unwrap_or_default(),
        scheduling: sched::scheduling_of(tid),
        io_priority: sched::io_priority_of(tid),
        folder,
    }
}

/// The record of one thread. After the stop.
/// `job_tid`: see [`ThreadRecord::job_tid`].
pub fn thread_record(
    (thread, job_tid): (&Thread, Option<i32>),
    facts: &ThreadFacts,
    around: Around,
) -> ThreadRecord {
    let Around { comm, affinity, scheduling, io_priority, folder } = around;
    let deadline = scheduling.deadline.map(|([runtime_ns, deadline_ns, period_ns], flags)| Deadline {
        runtime_ns,
        deadline_ns,
        period_ns,
        flags,
    });
    ThreadRecord {
        tid: thread.inner,
        job_tid,
        comm,
        registers: thread.stored.to_words().to_vec(),
        xstate: Blob(thread.xstate.clone()),
        signal_mask: thread.mask,
        pending: thread.pending.iter().map(|info| Blob(info.to_vec())).collect(),
        alt_stack: facts.alt_stack,
        robust_list: Addr(thread.robust.0),
        robust_list_len: thread.robust.1,
        clear_tid: Addr(facts.clear_tid),
        rseq: thread.rseq.map(|(addr, len, signature)| Rseq { addr: Addr(addr), len, signature }),
        wait: thread.wait,
        affinity,
        nice: scheduling.nice,
        policy: scheduling.policy,
        priority: scheduling.priority,
        timer_slack_ns: facts.timer_slack_ns,
        attributes: ThreadAttributes {
            io_priority,
            deadline,
            turn_ns: scheduling.turn_ns,
            ..facts.attributes.clone()
        },
        confinement: thread.confinement,
        ended: None,
        folder,
    }
}
