//! What an agent asks of its keeper, and the answers: one JSON message each over a socketpair (SOCK_SEQPACKET), as
//! with the caller of the driver ([`crate::cuda::messages`], which sends and receives them); page contents go through
//! a file of memory that both have, the ring.
//!
//! What must hold: one answer to each question, in their order, but for [`Question::Stored`], [`Question::Begin`] and
//! [`Question::Fill`], which have none.

use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_image::pages::SourceCodec;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Bytes of the ring that one question has, which is the most that it moves.
pub const RING: u64 = 8 << 20;
/// Bytes of a window: so many are under way at once. At 55 GB/s 38 us, beside the 20 that a question takes.
pub const WINDOW: u64 = 2 << 20;
/// Windows, behind the part of questions.
pub const WINDOWS: usize = 4;
/// Bytes of the ring.
pub const RING_FILE: u64 = window_at(WINDOWS);

/// Where a window begins.
pub const fn window_at(window: usize) -> u64 {
    RING + window as u64 * WINDOW
}

/// Most runs or blocks in a message.
pub const MOST: usize = 500;

/// Most descriptors in a message.
pub const LENT: usize = 200;
/// Most chunks of [`Question::Pack`]: as they are they fill the ring.
pub const PACKED: usize = (RING / CHUNK) as usize;

/// Memory that the keeper has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Block {
    /// Its name: its first slot.
    pub name: u64,
    /// Its length.
    pub bytes: u64,
    /// The process whose it is.
    pub owner: i32,
    /// Of the device.
    pub uuid: [u8; 16],
}

/// Addresses of the space of devices: first one, and how many bytes.
pub type Run = (u64, u64);

/// What the keeper is to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Question {
    /// Load this driver, if none is loaded yet.
    Load { library: PathBuf },
    /// Hash what these processes have, and take what is not as in the last image; `whole`: all of it. They must have
    /// nothing under way on their devices, and nothing may begin until the answer. The answer comes with a file that
    /// has a [`Taken`].
    Take { owners: Vec<i32>, whole: bool },
    /// For a rollback: which blocks do these processes have? Nothing is taken. The answer comes with a file that has a
    /// [`Taken`].
    Blocks { owners: Vec<i32> },
    /// Descriptors of memory, by name, at most [`LENT`]: the answer is [`Answer::Lent`].
    Lend { names: Vec<u64> },
    /// Of a keeper that has ended: descriptors of memory, by name and process, at most [`LENT`], come along. Programs
    /// get them when they ask for them, until [`Question::Over`], or their end.
    Inherit { blocks: Vec<(u64, i32)> },
    /// Put what was taken of these addresses into the ring.
    Read { run: Run },
    /// Begin to put what was taken of these addresses into a window, one behind the other.
    Begin { window: usize, runs: Vec<Run> },
    /// What was begun in a window is to be done.
    Await { window: usize },
    /// Put chunks that were taken into the ring, packed on their device, one behind the other: the answer is
    /// [`Answer::Packed`]. A keeper that fails at it is not to be asked again.
    Pack {
        /// Their addresses, at most [`PACKED`].
        chunks: Vec<u64>,
        /// By which codec.
        codec: SourceCodec,
    },
    /// The image has these.
    Stored { runs: Vec<Run> },
    /// The image is committed: what was taken stays as long as there is room; or it has failed: it is given up.
    Over { committed: bool },
    /// After a restart: the key of the digests.
    Key { key: [u8; 16] },
    /// After a restart: make these, filled with zeros.
    Remake { blocks: Vec<Block> },
    /// A window has the content of these addresses, one behind the other: begin to bring it there.
    Fill { window: usize, runs: Vec<Run> },
    /// Compare all that was remade with the digests that were filled in.
    Check,
    /// For a rollback: what does not have the digests that were filled in, and what of it has the cache? The answer
    /// comes with a file that has a [`Taken`].
    Differing,
    /// What the cache has of it goes back. The answer comes with a file that has a [`Taken`].
    Bring,
    /// Give the memory of the cache back: it is needed.
    Yield,
    /// Make these zero.
    Clear { runs: Vec<Run> },
    /// Have so much memory of a device, for a process that is going to be restored.
    Hold { owner: i32, uuid: [u8; 16], bytes: u64 },
    /// Give up what is held for a process: it is restored now.
    Give { owner: i32 },
}

impl Question {
    /// What is under way in the windows may go on meanwhile: memory of devices stays what it is.
    pub fn goes_on(&self) -> bool {
        use Question::{Await, Begin, Fill, Read, Stored};
        matches!(self, Await { .. } | Begin { .. } | Fill { .. } | Read { .. } | Stored { .. })
    }
}

/// What it says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Done.
    Done,
    /// Descriptors of these came along. What is not among them is not there any more.
    Lent {
        /// By name.
        names: Vec<u64>,
    },
    /// Bytes of each in the ring, of as many of the chunks, from the first on, as could be packed now; as many as a
    /// chunk has: it is as it was.
    Packed {
        /// See there.
        bytes: Vec<u32>,
    },
    /// Not done; in words.
    Failed {
        /// Why.
        why: String,
    },
}

/// What was taken.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Taken {
    /// All blocks, ascending by name.
    pub blocks: Vec<Block>,
    /// What has changed and is not zero, ascending.
    pub dirty: Vec<Run>,
    /// What has become zero, ascending.
    pub zero: Vec<Run>,
    /// Where digests are, ascending, in whole pages.
    pub digests: Vec<Run>,
    /// Key of the digests.
    pub key: [u8; 16],
    /// Nanoseconds for hashing and listing.
    pub hash_ns: u64,
    /// Nanoseconds for copies into the cache, and past it.
    pub gather_ns: u64,
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Bytes that went to the host, as the cache was full.
    pub spilled_bytes: u64,
    /// Of what differs from an image: what the cache has, or has put back, ascending.
    pub cached: Vec<Run>,
}
