//! All interleavings of [`gate`]'s protocol: threads of the program that call the driver, and one that closes the gate.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p holdfast-cuda-hooks --lib --release model`. The file `gate.rs` is compiled
//! once more here, over words that loom knows.

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::boxed::Box;
use std::cell::Cell;
use std::vec::Vec;

#[path = "gate.rs"]
#[allow(dead_code)]
mod gate;

/// As the real one, without what the gate does not use.
mod layout {
    use loom::sync::atomic::{AtomicU32, AtomicU64};

    pub struct CudaArea {
        pub closed: AtomicU32,
        pub thread_count: AtomicU64,
        pub uncounted_inside: AtomicU64,
        pub uncounted_work: AtomicU64,
    }

    impl CudaArea {
        pub const BY_LIBRARY: u32 = 2;
        pub fn new() -> CudaArea {
            CudaArea {
                closed: AtomicU32::new(0),
                thread_count: AtomicU64::new(0),
                uncounted_inside: AtomicU64::new(0),
                uncounted_work: AtomicU64::new(0),
            }
        }
    }

    pub struct CudaThread {
        pub inside: AtomicU64,
        pub stack: AtomicU64,
        pub work: AtomicU64,
        pub owner: AtomicU64,
        pub id: AtomicU64,
    }

    impl CudaThread {
        pub fn new() -> CudaThread {
            let zero = || AtomicU64::new(0);
            CudaThread { inside: zero(), stack: zero(), work: zero(), owner: zero(), id: zero() }
        }
    }
}

/// Time and sleep of the model.
mod platform {
    use loom::sync::atomic::{AtomicU32, Ordering, fence};

    pub fn wake(_: &AtomicU32) {
        let (lock, opened) = super::waiting();
        drop(lock.lock().unwrap());
        opened.notify_all();
    }
    pub fn nap(_: i64) {
        loom::thread::yield_now();
    }
    pub fn monotonic_ms() -> i64 {
        0
    }
    /// Loom takes SeqCst operations for AcqRel ones; its fences are right.
    pub fn order_of_seqcst() {
        fence(Ordering::SeqCst);
    }
}

/// As the real one, for an agent that lives.
mod wait {
    use loom::sync::atomic::Ordering;

    /// Blocked, for loom lets two threads that only yield take turns for ever.
    pub fn until_open(area: &super::layout::CudaArea) {
        let (lock, opened) = super::waiting();
        let mut held = lock.lock().unwrap();
        while area.closed.load(Ordering::Acquire) != 0 {
            held = opened.wait(held).unwrap();
        }
    }
}

type Waiting = (Mutex<()>, Condvar);

std::thread_local! {
    static WAITING: Cell<Option<&'static Waiting>> = const { Cell::new(None) };
}

/// Where threads of the iteration wait: loom runs all of them on one.
fn waiting() -> &'static Waiting {
    WAITING.get().expect("a machine")
}

/// The program, and what must hold of its driver.
struct Machine {
    area: layout::CudaArea,
    table: Vec<layout::CudaThread>,
    /// The gate is closed and drained.
    still: AtomicBool,
    /// What the calls have changed.
    device: AtomicU64,
}

impl Machine {
    fn new(entries: usize) -> Arc<Machine> {
        WAITING.set(Some(Box::leak(Box::new((Mutex::new(()), Condvar::new())))));
        Arc::new(Machine {
            area: layout::CudaArea::new(),
            table: (0..entries).map(|_| layout::CudaThread::new()).collect(),
            still: AtomicBool::new(false),
            device: AtomicU64::new(0),
        })
    }

    /// The driver's function.
    fn work(&self) {
        assert!(!self.still.load(Ordering::Relaxed), "a call came in after the gate was drained");
        self.device.fetch_add(1, Ordering::Relaxed);
    }

    /// A wrapper, called by the thread at `owner`.
    fn call(&self, owner: u64) {
        match gate::claim(&self.area, &self.table, owner, owner) {
            Some(entry) => {
                assert!(!gate::is_within(entry, 100));
                gate::arrive(&self.area, entry, owner, 1, 100);
                // A call within the call.
                assert!(gate::is_within(entry, 90));
                self.work();
                gate::leave(entry);
            }
            None => {
                gate::arrive_uncounted(&self.area, 1);
                self.work();
                gate::leave_uncounted(&self.area);
            }
        }
    }

    /// Closes, drains, looks twice, opens.
    fn checkpoint(&self) {
        assert!(gate::close(&self.area));
        gate::drain(&self.area, &self.table, 1).unwrap();
        self.still.store(true, Ordering::Relaxed);
        let seen = self.device.load(Ordering::Relaxed);
        thread::yield_now();
        assert_eq!(self.device.load(Ordering::Relaxed), seen, "the device has changed");
        self.still.store(false, Ordering::Relaxed);
        gate::open(&self.area);
    }
}

/// `threads` threads that call once each, over a table of `entries`; the gate is closed meanwhile.
fn check(threads: u64, entries: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let machine = Machine::new(entries);
        let callers: Vec<_> = (0..threads)
            .map(|number| {
                let machine = Arc::clone(&machine);
                thread::spawn(move || machine.call(number + 1))
            })
            .collect();
        machine.checkpoint();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(machine.device.load(Ordering::Relaxed), threads, "every call was made");
        assert_eq!(gate::inside(&machine.area, &machine.table), None);
    });
}

#[test]
fn one_caller() {
    check(1, 1);
}

#[test]
fn two_callers() {
    check(2, 2);
}

/// One of them has no entry.
#[test]
fn two_callers_and_one_entry() {
    check(2, 1);
}

#[test]
fn one_caller_without_entries() {
    check(1, 0);
}
