//! Contexts: what belongs to one, which is current in a thread, and in which order its streams run. Used by `api`,
//! `stream`, `checkpoint`.
//!
//! Invariants: a fault of a kernel is the context's for good ("any further CUDA work will return the same error",
//! CUDA_ERROR_ILLEGAL_ADDRESS in cuda.h). While `order` is locked work is submitted: what waits for what is decided by
//! the order of the calls alone.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::array::ARRAYS;
use crate::code::{Answer, Code};
use crate::command::Command;
use crate::entrance::{self, DefaultStream};
use crate::event::Event;
use crate::handles::Handles;
use crate::memory::heap;
use crate::module::{FUNCTIONS, LIBRARIES, MODULES};
use crate::stream::{Kind, Point, Stream};

/// All contexts that a program has a handle of.
pub static CONTEXTS: Handles<Context> = Handles::new();
/// All streams that it has made.
pub static STREAMS: Handles<Stream> = Handles::new();
/// All events.
pub static EVENTS: Handles<Event> = Handles::new();

/// CU_STREAM_LEGACY
const LEGACY: usize = 1;
/// CU_STREAM_PER_THREAD
const PER_THREAD: usize = 2;

/// A context.
pub struct Context {
    /// `cuCtxGetId`
    pub id: u64,
    /// CU_CTX_*
    pub flags: AtomicU32,
    me: Weak<Context>,
    fault: AtomicU32,
    ending: AtomicBool,
    order: Mutex<Order>,
}

#[derive(Default)]
struct Order {
    legacy: Option<Arc<Stream>>,
    threads: HashMap<ThreadId, Arc<Stream>>,
    made: Vec<Arc<Stream>>,
}

impl Order {
    fn all(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.legacy.iter().chain(self.threads.values()).chain(&self.made)
    }
}

