//! Frames that were read as a whole because a part of them was asked for, kept for the parts that are asked for next.
//!
//! Used by [`crate::tables`], by all threads that read an image: neighbours in the program often lie in frames of
//! different segments, and a page server's threads ask for parts of one frame at a time.
//! Invariants: a frame is read by one thread while the others that want it wait for that one; what could not be read is
//! not kept; so many frames are kept at most, those that were used last.
//! Fails by: the error of who reads.

use parking_lot::Mutex;
use std::sync::Arc;

/// So many frames are kept, of 1 MiB at most.
const KEPT: usize = 32;

/// A frame as it is unpacked; none: it has not been read.
type Slot = Arc<Mutex<Option<Vec<u8>>>>;

/// See the head of the file.
#[derive(Default)]
pub(crate) struct FrameCache {
    /// By number, the last one used at the end.
    slots: Mutex<Vec<(u32, Slot)>>,
}

impl FrameCache {
    /// Calls `take` with a frame, which `read` puts into an empty or old buffer if it is not kept.
    ///
    /// # Errors
    /// That of `read`.
    pub(crate) fn with<E>(
        &self,
        number: u32,
        read: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
        take: impl FnOnce(&[u8]),
    ) -> Result<(), E> {
        let (slot, spare) = self.slot(number);
        let mut frame = slot.lock();
        if frame.is_none() {
            let mut buffer = spare.unwrap_or_default();
            read(&mut buffer)?;
            *frame = Some(buffer);
        }
        take(frame.as_deref().unwrap_or_default());
        Ok(())
    }

    /// The place of a frame, and the buffer of one that is kept no longer.
    fn slot(&self, number: u32) -> (Slot, Option<Vec<u8>>) {
        let mut slots = self.slots.lock();
        if let Some(at) = slots.iter().position(|(kept, _)| *kept == number) {
            let found = slots.remove(at);
            let slot = found.1.clone();
            slots.push(found);
            return (slot, None);
        }
        let old = if slots.len() == KEPT { Some(slots.remove(0).1) } else { None };
        let spare = old.and_then(Arc::into_inner).and_then(Mutex::into_inner);
        let slot = Slot::default();
        slots.push((number, slot.clone()));
        (slot, spare)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn bytes(number: u32) -> Vec<u8> {
        number.to_le_bytes().repeat(3)
    }

    #[test]
    fn a_frame_is_read_once_whoever_wants_it() {
        let (cache, reads) = (FrameCache::default(), AtomicUsize::new(0));
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
        let cache = FrameCache::default();
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
