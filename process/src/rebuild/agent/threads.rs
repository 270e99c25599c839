//! Threads: created with their old ids, then given what the kernel keeps for each of them. Runs in the agent, by tables
//! in the program's injection area.
//!
//! Each thread runs its own table, because the kernel's calls for robust lists, rseq, alternate stacks and
//! thread-directed signals all concern the caller.

use super::remote_calls::{Batch, CallArea, Need, SeedThread};
use crate::inject::stub::{self, Row};
use crate::rebuild::error::RebuildError;
use crate::rebuild::rseq;
use crate::stop::xstate::array;
use holdfast_image::record::{ProcessRecord, ThreadRecord};
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::ptrace::{self, Registers};

const THREAD_FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM;
/// Bytes of struct clone_args with set_tid (include/uapi/linux/sched.h, version 2).
const CLONE_ARGS_LEN: u64 = 88;
/// SS_ONSTACK: told by the kernel, not accepted by it.
const SS_ONSTACK: u32 = 1;
/// SS_DISABLE.
const SS_DISABLE: u32 = 2;
/// AMX tile data in the feature word of the extended state (Intel SDM volume 1, 13.1).
const XFEATURE_TILE_DATA: u64 = 18;
/// arch_prctl request for a dynamic feature (arch/x86/include/uapi/asm/prctl.h).
const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
/// Offset in the stub's page of the code that touches the tiles before it goes on as the stub.
const TILE_CODE: u64 = 1024;
/// `ldtilecfg [rsi]; tilezero tmm0; tilerelease`: has the kernel allocate tiles for the thread.
const TOUCH_TILES: [u8; 15] =
    [0xc4, 0xe2, 0x78, 0x49, 0x06, 0xc4, 0xe2, 0x7b, 0x49, 0xc0, 0xc4, 0xe2, 0x78, 0x49, 0xc0];

/// A thread of the new process, and what it is to become.
#[derive(Clone, Copy, Debug)]
pub struct NewThread<'a> {
    /// Makes its calls.
    pub seed: SeedThread,
    /// What it is to become.
    pub record: &'a ThreadRecord,
}

/// Creates all threads but the leader. With `chosen` each has its old id; otherwise any.
///
/// # Errors
/// An id is taken, or the process limit is reached.
pub fn create(
    leader: SeedThread,
    record: &ProcessRecord,
    chosen: bool,
) -> Result<Vec<NewThread<'_>>, RebuildError> {
    let mut batch = leader.batch();
    if record.threads.iter().any(tiles_live) {
        let args = [ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA];
        batch.call(
            libc::SYS_arch_prctl,
            &args,
            Need::Must("get leave to use AMX tiles, feature", XFEATURE_TILE_DATA),
        )?;
        batch.finish()?;
        batch = leader.batch();
    }
    let (inner, created) = clone_all(batch, &record.threads[1..], chosen).map_err(|error| match error {
        // clone3(2) with set_tid.
        RebuildError::Call { what, source } if source.raw_os_error() == Some(libc::EEXIST) => {
            RebuildError::IdTaken(what)
        }
        error => error,
    })?;
    if inner.len() != created.len() {
        return Err(RebuildError::Image(format!(
            "{} threads were created, {} seen",
            inner.len(),
            created.len()
        )));
    }
    let mut seeds = vec![leader];
    for (tid, inner) in created.into_iter().zip(inner) {
        seeds.push(leader.sibling(tid, i32::try_from(inner).unwrap_or(0))?);
    }
    Ok(seeds.into_iter().zip(&record.threads).map(|(seed, record)| NewThread { seed, record }).collect())
}

/// Runs the calls of [`create`], in as many tables as they need: their results, and the ids that were seen.
fn clone_all(
    mut batch: Batch,
    threads: &[ThreadRecord],
    chosen: bool,
) -> Result<(Vec<i64>, Vec<i32>), RebuildError> {
    for thread in threads {
        let name = format!("thread {}", thread.tid);
        if !chosen {
            // clone(2): a container may have no clone3.
            let row = Row::new(libc::SYS_clone, &[THREAD_FLAGS as u64]);
            batch.row(row, Need::MustOn("create", name));
            continue;
        }
        batch.reserve(128)?;
        // Its own id first, then that one namespace further out.
        let ids: Vec<i32> = std::iter::once(thread.tid).chain(thread.job_tid).collect();
        let count = ids.len() as u64;
        let ids = batch.data(&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>());
        // flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup
        let args = [THREAD_FLAGS as u64, 0, 0, 0, 0, 0, 0, 0, ids, count, 0];
        let bytes: Vec<u8> = args.iter().flat_map(|word| word.to_le_bytes()).collect();
        let args = batch.data(&bytes);
        batch.row(Row::new(libc::SYS_clone3, &[args, CLONE_ARGS_LEN]), Need::MustOn("create", name));
    }
    batch.finish()
}