thread_local! {
    static CURRENT: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

impl Context {
    /// A context without any stream yet.
    pub fn new(flags: u32) -> Arc<Context> {
        let context = Arc::new_cyclic(|me| Context {
            id: heap::next_id(),
            flags: AtomicU32::new(flags),
            me: me.clone(),
            fault: AtomicU32::new(0),
            ending: AtomicBool::new(false),
            order: Mutex::default(),
        });
        CONTEXTS.add(&context);
        context
    }

    /// Its handle.
    pub fn handle(&self) -> usize {
        self.me.as_ptr().cast::<()>() as usize
    }

    /// It is being destroyed: kernels end at once.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Fails after a fault, or when it is destroyed.
    pub fn check(&self) -> Answer {
        if self.is_ending() {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        match self.fault.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// Runs a piece of work; called by the worker of one of its streams.
    fn run(&self, command: &Command, seed: u64) {
        let result = self.check().and_then(|()| command.run(&self.ending, seed));
        if let Err(code) = result {
            let _ = self.fault.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
            command.after_fault(code);
        }
    }

    /// Makes a stream.
    pub fn make_stream(&self, kind: Kind, priority: i32) -> Answer<Arc<Stream>> {
        let stream = Stream::new(kind, priority, self.handle())?;
        self.order.lock().made.push(Arc::clone(&stream));
        STREAMS.add(&stream);
        Ok(stream)
    }

    /// "Returns immediately, and the resources will be released once the device has completed all work in the stream"
    /// (cuStreamDestroy).
    pub fn destroy_stream(&self, stream: &Arc<Stream>) {
        stream.close();
        self.order.lock().made.retain(|other| !Arc::ptr_eq(other, stream) || !other.is_idle());
    }

    /// One of its default streams.
    fn default_stream(&self, which: DefaultStream) -> Answer<Arc<Stream>> {
        let mut order = self.order.lock();
        if which == DefaultStream::Legacy {
            if order.legacy.is_none() {
                order.legacy = Some(Stream::new(Kind::Legacy, 0, self.handle())?);
            }
            return order.legacy.clone().ok_or(Code::INVALID_HANDLE);
        }
        let thread = std::thread::current().id();
        if let Some(stream) = order.threads.get(&thread) {
            return Ok(Arc::clone(stream));
        }
        let stream = Stream::new(Kind::PerThread, 0, self.handle())?;
        order.threads.insert(thread, Arc::clone(&stream));
        Ok(stream)
    }

    /// Queues a piece of work behind what has to be before it: "the legacy stream first waits on all blocking streams,
    /// the action is queued in the legacy stream, and then all blocking streams wait on the legacy stream" (driver API,
    /// "Stream synchronization behavior").
    pub fn submit(&self, stream: &Arc<Stream>, mut after: Vec<Point>, command: Command) -> Answer<Point> {
        self.check()?;
        let mut order = self.order.lock();
        order.made.retain(|other| !other.is_idle() || STREAMS.get(Handles::of(other)).is_ok());
        match stream.kind {
            Kind::NonBlocking => {}
            Kind::Legacy => {
                let blocking =
                    order.all().filter(|other| matches!(other.kind, Kind::Blocking | Kind::PerThread));
                after.extend(blocking.map(Stream::last));
            }
            Kind::PerThread | Kind::Blocking => after.extend(order.legacy.iter().map(Stream::last)),
        }
        after.retain(|point| !point.is_done());
        let me = self.me.clone();
        let task = move |seed| {
            if let Some(context) = me.upgrade() {
                context.run(&command, seed);
            }
        };
        Ok(stream.push(after, Box::new(task)))
    }

    /// Everything that was submitted, to be waited for.
    pub fn submitted(&self) -> Vec<Point> {
        self.order.lock().all().map(Stream::last).collect()
    }

    /// Returns when everything that was submitted has been run; tells of a fault.
    pub fn synchronize(&self) -> Answer {
        self.submitted().iter().for_each(Point::wait);
        self.check()
    }

    /// Nothing is still to be run.
    pub fn is_idle(&self) -> bool {
        self.order.lock().all().all(|stream| stream.is_idle())
    }

    /// Ends it, with all that it has.
    pub fn destroy(&self) {
        self.ending.store(true, Ordering::Relaxed);
        let streams: Vec<Arc<Stream>> = self.order.lock().all().cloned().collect();
        streams.iter().for_each(|stream| stream.close());
        streams.iter().for_each(|stream| stream.last().wait());
        *self.order.lock() = Order::default();
        let handle = self.handle();
        ARRAYS.retain(|array| array.context != handle);
        STREAMS.retain(|stream| stream.context != handle);
        EVENTS.retain(|event| event.context != handle);
        FUNCTIONS.retain(|function| function.context != handle);
        MODULES.retain(|module| module.context != handle);
        LIBRARIES.all().iter().for_each(|library| library.leave(handle));
        heap::free_all(handle);
        let _ = CONTEXTS.remove(handle);
    }
}

/// The current context of this thread, if it can be used.
pub fn current() -> Answer<Arc<Context>> {
    let context = top().ok_or(Code::INVALID_CONTEXT)?;
    context.check()?;
    Ok(context)
}

/// The current context of this thread, whatever its state.
pub fn top() -> Option<Arc<Context>> {
    CURRENT.with_borrow(|stack| stack.last().cloned())
}

/// Makes one current, above the others.
pub fn push(context: Arc<Context>) {
    CURRENT.with_borrow_mut(|stack| stack.push(context));
}

/// The one below is current again.
pub fn pop() -> Option<Arc<Context>> {
    CURRENT.with_borrow_mut(Vec::pop)
}

/// The context and stream of a handle; zero is a default stream, by the function that was called.
pub fn stream(handle: usize) -> Answer<(Arc<Context>, Arc<Stream>)> {
    let which = match handle {
        0 => entrance::default_stream(),
        LEGACY => DefaultStream::Legacy,
        PER_THREAD => DefaultStream::PerThread,
        _ => {
            let stream = STREAMS.get(handle)?;
            let context = CONTEXTS.get(stream.context).map_err(|_| Code::CONTEXT_IS_DESTROYED)?;
            context.check()?;
            return Ok((context, stream));
        }
    };
    let context = current()?;
    let stream = context.default_stream(which)?;
    Ok((context, stream))
}

/// The primary context of the device.
#[derive(Default)]
struct Primary {
    context: Option<Arc<Context>>,
    count: u32,
    flags: u32,
}

static PRIMARY: Mutex<Primary> = Mutex::new(Primary { context: None, count: 0, flags: 0 });

/// One more user of the primary context, which the first one makes.
pub fn retain_primary() -> Arc<Context> {
    let mut primary = PRIMARY.lock();
    primary.count += 1;
    let flags = primary.flags;
    Arc::clone(primary.context.get_or_insert_with(|| Context::new(flags)))
}

/// One less; the last one ends it.
pub fn release_primary() -> Answer {
    let ended = {
        let mut primary = PRIMARY.lock();
        if primary.count == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        primary.count -= 1;
        if primary.count > 0 {
            return Ok(());
        }
        primary.context.take()
    };
    if let Some(context) = ended {
        context.destroy();
    }
    Ok(())
}

/// Ends it although it may be in use.
pub fn reset_primary() {
    let ended = PRIMARY.lock().context.take();
    if let Some(context) = ended {
        context.destroy();
    }
}

/// Its flags, and whether it is there.
pub fn primary_state() -> (u32, bool) {
    let primary = PRIMARY.lock();
    let flags = primary.context.as_ref().map_or(primary.flags, |it| it.flags.load(Ordering::Relaxed));
    (flags, primary.context.is_some())
}

/// Sets its flags.
pub fn set_primary_flags(flags: u32) {
    let mut primary = PRIMARY.lock();
    primary.flags = flags;
    if let Some(context) = &primary.context {
        context.flags.store(flags, Ordering::Relaxed);
    }
}

/// Whether a context is the primary one.
pub fn is_primary(context: &Arc<Context>) -> bool {
    PRIMARY.lock().context.as_ref().is_some_and(|it| Arc::ptr_eq(it, context))
}
