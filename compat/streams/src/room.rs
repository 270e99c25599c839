//! Room for the next record: the oldest ones go, as far as nothing needs them.
//!
//! A part of the writer. What must hold: before the head moves, all that the newest version needs is behind the new
//! head, and no living reader needs what is before it. A reader says first what it needs and then looks at the head;
//! the writer moves the head first and then looks at what readers need, and moves it back: one of both sees the other.
//! Nothing is overwritten before that.

use super::writer::Writer;
use crate::Error;
use crate::layout::{self, CURSORS, HEAD_AT, RECORD_HEAD, RecordHead};
use crate::locks;
use crate::objects::alone;
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at what readers need.
const LOOK: Duration = Duration::from_micros(200);

/// Why the oldest record cannot go.
enum Blocked {
    /// The newest version needs it.
    Newest,
    /// A reader does, of this slot.
    Reader(u64),
}

impl Writer {
    /// Has room for a record of `len` bytes, with `rest` bytes beside it for what may have to be carried later. Says
    /// whether objects had to be carried: they are in other places now.
    pub(crate) fn make_room(&mut self, len: u64, rest: u64) -> Result<bool, Error> {
        let need = self.with_pad(len).saturating_add(rest);
        let capacity = self.head.capacity;
        if need > capacity {
            return Err(Error::TooSmall { need, capacity });
        }
        if self.free() >= need {
            return Ok(false);
        }
        if self.options.keep {
            return Err(Error::Full { capacity });
        }
        let until = Instant::now() + self.options.wait;
        loop {
            match self.advance(need)? {
                None => return Ok(false),
                Some(Blocked::Newest) => {
                    self.carry(need)?;
                    return Ok(true);
                }
                Some(Blocked::Reader(slot)) if Instant::now() >= until => {
                    let reader = self.reader_name(slot);
                    return Err(Error::Held { reader, version: self.version_at(self.first) });
                }
                Some(Blocked::Reader(_)) => thread::sleep(LOOK),
            }
        }
    }

    /// Bytes with what fills the ring before a record that does not fit at its end.
    fn with_pad(&self, len: u64) -> u64 {
        let to_end = self.head.to_end(self.tail);
        if to_end < len { to_end.saturating_add(len) } else { len }
    }

    pub(crate) fn free(&self) -> u64 {
        self.head.capacity - (self.tail - self.first)
    }

    /// Lets the oldest records go until there is so much room; `Some`: not so much.
    fn advance(&mut self, need: u64) -> Result<Option<Blocked>, Error> {
        let newest = self.objects.oldest().unwrap_or(self.tail);
        let (slot, needed) = self.needed_by_readers()?;
        let mut first = self.first;
        let mut blocked = None;
        while self.head.capacity - (self.tail - first) < need {
            let Some(next) = self.record_head(first).map(|head| first + head.len) else {
                return Err(self.damaged("a record that was there is not any more"));
            };
            if next > newest || next > needed {
                blocked = Some(if next > needed { Blocked::Reader(slot) } else { Blocked::Newest });
                break;
            }
            first = next;
        }
        if first > self.first {
            self.set_head(first)?;
            if self.needed_by_readers()?.1 < first {
                self.set_head(self.first)?;
                return self.advance(need);
            }
            self.first = first;
        }
        Ok(blocked)
    }

    fn set_head(&mut self, first: u64) -> Result<(), Error> {
        self.map.set_long(HEAD_AT, first).map_err(|why| self.failed(why))
    }

    /// The lowest position that a living reader needs, and its slot.
    fn needed_by_readers(&self) -> Result<(u64, u64), Error> {
        let mut lowest = (0, u64::MAX);
        for slot in 0..CURSORS {
            let cursor = self.map.long(layout::cursor_at(slot)).map_err(|why| self.failed(why))?;
            if cursor != 0
                && cursor - 1 < lowest.1
                && locks::has_reader(&self.file, slot).map_err(|why| self.failed(why))?
            {
                lowest = (slot, cursor - 1);
            }
        }
        Ok(lowest)
    }

    fn reader_name(&self, slot: u64) -> String {
        let at = layout::cursor_at(slot);
        let mut name = [0; layout::MAX_NAME];
        let _ = self.map.read(at + 16, &mut name);
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        format!(
            "process {} ({})",
            self.map.long(at + 8).unwrap_or(0),
            String::from_utf8_lossy(&name[..end]).escape_debug()
        )
    }

    fn version_at(&self, position: u64) -> u64 {
        self.record_head(position).map_or(0, |head| head.version)
    }

    fn record_head(&self, position: u64) -> Option<RecordHead> {
        let mut bytes = [0; RECORD_HEAD];
        self.map.read(self.head.place(position), &mut bytes).ok()?;
        RecordHead::parse(&bytes, position, &self.head)
    }

    /// Writes what the newest version has in the oldest `need` bytes once more, behind all else.
    fn carry(&mut self, need: u64) -> Result<(), Error> {
        let end = self.first.saturating_add(need);
        for key in self.objects.older_than(end) {
            let Some(object) = self.objects.get(&key) else { continue };
            let len = alone(&key, object.size);
            let (need, capacity) = (self.with_pad(len), self.head.capacity);
            if need > self.free() {
                return Err(Error::TooSmall { need: capacity - self.free() + need, capacity });
            }
            // What is damaged would get a right checksum.
            let read = object.read(&self.map, &self.head).map_err(|why| self.failed(why))?;
            let bytes = read.ok_or_else(|| self.damaged("an object of its newest version is damaged"))?;
            self.append_carried(&key, &bytes)?;
        }
        Ok(())
    }
}
