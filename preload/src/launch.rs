//! Starts the agent when the program was started with nothing but `LD_PRELOAD=…/libholdfast.so`.
//!
//! Runs in: the constructor, one thread.
//! Invariants: the agent is no child of the program (it is forked twice, and no SIGCHLD is raised), is in a session of
//! its own, has none of the program's descriptors and not its LD_PRELOAD. Settings reach it as `HOLDFAST_*` variables.
//! It prints the path of its socket as one line on its standard output, a pipe that ends here, within [`PATIENCE_MS`].
//! Fails by: `None`; the program runs without an agent.
//!
//! # Safety
//! Children made here make raw system calls only until they exec. Memory for the environment is mapped, never freed,
//! and written before anybody else knows of it.
#![allow(unsafe_code)]

use crate::message::Text;
use crate::{host, shared, sys};
use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use holdfast_abi::SharedPage;
use holdfast_abi::environment::{ENV_BIN, ENV_DEBUG, ENV_NO_AGENT, ENV_SOCKET};

/// How long the agent may take to come up, milliseconds.
const PATIENCE_MS: i64 = 2000;
/// Longest path of a program that is looked for, bytes.
const PATH_ROOM: usize = 4096;

/// Length of `HOLDFAST_SOCKET=`.
const NAME_LEN: usize = ENV_SOCKET.len() + 1;
/// Room for that and a path that fits the page of shared variables.
const VARIABLE_ROOM: usize = NAME_LEN + SharedPage::SOCKET_PATH_LEN;

/// Whether the user preloaded this library by hand and does not forbid an agent.
pub fn wanted() -> bool {
    let preloaded = host::variable("LD_PRELOAD")
        .is_some_and(|list| list.to_bytes().windows(11).any(|part| part == b"libholdfast"));
    preloaded && host::variable(ENV_NO_AGENT).is_none()
}

/// Starts the agent, puts `HOLDFAST_SOCKET` into the environment and returns its value.
pub fn start() -> Option<&'static CStr> {
    let ours = environment_with_room()?;
    let [from_agent, to_us] = sys::pipe().ok()?;
    let started = spawn(to_us, ours.for_agent);
    sys::close(to_us);
    let line = if started { read_line(from_agent, ours.variable) } else { None };
    sys::close(from_agent);
    let value = line?;
    // SAFETY: one thread (constructor); the array was built null-terminated in memory that is never freed.
    unsafe { host::set_environment(ours.for_program) };
    Some(value)
}

/// Arrays for the agent and, later, for the program, and the variable that the latter has more.
struct Environments {
    /// Without LD_PRELOAD.
    for_agent: *const *const c_char,
    /// `HOLDFAST_SOCKET=…` first, then all that was there.
    for_program: *const *const c_char,
    /// Room for that variable, zeroed: [`VARIABLE_ROOM`] bytes.
    variable: *mut u8,
}

/// Builds both arrays in fresh memory.
fn environment_with_room() -> Option<Environments> {
    let mut count = 0;
    host::each_variable(|_| {
        count += 1;
        true
    });
    let array_len = (count + 2) * size_of::<*const c_char>();
    let block = sys::map(array_len * 2 + VARIABLE_ROOM, libc::PROT_READ | libc::PROT_WRITE, 0).ok()?;
    // SAFETY: the block has room for two arrays of count + 2 pointers, and then the variable.
    let (agent_array, variable) = unsafe { (block.add(array_len), block.add(array_len * 2)) };
    let for_program: *mut *const c_char = block.cast();
    let for_agent: *mut *const c_char = agent_array.cast();
    // SAFETY: first element of an array in fresh, zeroed, page-aligned memory.
    unsafe { for_program.write(variable.cast()) };
    let (mut program_at, mut agent_at) = (1, 0);
    host::each_variable(|entry| {
        // SAFETY: at most `count` elements behind the first; memory behind the last stays zero, the terminator.
        unsafe { for_program.add(program_at).write(entry.as_ptr()) };
        program_at += 1;
        if host::value_of(entry, "LD_PRELOAD").is_none() {
            // SAFETY: at most `count` elements.
            unsafe { for_agent.add(agent_at).write(entry.as_ptr()) };
            agent_at += 1;
        }
        program_at <= count
    });
    Some(Environments { for_agent, for_program, variable })
}

