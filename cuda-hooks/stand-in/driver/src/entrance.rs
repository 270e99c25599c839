//! Which calls are inside the driver, and the lock of the checkpoint API over them. `call` is the one way in: every
//! exported function comes through it (`table.rs`). Used by `table`; closed and opened by `checkpoint`.
//!
//! Invariants: while the gate is closed nothing enters but the checkpoint API and what asks no device; who is inside
//! when it closes goes on, and leaves. ("Lock: CUDA driver APIs which launch work, manage resources, or otherwise
//! impact GPU state are locked", NVIDIA/cuda-checkpoint, README.)

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::code::{Answer, Code};
use crate::settings::settings;

/// The version that brought the checkpoint API, the only functions that go beside the gate.
const CHECKPOINT_API: i32 = 12080;

/// What a function needs before it may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Nothing: it asks no device.
    Free,
    /// `cuInit` must have been called; it does not wait for the gate.
    Beside,
    /// `cuInit` must have been called, and the gate must be open.
    Gated,
}

/// What the stream handle zero means in a call (driver API, "Stream synchronization behavior").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefaultStream {
    /// One for all threads of the context.
    Legacy,
    /// One for each thread: functions whose names end with `_ptsz` or `_ptds`.
    PerThread,
}

#[derive(Default)]
struct State {
    closed: bool,
    inside: usize,
}

static STATE: Mutex<State> = Mutex::new(State { closed: false, inside: 0 });
static CHANGED: Condvar = Condvar::new();
static INITIALISED: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static DEFAULT: Cell<DefaultStream> = const { Cell::new(DefaultStream::Legacy) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs an exported function's body by its rule, unless a test wants the function to fail.
pub fn call(name: &str, rule: Rule, default: DefaultStream, body: impl FnOnce() -> Answer) -> u32 {
    match guarded(rule, default, || settings().fails(name).map_or_else(body, |code| Err(Code(code)))) {
        Ok(()) => 0,
        Err(code) => code.0,
    }
}

fn guarded(rule: Rule, default: DefaultStream, body: impl FnOnce() -> Answer) -> Answer {
    if rule == Rule::Free {
        return body();
    }
    // The child of a fork has no driver threads; a real driver returns this for every call (seen as "Cannot
    // re-initialize CUDA in forked subprocess" of PyTorch).
    if FORKED.load(Ordering::Relaxed) || !INITIALISED.load(Ordering::Acquire) {
        return Err(Code::NOT_INITIALIZED);
    }
    // "Callbacks must not make any CUDA API calls. Attempting to use CUDA APIs may result in
    // CUDA_ERROR_NOT_PERMITTED" (cuLaunchHostFunc).
    if IN_CALLBACK.get() {
        return Err(Code::NOT_PERMITTED);
    }
    // an older driver has no such functions; their symbols are here all the same
    if rule == Rule::Beside && settings().version < CHECKPOINT_API {
        return Err(Code::NOT_SUPPORTED);
    }
    let _inside = (rule == Rule::Gated).then(enter);
    let before = DEFAULT.replace(default);
    let answer = body();
    DEFAULT.set(before);
    answer
}

struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        STATE.lock().inside -= 1;
    }
}

fn enter() -> Inside {
    let mut state = STATE.lock();
    while state.closed {
        CHANGED.wait(&mut state);
    }
    state.inside += 1;
    Inside
}

/// What the stream handle zero means in the call that runs.
pub fn default_stream() -> DefaultStream {
    DEFAULT.get()
}

/// Runs a function of the program on a thread of the driver.
pub fn as_callback(body: impl FnOnce()) {
    IN_CALLBACK.set(true);
    body();
    IN_CALLBACK.set(false);
}

/// No call enters any more.
pub fn close() {
    STATE.lock().closed = true;
}

/// Those that wait go on.
pub fn open() {
    STATE.lock().closed = false;
    CHANGED.notify_all();
}

/// Calls that have entered and not left.
pub fn inside() -> usize {
    STATE.lock().inside
}

/// `cuInit` has succeeded.
pub fn initialised() {
    INITIALISED.store(true, Ordering::Release);
}

/// Whether `cuInit` has succeeded in this process.
pub fn is_initialised() -> bool {
    INITIALISED.load(Ordering::Acquire) && !FORKED.load(Ordering::Relaxed)
}

/// This process is the child of one that had initialised the driver.
pub fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether it is.
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}
