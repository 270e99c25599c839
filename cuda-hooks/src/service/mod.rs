//! The service thread: a thread of libholdfast's in the program, which brings the content of blocks to safety and back
//! when the agent asks for it.
//!
//! Made when the first block is made; it sleeps until the agent sends it [`CudaData::SIGNAL`], which it has blocked, as
//! all others. It calls the driver's own functions, and only while the gate is closed. The agent writes a command and
//! its number; the thread does it, and writes what came of it and the number (docs/cuda.md).
//! Invariants: while content is away the gate stays closed until it is restored; if the agent ends meanwhile, the
//! thread restores it and opens the gate. A command that was followed by another is called off: content that has not
//! been unmapped stays. No signal of the program's is lost: one that came to this thread is sent on.
//! Fails by: [`CudaData::result`].
//!
//! # Safety
//! Functions of the C library are called with their types; the table of blocks is a reservation that is never unmapped.
#![allow(unsafe_code)]

mod calls;
mod crew;
mod hasher;
mod host;
mod mover;
mod ring;

use crate::{area, platform, thread};
pub use calls::Failed;
use calls::Outcome;
use core::ffi::c_void;
use core::mem::{self, MaybeUninit};
use core::ptr::{null, null_mut, with_exposed_provenance};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use holdfast_abi::{CudaArea, CudaBlock, CudaData};
use mover::Mover;

/// Time between two looks at the agent while content is away.
const LOOK_NS: i64 = 1_000_000_000;
/// Time between two looks at the commands, once a signal of the program's has come to this thread.
const POLL_NS: i64 = 2_000_000;

/// The thread was made.
static STARTED: AtomicBool = AtomicBool::new(false);

/// What the thread works on.
pub struct Work {
    /// The words.
    pub data: &'static CudaData,
    /// Makes physical memory for a block that has none, at its addresses; or nothing is left.
    pub make: fn(&CudaBlock) -> Result<(), Failed>,
    /// Memory that an image need not have, by number of its entry: first address and bytes, whole chunks.
    pub discarded: fn(usize) -> (u64, u64),
}

/// What a checkpoint needs of a context, in which a block was just made, is made now: by a thread of the program,
/// inside the gate, with the context current. Some milliseconds, once, and none of a stop.
pub fn prepare(context: u64) {
    ring::prepare(context);
    hasher::load(context);
}

/// A context has ended, with all that was made in it.
pub fn context_ended(context: u64) {
    ring::context_ended(context);
    hasher::context_ended(context);
}

type Routine = extern "C" fn(*mut c_void) -> *mut c_void;
type Unwinding = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// Makes the thread, once. False: there is none.
pub fn start(work: &'static Work) -> bool {
    if STARTED.swap(true, AcqRel) {
        return true;
    }
    let started = start_thread(work);
    STARTED.store(started, Release);
    started
}

/// In a child made by fork: the thread is the parent's, and so is the copy.
pub fn forked(data: &'static CudaData) {
    host::HostCopy(data).forget();
    hasher::forget_kept();
    ring::forget();
    STARTED.store(false, Relaxed);
}

fn start_thread(work: &'static Work) -> bool {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut all, mut before) =
        (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    let (mut made, own): (libc::pthread_t, _) = (0, core::ptr::from_ref(work).cast_mut().cast());
    // SAFETY: the two differ in what becomes of a panic only.
    let begin = unsafe { mem::transmute::<Unwinding, Routine>(run) };
    // SAFETY: each is initialised before it is used; the C library leaves out its own two signals.
    platform::keep_errno(|| unsafe {
        libc::sigfillset(all.as_mut_ptr());
        if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
            return false;
        }
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        let masked = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0;
        let started = masked && libc::pthread_create(&raw mut made, attributes.as_ptr(), begin, own) == 0;
        if masked {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
        }
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        started
    })
}

/// Nothing unwinds here; said otherwise, the compiler would add a way to a panic.
extern "C-unwind" fn run(work: *mut c_void) -> *mut c_void {
    platform::name_thread(c"holdfast-cuda");
    // SAFETY: what `start_thread` has given.
    let work = unsafe { &*work.cast::<Work>().cast_const() };
    work.data.service_thread.store(platform::thread_id(), Release);
    thread::bypass(|| serve(work));
    null_mut()
}

