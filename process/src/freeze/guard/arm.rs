//! Guarding memory inside the stop of a cut: looking what threads are doing, writing the tables, closing the ranges.
//!
//! Called by the tracer thread, in two steps: [`survey`] says which dirty pages can be guarded; the caller copies all
//! others; then [`arm`] closes the ranges. In between nothing of the program runs.
//! What must hold: if the agent dies at any instruction the program goes on: the tables are complete before the first
//! page is closed, and the handler finds out about the death when it has to wait.
//! Fails by: [`Unsuited`] before anything was changed, or after it was changed back: another engine is used.

use super::options::{GuardOptions, Unsuited};
use super::pages::Guard;
use super::plan::{self, Layout, inside, touched};
use super::remote::Remote;
use super::rows::run;
use crate::capture::maps::{Kind, Mapped};
use crate::capture::state::{ProcessFacts, ThreadFacts};
use crate::error::TraceError;
use crate::inject::live_thread::LiveThread;
use crate::inject::stub::Row;
use crate::stop::threads::Thread;
use holdfast_abi::{GuardArea, GuardThread, SharedPage};
use holdfast_image::PageCount;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::record::InjectArea;
use holdfast_sys::procmem;
use std::fs::File;
use std::io;

/// PROT_READ | PROT_WRITE.
pub const READ_WRITE: u64 = 3;
/// Bytes that a call which this file does not know may write to from each of its arguments on.
const UNKNOWN: u64 = 64 * 1024;
/// Pages that one fault resolves, if nothing else is asked for.
const GROUP: u64 = 16;

/// What [`survey`] looks at.
#[derive(Debug)]
pub struct Survey<'a> {
    /// The process, as the agent sees it, and any thread of it.
    pub pid: i32,
    /// See `pid`.
    pub live: i32,
    /// Where libholdfast reserved memory.
    pub area: &'a InjectArea,
    /// All mappings.
    pub mapped: &'a [Mapped],
    /// All threads, and what they told of themselves.
    pub threads: &'a [Thread],
    /// See `threads`.
    pub facts: &'a [ThreadFacts],
    /// What one told of the process.
    pub process: &'a ProcessFacts,
    /// What the tracker has found written, or has to take for written.
    pub dirty: &'a PageSet,
}

/// Memory that can be guarded.
#[derive(Debug)]
pub struct Guardable {
    remote: Remote,
    layout: Layout,
}

impl Guardable {
    /// The dirty pages that need not be copied at the stop.
    pub fn pages(&self) -> &PageSet {
        &self.layout.pages
    }
}

fn unsuited(error: io::Error) -> Unsuited {
    Unsuited(format!("looking at the program: {error}"))
}

/// Looks whether, and which, memory can be guarded.
///
/// # Errors
/// The program was not started with the engine, is in a state that forbids it, or has nothing to guard.
pub fn survey(scene: &Survey<'_>, slots: PageCount) -> Result<Guardable, Unsuited> {
    let remote = Remote::of(scene.live, scene.area)
        .map_err(unsuited)?
        .ok_or_else(|| Unsuited("the program was not started with --engine slots".into()))?;
    check(scene, &remote)?;
    let block = |range: &PageRun| !scene.threads.iter().any(|thread| holds(range, thread.regs.rsp));
    let candidates: PageSet =
        candidates(scene, &remote).map_err(unsuited)?.into_iter().filter(block).collect();
    let usable: PageSet = scene.mapped.iter().filter(|mapped| is_usable(mapped)).filter_map(whole).collect();
    let busy = in_use(scene, &remote).map_err(unsuited)?;
    let allowed = candidates.intersection(&usable).difference(&busy);
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    let most = most.and_then(|text| text.trim().parse().ok()).unwrap_or(65_530);
    let layout = plan::lay_out(scene.dirty, &allowed, slots, scene.mapped.len() as u64, most)?;
    Ok(Guardable { remote, layout })
}

/// Whether the handler is in force everywhere, and no thread is in it.
fn check(scene: &Survey<'_>, remote: &Remote) -> Result<(), Unsuited> {
    let blocks = 1_u64 << (libc::SIGSEGV - 1);
    if remote.word(GuardArea::INSIDE).map_err(unsuited)? != 0
        || scene.threads.iter().any(|thread| thread.mask & blocks != 0)
    {
        return Err(Unsuited("a thread blocks SIGSEGV, or is just opening a page".into()));
    }
    let handler = remote.word(GuardArea::HANDLER).map_err(unsuited)?;
    let signal = libc::SIGSEGV.unsigned_abs();
    if !scene.process.actions.iter().any(|action| action.signal == signal && action.handler == handler) {
        return Err(Unsuited("the program has replaced libholdfast's handler of SIGSEGV".into()));
    }
    Ok(())
}

