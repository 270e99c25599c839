//! Copies and fills of up to three dimensions, as a stream makes them. Used by `api::copy` and `stream`.

use super::space::View;
use crate::code::{Answer, Code};
use crate::system;

/// One side of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Side {
    /// Of its first byte.
    pub at: u64,
    /// From one row to the next.
    pub pitch: u64,
    /// From one plane to the next.
    pub plane: u64,
}

/// A copy; in one dimension height and depth are one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// Where to.
    pub to: Side,
    /// Where from.
    pub from: Side,
    /// Bytes of a row.
    pub width: u64,
    /// Rows of a plane.
    pub height: u64,
    /// Planes.
    pub depth: u64,
}

/// A fill of some rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// Of its first byte.
    pub at: u64,
    /// From one row to the next.
    pub pitch: u64,
    /// As many bytes of it as an element has.
    pub value: u32,
    /// 1, 2 or 4.
    pub bytes: u32,
    /// Elements of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

impl Copy {
    /// Bytes one behind the other.
    pub fn flat(to: u64, from: u64, length: u64) -> Copy {
        let side = |at| Side { at, pitch: length, plane: length };
        Copy { to: side(to), from: side(from), width: length, height: 1, depth: 1 }
    }

    /// How many.
    pub fn bytes(&self) -> u64 {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }

    /// Nothing is to be copied.
    pub fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    /// From the first byte to the last of one side.
    pub fn extent(&self, side: Side) -> Answer<u64> {
        let planes = self.depth.checked_sub(1).and_then(|n| n.checked_mul(side.plane));
        let rows = self.height.checked_sub(1).and_then(|n| n.checked_mul(side.pitch));
        let all = planes.zip(rows).and_then(|(p, r)| p.checked_add(r)?.checked_add(self.width));
        all.filter(|n| side.at.checked_add(*n).is_some()).ok_or(Code::INVALID_VALUE)
    }

    /// Makes it.
    pub fn run(&self, view: &View) -> Answer {
        for z in 0..self.depth {
            for y in 0..self.height {
                let of = |side: Side| side.at + z * side.plane + y * side.pitch;
                view.copy(of(self.to), of(self.from), self.width)?;
            }
        }
        Ok(())
    }

    /// The same copy, from what was read of its source already: `run` of that gives rows without gaps.
    pub fn staged(&self, view: &View) -> Answer<(Copy, Staged)> {
        let plane = self.width.checked_mul(self.height).ok_or(Code::INVALID_VALUE)?;
        let staged = Staged::new(plane.checked_mul(self.depth).ok_or(Code::INVALID_VALUE)?)?;
        for z in 0..self.depth {
            for y in 0..self.height {
                let from = self.from.at + z * self.from.plane + y * self.from.pitch;
                view.read_to(staged.at + z * plane + y * self.width, from, self.width)?;
            }
        }
        let from = Side { at: staged.at, pitch: self.width, plane };
        Ok((Copy { from, ..*self }, staged))
    }

    /// Makes a copy that was staged.
    pub fn run_from(&self, view: &View, _: &Staged) -> Answer {
        for z in 0..self.depth {
            for y in 0..self.height {
                let of = |side: Side| side.at + z * side.plane + y * side.pitch;
                view.write_from(of(self.to), of(self.from), self.width)?;
            }
        }
        Ok(())
    }
}

/// What was read of a source: in pages of its own, which end with it, so that nothing of it is left in the heap of the
/// program, where an image would have it.
#[derive(Debug)]
pub struct Staged {
    at: u64,
    length: u64,
}

impl Staged {
    fn new(length: u64) -> Answer<Staged> {
        let at = system::map_pages(length.max(1)).map_err(|_| Code::OUT_OF_MEMORY)?;
        Ok(Staged { at, length: length.max(1) })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        system::unmap(self.at, self.length);
    }
}

impl Fill {
    /// Makes it.
    pub fn run(&self, view: &View) -> Answer {
        (0..self.height)
            .try_for_each(|y| view.fill(self.at + y * self.pitch, self.value, self.bytes, self.width))
    }
}
