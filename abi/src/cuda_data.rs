//! Device memory that libholdfast owns: what the CUDA hooks in the program (`cuda-hooks/`) and the agent share of it.
//!
//! Memory of cuMemAlloc lies in *blocks*: physical memory of the virtual memory management API, mapped at addresses
//! that libholdfast has reserved and that stay the same. A thread of libholdfast, the *service thread*, does what the
//! agent asks for while the gate is closed: it brings the blocks' content to safety and unmaps them, so that the
//! driver's checkpoint carries nothing of it, and maps them again (docs/cuda.md).

use core::mem::size_of;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The words, in memory of libholdfast (.bss): part of every image, cleared in a child made by fork.
/// [`crate::CudaArea`] has its address from the first allocation that libholdfast owns; 0: there is none.
#[repr(C, align(4096))]
pub struct CudaData {
    /// Who has the physical memory of blocks: [`CudaData::BY_DRIVER`] and so on. Decided at the first allocation.
    pub owner: AtomicU64,
    /// Library: address of the table of blocks ([`CudaBlock`]).
    pub blocks: AtomicU64,
    /// Library: number of entries of that table that were ever used.
    pub block_count: AtomicU64,
    /// Library: bytes of blocks that are in force, and bytes that the program has asked for in them.
    pub block_bytes: AtomicU64,
    /// See `block_bytes`.
    pub requested_bytes: AtomicU64,
    /// Library: moves with every block that comes, goes, or changes.
    pub generation: AtomicU64,
    reserved_0: [u64; 2],
    /// Library: the kernel's id of the service thread, as the program's own namespace has it; 0: there is none.
    pub service_thread: AtomicU64,
    /// Library: where the content of blocks is: [`CudaData::RESIDENT`] and so on.
    pub state: AtomicU64,
    /// Agent: what the service thread is to do, a `COMMAND_`; written before `asked`.
    pub command: AtomicU64,
    /// Agent: arguments of the command.
    pub arguments: [AtomicU64; 4],
    /// Agent: number of the command, one more than that of the last. Then the agent sends [`CudaData::SIGNAL`] to
    /// the service thread, which has it blocked and waits for it.
    pub asked: AtomicU64,
    /// Library: number of the last command that is done; written after all that it has to say of it.
    pub done: AtomicU64,
    /// Library: what came of it: 0, or the driver's error (CUresult), or a `FAULT_`.
    pub result: AtomicU64,
    /// Library: on which row of the table of functions, + 1, or 0; and at which block, + 1, or 0.
    pub failed_function: AtomicU64,
    /// See `failed_function`.
    pub failed_block: AtomicU64,
    /// Library: of how many bytes that was; 0: of none.
    pub failed_bytes: AtomicU64,
    /// Library: calls that had given devices work at the last COMMAND_LEAVE, + 1; 0: not known. As many now: nothing
    /// was written since.
    pub work: AtomicU64,
    reserved_1: [u64; 1],
    /// Library: figures of the last commands, by [`CudaFigure`].
    pub figures: [AtomicU64; CudaFigure::ROOM],
    /// Library: base address of the copy on the host and its length (owner [`CudaData::BY_LIBRARY`]): content of a
    /// block is where its entry says, from here on. 0: there is none.
    pub copy: AtomicU64,
    /// See `copy`.
    pub copy_len: AtomicU64,
    /// Library: base address of the digests of chunks (two words each, by the block's first slot).
    pub digests: AtomicU64,
    /// Library: number of slots that were ever used.
    pub digest_slots: AtomicU64,
    /// Key of the digests: random, once for each process.
    pub key: [AtomicU64; 2],
    /// Library: addresses of device memory that an image does not have: a table of [`CudaData::MAX_DISCARDS`] entries
    /// of two words, first address and bytes, of which those without bytes are free. 0: there is none.
    pub discards: AtomicU64,
}

/// A block. 64 bytes.
#[derive(Default)]
#[repr(C, align(64))]
pub struct CudaBlock {
    /// First address on the device; 0: the entry is free. Written last, cleared first.
    pub address: AtomicU64,
    /// Bytes that are mapped: a multiple of the granularity.
    pub bytes: AtomicU64,
    /// The driver's handle of the physical memory; 0: it is not mapped.
    pub handle: AtomicU64,
    /// The device's ordinal, and flags from bit 32 on ([`CudaBlock::SMALL`] and so on).
    pub device: AtomicU64,
    /// The context that was current when it was made.
    pub context: AtomicU64,
    /// Where its content is in the copy on the host, bytes from its base; also address - base of its arena.
    pub offset: AtomicU64,
    /// Slot of its first chunk's digest.
    pub slot: AtomicU64,
    /// The keeper's name of the physical memory (owner [`CudaData::BY_KEEPER`]).
    pub name: AtomicU64,
}