/// Forks twice and executes the agent in the grandchild. True if that was tried (a failure shows as an empty pipe).
fn spawn(output: c_int, environment: *const *const c_char) -> bool {
    let (mut beside, mut above, mut far) = (Text::new(), Text::new(), Text::new());
    let own_path =
        host::object_of(ptr::from_ref(&shared::SHARED).cast()).map_or(&b""[..], |(_, path)| path.to_bytes());
    let folder =
        own_path.iter().rposition(|byte| *byte == b'/').and_then(|cut| own_path.get(..cut)).unwrap_or(b".");
    let candidates = [
        host::variable(ENV_BIN),
        neighbour(&mut beside, folder, b"/holdfast\0"),
        neighbour(&mut above, folder, b"/../bin/holdfast\0"),
        neighbour(&mut far, folder, b"/../../bin/holdfast\0"),
    ];
    // SAFETY: the child goes on in `child`, which makes raw system calls only and does not return.
    match unsafe { sys::fork_quietly() } {
        Ok(0) => child(output, &candidates, environment),
        Ok(pid) => {
            sys::reap(pid);
            true
        }
        Err(_) => false,
    }
}

/// `folder` and `name` as one path, if that fits.
fn neighbour<'a>(text: &'a mut Text<PATH_ROOM>, folder: &[u8], name: &[u8]) -> Option<&'a CStr> {
    text.push(folder).push(name);
    CStr::from_bytes_with_nul(text.as_bytes()).ok()
}

/// The first child: forks again, so that the agent is no child of the program, and ends.
fn child(output: c_int, candidates: &[Option<&CStr>], environment: *const *const c_char) -> ! {
    // SAFETY: the grandchild goes on in `grandchild`, which makes raw system calls only and does not return.
    if unsafe { sys::fork_quietly() } == Ok(0) {
        grandchild(output, candidates, environment);
    }
    sys::exit(0)
}

/// Becomes the agent.
fn grandchild(output: c_int, candidates: &[Option<&CStr>], environment: *const *const c_char) -> ! {
    let _ = sys::setsid();
    sys::set_signal_mask(0);
    // The pipe first, to a number of its own: with standard descriptors closed it may be one of 0 to 2.
    let output = sys::move_up(output, 10);
    if let Ok(null) = sys::open(c"/dev/null", libc::O_RDWR) {
        let null = sys::move_up(null, 10);
        let _ = sys::dup2(null, libc::STDIN_FILENO);
        if host::variable(ENV_DEBUG).is_none() {
            let _ = sys::dup2(null, libc::STDERR_FILENO);
        }
    }
    let _ = sys::dup2(output, libc::STDOUT_FILENO);
    sys::close_from(3);
    for path in candidates.iter().flatten() {
        let arguments = [path.as_ptr(), c"__agent".as_ptr(), c"--attach-env".as_ptr(), ptr::null()];
        // SAFETY: both arrays are null-terminated arrays of C strings. Returns only on failure: the next one is tried.
        unsafe { sys::execute(path.as_ptr(), arguments.as_ptr(), environment) };
    }
    sys::exit(127)
}

/// Reads the agent's line into `variable`, behind the variable's name, and returns the path.
fn read_line(from_agent: c_int, variable: *mut u8) -> Option<&'static CStr> {
    // SAFETY: VARIABLE_ROOM bytes of fresh memory that only this function uses from here on, and that is never freed.
    let room: &'static mut [u8] = unsafe { core::slice::from_raw_parts_mut(variable, VARIABLE_ROOM) };
    let (name, path) = room.split_at_mut_checked(NAME_LEN)?;
    let text = ENV_SOCKET.bytes().chain([b'=']);
    name.iter_mut().zip(text).for_each(|(place, byte)| *place = byte);
    let deadline = sys::monotonic_ms() + PATIENCE_MS;
    let mut len = 0;
    loop {
        let left = deadline - sys::monotonic_ms();
        if left <= 0 {
            return None;
        }
        if !sys::readable(from_agent, left as c_int) {
            continue;
        }
        let space = path.get_mut(len..)?;
        match sys::read(from_agent, space) {
            Err(libc::EINTR) => {}
            Err(_) | Ok(0) => return None,
            Ok(count) => len += count,
        }
        if let Some(end) = path.iter().position(|byte| *byte == b'\n') {
            *path.get_mut(end)? = 0;
            return CStr::from_bytes_until_nul(path).ok().filter(|path| path.to_bytes().starts_with(b"/"));
        }
    }
}
