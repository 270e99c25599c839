//! What is read of a keeper before it is asked for: which addresses are in which window of the ring.
//!
//! Used by [`super::moving`], under the lock of the connection. What was taken for an image is read about once, mostly
//! in the order of its addresses, by several threads, each of which asks for a frame. So windows follow that order; one
//! that was read whole gets what comes next. What is not in a window, because a thread is late, or packs, is read by
//! itself. Invariants: a window that a thread is copying from stays as it is; nothing is begun before the first read.

use super::messages::{Run, WINDOW, WINDOWS};
use std::ops::Range;

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Ahead {
    /// What was taken, ascending.
    order: Vec<Run>,
    /// All of it below was begun, or is left out.
    next: u64,
    is_begun: bool,
    windows: [Option<Held>; WINDOWS],
}

/// What a window has.
#[derive(Debug)]
struct Held {
    runs: Vec<Run>,
    /// Bytes that were not read yet.
    left: u64,
    /// Threads that are copying from it.
    readers: u32,
    /// It is there.
    is_done: bool,
}

impl Held {
    /// It is so far behind what is read now that no thread is likely to read the rest.
    fn is_past(&self, at: u64) -> bool {
        let end = self.runs.last().map_or(0, |(start, len)| start + len);
        self.readers == 0 && end + WINDOW * WINDOWS as u64 <= at
    }
}

/// Where something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The window.
    pub window: usize,
    /// In it.
    pub offset: u64,
    /// So many bytes from there on follow each other.
    pub bytes: u64,
    /// It is to be awaited first.
    pub is_under_way: bool,
}

impl Ahead {
    /// Nothing is in a window, and this is what is going to be read.
    pub fn of(order: &[Run]) -> Ahead {
        Ahead {
            order: order.to_vec(),
            next: order.first().map_or(u64::MAX, |(start, _)| *start),
            ..Ahead::default()
        }
    }

    /// Where an address is.
    pub fn find(&self, at: u64) -> Option<Found> {
        let of_window = |(window, held): (usize, &Option<Held>)| {
            let held = held.as_ref()?;
            let mut offset = 0;
            for &(start, len) in &held.runs {
                if start <= at && at < start + len {
                    let (within, is_under_way) = (at - start, !held.is_done);
                    return Some(Found {
                        window,
                        offset: offset + within,
                        bytes: len - within,
                        is_under_way,
                    });
                }
                offset += len;
            }
            None
        };
        self.windows.iter().enumerate().find_map(of_window)
    }

    /// An address is going to be read: which window is to get what, if any. To be asked until there is none.
    pub fn begin(&mut self, at: u64) -> Option<(usize, Vec<Run>)> {
        let is_wanted = self.next <= at && self.has(at);
        if is_wanted && self.bytes_before(at) >= WINDOW * WINDOWS as u64 {
            self.next = at;
        }
        if !self.is_begun && !is_wanted {
            return None;
        }
        let window = self.windows.iter().position(|held| held.as_ref().is_none_or(|held| held.is_past(at)));
        let window = window.or_else(|| self.oldest().filter(|_| is_wanted))?;
        let (runs, next) = self.following()?;
        (self.next, self.is_begun) = (next, true);
        let left = runs.iter().map(|(_, len)| len).sum();
        self.windows[window] = Some(Held { runs: runs.clone(), left, readers: 0, is_done: false });
        Some((window, runs))
    }

    /// The runs from a place on that end behind it.
    fn from(&self, at: u64) -> &[Run] {
        let first = self.order.partition_point(|(start, len)| start + len <= at);
        &self.order[first..]
    }

    fn has(&self, at: u64) -> bool {
        self.from(at).first().is_some_and(|(start, _)| *start <= at)
    }

    /// Bytes that are to be begun before an address is; more than all windows: as many, or more.
    fn bytes_before(&self, at: u64) -> u64 {
        let mut bytes = 0;
        for &(start, len) in self.from(self.next) {
            if start >= at || bytes >= WINDOW * WINDOWS as u64 {
                break;
            }
            bytes += (start + len).min(at) - start.max(self.next);
        }
        bytes
    }

    /// What fits into a window next, and what comes behind it.
    fn following(&self) -> Option<(Vec<Run>, u64)> {
        let (mut runs, mut room, mut next) = (Vec::new(), WINDOW, self.next);
        for &(start, len) in self.from(self.next) {
            let first = start.max(self.next);
            let bytes = (start + len - first).min(room);
            if bytes == 0 {
                break;
            }
            runs.push((first, bytes));
            room -= bytes;
            next = first + bytes;
        }
        (!runs.is_empty()).then_some((runs, next))
    }

    /// Of those that no thread is copying from.
    fn oldest(&self) -> Option<usize> {
        let first = |held: &Held| held.runs.first().map(|(start, _)| *start);
        let idle = self.windows.iter().enumerate().filter_map(|(window, held)| {
            let held = held.as_ref().filter(|held| held.readers == 0)?;
            Some((first(held), window))
        });
        idle.min().map(|(_, window)| window)
    }

    /// What was begun in a window is there; or it has failed, and is to be read by itself.
    pub fn done(&mut self, window: usize, is_there: bool) {
        let Some(held) = self.windows.get_mut(window) else { return };
        match held.as_mut().filter(|_| is_there) {
            Some(held) => held.is_done = true,
            None => *held = None,
        }
    }

    /// A thread copies from a window.
    pub fn reads(&mut self, window: usize) {
        if let Some(held) = self.windows.get_mut(window).and_then(Option::as_mut) {
            held.readers += 1;
        }
    }