/// Private memory, readable and writable, without anything special about it.
fn is_usable(mapped: &Mapped) -> bool {
    !mapped.mapping.shared
        && u64::from(mapped.mapping.prot) == READ_WRITE
        && !mapped.outside_clone
        && mapped.kind == Kind::Anonymous { whole: false }
}

fn whole(mapped: &Mapped) -> Option<PageRun> {
    inside(mapped.mapping.start, mapped.mapping.end - mapped.mapping.start)
}

fn holds(run: &PageRun, address: u64) -> bool {
    run.start.0 <= address && address < run.end().0
}

/// Large allocations and protected regions.
fn candidates(scene: &Survey<'_>, remote: &Remote) -> io::Result<Vec<PageRun>> {
    let mut found = Vec::new();
    let count = usize::try_from(remote.word(GuardArea::LARGE_COUNT)?).unwrap_or(0);
    let words = remote.words(GuardArea::LARGE_TABLE, 2 * count.min(GuardArea::LARGE_MAX))?;
    found.extend(words.chunks_exact(2).filter_map(|pair| inside(pair[0], pair[1])));
    let at = |offset: usize| scene.area.shared.0 + offset as u64;
    let count = procmem::read_u64(scene.live, at(SharedPage::PROTECTED_COUNT))?;
    let count = usize::try_from(count).unwrap_or(0).min(SharedPage::PROTECTED_MAX);
    let mut table = vec![0; count * SharedPage::PROTECTED_ENTRY];
    procmem::read(scene.live, at(SharedPage::PROTECTED_TABLE), &mut table)?;
    found.extend(table.chunks_exact(SharedPage::PROTECTED_ENTRY).filter_map(|entry| {
        let word = |offset| u64::from_le_bytes(crate::stop::xstate::array(entry, offset));
        inside(word(0), word(8))
    }));
    Ok(found)
}

/// What threads may be writing to, or have the kernel write to, without a store that a handler could help with.
fn in_use(scene: &Survey<'_>, remote: &Remote) -> io::Result<PageSet> {
    let offset = remote.word(GuardArea::THREAD)?;
    let mut found = Vec::new();
    let mut add = |start: u64, len: u64| found.extend(touched(start, len));
    for (thread, facts) in scene.threads.iter().zip(scene.facts) {
        let regs = &thread.regs;
        add(facts.alt_stack.sp.0, facts.alt_stack.size);
        add(facts.clear_tid, 4);
        add(thread.robust.0, thread.robust.1);
        if let Some((address, len, _)) = thread.rseq {
            add(address, u64::from(len));
        }
        if thread.in_call() {
            let arguments = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
            arguments.iter().for_each(|argument| add(*argument, UNKNOWN));
            call_buffers(scene.live, regs.orig_rax, &arguments, &mut add);
        }
        if regs.fs_base != 0 {
            noted_buffers(scene.live, regs.fs_base.wrapping_add(offset), &mut add);
        }
    }
    Ok(PageSet::from(found))
}

/// Buffers of the system call that a thread is in.
fn call_buffers(tid: i32, number: u64, arguments: &[u64; 6], add: &mut impl FnMut(u64, u64)) {
    match i64::try_from(number).unwrap_or(-1) {
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_recvfrom => add(arguments[1], arguments[2]),
        libc::SYS_getrandom => add(arguments[0], arguments[1]),
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => {
            vectors(tid, arguments[1], arguments[2], add);
        }
        libc::SYS_recvmsg => message(tid, arguments[1], add),
        libc::SYS_poll | libc::SYS_ppoll => add(arguments[0], arguments[1].saturating_mul(8)),
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => add(arguments[1], arguments[2].saturating_mul(12)),
        _ => {}
    }
}

fn words(tid: i32, address: u64, count: usize) -> Vec<u64> {
    let mut bytes = vec![0; count * 8];
    match procmem::read(tid, address, &mut bytes) {
        Ok(()) => bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(crate::stop::xstate::array(word, 0)))
            .collect(),
        // Then the kernel cannot read it either.
        Err(_) => vec![0; count],
    }
}

fn vectors(tid: i32, address: u64, count: u64, add: &mut impl FnMut(u64, u64)) {
    let count = usize::try_from(count).unwrap_or(0).min(1024);
    words(tid, address, 2 * count).chunks_exact(2).for_each(|pair| add(pair[0], pair[1]));
}

fn message(tid: i32, address: u64, add: &mut impl FnMut(u64, u64)) {
    add(address, 56);
    let header = words(tid, address, 6);
    if let [name, name_len, list, count, control, control_len] = header[..] {
        add(name, name_len & 0xffff_ffff);
        add(control, control_len);
        vectors(tid, list, count, add);
    }
}

