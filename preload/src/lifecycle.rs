//! From load to end: tells the agent when this process begins, is forked, or leaves its session.
//!
//! Runs in: the constructor (before `main`, one thread), the destructor; the child's fork handler (raw calls only);
//! wrappers. Invariants: without an agent nothing of this does anything. `vfork` and `posix_spawn` are not hooked:
//! the program that is executed registers by its own constructor. `exec` is not hooked either: a program that clears
//! its environment is not followed (documented). [`sigaltstack`] is counted, because a debugger cannot read alternate
//! stacks: the agent asks again only when the count has moved (as for the calls in `attributes.rs`). Fails by: not
//! being followed.
//!
//! # Safety
//! The exports have the C signatures of the functions that they stand in for; pointers are passed on, not looked at.
#![allow(unsafe_code)]

use crate::message::Text;
use crate::shared;
use crate::{
    addresses, agent, aio, area, attributes, cuda, filters, fork, guard, host, ids, io_uring, launch, sys,
    trigger, undo,
};
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use holdfast_abi::SharedPage;
use holdfast_abi::environment::{ENV_DEBUG, ENV_FILTERS, ENV_MEMBER_SOCKET, ENV_SOCKET};
use holdfast_abi::registration::{EVENT_FORK, EVENT_LOAD, EVENT_SETSID};

/// Makes the loader call [`load`], before constructors without a priority of their own.
#[cfg(not(test))]
#[used]
// SAFETY: .init_array holds pointers to functions of this type, which the loader calls once (System V ABI, chapter 5).
#[unsafe(link_section = ".init_array.00101")]
static CONSTRUCTOR: extern "C" fn() = load;

/// Makes exit(3) call [`unload`], after what the program wants done at its end.
#[cfg(not(test))]
#[used]
// SAFETY: .fini_array holds pointers to functions of this type, which exit calls once (System V ABI, chapter 5).
#[unsafe(link_section = ".fini_array.00101")]
static DESTRUCTOR: extern "C" fn() = unload;

/// The destructor.
extern "C" fn unload() {
    host::keep_errno(guard::ending);
}

/// The constructor.
extern "C" fn load() {
    host::keep_errno(|| {
        // A program with more rights than its caller takes no orders from its caller's environment. Where another C
        // library serves, functions are not what they are here; the agent does without us
        // (`process/src/job/adopt.rs`). SAFETY: getauxval reads a table that the C library keeps.
        if unsafe { libc::getauxval(libc::AT_SECURE) } == 0 && host::is_glibc() {
            let (outcome, error) = attach();
            if host::variable_is(ENV_DEBUG, "1") {
                debug_line(outcome, error);
            }
        }
    });
}

/// Finds the agent, or starts it, and registers with it. What went on, in words for the debug line, and the number of
/// the error, or 0.
fn attach() -> (&'static str, c_int) {
    let socket = host::variable(ENV_MEMBER_SOCKET).or_else(|| host::variable(ENV_SOCKET));
    if socket.is_none() && !launch::wanted() {
        return ("no agent asked for", 0);
    }
    // From here on it makes calls that the program would not have made.
    if filters::are_unknown(host::number(ENV_FILTERS)) {
        return ("the program is under seccomp filters that are not known", 0);
    }
    let Some(socket) = socket.or_else(launch::start) else { return ("the agent could not be started", 0) };
    if !shared::set_text(SharedPage::SOCKET_PATH, SharedPage::SOCKET_PATH_LEN, socket.to_bytes()) {
        return ("HOLDFAST_SOCKET is longer than 511 bytes", 0);
    }
    shared::word(SharedPage::ENVIRON).store(host::environ_address(), Relaxed);
    addresses::start();
    shared::word(SharedPage::MAGIC).store(u64::from_le_bytes(SharedPage::MAGIC_BYTES), Relaxed);
    let failed = match area::reserve() {
        None => Some(("no room for the agent could be reserved", 0)),
        Some(_) => match agent::register(EVENT_LOAD) {
            Ok(()) => None,
            Err(agent::Trouble::Absent(error)) => Some(("no agent answers at HOLDFAST_SOCKET", error)),
            Err(agent::Trouble::Busy) => Some(("the agent is being asked already", 0)),
        },
    };
    if let Some(failed) = failed {
        shared::set_text(SharedPage::SOCKET_PATH, SharedPage::SOCKET_PATH_LEN, b"");
        return failed;
    }
    fork::register();
    guard::start();
    aio::start();
    io_uring::start();
    attributes::start();
    trigger::install();
    ("the agent knows this process", 0)
}

/// The only output of this library, and only when asked for.
fn debug_line(outcome: &str, error: c_int) {
    let mut text = Text::<256>::new();
    text.push(b"holdfast: process ").push_number(sys::process_id() as u64);
    text.push(b": ").push(outcome.as_bytes());
    if error != 0 {
        text.push(b" (error ").push_number(error as u64).push(b")");
    }
    text.push(b"\n");
    sys::write_note(libc::STDERR_FILENO, text.as_bytes());
}

/// In every child made by fork(2), before anything of the program runs in it.
pub fn forked() {
    host::keep_errno(|| {
        guard::forked();
        attributes::forked();
        undo::forked();
        aio::forked();
        cuda::forked();
        trigger::forked();
        agent::abandon_inherited();
        tell(EVENT_FORK);
    });
}

/// Registers again, if there is an agent.
fn tell(event: &str) {
    let mut room = [0; SharedPage::SOCKET_PATH_LEN];
    if shared::text(SharedPage::SOCKET_PATH, &mut room).is_some() {
        // An agent that has gone meanwhile is no trouble of the program's.
        let _ = agent::register(event);
    }
}

/// `setsid(2)`, then it registers again: a daemon is followed into its new session.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn setsid() -> c_int {
    let session = sys::setsid();
    if session.is_ok() {
        host::keep_errno(|| tell(EVENT_SETSID));
    }
    host::to_c(session.map(|id| i64::from(ids::to_known(id)))) as c_int
}

/// `daemon(3)`: the C library's own, which calls neither `fork` nor `setsid` by a name that could be hooked (its fork
/// runs the fork handlers, though); then it registers again.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn daemon(keep_folder: c_int, keep_files: c_int) -> c_int {
    let next = host::next_definition(DAEMON);
    if next.is_null() {
        host::set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: the C library's daemon has this signature (man daemon(3)).
    let next = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn(c_int, c_int) -> c_int>(next) };
    let result = next(keep_folder, keep_files);
    if result == 0 {
        host::keep_errno(|| tell(EVENT_SETSID));
    }
    result
}

/// Name of the function that [`daemon`] passes on to.
const DAEMON: &CStr = c"daemon";

/// `sigaltstack(2)`, counted.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaltstack(new: *const c_void, old: *mut c_void) -> c_int {
    // SAFETY: the caller's pointers, passed on as they are.
    let result = unsafe { sys::sigaltstack(new, old) };
    if result.is_ok() && !new.is_null() {
        shared::word(SharedPage::FACT_GENERATION).fetch_add(1, Relaxed);
    }
    host::to_c(result.map(|()| 0)) as c_int
}
