//! What a launch of each kernel has to be: plain data, from which cuda-hooks calls `cuLaunchKernel` by the driver's own
//! pointer. Every buffer has a type of its own, whose address is aligned; a description that cannot be is `None`.
//!
//! All parameters of all kernels have eight bytes: [`Launch::pointers`] is what `kernelParams` has to point to (CUDA
//! driver API, "Execution Control", cuLaunchKernel). `tests/ptx.rs` compares the numbers here with the PTX.

use core::ffi::{CStr, c_void};

use crate::chunk::{CHUNK, MOST_CHUNKS, Range};
use crate::digest::{Digest, Keys, LANES};
use crate::list::Counts;

/// A kernel of [`crate::PTX`].
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    Hash,
    List,
    Gather,
    Scatter,
    Clear,
}

impl Kernel {
    /// All there are, in the order of their numbers.
    pub const ALL: [Kernel; 5] = [Kernel::Hash, Kernel::List, Kernel::Gather, Kernel::Scatter, Kernel::Clear];

    /// By which `cuModuleGetFunction` finds it.
    pub const fn name(self) -> &'static CStr {
        match self {
            Kernel::Hash => c"holdfast_hash",
            Kernel::List => c"holdfast_list",
            Kernel::Gather => c"holdfast_gather",
            Kernel::Scatter => c"holdfast_scatter",
            Kernel::Clear => c"holdfast_clear",
        }
    }

    /// Threads of a block; the kernel takes no other number.
    const fn threads(self) -> u32 {
        match self {
            Kernel::List => 1024,
            _ => LANES as u32,
        }
    }
}

/// Buffers on the device: an address that is aligned as the kernels need it.
macro_rules! buffers {
    ($($(#[$doc:meta])* $name:ident: $align:literal;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            pub struct $name(u64);

            impl $name {
                /// `None` if the address is zero or not aligned.
                pub const fn at(address: u64) -> Option<$name> {
                    if address != 0 && address.is_multiple_of($align) { Some($name(address)) } else { None }
                }
            }
        )*
    };
}

buffers! {
    /// A digest for each slot: [`Digests::bytes`].
    Digests: 16;
    /// A byte for each chunk: [`States::bytes`].
    States: 4;
    /// Numbers of chunks: [`Chunks::bytes`].
    Chunks: 4;
    /// [`Counts`].
    CountsAt: 8;
    /// Chunks one behind the other: [`Cache::bytes`].
    Cache: 16;
    /// A table of ranges: [`Ranges::bytes`].
    Ranges: 8;
}

impl Digests {
    /// Size for so many slots.
    pub const fn bytes(slots: u64) -> Option<u64> {
        slots.checked_mul(Digest::BYTES)
    }
}

impl States {
    /// Size for so many chunks: the kernels read four at a time.
    pub const fn bytes(chunks: u64) -> Option<u64> {
        chunks.checked_next_multiple_of(4)
    }
}

impl Chunks {
    /// Size for so many numbers.
    pub const fn bytes(chunks: u64) -> Option<u64> {
        chunks.checked_mul(4)
    }

    /// From the n-th number on.
    pub const fn skip(self, n: u64) -> Option<Chunks> {
        match n.checked_mul(4) {
            Some(bytes) => match self.0.checked_add(bytes) {
                Some(address) => Some(Chunks(address)),
                None => None,
            },
            None => None,
        }
    }
}

impl Cache {
    /// Size for so many chunks, the short ones among them.
    pub const fn bytes(chunks: u64) -> Option<u64> {
        chunks.checked_mul(CHUNK)
    }
}

impl Ranges {
    /// Size for so many ranges.
    pub const fn bytes(ranges: u64) -> Option<u64> {
        ranges.checked_mul(Range::BYTES)
    }
}

/// A table of ranges on the device, as [`crate::chunk::number`] has numbered it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table {
    /// Where it is.
    pub at: Ranges,
    /// How many ranges it has.
    pub count: u64,
    /// How many chunks they have.
    pub chunks: u64,
}

