//! The manifest of an image: its presence under the final name is the commit.
//!
//! Here are the figures that a manifest carries; the byte format is in `tiers::format` and `docs/format.md`.

use crate::cuda::CudaStop;
use serde::{Deserialize, Serialize};

/// Where the stop time went, nanoseconds each. The parts add up to `total_ns` but for what lies between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StopBreakdown {
    /// From the first interrupt to the last thread resumed: what the program did not run. If it uses CUDA: from the
    /// driver's lock to its unlock; its threads ran on for most of that, but for those in a call of CUDA.
    pub total_ns: u64,
    /// Seize, interrupt and wait for all threads.
    pub stop_ns: u64,
    /// Registers, extended state, masks, pending signals, rseq, robust lists.
    pub threads_ns: u64,
    /// Injected queries: brk, timers, handlers, alternate stacks.
    pub inject_ns: u64,
    /// Mappings.
    pub maps_ns: u64,
    /// Descriptors and data in flight.
    pub files_ns: u64,
    /// Re-arming the tracker, which yields the dirty set.
    #[serde(default)]
    pub track_ns: u64,
    /// Memory copied inside the stop.
    pub copy_ns: u64,
    /// The clone that freezes the memory.
    pub clone_ns: u64,
    /// Registers back and detach.
    pub resume_ns: u64,
    /// Threads of the program.
    pub threads: u64,
    /// Mappings of the program.
    pub regions: u64,
    /// What CUDA's part of it took, if processes use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<CudaStop>,
}

/// What the flush did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FlushFigures {
    /// From resume to commit, nanoseconds.
    pub flush_ns: u64,
    /// Pages read from the source at or after the cut.
    pub pages_read: u64,
    /// Pages that were all zero: not stored.
    pub pages_zero: u64,
    /// Pages stored.
    pub pages_stored: u64,
    /// Pages read whose content was that of the parent: not stored.
    #[serde(default)]
    pub pages_unchanged: u64,
    /// Pages read that another process has too: stored once.
    #[serde(rename = "pages_twins", default, skip_serializing_if = "is_zero")]
    pub pages_deduplicated: u64,
    /// Pages taken from the parent without being read.
    #[serde(default)]
    pub pages_parent: u64,
    /// Pages stored before the stop, while the program ran, and not written again.
    #[serde(default)]
    pub pages_precopied: u64,
    /// Pages copied from segments that would have held too little else (compaction).
    #[serde(default)]
    pub pages_moved: u64,
    /// Bytes of the segments and the manifest of this image.
    pub bytes_stored: u64,
    /// Bytes of pages in frames that were compressed.
    pub bytes_compressed_from: u64,
    /// What they became.
    pub bytes_compressed_to: u64,
    /// Of the former, those that were compressed on the device where they lay.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes_compressed_on_device: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl FlushFigures {
    /// Adds what one worker or one pass has counted.
    pub fn add(&mut self, more: &FlushFigures) {
        self.pages_read += more.pages_read;
        self.pages_zero += more.pages_zero;
        self.pages_stored += more.pages_stored;
        self.pages_unchanged += more.pages_unchanged;
        self.pages_deduplicated += more.pages_deduplicated;
        self.add_compressed(more);
    }
    /// Adds the bytes that compression has seen.
    pub fn add_compressed(&mut self, more: &FlushFigures) {
        self.bytes_compressed_from += more.bytes_compressed_from;
        self.bytes_compressed_to += more.bytes_compressed_to;
        self.bytes_compressed_on_device += more.bytes_compressed_on_device;
    }
}

/// How the first write to each page after a cut went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AccessCounts {
    /// The writer had to wait until the page was stored, or was held for lack of room.
    pub wait: u64,
    /// The page was copied first.
    pub cow: u64,
    /// The page was stored already, the flush still under way.
    pub avoided: u64,
    /// After the flush.
    pub after: u64,
    /// Not written.
    pub untouched: u64,
}

/// What the pager knows of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EpochFigures {
    /// How changes are found: "userfaultfd" or "hashes".
    pub tracker: String,
    /// Order of the flush: "history", "classes", "address" or "sync".
    pub order: String,
    /// Pages of memory that is tracked, present at the cut.
    pub pages_tracked: u64,
    /// Pages written since the image before, those of the pre-copy included.
    pub pages_dirty: u64,
    /// Pages stored by the pre-copy, those that were written again included.
    pub pages_precopy: u64,
    /// First writes during the flush of this image, up to its commit.
    pub flush: AccessCounts,
    /// First writes of the whole epoch that this image ends (from the cut before to this one).
    pub ended: AccessCounts,
    /// Most pages that were copied for the program and held at once.
    pub copies_peak: u64,
    /// How many were allowed (`--cow`); 0: no bound.
    pub copies_limit: u64,
    /// How long writers were held because the bound was reached, nanoseconds.
    pub held_ns: u64,
    /// How often.
    pub holds: u64,
    /// Which of the last epochs predicts the writes best: 1 the last one; 0: not known.
    pub period: u32,
}