/// Gives one thread its own: tid address, robust list, rseq, alternate stack, name, pending signals.
///
/// # Errors
/// Names what the kernel did not take.
pub fn equip(thread: &NewThread<'_>, drop_capabilities: bool) -> Result<(), RebuildError> {
    let NewThread { seed, record: thread } = *thread;
    let id = u64::from(thread.tid.cast_unsigned());
    let area = seed.area();
    let code = if tiles_live(thread) { area.code + TILE_CODE } else { area.code };
    let mut batch = seed.with_area(CallArea { code, ..area }).batch();
    if tiles_live(thread) {
        // The first bytes of the buffers are the tile configuration that the code loads.
        batch.data(&tile_configuration());
    }
    if let Some(rseq) = thread.rseq {
        let args = [rseq.addr.0, u64::from(rseq::len(&rseq)), 0, u64::from(rseq.signature)];
        batch.row(
            Row::new(libc::SYS_rseq, &args),
            Need::Must("register the restartable sequences of thread", id),
        );
    }
    own_calls(&mut batch, thread)?;
    if drop_capabilities {
        drop_all_capabilities(&mut batch, id);
    }
    queue_pending(&mut batch, seed, thread)?;
    batch.finish().map(|_| ())
}

/// Gives a thread that has been there all the time what it had: all of [`equip`] that can have changed since. Signals
/// that are pending were taken from it.
///
/// # Errors
/// As [`equip`].
pub fn equip_again(thread: &NewThread<'_>) -> Result<(), RebuildError> {
    let NewThread { seed, record: thread } = *thread;
    let mut batch = seed.batch();
    let none: Vec<u8> = [0, u64::from(SS_DISABLE), 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let none = batch.data(&none);
    let need = Need::Must("take the alternate signal stack from thread", number(thread.tid));
    batch.row(Row::new(libc::SYS_sigaltstack, &[none, 0]), need);
    own_calls(&mut batch, thread)?;
    queue_pending(&mut batch, seed, thread)?;
    batch.finish().map(|_| ())
}

/// Tid address, robust list, alternate stack, name, timer slack.
fn own_calls(batch: &mut Batch, thread: &ThreadRecord) -> Result<(), RebuildError> {
    let id = number(thread.tid);
    batch.reserve(128)?;
    batch.row(Row::new(libc::SYS_set_tid_address, &[thread.clear_tid.0]), Need::May);
    if thread.robust_list_len != 0 {
        let args = [thread.robust_list.0, thread.robust_list_len];
        batch
            .row(Row::new(libc::SYS_set_robust_list, &args), Need::Must("set the robust list of thread", id));
    }
    if thread.alt_stack.flags & SS_DISABLE == 0 && thread.alt_stack.size > 0 {
        // A thread that was *on* its alternate stack gets it set while it is elsewhere: whether it is on it, the
        // kernel computes from rsp (include/linux/sched/signal.h, on_sig_stack).
        let flags = u64::from(thread.alt_stack.flags & !SS_ONSTACK);
        let stack = [thread.alt_stack.sp.0, flags, thread.alt_stack.size];
        let bytes: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
        let address = batch.data(&bytes);
        let need = Need::Must("set the alternate signal stack of thread", id);
        batch.row(Row::new(libc::SYS_sigaltstack, &[address, 0]), need);
    }
    let mut name = thread.comm.0.clone();
    name.truncate(15);
    name.push(0);
    let address = batch.data(&name);
    batch.row(Row::new(libc::SYS_prctl, &[libc::PR_SET_NAME as u64, address]), Need::May);
    if thread.timer_slack_ns != 0 {
        let args = [libc::PR_SET_TIMERSLACK as u64, thread.timer_slack_ns];
        batch.row(Row::new(libc::SYS_prctl, &args), Need::May);
    }
    Ok(())
}

/// Signals that wait for the thread.
fn queue_pending(batch: &mut Batch, seed: SeedThread, thread: &ThreadRecord) -> Result<(), RebuildError> {
    for info in &thread.pending {
        batch.reserve(info.0.len())?;
        let address = batch.data(&info.0);
        let signal = u64::from_le_bytes(array(&info.0, 0)) & 0xffff_ffff;
        let args = [number(seed.remote.inner.0), number(seed.remote.inner.1), signal, address];
        batch.row(
            Row::new(libc::SYS_rt_tgsigqueueinfo, &args),
            Need::Must("queue for itself the signal", signal),
        );
    }
    Ok(())
}

fn number(id: i32) -> u64 {
    u64::from(id.cast_unsigned())
}

/// Rows that take from the caller what only the restart needed (capabilities(7)).
fn drop_all_capabilities(batch: &mut Batch, id: u64) {
    const VERSION_3: u32 = 0x2008_0522;
    let args = [libc::PR_CAP_AMBIENT as u64, libc::PR_CAP_AMBIENT_CLEAR_ALL as u64, 0, 0, 0];
    batch.row(Row::new(libc::SYS_prctl, &args), Need::Must("drop ambient capabilities in thread", id));
    let mut header = VERSION_3.to_le_bytes().to_vec();
    header.extend([0; 4]);
    let header = batch.data(&header);
    let none = batch.data(&[0; 24]);
    batch.row(Row::new(libc::SYS_capset, &[header, none]), Need::Must("drop capabilities in thread", id));
}

/// Whether the thread has data in AMX tiles.
fn tiles_live(thread: &ThreadRecord) -> bool {
    u64::from_le_bytes(array(&thread.xstate.0, 512)) >> XFEATURE_TILE_DATA & 1 == 1
}

/// A tile configuration (Intel SDM volume 2, LDTILECFG): palette 1, one tile of 16 rows of 64 bytes.
fn tile_configuration() -> [u8; 64] {
    let mut bytes = [0; 64];
    (bytes[0], bytes[16], bytes[48]) = (1, 64, 16);
    bytes
}

/// Writes the stub, plain and behind the code that touches tiles, into the program's injection area.
///
/// # Errors
/// The area is not mapped.
pub fn write_stub(memory: &ForcedMemory, area: &CallArea) -> Result<(), RebuildError> {
    let with_tiles: Vec<u8> = TOUCH_TILES.iter().chain(stub::code()).copied().collect();
    memory
        .write(area.code, stub::code())
        .and_then(|()| memory.write(area.code + TILE_CODE, &with_tiles))
        .map_err(RebuildError::io("writing into the area that libholdfast keeps in the program"))
}

/// The registers with which a thread goes on.
///
/// A thread inside a restartable sequence goes on at the abort handler of it: it has been preempted, and may be on
/// another processor (Documentation of rseq(2); kernel/rseq.c, rseq_ip_fixup). The kernel would see to that itself, but
/// forgets the sequence when the area is registered (since Linux 6.14).
///
/// # Errors
/// Its rseq area cannot be read or written.
pub fn final_registers(memory: &ForcedMemory, thread: &ThreadRecord) -> Result<Registers, RebuildError> {
    let mut words = [0_u64; 27];
    for (word, stored) in words.iter_mut().zip(&thread.registers) {
        *word = *stored;
    }
    let mut regs = Registers::from_words(words);
    let Some(rseq) = thread.rseq else { return Ok(regs) };
    let io = || RebuildError::io(format!("reading the restartable sequence of thread {}", thread.tid));
    let pointer_at = rseq.addr.0.wrapping_add(8); // rseq_cs (include/uapi/linux/rseq.h)
    let mut pointer = [0_u8; 8];
    memory.read(pointer_at, &mut pointer).map_err(io())?;
    if pointer == [0; 8] {
        return Ok(regs);
    }
    // struct rseq_cs: version, flags; start_ip; post_commit_offset; abort_ip
    let mut sequence = [0_u8; 32];
    memory.read(u64::from_le_bytes(pointer), &mut sequence).map_err(io())?;
    let word = |at: usize| u64::from_le_bytes(array(&sequence, at));
    if regs.rip.wrapping_sub(word(8)) < word(16) {
        regs.rip = word(24);
    }
    memory.write(pointer_at, &[0; 8]).map_err(io())?;
    Ok(regs)
}

/// Those with which a main thread ends that had ended: by exit(2), which ends one thread. It goes away from everything
/// that could be told of its end ([`own_calls`] has given it no tid address and no robust list).
pub fn registers_of_end(seed: SeedThread, status: i32) -> Registers {
    let call = seed.area().code + stub::call_offset();
    // What wait(2) tells of such a process has the code in the second byte (kernel/exit.c, do_exit of exit(2)).
    let code = u64::from(status.cast_unsigned() >> 8 & 0xff);
    Registers {
        rip: call,
        rax: libc::SYS_exit.cast_unsigned(),
        rdi: code,
        orig_rax: u64::MAX,
        ..seed.registers()
    }
}

/// Sets extended state, registers and mask: the last thing before the thread is resumed.
///
/// # Errors
/// The thread is gone, or the state does not fit this processor.
pub fn restore(thread: &NewThread<'_>, regs: &Registers) -> Result<(), RebuildError> {
    let NewThread { seed, record: thread } = thread;
    let (tid, name) = (seed.remote.tid, thread.tid);
    // The kernel takes a whole state only, as long as what it gives out (arch/x86/kernel/fpu/regset.c, xstateregs_set).
    let mut state = vec![0_u8; 64 * 1024];
    let len = ptrace::xstate(tid, &mut state)
        .map_err(RebuildError::io(format!("reading the extended state of thread {name}")))?;
    if thread.xstate.0.len() > len {
        return Err(RebuildError::Image(format!(
            "thread {name} has {} bytes of extended state; this processor takes {len}: restart on the same \
             kind of processor",
            thread.xstate.0.len()
        )));
    }
    let mut state = thread.xstate.0.clone();
    state.resize(len, 0);
    ptrace::set_xstate(tid, &state)
        .map_err(RebuildError::io(format!("setting the extended state of thread {name}")))?;
    ptrace::set_registers(tid, regs)
        .map_err(RebuildError::io(format!("setting the registers of thread {name}")))?;
    ptrace::set_signal_mask(tid, thread.signal_mask)
        .map_err(RebuildError::io(format!("setting the signal mask of thread {name}")))
}
