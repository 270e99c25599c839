//! Capture of streams into graphs. Used by `submit`, `api::stream`, `api::event`, `api::graph`.
//!
//! Invariants ("Stream capture" in the CUDA C++ Programming Guide, and the documentation of cuStreamBeginCapture): work
//! on a captured stream is not run; a stream joins by waiting for an event that was recorded in the capture; what would
//! make the host wait invalidates the capture.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::code::{Answer, Code};
use crate::command::Command;
use crate::context::Context;
use crate::event::Event;
use crate::graph::{Graph, Node};
use crate::handles::Handles;
use crate::stream::{Kind, Stream};

/// `CUstreamCaptureMode`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// No thread may make unsafe calls.
    Global = 0,
    /// This one may not.
    ThreadLocal = 1,
    /// All may.
    Relaxed = 2,
}

impl Mode {
    /// Of an argument.
    pub fn of(number: u32) -> Answer<Mode> {
        [Mode::Global, Mode::ThreadLocal, Mode::Relaxed]
            .get(number as usize)
            .copied()
            .ok_or(Code::INVALID_VALUE)
    }
}

struct Capture {
    id: u64,
    origin: u64,
    mode: Mode,
    thread: ThreadId,
    context: usize,
    graph: Arc<Graph>,
    invalid: AtomicBool,
}

#[derive(Clone)]
struct Joined {
    capture: Arc<Capture>,
    last: Vec<Arc<Node>>,
}

#[derive(Default)]
struct All {
    streams: HashMap<u64, Joined>,
    events: HashMap<usize, Joined>,
}

static ALL: Mutex<Option<All>> = Mutex::new(None);
static ACTIVE: AtomicBool = AtomicBool::new(false);
static IDS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Looks at the captures; most programs never have one, and pay for one look at a flag.
fn with<R>(default: R, act: impl FnOnce(&mut All) -> R) -> R {
    if !ACTIVE.load(Ordering::Acquire) {
        return default;
    }
    act(ALL.lock().get_or_insert_default())
}

impl Capture {
    fn fail(&self, code: Code) -> Code {
        self.invalid.store(true, Ordering::Release);
        code
    }

    fn check(&self) -> Answer {
        if self.invalid.load(Ordering::Acquire) { Err(Code::STREAM_CAPTURE_INVALIDATED) } else { Ok(()) }
    }
}

/// A stream is captured.
pub fn is_active(stream: &Stream) -> bool {
    with(false, |all| all.streams.contains_key(&stream.id))
}

/// Adds work to the graph of a captured stream; says whether it is one.
pub fn add(stream: &Stream, command: &Command) -> Answer<bool> {
    with(Ok(false), |all| {
        let Some(joined) = all.streams.get_mut(&stream.id) else { return Ok(false) };
        joined.capture.check()?;
        let node = joined.capture.graph.add(command.clone(), std::mem::take(&mut joined.last));
        joined.last.push(node);
        Ok(true)
    })
}

/// What cannot be captured: fails, and invalidates the capture.
pub fn forbid(stream: &Stream) -> Answer {
    with(Ok(()), |all| match all.streams.get(&stream.id) {
        Some(joined) => Err(joined.capture.fail(Code::STREAM_CAPTURE_UNSUPPORTED)),
        None => Ok(()),
    })
}

/// The same for what concerns all streams of a context.
pub fn forbid_all(context: &Context) -> Answer {
    let handle = context.handle();
    with(Ok(()), |all| {
        let mut result = Ok(());
        for joined in all.streams.values().filter(|joined| joined.capture.context == handle) {
            result = Err(joined.capture.fail(Code::STREAM_CAPTURE_UNSUPPORTED));
        }
        result
    })
}