    /// It has so many bytes.
    pub fn has_read(&mut self, window: usize, bytes: u64) {
        let Some(place) = self.windows.get_mut(window) else { return };
        let Some(held) = place else { return };
        held.readers = held.readers.saturating_sub(1);
        held.left = held.left.saturating_sub(bytes);
        if held.left == 0 && held.readers == 0 {
            *place = None;
        }
    }
}

/// What is sent to devices: the window that is being filled, and what it has.
#[derive(Debug, Default)]
pub struct Filling {
    window: usize,
    runs: Vec<Run>,
    bytes: u64,
    /// Windows that were sent, and were not awaited.
    sent: [bool; WINDOWS],
}

impl Filling {
    /// The window that is to be awaited before anything is put there.
    pub fn awaited(&mut self) -> Option<usize> {
        let is_sent = std::mem::take(self.sent.get_mut(self.window)?);
        is_sent.then_some(self.window)
    }

    /// Where in its window at most so many bytes of an address go.
    pub fn add(&mut self, start: u64, bytes: u64) -> (usize, Range<u64>) {
        let here = bytes.min(WINDOW - self.bytes);
        self.runs.push((start, here));
        self.bytes += here;
        (self.window, self.bytes - here..self.bytes)
    }

    /// Nothing more goes into the window.
    pub fn is_full(&self, most_runs: usize) -> bool {
        self.bytes == WINDOW || self.runs.len() >= most_runs
    }

    /// The window and what it has, to be sent; `None`: nothing.
    pub fn send(&mut self) -> Option<(usize, Vec<Run>)> {
        let runs = std::mem::take(&mut self.runs);
        let sent = (self.window, runs);
        self.bytes = 0;
        if sent.1.is_empty() {
            return None;
        }
        self.sent[self.window] = true;
        self.window = (self.window + 1) % WINDOWS;
        Some(sent)
    }

    /// All windows that were sent and not awaited.
    pub fn rest(&mut self) -> Vec<usize> {
        let sent = std::mem::take(&mut self.sent);
        (0..WINDOWS).filter(|window| sent[*window]).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PIECE: u64 = 128 << 10;

    /// Reads a piece as an agent does: `false`: it was in no window.
    fn read(ahead: &mut Ahead, at: u64, begun: &mut Vec<(usize, Vec<Run>)>) -> bool {
        while let Some(one) = ahead.begin(at) {
            begun.push(one);
        }
        let (mut at, end) = (at, at + PIECE);
        while at < end {
            let Some(found) = ahead.find(at) else { return false };
            ahead.done(found.window, true);
            ahead.reads(found.window);
            let bytes = found.bytes.min(end - at);
            ahead.has_read(found.window, bytes);
            at += bytes;
        }
        true
    }

    #[test]
    fn what_is_read_in_order_is_begun_once_and_before() {
        let order = [(PIECE, 5 * WINDOW), (64 << 30, 3 * WINDOW)];
        let mut ahead = Ahead::of(&order);
        assert_eq!((ahead.begin(0), ahead.begin(6 * WINDOW)), (None, None), "nothing is there");
        let mut begun = Vec::new();
        for (start, len) in order {
            for at in (start..start + len).step_by(PIECE as usize) {
                assert!(read(&mut ahead, at, &mut begun), "{at:#x}");
                let later: u64 = begun.iter().flat_map(|(_, runs)| runs).map(|(_, len)| len).sum();
                let read = at + PIECE - start + if start == PIECE { 0 } else { 5 * WINDOW };
                assert!(later == 8 * WINDOW || later >= read + (WINDOWS as u64 - 1) * WINDOW);
            }
        }
        assert_eq!(begun.len(), 8);
        assert!(ahead.windows.iter().all(Option::is_none));
    }

    #[test]
    fn what_is_read_late_or_left_out_is_read_by_itself_and_nothing_waits_for_it() {
        let mut ahead = Ahead::of(&[(0, 100 * WINDOW)]);
        let mut begun = Vec::new();
        assert!(read(&mut ahead, PIECE, &mut begun), "one is a little before the other");
        assert!(read(&mut ahead, 0, &mut begun));
        assert!(read(&mut ahead, 50 * WINDOW, &mut begun), "and one is far away");
        assert!(!read(&mut ahead, 20 * WINDOW, &mut begun));
        // A thread is copying from that window for long.
        let held = ahead.find(50 * WINDOW).unwrap().window;
        ahead.reads(held);
        for at in (51 * WINDOW..70 * WINDOW).step_by(PIECE as usize) {
            assert!(read(&mut ahead, at, &mut begun));
        }
        assert_eq!(ahead.find(50 * WINDOW).unwrap().window, held);
        let other = ahead.find(70 * WINDOW).unwrap().window;
        ahead.done(other, false);
        assert_eq!(ahead.find(70 * WINDOW), None, "it could not be read");
    }

    #[test]
    fn what_is_filled_in_goes_window_by_window() {
        let mut filling = Filling::default();
        assert_eq!((filling.awaited(), filling.send()), (None, None));
        for window in 0..WINDOWS {
            assert_eq!(filling.add(7, WINDOW - 5), (window, 0..WINDOW - 5));
            assert!(!filling.is_full(2));
            assert_eq!(filling.add(9, 100), (window, WINDOW - 5..WINDOW));
            assert!(filling.is_full(100));
            assert_eq!(filling.send(), Some((window, vec![(7, WINDOW - 5), (9, 5)])));
        }
        assert_eq!((filling.awaited(), filling.awaited()), (Some(0), None));
        assert_eq!(filling.rest(), [1, 2, 3]);
    }
}
