//! The table of objects: what the program has made at the driver and not ended yet.
//!
//! Runs in: wrappers, while they are inside the gate: when it is closed and drained, nothing changes here. Open
//! addressing with a bounded number of entries; an entry that is taken out leaves no gap (those behind it move up). One
//! object may be there several times: a handle that was retained, two captures on streams of the same number.
//! Invariants: the lock is held over a search in the table, never over a call; a thread that cannot have it gives the
//! change up and says so ([`CudaArea::lost`]). The counts by kind are those of the entries.
//! Fails by: [`CudaArea::lost`].

use crate::area;
use core::hint::spin_loop;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use holdfast_abi::{CudaArea, CudaKind, CudaObject};

/// Looks at the lock before it is given up: far longer than any search.
const PATIENCE: u32 = 10_000_000;
/// At most so many entries are used: searches stay short.
const FULL: u64 = (CudaArea::MAX_OBJECTS / 4 * 3) as u64;

/// An object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Object {
    /// One of [`CudaKind`]'s.
    pub kind: u8,
    /// Its address or handle.
    pub handle: u64,
    /// See [`CudaObject::value`].
    pub value: u64,
    /// The context that was current, or 0.
    pub context: u64,
}

/// The table, while it is locked.
struct Locked(&'static [CudaObject; CudaArea::MAX_OBJECTS]);

/// Runs `work` on the table; `None`: there is none, or it is in use for too long, which is counted. Without a guard
/// that unlocks when it is dropped: that would be a landing pad (`wrappers.rs`), and nothing here unwinds.
fn locked<T>(work: impl FnOnce(&Locked) -> T) -> Option<T> {
    if let Some((table, lock)) = area::objects() {
        for _ in 0..PATIENCE {
            if lock.compare_exchange_weak(0, 1, Acquire, Relaxed).is_ok() {
                let result = work(&Locked(table));
                lock.store(0, Release);
                return Some(result);
            }
            spin_loop();
        }
    }
    lose();
    None
}

fn key(kind: u8, handle: u64) -> u64 {
    u64::from(kind) << CudaKind::SHIFT | handle & ((1 << CudaKind::SHIFT) - 1)
}

/// Where a key is looked for first.
fn home(key: u64) -> usize {
    let bits = CudaArea::MAX_OBJECTS.trailing_zeros();
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
}

fn next(place: usize) -> usize {
    (place + 1) % CudaArea::MAX_OBJECTS
}

impl Locked {
    fn at(&self, place: usize) -> (&AtomicU64, &AtomicU64, &AtomicU64) {
        let entry = &self.0[place % CudaArea::MAX_OBJECTS];
        (&entry.key, &entry.value, &entry.context)
    }

    /// What is at a place.
    fn object(&self, place: usize) -> Option<Object> {
        let (key, value, context) = self.at(place);
        let found = key.load(Relaxed);
        (found != 0).then(|| Object {
            kind: (found >> CudaKind::SHIFT) as u8,
            handle: found & ((1 << CudaKind::SHIFT) - 1),
            value: value.load(Relaxed),
            context: context.load(Relaxed),
        })
    }

    /// The place of an entry with that key.
    fn find(&self, key: u64) -> Option<usize> {
        let mut place = home(key);
        for _ in 0..CudaArea::MAX_OBJECTS {
            match self.at(place).0.load(Relaxed) {
                0 => return None,
                found if found == key => return Some(place),
                _ => place = next(place),
            }
        }
        None
    }

    fn put(&self, object: Object) -> bool {
        let used: u64 = CudaKind::ALL.iter().map(|(kind, _, _)| area::count(*kind).0.load(Relaxed)).sum();
        if used >= FULL {
            return false;
        }
        let mut place = home(key(object.kind, object.handle));
        for _ in 0..CudaArea::MAX_OBJECTS {
            let (found, value, context) = self.at(place);
            if found.load(Relaxed) == 0 {
                value.store(object.value, Relaxed);
                context.store(object.context, Relaxed);
                found.store(key(object.kind, object.handle), Release);
                let (count, bytes) = area::count(object.kind);
                count.fetch_add(1, Relaxed);
                if has_bytes(object.kind) {
                    bytes.fetch_add(object.value, Relaxed);
                }
                return true;
            }
            place = next(place);
        }
        false
    }

    /// Takes the entry at `place` out, and moves up what would not be found any more.
    fn take_out(&self, place: usize) -> Object {
        let object = self.object(place).unwrap_or_default();
        let (count, bytes) = area::count(object.kind);
        count.fetch_sub(1, Relaxed);
        if has_bytes(object.kind) {
            bytes.fetch_sub(object.value, Relaxed);
        }
        let (mut gap, mut other) = (place, next(place));
        for _ in 0..CudaArea::MAX_OBJECTS {
            let (key, value, context) = self.at(other);
            let found = key.load(Relaxed);
            if found == 0 {
                break;
            }
            // Whether its home is not between the gap and itself, cyclically.
            let distance = |from: usize, to: usize| to.wrapping_sub(from) % CudaArea::MAX_OBJECTS;
            if distance(home(found), other) >= distance(gap, other) {
                let (to, to_value, to_context) = self.at(gap);
                to_value.store(value.load(Relaxed), Relaxed);
                to_context.store(context.load(Relaxed), Relaxed);
                to.store(found, Release);
                gap = other;
            }
            other = next(other);
        }
        self.at(gap).0.store(0, Release);
        object
    }
}

/// Whether the value of a kind is a number of bytes.
fn has_bytes(kind: u8) -> bool {
    !matches!(kind, CudaKind::PRIMARY | CudaKind::MAPPED)
}

fn lose() {
    area::area().lost.fetch_add(1, Relaxed);
}

/// Enters the context that a device keeps (its primary context): one entry for each device, for the driver gives the
/// same context each time.
pub fn enter_primary(device: u32, context: u64) {
    let handle = u64::from(device);
    end(CudaKind::PRIMARY, handle);
    add(Object { kind: CudaKind::PRIMARY, handle, value: context, context });
}

/// Puts an object in.
pub fn add(object: Object) {
    if locked(|table| table.put(object)) == Some(false) {
        lose();
    }
}

/// Takes one object out.
pub fn end(kind: u8, handle: u64) -> Option<Object> {
    let found = |table: &Locked| table.find(key(kind, handle)).map(|place| table.take_out(place));
    locked(found).flatten()
}

/// Whether there is one.
pub fn has(kind: u8, handle: u64) -> bool {
    locked(|table| table.find(key(kind, handle)).is_some()).unwrap_or(true)
}

/// Takes out all objects that are `fit`. Looks at the whole table.
pub fn end_all(fit: impl Fn(&Object) -> bool) {
    locked(|table| {
        let mut place = 0;
        while place < CudaArea::MAX_OBJECTS {
            if table.object(place).is_some_and(|object| fit(&object)) {
                // What moves up into this place is looked at next.
                table.take_out(place);
            } else {
                place += 1;
            }
        }
    });
}

/// Whether any object is `fit`.
pub fn any(fit: impl Fn(&Object) -> bool) -> bool {
    let look = |table: &Locked| {
        (0..CudaArea::MAX_OBJECTS).any(|place| table.object(place).is_some_and(|object| fit(&object)))
    };
    locked(look).unwrap_or(true)
}