/// "Potentially unsafe API calls", as cuMemAlloc is (cuThreadExchangeStreamCaptureMode): forbidden in a thread that
/// captures, or while any thread captures in mode GLOBAL, unless the thread or the capture is RELAXED.
pub fn forbid_unsafe() -> Answer {
    if MODE.get() == Mode::Relaxed {
        return Ok(());
    }
    let here = std::thread::current().id();
    with(Ok(()), |all| {
        let mine = |capture: &Capture| capture.thread == here && capture.mode != Mode::Relaxed;
        let others = |capture: &Capture| capture.mode == Mode::Global && MODE.get() == Mode::Global;
        match all.streams.values().find(|joined| mine(&joined.capture) || others(&joined.capture)) {
            Some(joined) => Err(joined.capture.fail(Code::STREAM_CAPTURE_UNSUPPORTED)),
            None => Ok(()),
        }
    })
}

/// The legacy stream would wait for blocking streams that are captured: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "an
/// operation would have caused an implicit dependency on the legacy stream".
pub fn check_implicit(context: &Context, stream: &Stream) -> Answer {
    if stream.kind != Kind::Legacy {
        return Ok(());
    }
    let handle = context.handle();
    with(Ok(()), |all| {
        let blocking =
            |joined: &&Joined| joined.capture.context == handle && joined.capture.mode != Mode::Relaxed;
        match all.streams.values().find(blocking) {
            Some(joined) => Err(joined.capture.fail(Code::STREAM_CAPTURE_IMPLICIT)),
            None => Ok(()),
        }
    })
}

/// A wait for an event; says whether that was captured.
pub fn wait_event(stream: &Stream, event: &Arc<Event>) -> Answer<bool> {
    with(Ok(false), |all| {
        let recorded = all.events.get(&Handles::of(event)).cloned();
        match (all.streams.get_mut(&stream.id), recorded) {
            (None, None) => Ok(false),
            (Some(joined), None) => {
                if event.point().is_none() {
                    return Ok(true);
                }
                Err(joined.capture.fail(Code::STREAM_CAPTURE_ISOLATION))
            }
            (None, Some(recorded)) => {
                recorded.capture.check()?;
                all.streams.insert(stream.id, recorded);
                Ok(true)
            }
            (Some(joined), Some(recorded)) => {
                if !Arc::ptr_eq(&joined.capture, &recorded.capture) {
                    return Err(joined.capture.fail(Code::STREAM_CAPTURE_MERGE));
                }
                joined.capture.check()?;
                let new = |node: &&Arc<Node>| !joined.last.iter().any(|it| Arc::ptr_eq(it, node));
                let new: Vec<Arc<Node>> = recorded.last.iter().filter(new).cloned().collect();
                joined.last.extend(new);
                Ok(true)
            }
        }
    })
}

/// A record of an event; says whether that was captured. CU_EVENT_RECORD_EXTERNAL makes a node of it.
pub fn record_event(stream: &Stream, event: &Arc<Event>, flags: u32) -> Answer<bool> {
    if flags == 1 {
        return add(stream, &Command::Record(Arc::clone(event), 0));
    }
    with(Ok(false), |all| {
        let Some(joined) = all.streams.get(&stream.id).cloned() else { return Ok(false) };
        joined.capture.check()?;
        all.events.insert(Handles::of(event), joined);
        Ok(true)
    })
}

/// It is recorded on a stream that is not captured.
pub fn forget_event(event: &Arc<Event>) {
    with((), |all| drop(all.events.remove(&Handles::of(event))));
}

/// The host cannot ask for an event that was captured.
pub fn forbid_event(event: &Arc<Event>) -> Answer {
    with(Ok(()), |all| match all.events.get(&Handles::of(event)) {
        Some(joined) if all.streams.values().any(|it| Arc::ptr_eq(&it.capture, &joined.capture)) => {
            Err(joined.capture.fail(Code::CAPTURED_EVENT))
        }
        _ => Ok(()),
    })
}

/// A stream is destroyed, or a launch was refused.
pub fn invalidate(stream: &Stream) {
    with((), |all| {
        if let Some(joined) = all.streams.get(&stream.id) {
            joined.capture.fail(Code::STREAM_CAPTURE_INVALIDATED);
        }
    });
}

