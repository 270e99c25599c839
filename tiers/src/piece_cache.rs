//! What was read as a whole because a part of it was asked for, kept for the parts that are asked for next.
//!
//! Used by [`crate::tables`] for frames and by [`crate::unpacked`] for stripes, by all threads that read: neighbours in
//! the program often lie in frames of different segments, a frame in two stripes, and a page server's threads ask for
//! parts of one piece at a time.
//! Invariants: a piece is read by one thread while the others that want it wait for that one; what could not be read is
//! not kept; so many pieces are kept at most, those that were used last.
//! Fails by: the error of who reads.

use parking_lot::Mutex;
use std::sync::Arc;

/// A piece as it is unpacked; none: it has not been read.
type Slot = Arc<Mutex<Option<Vec<u8>>>>;

/// See the head of the file.
pub(crate) struct PieceCache<Key> {
    /// The last one used at the end.
    slots: Mutex<Vec<(Key, Slot)>>,
    /// So many are kept.
    most: usize,
}

impl<Key: Copy + Eq> PieceCache<Key> {
    /// An empty one.
    pub(crate) const fn new(most: usize) -> PieceCache<Key> {
        PieceCache { slots: Mutex::new(Vec::new()), most }
    }

    /// Calls `take` with a piece, which `read` puts into an empty or old buffer if it is not kept.
    ///
    /// # Errors
    /// That of `read`.
    pub(crate) fn with<E>(
        &self,
        key: Key,
        read: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
        take: impl FnOnce(&[u8]),
    ) -> Result<(), E> {
        let (slot, spare) = self.slot(key);
        let mut piece = slot.lock();
        if piece.is_none() {
            let mut buffer = spare.unwrap_or_default();
            read(&mut buffer)?;
            *piece = Some(buffer);
        }
        take(piece.as_deref().unwrap_or_default());
        Ok(())
    }

    /// The place of a piece, and the buffer of one that is kept no longer.
    fn slot(&self, key: Key) -> (Slot, Option<Vec<u8>>) {
        let mut slots = self.slots.lock();
        if let Some(at) = slots.iter().position(|(kept, _)| *kept == key) {
            let found = slots.remove(at);
            let slot = found.1.clone();
            slots.push(found);
            return (slot, None);
        }
        let old = if slots.len() == self.most { Some(slots.remove(0).1) } else { None };
        let spare = old.and_then(Arc::into_inner).and_then(Mutex::into_inner);
        let slot = Slot::default();
        slots.push((key, slot.clone()));
        (slot, spare)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const KEPT: usize = 32;

    fn bytes(number: u32) -> Vec<u8> {
        number.to_le_bytes().repeat(3)
    }

    #[test]
    fn a_piece_is_read_once_for_all_readers() {
        let (cache, reads) = (PieceCache::new(KEPT), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..KEPT as u32 {
                        let mut seen = Vec::new();
                        let read = |buffer: &mut Vec<u8>| {
                            reads.fetch_add(1, Ordering::Relaxed);
                            *buffer = bytes(number);
                            Ok::<(), ()>(())
                        };
                        cache.with(number, read, |frame| seen = frame.to_vec()).unwrap();
                        assert_eq!(seen, bytes(number));
                    }
                });
            }
        });
        assert_eq!(reads.load(Ordering::Relaxed), KEPT);
    }

    #[test]
    fn the_oldest_goes_and_what_failed_is_read_again() {
        let cache = PieceCache::new(KEPT);
        let put = |number| {
            let mut was_read = false;
            let read = |buffer: &mut Vec<u8>| {
                (*buffer, was_read) = (bytes(number), true);
                Ok::<(), ()>(())
            };
            cache.with(number, read, |frame| assert_eq!(frame, bytes(number))).unwrap();
            was_read
        };
        assert!((0..KEPT as u32).all(put));
        assert!(!put(0) && put(KEPT as u32) && !put(0) && put(1));
        assert_eq!(cache.with(500, |_| Err("down"), |_| unreachable!()), Err("down"));
        assert!(put(500));
    }
}
