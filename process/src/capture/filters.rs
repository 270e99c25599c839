//! Seccomp filters that programs have installed (seccomp(2)): which each thread is under, and what calls of ours may be
//! made in it.
//!
//! Called inside the stop before any call is made in a process ([`settle`]); what is known without one is in
//! [`super::filter_counts`]. Where the agent may (root, under no filter itself, in the first user namespace), the
//! kernel tells the programs of filters and suspends them. Elsewhere there is what libholdfast has noted as they were
//! installed, thread by thread ([`FilterNotes`]), and it is believed only where the kernel counts as many filters over
//! the thread, all but those of the host (a container), which the agent is under as well. What must hold: what is
//! recorded is all there is, in the kernel's order. Fails by: a refusal that names the thread.

use super::filter_counts::{
    MODE_STRICT, OWN, count, is_confined, may_suspend, not_noted, notes_of, of_the_host, unseen,
};
use crate::error::CutError;
use crate::inject::filter_calls;
use crate::inject::permission::{Noted, Permission};
use crate::refuse;
use crate::stop::threads::Thread;
use holdfast_abi::{FilterNote, FilterNotes, SharedPage};
use holdfast_image::bytes::Blob;
use holdfast_image::confinement::{self, FilterRecord};
use holdfast_image::record::InjectArea;
use holdfast_sys::procfs::Status;
use holdfast_sys::{procmem, proctext, ptrace};
use std::io;
use std::sync::Arc;

/// include/uapi/linux/seccomp.h.
const FLAG_LOG: u64 = 2;
const FLAG_NEW_LISTENER: u32 = 1 << 3;

/// Looks at all threads of a process that was just stopped: sets what each has forbidden itself, and what may be called
/// in it. `known`: some thread was confined before the stop. Returns the filters.
///
/// # Errors
/// Filters that are not known, or that cannot be made again.
pub fn settle(
    pid: i32,
    threads: &mut [Thread],
    area: &InjectArea,
    status: &Status,
    known: bool,
) -> Result<Vec<FilterRecord>, CutError> {
    let live = threads.first().ok_or(CutError::Gone)?.tid;
    let notes = notes_of(live, area)?;
    if !known && notes.is_none() && !is_confined(status) {
        return Ok(Vec::new());
    }
    let first = status.number("NoNewPrivs") == Some(1);
    let notes = notes.map(|at| Notes::read(live, at)).transpose()?;
    let mut filters = Vec::new();
    for thread in &mut *threads {
        let status = Status::read(pid, thread.tid)?;
        thread.confinement.no_new_privs = !first && status.number("NoNewPrivs") == Some(1);
        if !is_confined(&status) {
            continue;
        }
        if may_suspend() {
            suspend(thread, &status, &mut filters)?;
        } else if let Some(why) = unseen(pid, &status, None) {
            return Err(refused(thread, why));
        } else if let Some(notes) = &notes {
            notes.of(thread, &status, area, &mut filters)?;
        } else {
            return Err(refused(thread, not_noted(count(&status).unwrap_or(0) - of_the_host(), 0)));
        }
    }
    check(threads, &filters)?;
    Ok(filters)
}

fn refused(thread: &Thread, why: impl Into<String>) -> CutError {
    CutError::Refused(vec![refuse::thread(thread.inner, why.into())])
}

/// What no restart could make again.
fn check(threads: &[Thread], filters: &[FilterRecord]) -> Result<(), CutError> {
    let all = threads.iter().map(|thread| thread.confinement);
    let listening = |filter: &FilterRecord| {
        holdfast_filters::may_ask_a_listener(&filter_calls::program(&filter.program.0))
    };
    let Some(thread) = threads.first() else { return Err(CutError::Gone) };
    if let Err(what) = confinement::check(filters, all) {
        return Err(refused(thread, format!("{OWN}, which cannot be recorded: {what}")));
    }
    if !may_suspend()
        && let Some(number) = filter_calls::impossible(filters)
    {
        let why = format!(
            "{OWN}, of which number {number} could not be installed again: those below it forbid that"
        );
        return Err(refused(thread, why));
    }
    if filters.iter().any(listening) {
        let why =
            format!("{OWN} that ask a listener (SECCOMP_RET_USER_NOTIF), which no restart can make again");
        return Err(refused(thread, why));
    }
    Ok(())
}

