//! Room for the next record: the oldest ones go, as far as nothing needs them.
//!
//! A part of the writer. What must hold: before the head moves, all that the newest version needs is behind the new
//! head, and no living reader needs what is before it. A reader says first what it needs and then looks at the head;
//! the writer moves the head first and then looks at what readers need, and moves it back: one of both sees the other.
//! Nothing is overwritten before that. The next writer does so for one that was killed in between.

use super::writer::{Made, Writer};
use crate::Error;
use crate::layout::{self, CURSORS, Entry, HEAD_AT, Part, RECORD_HEAD, RecordHead};
use crate::objects::alone;
use crate::{locks, record};
use std::thread;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

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
    /// Has room for a record of `len` bytes, with `rest` bytes beside it for what may have to be carried later.
    pub(crate) fn make_room(&mut self, len: u64, rest: u64) -> Result<Made, Error> {
        let capacity = self.head.capacity;
        if self.options.keep {
            return self.look_for_room(len);
        }
        let need = self.with_pad(len).saturating_add(rest);
        if need > capacity {
            return Err(Error::TooSmall { need, capacity });
        }
        let until = Instant::now().checked_add(self.options.wait);
        let early = need.saturating_add(2 * self.longest.max(len));
        loop {
            let near = if rest > 0 { self.reader_of_newest(early)? } else { None };
            let slot = match near {
                Some(slot) => {
                    self.advance(early)?;
                    let end = self.objects.oldest().unwrap_or(self.tail).saturating_add(early);
                    if self.free() >= self.room_to_carry(end, len) {
                        self.carry(end)?;
                        return Ok(Made::CarriedAndRoom);
                    }
                    slot
                }
                None if self.free() >= need => return Ok(Made::Room),
                None => match self.advance(need)? {
                    None => return Ok(Made::Room),
                    Some(Blocked::Newest) => {
                        self.carry(self.first.saturating_add(need))?;
                        return Ok(Made::Carried);
                    }
                    Some(Blocked::Reader(slot)) => slot,
                },
            };
            if until.is_some_and(|until| Instant::now() >= until) {
                let reader = self.reader_name(slot);
                return Err(Error::Held { reader, version: self.version_at(self.first) });
            }
            thread::sleep(LOOK);
        }
    }

    /// Of a log that keeps all versions: nothing is ever carried, so that a record needs its own bytes alone.
    fn look_for_room(&self, len: u64) -> Result<Made, Error> {
        let (need, free, capacity) = (self.with_pad(len), self.free(), self.head.capacity);
        match need {
            _ if len > capacity => Err(Error::TooSmall { need: len, capacity }),
            need if need > free => Err(Error::Full { need, free, capacity }),
            _ => Ok(Made::Room),
        }
    }

    /// A reader that needs the oldest record of the newest version, or comes to need it, where that record is in the
    /// way of `early` bytes. A reader that is at the newest version can move only when there is one more: what it needs
    /// is carried while there is room for that and for a record behind it.
    fn reader_of_newest(&self, early: u64) -> Result<Option<u64>, Error> {
        let capacity = self.head.capacity;
        let oldest = self.objects.oldest().unwrap_or(self.tail);
        let is_far = capacity - (self.tail - oldest) >= early;
        if is_far || self.objects.alone().saturating_add(early) > capacity {
            return Ok(None);
        }
        let (slot, needed) = self.needed_by_readers()?;
        Ok((needed <= oldest).then_some(slot))
    }

    /// Room to carry what is needed before a position, and for a record of `len` bytes behind it.
    fn room_to_carry(&self, end: u64, len: u64) -> u64 {
        let older = self.objects.older_than(end);
        let each = older.iter().filter_map(|key| Some(alone(key, self.objects.get(key)?.size)));
        // The end of the ring is passed once at most.
        let (all, pad) =
            each.fold((0, len), |(all, pad): (u64, u64), one| (all.saturating_add(one), pad.max(one)));
        all.saturating_add(pad).saturating_add(len)
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

    /// Where the oldest record is that a living reader needs, if that is before the head: who moved the head may have
    /// been killed before it looked at readers. Nothing was overwritten then: all from there to the head is as it was.
    pub(crate) fn first_with_readers(&self) -> Result<u64, Error> {
        let mut first = self.first;
        for slot in 0..CURSORS {
            // A reader that is about to look at the head again may name what was overwritten.
            if let Some(needed) = self.needed_by(slot, first)?
                && self.are_whole(needed, self.first)
            {
                first = needed;
            }
        }
        Ok(first)
    }

    /// Whether records with right data follow each other from a position up to another one, and none is on them.
    fn are_whole(&self, from: u64, to: u64) -> bool {
        if !from.is_multiple_of(layout::LINE) || self.tail - from > self.head.capacity {
            return false;
        }
        let is_right = |entry: &Entry, position: u64| {
            let mut data = vec![0; usize::try_from(entry.data_len()).unwrap_or(0)];
            let read = self.map.read(self.head.place(position + entry.data), &mut data);
            read.is_ok() && xxh3_64(&data) == entry.sum
        };
        let mut position = from;
        while position < to {
            let Some(found) = record::read(&self.map, &self.head, position) else { return false };
            if !found.entries.iter().all(|entry| entry.part == Part::Gone || is_right(entry, position)) {
                return false;
            }
            position += found.head.len;
        }
        position == to
    }

    pub(crate) fn set_head(&mut self, first: u64) -> Result<(), Error> {
        self.map.set_long(HEAD_AT, first).map_err(|why| self.failed(why))
    }

    /// The lowest position that a living reader needs, and its slot.
    fn needed_by_readers(&self) -> Result<(u64, u64), Error> {
        let mut lowest = (0, u64::MAX);
        for slot in 0..CURSORS {
            if let Some(needed) = self.needed_by(slot, lowest.1)? {
                lowest = (slot, needed);
            }
        }
        Ok(lowest)
    }

    /// The position that the reader of a slot needs, if that is before `end` and it is alive: one that has died has no
    /// lock any more.
    fn needed_by(&self, slot: u64, end: u64) -> Result<Option<u64>, Error> {
        let cursor = self.map.long(layout::cursor_at(slot)).map_err(|why| self.failed(why))?;
        let Some(needed) = cursor.checked_sub(1).filter(|needed| *needed < end) else { return Ok(None) };
        let is_alive = locks::has_reader(&self.file, slot).map_err(|why| self.failed(why))?;
        Ok(is_alive.then_some(needed))
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

    /// Writes what the newest version has before a position once more, behind all else.
    fn carry(&mut self, end: u64) -> Result<(), Error> {
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