/// Begins; "capture ... is not allowed on the legacy default stream".
pub fn begin(
    context: &Context,
    stream: &Stream,
    mode: Mode,
    into: Option<(Arc<Graph>, Vec<Arc<Node>>)>,
) -> Answer {
    if stream.kind == Kind::Legacy {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut guard = ALL.lock();
    let all = guard.get_or_insert_default();
    if all.streams.contains_key(&stream.id) {
        return Err(Code::ILLEGAL_STATE);
    }
    let (graph, last) = into.unwrap_or_default();
    let capture = Arc::new(Capture {
        id: IDS.fetch_add(1, Ordering::Relaxed),
        origin: stream.id,
        mode,
        thread: std::thread::current().id(),
        context: context.handle(),
        graph,
        invalid: AtomicBool::new(false),
    });
    all.streams.insert(stream.id, Joined { capture, last });
    ACTIVE.store(true, Ordering::Release);
    Ok(())
}

/// Ends, and gives the graph; where it fails the capture has ended as well.
pub fn end(stream: &Stream) -> Answer<Arc<Graph>> {
    with(Err(Code::ILLEGAL_STATE), |all| {
        let joined = all.streams.get(&stream.id).cloned().ok_or(Code::ILLEGAL_STATE)?;
        let capture = &joined.capture;
        if capture.origin != stream.id {
            return Err(capture.fail(Code::STREAM_CAPTURE_UNMATCHED));
        }
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let of_it = |it: &Joined| Arc::ptr_eq(&it.capture, capture);
        let reached = ancestors(&joined.last);
        let others = all.streams.iter().filter(|(id, it)| **id != stream.id && of_it(it));
        let unjoined = others.flat_map(|(_, it)| &it.last).any(|node| !reached.contains(&Handles::of(node)));
        all.streams.retain(|_, it| !of_it(it));
        all.events.retain(|_, it| !of_it(it));
        capture.check()?;
        if unjoined { Err(Code::STREAM_CAPTURE_UNJOINED) } else { Ok(Arc::clone(&capture.graph)) }
    })
}

fn ancestors(of: &[Arc<Node>]) -> Vec<usize> {
    let (mut found, mut next) = (Vec::new(), of.to_vec());
    while let Some(node) = next.pop() {
        let handle = Handles::of(&node);
        if !found.contains(&handle) {
            found.push(handle);
            next.extend(node.before());
        }
    }
    found
}

/// What is known of a stream's capture.
#[derive(Default)]
pub struct Status {
    /// None, active, invalidated: `CUstreamCaptureStatus`.
    pub status: u32,
    /// Of the capture.
    pub id: u64,
    /// Where it goes.
    pub graph: Option<Arc<Graph>>,
    /// What the next node comes behind.
    pub last: Vec<Arc<Node>>,
}

/// Of a stream.
pub fn status(stream: &Stream) -> Status {
    with(Status::default(), |all| match all.streams.get(&stream.id) {
        None => Status::default(),
        Some(joined) => Status {
            status: if joined.capture.check().is_ok() { 1 } else { 2 },
            id: joined.capture.id,
            graph: Some(Arc::clone(&joined.capture.graph)),
            last: joined.last.clone(),
        },
    })
}

/// What the next node comes behind: adds (false) or sets (true).
pub fn set_last(stream: &Stream, nodes: Vec<Arc<Node>>, instead: bool) -> Answer {
    with(Err(Code::ILLEGAL_STATE), |all| {
        let joined = all.streams.get_mut(&stream.id).ok_or(Code::ILLEGAL_STATE)?;
        joined.capture.check()?;
        if instead {
            joined.last.clear();
        }
        joined.last.extend(nodes);
        Ok(())
    })
}

/// Changes the calling thread's mode, and gives the old one.
pub fn exchange_mode(mode: Mode) -> Mode {
    MODE.replace(mode)
}
