//! Copies and fills of up to three dimensions, as a stream makes them. Used by `api::copy` and `stream`.

use super::space::View;
use crate::code::{Answer, Code};

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
    pub fn staged(&self, view: &View) -> Answer<(Copy, Vec<u8>)> {
        let mut bytes = Vec::new();
        for z in 0..self.depth {
            for y in 0..self.height {
                bytes
                    .extend(view.read(self.from.at + z * self.from.plane + y * self.from.pitch, self.width)?);
            }
        }
        let from = Side { at: 0, pitch: self.width, plane: self.width * self.height };
        Ok((Copy { from, ..*self }, bytes))
    }

    /// Makes a copy that was staged.
    pub fn run_from(&self, view: &View, bytes: &[u8]) -> Answer {
        for z in 0..self.depth {
            for y in 0..self.height {
                let from = (z * self.from.plane + y * self.from.pitch) as usize;
                let row = bytes.get(from..from + self.width as usize).ok_or(Code::INVALID_VALUE)?;
                view.write(self.to.at + z * self.to.plane + y * self.to.pitch, row)?;
            }
        }
        Ok(())
    }
}

impl Fill {
    /// Makes it.
    pub fn run(&self, view: &View) -> Answer {
        (0..self.height)
            .try_for_each(|y| view.fill(self.at + y * self.pitch, self.value, self.bytes, self.width))
    }
}
