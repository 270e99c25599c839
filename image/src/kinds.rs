//! How a checkpoint was made: kinds that a manifest names by a word. There they are text, so that an older version
//! reads what a newer one has written.

use std::fmt;

/// What kept the content of the cut while the program ran on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UsedEngine {
    /// All pages were copied inside the stop.
    #[default]
    Copy,
    /// A frozen copy of the process.
    Fork,
    /// Copy-on-write by page, in slots.
    Slots,
    /// Nothing: the program was stopped until the image was stored.
    Sync,
}

impl UsedEngine {
    /// As the image and `holdfast show` name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            UsedEngine::Copy => "copy",
            UsedEngine::Fork => "fork",
            UsedEngine::Slots => "slots",
            UsedEngine::Sync => "sync",
        }
    }
    /// Whether a first write of the program to a page that is not stored yet costs a copy.
    pub const fn copies_on_write(self) -> bool {
        matches!(self, UsedEngine::Fork | UsedEngine::Slots)
    }
}

/// How changed pages are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tracker {
    /// By the kernel's write-protect bits.
    Userfaultfd,
    /// By the hash of each page.
    Hashes,
}

impl Tracker {
    /// As the image and `holdfast show` name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Tracker::Userfaultfd => "userfaultfd",
            Tracker::Hashes => "hashes",
        }
    }
}

impl fmt::Display for UsedEngine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl fmt::Display for Tracker {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Manifests hold these words.
    #[test]
    fn the_words_are_frozen() {
        let engines = [UsedEngine::Copy, UsedEngine::Fork, UsedEngine::Slots, UsedEngine::Sync];
        assert_eq!(engines.map(UsedEngine::as_str), ["copy", "fork", "slots", "sync"]);
        assert_eq!(engines.map(UsedEngine::copies_on_write), [false, true, true, false]);
        assert_eq!([Tracker::Userfaultfd, Tracker::Hashes].map(Tracker::as_str), ["userfaultfd", "hashes"]);
    }
}
