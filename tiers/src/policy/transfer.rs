//! A copy of a segment from one place to another.
//!
//! Used by [`super::Hierarchy`], and by those who make the copies.

use super::SegmentId;

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The application's buffer.
    Application,
    /// The tier of this number.
    Tier(usize),
}

/// A copy of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The segment.
    pub segment: SegmentId,
    /// From where.
    pub from: Place,
    /// To where.
    pub to: Place,
    /// Its size.
    pub bytes: u64,
    /// Where in the cache that it goes to, if that is contiguous.
    pub offset: u64,
}

impl Transfer {
    /// The link that it needs: the slower of its ends.
    pub fn link(&self) -> usize {
        let tier = |place| if let Place::Tier(tier) = place { tier } else { 0 };
        tier(self.from).max(tier(self.to))
    }

    /// Whether one end is the application.
    pub fn is_of_application(&self) -> bool {
        [self.from, self.to].contains(&Place::Application)
    }

    /// Whether it goes towards slower tiers.
    pub fn is_down(&self) -> bool {
        match (self.from, self.to) {
            (Place::Application, _) => true,
            (_, Place::Application) => false,
            (Place::Tier(from), Place::Tier(to)) => from < to,
        }
    }
}