fn serve(work: &'static Work) {
    let data = work.data;
    let mut polls = false;
    loop {
        let asked = data.asked.load(Acquire);
        if asked != data.done.load(Relaxed) {
            let outcome = carry_out(work, asked);
            let failed = outcome.err().unwrap_or(Failed::with(0));
            data.result.store(failed.result, Relaxed);
            data.failed_function.store(failed.function, Relaxed);
            data.failed_block.store(failed.block, Relaxed);
            data.failed_bytes.store(failed.bytes, Relaxed);
            data.done.store(asked, SeqCst);
            if failed.result == 0 && opens_gate(data) {
                open_gate();
            }
            continue;
        }
        let away = data.state.load(Relaxed) != CudaData::RESIDENT;
        polls |= !wait(away, polls);
        if away && asked == data.asked.load(Acquire) && (opens_gate(data) || !platform::agent_is_there()) {
            abandoned(work);
        }
    }
}

/// Waits for the agent's signal, or a second if content is away. False: it was the program's.
fn wait(away: bool, polls: bool) -> bool {
    if polls {
        platform::nap(if away { LOOK_NS } else { POLL_NS });
        return true;
    }
    let set = 1_u64 << (CudaData::SIGNAL - 1);
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let limit = libc::timespec { tv_sec: LOOK_NS / 1_000_000_000, tv_nsec: 0 };
    let limit = if away { &raw const limit } else { null() };
    // SAFETY: a set of the kernel's size, room for what it writes, and a limit or none.
    let got = unsafe { platform::signal(&set, info.as_mut_ptr(), limit) };
    if got != CudaData::SIGNAL as isize {
        return true;
    }
    // SAFETY: zeroed, or written by the kernel.
    let info = unsafe { info.assume_init() };
    if info.si_code == libc::SI_TKILL {
        return true;
    }
    // SAFETY: what has just come goes back to the process.
    unsafe { platform::send_on(CudaData::SIGNAL, &info) };
    false
}

/// Whether nothing waits for the content any more.
fn opens_gate(data: &CudaData) -> bool {
    let [argument, ..] = &data.arguments;
    data.command.load(SeqCst) == CudaData::COMMAND_RETURN && argument.load(SeqCst) == CudaData::OPENS_GATE
}

/// Nothing waits for the content, which is away. What is damaged stays so: no call may see it.
#[cold]
fn abandoned(work: &'static Work) {
    let data = work.data;
    if data.result.load(Relaxed) == CudaData::FAULT_DAMAGED {
        return;
    }
    match mover(work).restore() {
        Ok(()) => open_gate(),
        Err(failed) => data.result.store(failed.result, Relaxed),
    }
}

fn open_gate() {
    let area = area::area();
    if area.closed.compare_exchange(CudaArea::BY_AGENT, 0, AcqRel, Relaxed).is_ok() {
        area.abandoned.fetch_add(1, Relaxed);
        platform::wake(&area.closed);
    }
}

fn mover(work: &'static Work) -> Mover {
    let data = work.data;
    let start = data.blocks.load(Acquire) as usize;
    let blocks = match start {
        0 => &[],
        // SAFETY: a reservation of this length, as the head of the file says.
        _ => unsafe {
            core::slice::from_raw_parts(with_exposed_provenance::<CudaBlock>(start), CudaData::MAX_BLOCKS)
        },
    };
    Mover { data, blocks, make: work.make, discarded: work.discarded }
}

fn carry_out(work: &'static Work, number: u64) -> Outcome {
    let data = work.data;
    let called_off = || data.asked.load(SeqCst) != number;
    let closed = area::area().closed.load(SeqCst) != 0;
    let owner = data.owner.load(Relaxed);
    match (data.command.load(Relaxed), data.state.load(SeqCst)) {
        (CudaData::COMMAND_DRAIN, CudaData::RESIDENT) if closed => mover(work).drain(),
        (CudaData::COMMAND_MEASURE, CudaData::RESIDENT) if closed && owner == CudaData::BY_LIBRARY => {
            mover(work).measure(called_off)
        }
        (CudaData::COMMAND_LEAVE, CudaData::RESIDENT) if closed && owner == CudaData::BY_LIBRARY => {
            mover(work).leave(called_off)
        }
        (CudaData::COMMAND_LEAVE, CudaData::RESIDENT) if closed && owner == CudaData::BY_KEEPER => {
            mover(work).unmap_kept(called_off)
        }
        (CudaData::COMMAND_ADOPT, CudaData::RESIDENT) if closed && owner == CudaData::BY_KEEPER => {
            mover(work).adopt();
            Ok(())
        }
        (CudaData::COMMAND_RETURN, CudaData::RESIDENT) => Ok(()),
        (CudaData::COMMAND_RETURN, _) => {
            let [_, of_image, ..] = &data.arguments;
            if of_image.load(Relaxed) == CudaData::OF_IMAGE && owner == CudaData::BY_LIBRARY {
                mover(work).forget_discarded();
            }
            mover(work).restore()
        }
        _ => Err(Failed::with(CudaData::FAULT_COMMAND)),
    }
}
