//! Reads a blob from front to back with several pieces under way, so that a tier which answers late is not waited for
//! piece by piece.
//!
//! Called by whatever copies a segment: the cascade, a fetch, an export. Invariants: pieces are handed over in order,
//! each once and as it was read; no more than [`pieces_ahead`] and the one that is handed over are in memory; where no
//! thread can be made, the caller's reads all. Fails by: the error of the first piece that cannot be read; what comes
//! after that is not handed over.

use crate::tier::{Blob, TierError};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::thread;

/// Pieces under way from a server, and from a file of this host, which the kernel reads ahead as well.
const FAR: usize = 8;
const NEAR: usize = 2;

fn pieces_ahead(blob: &dyn Blob) -> usize {
    if blob.mapping().is_some() { NEAR } else { FAR }
}

/// What the threads share.
struct State {
    /// The next piece that no thread reads yet.
    next: u64,
    /// The piece that is handed over now, or next.
    wanted: u64,
    done: BTreeMap<u64, Result<Vec<u8>, TierError>>,
    spare: Vec<Vec<u8>>,
    is_over: bool,
}

struct Reading<'a> {
    blob: &'a dyn Blob,
    len: u64,
    piece: u64,
    ahead: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// Ends the readers however the caller is left.
struct Over<'a>(&'a Reading<'a>);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

/// Hands all bytes over, piece by piece, until `each` says that it is enough: then `false`.
pub(crate) fn read_ahead(
    blob: &dyn Blob,
    len: u64,
    piece: u64,
    mut each: impl FnMut(&[u8]) -> Result<bool, TierError>,
) -> Result<bool, TierError> {
    let piece = piece.max(1);
    let count = len.div_ceil(piece);
    let ahead = pieces_ahead(blob);
    let state = State { next: 0, wanted: 0, done: BTreeMap::new(), spare: Vec::new(), is_over: false };
    let (state, changed) = (Mutex::new(state), Condvar::new());
    let reading = Reading { blob, len, piece, ahead: ahead as u64, state, changed };
    let threads = u64::min(ahead as u64, count.saturating_sub(1));
    thread::scope(|scope| {
        let over = Over(&reading);
        for _ in 0..threads {
            let made = thread::Builder::new().name("read".into()).spawn_scoped(scope, || reading.work());
            if made.is_err() {
                break;
            }
        }
        for number in 0..count {
            let bytes = reading.take(number)?;
            if !each(&bytes)? {
                return Ok(false);
            }
            reading.state.lock().spare.push(bytes);
        }
        drop(over);
        Ok(true)
    })
}

impl Reading<'_> {
    /// A thread: reads what no other reads yet, as far ahead as it may.
    fn work(&self) {
        let mut state = self.state.lock();
        while !state.is_over && state.next * self.piece < self.len {
            if state.next >= state.wanted + self.ahead {
                self.changed.wait(&mut state);
                continue;
            }
            let number = state.next;
            state.next += 1;
            let buffer = state.spare.pop().unwrap_or_default();
            drop(state);
            let read = self.read(number, buffer);
            state = self.state.lock();
            state.done.insert(number, read);
            self.changed.notify_all();
        }
    }

    /// The bytes of this piece, which is wanted now.
    fn take(&self, number: u64) -> Result<Vec<u8>, TierError> {
        let mut state = self.state.lock();
        state.wanted = number;
        self.changed.notify_all();
        loop {
            if let Some(read) = state.done.remove(&number) {
                return read;
            }
            if state.next == number {
                state.next += 1;
                let buffer = state.spare.pop().unwrap_or_default();
                drop(state);
                return self.read(number, buffer);
            }
            self.changed.wait(&mut state);
        }
    }

    fn read(&self, number: u64, mut buffer: Vec<u8>) -> Result<Vec<u8>, TierError> {
        let from = number * self.piece;
        buffer.resize(usize::try_from((self.len - from).min(self.piece)).unwrap_or(0), 0);
        self.blob.read_at(from, &mut buffer)?;
        Ok(buffer)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs::File;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// Bytes by their offset; notes how many reads are under way at once.
    #[derive(Default)]
    struct Far {
        len: u64,
        /// Reads from here on fail.
        bad_from: Option<u64>,
        under_way: AtomicUsize,
        most: AtomicUsize,
        read: AtomicU64,
    }

    fn byte(at: u64) -> u8 {
        u8::try_from(at.wrapping_mul(0x9E37_79B9) >> 7 & 0xFF).unwrap()
    }

    impl Blob for Far {
        fn len(&self) -> u64 {
            self.len
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError> {
            self.most.fetch_max(self.under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::yield_now();
            for (at, out) in (offset..).zip(buffer.iter_mut()) {
                *out = byte(at);
            }
            self.read.fetch_add(buffer.len() as u64, Ordering::SeqCst);
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            match self.bad_from {
                Some(bad) if offset + buffer.len() as u64 > bad => {
                    Err(TierError::Short { object: "far".into(), len: bad })
                }
                _ => Ok(()),
            }
        }
        fn mapping(&self) -> Option<(&File, u64)> {
            None
        }
    }

    proptest! {
        #[test]
        fn all_bytes_come_in_order_and_none_after_an_error(
            len in 0..3000_u64, piece in 1..400_u64, bad in prop::option::of(0..3000_u64),
            enough in prop::option::of(0..3000_u64),
        ) {
            let far = Far { len, bad_from: bad, ..Far::default() };
            let mut found = Vec::new();
            let result = read_ahead(&far, len, piece, |bytes| {
                found.extend_from_slice(bytes);
                Ok(enough.is_none_or(|enough| (found.len() as u64) < enough))
            });
            prop_assert!((0..).zip(&found).all(|(at, found)| byte(at) == *found));
            let reached = found.len() as u64;
            match result {
                Ok(true) => prop_assert_eq!(reached, len),
                Ok(false) => prop_assert!(enough.is_some_and(|enough| reached >= enough)),
                Err(_) => prop_assert_eq!(reached, bad.unwrap() / piece * piece),
            }
            prop_assert!(far.most.into_inner() <= FAR + 1);
            prop_assert!(far.read.into_inner() <= reached + piece * (FAR as u64 + 1));
        }
    }

    #[test]
    fn many_are_under_way_at_once() {
        /// Answers when enough have asked.
        struct Waits(std::sync::Barrier);
        impl Blob for Waits {
            fn len(&self) -> u64 {
                FAR as u64
            }
            fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), TierError> {
                self.0.wait();
                Ok(())
            }
            fn mapping(&self) -> Option<(&File, u64)> {
                None
            }
        }
        // The caller's thread may be the one that reads none.
        let waits = Waits(std::sync::Barrier::new(FAR / 2));
        assert!(read_ahead(&waits, FAR as u64, 1, |_| Ok(true)).unwrap());
    }
}