impl Table {
    /// Something to do, with numbers that fit.
    const fn sound(&self) -> bool {
        self.count > 0 && self.chunks >= self.count && self.chunks <= MOST_CHUNKS
    }
}

/// Hashes all chunks of a table. At a checkpoint `previous` has the digests of the image before; after a restart those
/// of the image, and every chunk that is not clean is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashChunks {
    /// What to hash.
    pub table: Table,
    /// The key of the job.
    pub keys: Keys,
    /// By slot; read.
    pub previous: Digests,
    /// By slot; written. Not `previous`: a checkpoint may fail.
    pub fresh: Digests,
    /// By chunk; written.
    pub states: States,
}

impl HashChunks {
    /// How the kernel has to be launched. `None` if there is nothing to hash, or the tables of digests are one.
    pub fn launch(&self) -> Option<Launch> {
        if !self.table.sound() || self.previous == self.fresh {
            return None;
        }
        let [k0, k1, k2, k3] = self.keys.words();
        let Table { at, count, chunks } = self.table;
        let (previous, fresh, states) = (self.previous.0, self.fresh.0, self.states.0);
        Some(Launch::new(
            Kernel::Hash,
            chunks,
            &[at.0, count, chunks, k0, k1, k2, k3, previous, fresh, states],
        ))
    }
}

/// Makes lists of the chunks that are not clean, ascending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListChunks {
    /// By chunk; read.
    pub states: States,
    /// How many there are.
    pub chunks: u64,
    /// With room for all chunks; written.
    pub dirty: Chunks,
    /// With room for all chunks; written.
    pub zero: Chunks,
    /// Written.
    pub counts: CountsAt,
}

impl ListChunks {
    /// How the kernel has to be launched. `None` if there are no chunks, or the lists are one.
    pub fn launch(&self) -> Option<Launch> {
        if self.chunks == 0 || self.chunks > MOST_CHUNKS || self.dirty == self.zero {
            return None;
        }
        let (states, dirty, zero, counts) = (self.states.0, self.dirty.0, self.zero.0, self.counts.0);
        Some(Launch::new(Kernel::List, 1, &[states, self.chunks, dirty, zero, counts]))
    }
}

/// Where chunks go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Out of their ranges, one behind the other; zeros follow a short one.
    Gather(Cache),
    /// Back into their ranges.
    Scatter(Cache),
    /// Zeros into their ranges.
    Clear,
}

/// Copies the chunks of a list, or fills them with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyChunks {
    /// Where the chunks belong.
    pub table: Table,
    /// Which ones: each once, numbers of the table. The kernels leave out what is no number of it.
    pub list: Chunks,
    /// How many.
    pub number: u64,
    /// Where from, where to.
    pub way: Way,
}

impl CopyChunks {
    /// How the kernel has to be launched. `None` if there is nothing to copy, or more than there is.
    pub fn launch(&self) -> Option<Launch> {
        if !self.table.sound() || self.number == 0 || self.number > self.table.chunks {
            return None;
        }
        let (ranges, count, list, number) = (self.table.at.0, self.table.count, self.list.0, self.number);
        let (kernel, cache) = match self.way {
            Way::Gather(to) => (Kernel::Gather, to.0),
            Way::Scatter(from) => (Kernel::Scatter, from.0),
            Way::Clear => return Some(Launch::new(Kernel::Clear, number, &[ranges, count, list, number])),
        };
        Some(Launch::new(kernel, number, &[ranges, count, list, number, cache]))
    }
}

const MOST_PARAMETERS: usize = 10;

/// Arguments of a `cuLaunchKernel`, but the function and the stream: no dynamic shared memory, no `extra`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launch {
    kernel: Kernel,
    blocks: u32,
    parameters: [u64; MOST_PARAMETERS],
    count: usize,
}

