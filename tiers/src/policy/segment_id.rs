//! What the policy calls a segment.

/// A segment, by any number that the caller likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct SegmentId(pub u64);
