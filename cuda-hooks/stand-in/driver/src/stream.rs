//! Streams: each has a queue and a worker, a thread that runs what is queued, one after the other, after a random
//! delay. Used by `context`, which orders streams among each other, and by `api`.
//!
//! It knows neither what is run nor whose context it is: a piece of work comes as a function, a context as its handle.
//! Invariants: what a piece of work waits for was submitted before it, so that workers cannot wait for each other in a
//! circle. A number of a stream is done when all lower ones are. After a fault of the context work is not run any more,
//! but counts as done: a thread that waits learns of the fault from the context.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::code::{Answer, Code};
use crate::random::Random;
use crate::settings::settings;
use crate::system;

/// How a stream relates to the legacy default stream of its context (driver API, "Stream synchronization behavior").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It is that stream: waits for all blocking ones, and they for it.
    Legacy,
    /// One for a thread; "is not a non-blocking stream".
    PerThread,
    /// Made by the program.
    Blocking,
    /// Made with CU_STREAM_NON_BLOCKING.
    NonBlocking,
}

/// A stream.
pub struct Stream {
    /// See there.
    pub kind: Kind,
    /// As it was asked for, within the device's range.
    pub priority: i32,
    /// `cuStreamGetId`
    pub id: u64,
    /// Handle of its context.
    pub context: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    submitted: u64,
    done: u64,
    closing: bool,
}

/// What runs a piece of work; it is given a random number.
pub type Task = Box<dyn FnOnce(u64) + Send>;

struct Work {
    number: u64,
    after: Vec<Point>,
    task: Task,
}

/// A piece of work, as something to wait for.
#[derive(Clone)]
pub struct Point {
    /// Of which stream.
    pub stream: Arc<Stream>,
    /// Its number there.
    pub number: u64,
}

impl Point {
    /// It has been run.
    pub fn is_done(&self) -> bool {
        self.stream.queue.lock().done >= self.number
    }

    /// Returns when it has.
    pub fn wait(&self) {
        let mut queue = self.stream.queue.lock();
        while queue.done < self.number {
            self.stream.changed.wait(&mut queue);
        }
    }
}

static IDS: AtomicU64 = AtomicU64::new(1);

impl Stream {
    /// A stream with its worker.
    pub fn new(kind: Kind, priority: i32, context: usize) -> Answer<Arc<Stream>> {
        let stream = Arc::new(Stream {
            kind,
            priority,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            context,
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let its = Arc::clone(&stream);
        system::spawn("cuda-stream", move || its.work()).map_err(|_| Code::OPERATING_SYSTEM)?;
        Ok(stream)
    }

    /// `CU_STREAM_NON_BLOCKING` or nothing.
    pub fn flags(&self) -> u32 {
        u32::from(self.kind == Kind::NonBlocking)
    }

    /// The last piece of work that was submitted.
    pub fn last(self: &Arc<Stream>) -> Point {
        Point { stream: Arc::clone(self), number: self.queue.lock().submitted }
    }

    /// Whether anything is still to be run.
    pub fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.done == queue.submitted
    }

    /// Queues a piece of work. The caller has the context's order locked.
    pub fn push(self: &Arc<Stream>, after: Vec<Point>, task: Task) -> Point {
        let mut queue = self.queue.lock();
        queue.submitted += 1;
        let number = queue.submitted;
        queue.waiting.push_back(Work { number, after, task });
        self.changed.notify_all();
        Point { stream: Arc::clone(self), number }
    }

    /// The worker ends when it has run what is queued.
    pub fn close(&self) {
        self.queue.lock().closing = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Work> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(work) = queue.waiting.pop_front() {
                return Some(work);
            }
            if queue.closing {
                return None;
            }
            self.changed.wait(&mut queue);
        }
    }

    fn work(self: Arc<Stream>) {
        let settings = settings();
        let mut random = Random(settings.seed ^ self.id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        while let Some(Work { number, after, task }) = self.next() {
            after.iter().for_each(Point::wait);
            drop(after);
            if !settings.delay.is_zero() {
                let most = settings.delay.as_micros() as u64;
                std::thread::sleep(Duration::from_micros(random.next() % (most + 1)));
            }
            task(random.next());
            self.queue.lock().done = number;
            self.changed.notify_all();
        }
    }
}