/// Has the kernel suspend the filters of a thread, and tell them.
fn suspend(thread: &mut Thread, status: &Status, filters: &mut Vec<FilterRecord>) -> Result<(), CutError> {
    let permission = Permission::Suspended;
    let options = permission.options(libc::PTRACE_O_TRACESYSGOOD);
    ptrace::set_options(thread.tid, options).map_err(|error| {
        let why = format!("{OWN}, which cannot be suspended: {error} (CONFIG_CHECKPOINT_RESTORE?)");
        if error.raw_os_error() == Some(libc::EINVAL) { refused(thread, why) } else { error.into() }
    })?;
    thread.permission = permission;
    if status.number("Seccomp") == Some(MODE_STRICT) {
        thread.confinement.strict = true;
        return Ok(());
    }
    let mut newest = None;
    for number in 0.. {
        let untold = |error: io::Error| match error.raw_os_error() {
            Some(libc::EMEDIUMTYPE) => refused(thread, format!("{OWN}, which this kernel has not kept")),
            _ => error.into(),
        };
        let Some(program) = ptrace::filter(thread.tid, number).map_err(untold)? else { break };
        let logs = ptrace::filter_flags(thread.tid, number).map_err(untold)? & FLAG_LOG != 0;
        newest = Some(put(filters, newest, logs, program.as_flattened()));
    }
    thread.confinement.filter = newest;
    Ok(())
}