impl Launch {
    fn new(kernel: Kernel, blocks: u64, given: &[u64]) -> Launch {
        let mut parameters = [0; MOST_PARAMETERS];
        parameters.iter_mut().zip(given).for_each(|(to, from)| *to = *from);
        // a block takes more than one chunk where the grid would be too large
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX).clamp(1, i32::MAX as u32);
        Launch { kernel, blocks, parameters, count: given.len().min(MOST_PARAMETERS) }
    }

    /// The same on fewer blocks, so that work of the program beside it has processors left.
    pub fn at_most(self, blocks: u32) -> Launch {
        Launch { blocks: self.blocks.min(blocks.max(1)), ..self }
    }

    /// Which kernel.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Blocks.
    pub fn grid(&self) -> [u32; 3] {
        [self.blocks, 1, 1]
    }

    /// Threads of a block.
    pub fn block(&self) -> [u32; 3] {
        [self.kernel.threads(), 1, 1]
    }

    /// The parameters.
    pub fn parameters(&self) -> &[u64] {
        self.parameters.get(..self.count).unwrap_or_default()
    }

    /// `kernelParams`: pointers to the parameters, null behind the last. They are good as long as `self` is where it
    /// is; the driver has copied what they point to when `cuLaunchKernel` returns.
    pub fn pointers(&mut self) -> [*mut c_void; MOST_PARAMETERS + 1] {
        let mut pointers = [core::ptr::null_mut(); MOST_PARAMETERS + 1];
        for (pointer, parameter) in pointers.iter_mut().zip(&mut self.parameters).take(self.count) {
            *pointer = core::ptr::from_mut(parameter).cast();
        }
        pointers
    }
}

/// Size of a [`CountsAt`] buffer.
pub const COUNTS_BYTES: u64 = Counts::BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    fn table(count: u64, chunks: u64) -> Option<Table> {
        Some(Table { at: Ranges::at(0x1000)?, count, chunks })
    }

    fn copy(count: u64, chunks: u64, number: u64) -> Option<Launch> {
        let way = Way::Gather(Cache::at(0x3000)?);
        CopyChunks { table: table(count, chunks)?, list: Chunks::at(0x2000)?, number, way }.launch()
    }

    #[test]
    fn what_cannot_be_is_no_launch() {
        assert!(copy(1, 7, 7).is_some());
        assert_eq!(copy(1, 7, 8), None);
        assert_eq!(copy(1, 7, 0), None);
        assert_eq!(copy(0, 7, 7), None);
        assert_eq!(copy(8, 7, 7), None);
        assert_eq!(copy(1, MOST_CHUNKS + 1, 7), None);
        assert_eq!(Digests::at(0x1008), None);
        assert_eq!(Chunks::at(0), None);
    }

    #[test]
    fn old_digests_are_never_written_over() {
        let hash = |fresh| {
            let (table, keys) = (table(1, 1)?, Keys::new([0; 16]));
            let (previous, fresh) = (Digests::at(0x100)?, Digests::at(fresh)?);
            HashChunks { table, keys, previous, fresh, states: States::at(0x300)? }.launch()
        };
        assert!(hash(0x200).is_some());
        assert_eq!(hash(0x100), None);
    }

    #[test]
    fn pointers_point_to_the_parameters_in_their_order() {
        let mut launch = copy(1, 7, 3).unwrap_or_else(|| unreachable!());
        assert_eq!(launch.parameters(), [0x1000, 1, 0x2000, 3, 0x3000]);
        let base = core::ptr::from_ref(&launch.parameters).addr();
        let pointers = launch.pointers().map(|pointer| pointer.addr());
        assert_eq!(pointers[..6], [base, base + 8, base + 16, base + 24, base + 32, 0]);
        assert_eq!((launch.grid(), launch.block()), ([3, 1, 1], [256, 1, 1]));
        assert_eq!(launch.at_most(2).grid(), [2, 1, 1]);
    }
}