offsets! { CudaData {
    OWNER = owner;
    BLOCKS = blocks;
    BLOCK_COUNT = block_count;
    BLOCK_BYTES = block_bytes;
    REQUESTED_BYTES = requested_bytes;
    GENERATION = generation;
    SERVICE_THREAD = service_thread;
    STATE = state;
    COMMAND = command;
    ARGUMENTS = arguments;
    ASKED = asked;
    DONE = done;
    RESULT = result;
    FAILED_FUNCTION = failed_function;
    FAILED_BLOCK = failed_block;
    FAILED_BYTES = failed_bytes;
    WORK = work;
    FIGURES = figures;
    COPY = copy;
    COPY_LEN = copy_len;
    DIGESTS = digests;
    DIGEST_SLOTS = digest_slots;
    KEY = key;
    DISCARDS = discards;
} }

offsets! { CudaBlock {
    ADDRESS = address;
    SIZE = bytes;
    HANDLE = handle;
    DEVICE = device;
    CONTEXT = context;
    OFFSET = offset;
    SLOT = slot;
    NAME = name;
} }

impl CudaData {
    /// `owner`: not decided yet.
    pub const UNDECIDED: u64 = 0;
    /// `owner`: the driver: cuMemAlloc is passed on.
    pub const BY_DRIVER: u64 = 1;
    /// `owner`: libholdfast, in this process: content goes to a copy on the host for the driver's checkpoint (R2b).
    pub const BY_LIBRARY: u64 = 2;
    /// `owner`: a keeper process of the agent's, from which it is imported (R2a).
    pub const BY_KEEPER: u64 = 3;
    /// What is wished: no hooks at all. Never in `owner`.
    pub const OFF: u64 = 4;

    /// `state`: blocks are mapped.
    pub const RESIDENT: u64 = 0;
    /// `state`: a command is changing that.
    pub const CHANGING: u64 = 1;
    /// `state`: blocks are unmapped; their content is in the copy on the host, or with the keeper.
    pub const AWAY: u64 = 2;

    /// `command`: waits until all contexts have done their work. The gate has to be closed.
    pub const COMMAND_DRAIN: u64 = 1;
    /// `command`: drains, brings content to safety where that is the library's affair, unmaps, releases.
    pub const COMMAND_LEAVE: u64 = 2;
    /// `command`: makes or imports physical memory, maps it, brings content back where that is the library's affair,
    /// and compares it with the digests.
    pub const COMMAND_RETURN: u64 = 3;

    /// `command`: the keeper has ended, and blocks that were its are mapped: they are the library's from now on.
    pub const COMMAND_ADOPT: u64 = 4;

    /// `command`: drains, and says how much memory of the host COMMAND_LEAVE would take now
    /// ([`CudaFigure::NEEDED_BYTES`]); nothing is copied.
    pub const COMMAND_MEASURE: u64 = 5;

    /// First argument of COMMAND_RETURN, also while it is being done: nothing waits for it; the library opens the gate
    /// when content is back, and tries again by itself.
    pub const OPENS_GATE: u64 = 1;
    /// Second argument of COMMAND_RETURN: the process is of an image, and what is discarded is zero from now on.
    pub const OF_IMAGE: u64 = 1;
    /// Bytes of the pieces that are left out of images, or not: chunks.
    pub const DISCARD_UNIT: u64 = 64 << 10;
    /// Most entries of [`CudaData::discards`].
    pub const MAX_DISCARDS: usize = 1024;

    /// `result`: content is not what its digest says.
    pub const FAULT_DAMAGED: u64 = 1 << 32;
    /// `result`: no memory of the host, or a system call failed; its errno in the lower half.
    pub const FAULT_SYSTEM: u64 = 2 << 32;
    /// `result`: the keeper does not answer, or says no.
    pub const FAULT_KEEPER: u64 = 3 << 32;
    /// `result`: there is no such command, or not in this state.
    pub const FAULT_COMMAND: u64 = 4 << 32;

    /// The signal that wakes the service thread: SIGRTMAX - 4 of the kernel's 64.
    pub const SIGNAL: i32 = 60;
    /// Most entries of the table of blocks.
    pub const MAX_BLOCKS: usize = 1 << 16;
    /// Bytes of one.
    pub const BLOCK_ENTRY: usize = size_of::<CudaBlock>();
    /// Length of the words, bytes.
    pub const LEN: usize = size_of::<CudaData>();

    /// All zero: nothing is owned.
    pub const fn new() -> CudaData {
        CudaData {
            owner: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            block_count: AtomicU64::new(0),
            block_bytes: AtomicU64::new(0),
            requested_bytes: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            reserved_0: [0; 2],
            service_thread: AtomicU64::new(0),
            state: AtomicU64::new(0),
            command: AtomicU64::new(0),
            arguments: [const { AtomicU64::new(0) }; 4],
            asked: AtomicU64::new(0),
            done: AtomicU64::new(0),
            result: AtomicU64::new(0),
            failed_function: AtomicU64::new(0),
            failed_block: AtomicU64::new(0),
            failed_bytes: AtomicU64::new(0),
            work: AtomicU64::new(0),
            reserved_1: [0; 1],
            figures: [const { AtomicU64::new(0) }; CudaFigure::ROOM],
            copy: AtomicU64::new(0),
            copy_len: AtomicU64::new(0),
            digests: AtomicU64::new(0),
            digest_slots: AtomicU64::new(0),
            key: [const { AtomicU64::new(0) }; 2],
            discards: AtomicU64::new(0),
        }
    }