/// The place of a filter over another; threads with equal ones over the same have one.
fn put(filters: &mut Vec<FilterRecord>, below: Option<u32>, logs: bool, program: &[u8]) -> u32 {
    let is =
        |filter: &FilterRecord| (filter.below, filter.logs, &filter.program.0[..]) == (below, logs, program);
    let place = filters.iter().position(is).unwrap_or_else(|| {
        filters.push(FilterRecord { below, logs, program: Blob(program.to_vec()) });
        filters.len() - 1
    });
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// The personality of a thread, if nothing else has to be asked that filters often forbid: it has no segments of its
/// own, no NUMA policy, and libholdfast has seen no call that makes keys (what was made past the C library is not
/// seen). `None`: it must be asked.
fn known(thread: &Thread, area: &InjectArea) -> Option<u32> {
    /// A selector of the local descriptor table (Intel SDM volume 3, 3.4.2).
    const LOCAL: u64 = 4;
    let regs = &thread.regs;
    let has_keys = word_of(thread, area, SharedPage::KEYS)? != 0;
    let has_segments =
        [regs.cs, regs.ss, regs.ds, regs.es, regs.fs, regs.gs].iter().any(|it| it & LOCAL != 0);
    let path = |name: &str| format!("/proc/{0}/task/{0}/{name}", thread.tid);
    // Where a mapping has no policy of its own, that of the thread is shown (fs/proc/task_mmu.c, show_numa_map).
    let is_default = |line: &str| line.split_whitespace().nth(1) == Some("default");
    let has_policy = !proctext::list_text(path("numa_maps")).ok()?.lines().all(is_default);
    let personality = proctext::record_text(path("personality")).ok()?;
    let personality = u32::from_str_radix(personality.trim(), 16).ok();
    personality.filter(|_| !(has_keys || has_segments || has_policy))
}

/// A word of libholdfast's page.
fn word_of(thread: &Thread, area: &InjectArea, offset: usize) -> Option<u64> {
    procmem::read_u64(thread.tid, area.shared.0.checked_add(offset as u64)?).ok()
}

/// What libholdfast has noted in a process.
struct Notes(Vec<u8>);

impl Notes {
    fn read(tid: i32, at: u64) -> Result<Notes, CutError> {
        let mut bytes = vec![0; FilterNotes::LEN];
        procmem::read(tid, at, &mut bytes)?;
        Ok(Notes(bytes))
    }

    fn word(&self, at: usize) -> u64 {
        self.0.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
    }

    /// One of them, counted from 1: what it lies over, its flags, its program. `None`: it is not there.
    fn note(&self, number: u64) -> Option<(u64, u32, &[u8])> {
        let index = usize::try_from(number).ok()?.checked_sub(1).filter(|index| *index < FilterNotes::MAX)?;
        let at = FilterNotes::FILTERS + index * size_of::<FilterNote>();
        let (first, second) = (self.word(at), self.word(at + 8));
        let (below, flags) = (first & 0xffff_ffff, (first >> 32) as u32);
        let (start, len) = ((second & 0xffff_ffff) as usize, (second >> 32) as usize);
        let fits = len > 0 && start + len <= FilterNotes::INSTRUCTIONS && below < number;
        let code = FilterNotes::CODE + start * 8;
        fits.then(|| self.0.get(code..code + len * 8)).flatten().map(|program| (below, flags, program))
    }

    /// The filters from the oldest on to this one; `None`: one of them is not there.
    fn chain(&self, newest: u64) -> Option<Vec<u64>> {
        let (mut chain, mut next) = (Vec::new(), newest);
        while next != 0 {
            chain.push(next);
            next = self.note(next)?.0;
        }
        chain.reverse();
        Some(chain)
    }

    /// The newest filter of a thread: its own, or what it was given by another since (`common`), which lies over its
    /// own then.
    fn newest(&self, thread: &Thread) -> u64 {
        let own = thread.regs.fs_base.wrapping_add(self.word(FilterNotes::THREAD));
        // A thread without a block of the C library's (clone(2) itself) has nothing there that could be read.
        let own = procmem::read_u64(thread.tid, own).unwrap_or(0);
        let common = self.word(FilterNotes::COMMON);
        let lies_over = |chain: Vec<u64>| common == 0 || chain.contains(&common);
        if self.chain(own).is_some_and(lies_over) { own } else { common }
    }

    /// Takes what a thread is under into the record, if it is proven to be all.
    fn of(
        &self,
        thread: &mut Thread,
        status: &Status,
        area: &InjectArea,
        filters: &mut Vec<FilterRecord>,
    ) -> Result<(), CutError> {
        let there = count(status).unwrap_or(0) - of_the_host();
        let chain = self.chain(self.newest(thread)).unwrap_or_default();
        if i64::try_from(chain.len()) != Ok(there) {
            // It may be between the call and the note.
            let why = not_noted(there, chain.len());
            return Err(CutError::Unsettled(vec![refuse::thread(thread.inner, why)]));
        }
        let (mut newest, mut programs) = (None, Vec::new());
        for number in chain {
            let Some((_, flags, program)) = self.note(number) else { continue };
            if flags & FLAG_NEW_LISTENER != 0 {
                let why = format!(
                    "{OWN} with a listener (SECCOMP_FILTER_FLAG_NEW_LISTENER), which no restart makes"
                );
                return Err(refused(thread, why));
            }
            programs.push(filter_calls::program(program));
            let logs = u64::from(flags) & FLAG_LOG != 0;
            newest = Some(put(filters, newest, logs, program));
        }
        thread.confinement.filter = newest;
        let no_timers = word_of(thread, area, SharedPage::NO_TIMERS) == Some(1);
        let noted = Noted { programs, personality: known(thread, area), no_timers };
        thread.permission = Permission::Noted(Arc::new(noted));
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Notes of filters of one instruction each: what each lies over.
    fn notes(below: &[u32]) -> Notes {
        let mut bytes = vec![0; FilterNotes::LEN];
        for (index, below) in (0_u32..).zip(below) {
            let at = FilterNotes::FILTERS + index as usize * size_of::<FilterNote>();
            let note: Vec<u8> = [*below, 0, index, 1].iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes[at..at + note.len()].copy_from_slice(&note);
        }
        Notes(bytes)
    }

    #[test]
    fn a_chain_is_what_was_noted_and_no_chain_is_believed_in_part() {
        let notes = notes(&[0, 1, 1, 3]);
        assert_eq!(notes.chain(4), Some(vec![1, 3, 4]));
        assert_eq!(notes.chain(0), Some(Vec::new()));
        assert_eq!(notes.chain(5), None, "not noted yet");
        assert_eq!(super::tests::notes(&[2, 2]).chain(2), None, "in a circle");
        assert_eq!(notes.note(3).unwrap().2, [0; 8]);
        assert!(notes.note(FilterNotes::MAX as u64 + 1).is_none());
    }

    #[test]
    fn threads_with_the_same_filters_have_one_record_of_each() {
        let mut filters = Vec::new();
        let one = put(&mut filters, None, false, &[1; 8]);
        let over = put(&mut filters, Some(one), false, &[2; 8]);
        assert_eq!(put(&mut filters, Some(one), false, &[2; 8]), over);
        let places = [put(&mut filters, None, false, &[2; 8]), put(&mut filters, Some(one), true, &[2; 8])];
        assert_eq!((one, over, places, filters.len()), (0, 1, [2, 3], 4));
    }
}