/// Buffers of calls that the wrappers have noted (a thread between the wrapper and the kernel shows none in registers).
fn noted_buffers(tid: i32, block: u64, add: &mut impl FnMut(u64, u64)) {
    let per_entry = GuardThread::ENTRY / 8;
    let count = GuardThread::ENTRIES / 8 + GuardThread::MAX_ENTRIES * per_entry;
    let all = words(tid, block, count);
    let depth = all.first().map_or(0, |depth| usize::try_from(*depth).unwrap_or(0));
    let entries = all[GuardThread::ENTRIES / 8..].chunks_exact(per_entry);
    for entry in entries.take(depth.min(GuardThread::MAX_ENTRIES)) {
        match entry[0] {
            GuardThread::VECTORS => vectors(tid, entry[1], entry[2], add),
            GuardThread::MESSAGE => message(tid, entry[1], add),
            _ => add(entry[1], entry[2]),
        }
    }
}

/// The call that gives the tables and slots of an epoch back.
pub fn forget(remote: &Remote) -> Row {
    let len = (GuardArea::LEN - GuardArea::TABLES) as u64;
    Row::new(libc::SYS_madvise, &[remote.address(GuardArea::TABLES), len, libc::MADV_DONTNEED as u64])
}

/// Closes the ranges. Everything else of the stop must be copied by now.
///
/// # Errors
/// A call failed: what was closed is open again.
pub fn arm(
    scene: &Survey<'_>,
    ready: Guardable,
    options: &GuardOptions,
    host: &LiveThread,
) -> Result<Result<Guard, Unsuited>, TraceError> {
    let Guardable { remote, layout } = ready;
    let pagemap = File::open(format!("/proc/{}/pagemap", host.thread.tid))?;
    run(host, scene.area, &[forget(&remote)])?;
    write_tables(&remote, &layout, options)?;
    let row = |prot: u64| {
        move |range: &plan::Range| {
            Row::new(libc::SYS_mprotect, &[range.run.start.0, range.run.pages.bytes(), prot])
        }
    };
    let rows: Vec<Row> = layout.ranges.iter().map(row(libc::PROT_READ as u64)).collect();
    let closed = run(host, scene.area, &rows).map(|results| results.into_iter().find(|result| *result != 0));
    if let Ok(None) = closed {
        return Ok(Ok(Guard::new(remote, scene.pid, layout, pagemap)));
    }
    let rows: Vec<Row> = layout.ranges.iter().map(row(READ_WRITE)).collect();
    run(host, scene.area, &rows)?;
    remote.set(GuardArea::ARMED, 0)?;
    remote.set(GuardArea::RANGES, 0)?;
    let error = closed?.map_or(0, |error| i32::try_from(-error).unwrap_or(0));
    let error = io::Error::from_raw_os_error(error);
    Ok(Err(Unsuited(format!("closing {} ranges: {error}", rows.len()))))
}

fn write_tables(remote: &Remote, layout: &Layout, options: &GuardOptions) -> io::Result<()> {
    let mut table = Vec::with_capacity(layout.ranges.len() * GuardArea::RANGE_ENTRY);
    for range in &layout.ranges {
        for word in [range.run.start.0, range.run.end().0, range.first] {
            table.extend(word.to_le_bytes());
        }
    }
    remote.write(GuardArea::RANGE_TABLE, &table)?;
    let all: PageSet = layout.ranges.iter().map(|range| range.run).collect();
    for (set, flag) in [
        (all.difference(&layout.pages), GuardArea::DONE),
        (options.likely.intersection(&layout.pages), GuardArea::LIKELY),
    ] {
        for (first, count) in set.runs().iter().flat_map(|run| layout.parts(*run)) {
            remote.flag(first, count, flag)?;
        }
    }
    let ring: Vec<u8> = (0..u32::try_from(layout.slots).unwrap_or(0)).flat_map(u32::to_le_bytes).collect();
    remote.write(GuardArea::RING, &ring)?;
    let group = if options.group == 0 { GROUP } else { options.group.clamp(1, GuardArea::MAX_GROUP) };
    let last = remote.word(GuardArea::LAST)?;
    for (offset, value) in [
        (GuardArea::FREE_HEAD, 0),
        (GuardArea::LOG_HEAD, 0),
        (GuardArea::DOUBT, 0),
        (GuardArea::ABANDONED, 0),
        (GuardArea::GROUP, group.next_power_of_two()),
        (GuardArea::POOL, layout.slots),
        (GuardArea::FREE_TAIL, layout.slots),
        (GuardArea::HEARTBEAT, 0),
        (GuardArea::LAST, last + 1),
        (GuardArea::RANGES, layout.ranges.len() as u64),
        (GuardArea::ARMED, last + 1),
    ] {
        remote.set(offset, value)?;
    }
    Ok(())
}