    /// All zero again: in a child made by fork.
    pub fn clear(&self) {
        let words = [
            &self.owner,
            &self.blocks,
            &self.block_count,
            &self.block_bytes,
            &self.requested_bytes,
            &self.generation,
            &self.service_thread,
            &self.state,
            &self.command,
            &self.asked,
            &self.done,
            &self.result,
            &self.failed_function,
            &self.failed_block,
            &self.failed_bytes,
            &self.work,
            &self.copy,
            &self.copy_len,
            &self.digests,
            &self.digest_slots,
        ];
        let lists = self.arguments.iter().chain(&self.figures).chain(&self.key);
        for word in words.into_iter().chain(lists) {
            word.store(0, Relaxed);
        }
    }
}

impl Default for CudaData {
    fn default() -> CudaData {
        CudaData::new()
    }
}

impl CudaBlock {
    /// In `device`: small requests share the block.
    pub const SMALL: u64 = 1 << 32;
    /// In `device`: no work was submitted since it was made: its content is nothing yet.
    pub const FRESH: u64 = 1 << 33;
}

/// Indexes into [`CudaData::figures`].
pub struct CudaFigure;

impl CudaFigure {
    /// Of the last COMMAND_LEAVE: nanoseconds until all work was done.
    pub const DRAIN_NS: usize = 0;
    /// Nanoseconds for hashing and listing.
    pub const HASH_NS: usize = 1;
    /// Nanoseconds for copies to the host.
    pub const COPY_NS: usize = 2;
    /// Nanoseconds for unmapping and releasing.
    pub const UNMAP_NS: usize = 3;
    /// Bytes that were hashed.
    pub const HASHED_BYTES: usize = 4;
    /// Bytes of chunks that had changed, without those that became zero.
    pub const DIRTY_BYTES: usize = 5;
    /// Bytes of chunks that are zero now and were not.
    pub const ZERO_BYTES: usize = 6;
    /// Of the last COMMAND_RETURN: nanoseconds for making or importing and mapping.
    pub const MAP_NS: usize = 7;
    /// Nanoseconds for copies to the device.
    pub const FILL_NS: usize = 8;
    /// Nanoseconds for comparing digests.
    pub const CHECK_NS: usize = 9;
    /// Of the last COMMAND_MEASURE: bytes of chunks that are not zero and have no memory in the copy.
    pub const NEEDED_BYTES: usize = 10;
    /// Room.
    pub const ROOM: usize = 16;
}

const _: () = assert!(CudaData::LEN == crate::PAGE && CudaData::BLOCK_ENTRY == 64);

#[cfg(test)]
mod tests {
    use super::*;

    /// Images hold these words: a number that changes here makes older images wrong.
    #[test]
    fn the_layout_is_frozen() {
        let golden = [
            (CudaData::OWNER, 0),
            (CudaData::BLOCKS, 8),
            (CudaData::BLOCK_COUNT, 16),
            (CudaData::BLOCK_BYTES, 24),
            (CudaData::REQUESTED_BYTES, 32),
            (CudaData::GENERATION, 40),
            (CudaData::SERVICE_THREAD, 64),
            (CudaData::STATE, 72),
            (CudaData::COMMAND, 80),
            (CudaData::ARGUMENTS, 88),
            (CudaData::ASKED, 120),
            (CudaData::DONE, 128),
            (CudaData::RESULT, 136),
            (CudaData::FAILED_FUNCTION, 144),
            (CudaData::FAILED_BLOCK, 152),
            (CudaData::FAILED_BYTES, 160),
            (CudaData::WORK, 168),
            (CudaData::FIGURES, 184),
            (CudaData::COPY, 312),
            (CudaData::COPY_LEN, 320),
            (CudaData::DIGESTS, 328),
            (CudaData::DIGEST_SLOTS, 336),
            (CudaData::KEY, 344),
            (CudaData::DISCARDS, 360),
            (CudaData::MAX_BLOCKS, 65_536),
            (CudaData::LEN, 4096),
        ];
        for (index, (now, then)) in golden.into_iter().enumerate() {
            assert_eq!(now, then, "number {index} of the list");
        }
        let block = [
            CudaBlock::ADDRESS,
            CudaBlock::SIZE,
            CudaBlock::HANDLE,
            CudaBlock::DEVICE,
            CudaBlock::CONTEXT,
            CudaBlock::OFFSET,
            CudaBlock::SLOT,
            CudaBlock::NAME,
        ];
        assert_eq!(block, [0, 8, 16, 24, 32, 40, 48, 56]);
        assert_eq!(
            [CudaData::BY_DRIVER, CudaData::BY_LIBRARY, CudaData::BY_KEEPER, CudaData::AWAY],
            [1, 2, 3, 2]
        );
    }
}
