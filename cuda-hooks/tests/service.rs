//! The service thread on the stand-in driver, with a table of blocks made by hand, and the tests as the agent.
//!
//! Each test is a process of its own. Is content away and back as it was, are only chunks that have changed copied, is
//! what was damaged meanwhile noticed, and what becomes of a command that is called off, or whose agent ends?
//!
//! # Safety
//! Calls of the driver have the types of its header; the words are those of this process.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "../stand-in/driver/tests/conformance/driver.rs"]
mod driver;

use driver::{NULL, get};
use holdfast_abi::{CudaArea, CudaBlock, CudaData, CudaFigure};
use holdfast_cuda_hooks::service::{self, Failed};
use holdfast_cuda_hooks::{area, gate, resolve};
use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_cuda_kernels::digest::{Digest, Keys, digest};
use std::ffi::CString;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Blocks are multiples of it.
const UNIT: u64 = 2 << 20;
const ROOM: u64 = 1024 * UNIT;
const PATIENCE: Duration = Duration::from_secs(60);

/// What `cuda-hooks/src/platform.rs` asks of preload.
static AGENT: AtomicBool = AtomicBool::new(true);

/// Whether there is an agent.
// SAFETY: no other symbol of this program has the name.
#[unsafe(no_mangle)]
extern "C" fn holdfast_cuda_agent_is_there() -> bool {
    AGENT.load(SeqCst)
}

struct Bed {
    data: &'static CudaData,
    blocks: &'static [CudaBlock],
    base: u64,
    context: u64,
}

fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Physical memory at a block's addresses.
fn make(block: &CudaBlock) -> Result<(), Failed> {
    let [at, bytes] = [&block.address, &block.bytes].map(|word| word.load(SeqCst));
    let mut handle = 0u64;
    let made = cu!("cuMemCreate" 10020, &mut handle, bytes, &[1u32, 0, 1, 0, 0, 0, 0, 0], 0u64);
    if made != 0 {
        return Err(Failed::of(c"cuMemCreate", u64::from(made), bytes));
    }
    ok!("cuMemMap" 10020, at, bytes, 0usize, handle, 0u64);
    ok!("cuMemSetAccess" 10020, at, bytes, &[1u32, 0, 3], 1usize);
    block.handle.store(handle, SeqCst);
    Ok(())
}

impl Bed {
    fn new() -> Bed {
        let name = CString::new("cuInit").unwrap();
        assert_ne!(driver::symbol("cuInit"), 0);
        let path = CString::new(driver::library()).unwrap();
        // SAFETY: a library and a name; the program's own dlsym() would come here.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            resolve::look_up(handle, name.as_ptr(), std::ptr::null(), Bed::new as *const _);
        }
        let context = driver::start() as u64;
        let mut base = 0u64;
        ok!("cuMemAddressReserve" 10020, &mut base, ROOM, 0usize, NULL, 0u64);
        let blocks: &[CudaBlock] =
            (0..CudaData::MAX_BLOCKS).map(|_| CudaBlock::default()).collect::<Vec<_>>().leak();
        let data: &CudaData = Box::leak(Box::new(CudaData::new()));
        data.owner.store(CudaData::BY_LIBRARY, SeqCst);
        data.blocks.store(blocks.as_ptr().addr() as u64, SeqCst);
        area::area().data.store(std::ptr::from_ref(data).addr() as u64, SeqCst);
        assert!(service::start(Box::leak(Box::new(service::Work { data, make, discarded: |_| (0, 0) }))));
        until("the thread", || data.service_thread.load(SeqCst) != 0);
        Bed { data, blocks, base, context }
    }

    /// A block at an offset, with something in it.
    fn block(&self, index: usize, offset: u64, units: u64) {
        self.empty_block(index, offset, units);
        let (at, bytes) = (self.base + offset * UNIT, units * UNIT);
        let words: Vec<u64> = (0..bytes / 8).map(|word| (word << 20 | 1).wrapping_mul(offset + 7)).collect();
        ok!("cuMemcpyHtoD" 3020, at, &words[..], bytes);
        self.worked();
    }

    /// The device has had work, which the wrappers would have counted.
    fn worked(&self) {
        area::area().uncounted_work.fetch_add(1, SeqCst);
    }

    /// One that nothing was written to.
    fn empty_block(&self, index: usize, offset: u64, units: u64) {
        let (at, bytes) = (self.base + offset * UNIT, units * UNIT);
        let block = &self.blocks[index];
        block.bytes.store(bytes, SeqCst);
        block.context.store(self.context, SeqCst);
        block.offset.store(offset * UNIT, SeqCst);
        block.slot.store(offset * UNIT / CHUNK, SeqCst);
        block.address.store(at, SeqCst);
        make(block).unwrap();
        self.data.block_count.fetch_max(index as u64 + 1, SeqCst);
    }

    fn content(&self, index: usize) -> Vec<u8> {
        let block = &self.blocks[index];
        get(block.address.load(SeqCst), block.bytes.load(SeqCst) as usize)
    }

    fn copy(&self, offset: u64, bytes: u64) -> &[u8] {
        let at = (self.data.copy.load(SeqCst) + offset) as usize;
        // SAFETY: a part of the copy.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), bytes as usize) }
    }

    fn damage(&self, offset: u64) {
        let at: *mut u8 =
            std::ptr::with_exposed_provenance_mut((self.data.copy.load(SeqCst) + offset) as usize);
        // SAFETY: a byte of the copy, in a page of its own.
        unsafe {
            let page = at.map_addr(|at| at & !4095).cast();
            assert_eq!(libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_WRITE), 0);
            at.write(at.read() ^ 1);
        }
    }

    /// Sends a command; its number.
    fn send(&self, command: u64) -> u64 {
        let number = self.data.asked.load(SeqCst) + 1;
        self.data.command.store(command, SeqCst);
        self.data.asked.store(number, SeqCst);
        let thread = self.data.service_thread.load(SeqCst);
        // SAFETY: a signal to a thread of this process, which has it blocked.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, CudaData::SIGNAL) };
        number
    }

    /// And waits: what came of it.
    fn ask(&self, command: u64) -> u64 {
        let number = self.send(command);
        until("an answer", || self.data.done.load(SeqCst) == number);
        self.data.result.load(SeqCst)
    }

    fn figure(&self, figure: usize) -> u64 {
        self.data.figures[figure].load(SeqCst)
    }

    /// The gate, as the agent has it.
    fn close(&self) {
        area::area().closed.store(CudaArea::BY_AGENT, SeqCst);
    }

    fn leaves(&self) {
        self.worked();
        self.leaves_idle();
    }

    /// The same where what was counted is all that there was.
    fn leaves_idle(&self) {
        self.close();
        let result = self.ask(CudaData::COMMAND_LEAVE);
        let (function, block) = (self.data.failed_function.load(SeqCst), self.data.failed_block.load(SeqCst));
        assert_eq!((result, function, block), (0, 0, 0));
        assert_eq!(self.data.state.load(SeqCst), CudaData::AWAY);
        assert!(self.blocks.iter().all(|block| block.handle.load(SeqCst) == 0));
    }

    fn returns(&self) {
        assert_eq!(self.ask(CudaData::COMMAND_RETURN), 0);
        assert_eq!(self.data.state.load(SeqCst), CudaData::RESIDENT);
        gate::open(area::area());
    }

    fn free_memory() -> usize {
        let (mut free, mut total) = (0usize, 0usize);
        ok!("cuMemGetInfo" 3020, &mut free, &mut total);
        free
    }
}

isolated! {
    what_is_away_is_restored_and_only_what_has_changed_is_copied {
        let bed = Bed::new();
        let before = Bed::free_memory();
        bed.block(0, 0, 1);
        bed.block(2, 5, 3);
        let content = [bed.content(0), bed.content(2)];
        bed.leaves();
        assert_eq!(Bed::free_memory(), before, "the physical memory is given back");
        assert_eq!(bed.figure(CudaFigure::HASHED_BYTES), 4 * UNIT);
        assert_eq!(bed.figure(CudaFigure::DIRTY_BYTES), 4 * UNIT);
        assert!(bed.copy(0, UNIT) == content[0] && bed.copy(5 * UNIT, 3 * UNIT) == content[1]);
        let key = [0, 1].map(|word: usize| bed.data.key[word].load(SeqCst));
        let keys = Keys::new((u128::from(key[1]) << 64 | u128::from(key[0])).to_le_bytes());
        for slot in 5 * UNIT / CHUNK..8 * UNIT / CHUNK {
            let at = bed.data.digests.load(SeqCst) + slot * Digest::BYTES;
            // SAFETY: a digest of the table.
            let bytes = unsafe { std::ptr::with_exposed_provenance::<[u8; 16]>(at as usize).read() };
            assert_eq!(Digest::from_bytes(bytes), digest(&keys, bed.copy(slot * CHUNK, CHUNK)));
        }
        bed.returns();
        assert!([bed.content(0), bed.content(2)] == content);

        // a byte of a chunk, a row of chunks, and chunks that become zero
        ok!("cuMemsetD8" 3020, bed.base + 5 * UNIT + CHUNK + 77, 0xffu8, 1usize);
        ok!("cuMemsetD8" 3020, bed.base + CHUNK, 3u8, (3 * CHUNK) as usize);
        ok!("cuMemsetD8" 3020, bed.base + 6 * UNIT, 0u8, (2 * CHUNK) as usize);
        let content = [bed.content(0), bed.content(2)];
        bed.leaves();
        assert_eq!(bed.figure(CudaFigure::DIRTY_BYTES), 4 * CHUNK);
        assert_eq!(bed.figure(CudaFigure::ZERO_BYTES), 2 * CHUNK);
        bed.returns();
        assert!([bed.content(0), bed.content(2)] == content);

        // one that is freed, and one that comes in its place
        ok!("cuMemUnmap" 10020, bed.base, UNIT as usize);
        ok!("cuMemRelease" 10020, bed.blocks[0].handle.swap(0, SeqCst));
        bed.blocks[0].address.store(0, SeqCst);
        bed.leaves();
        assert!(bed.copy(0, UNIT).iter().all(|byte| *byte == 0), "nothing is kept of what is freed");
        assert_eq!(bed.figure(CudaFigure::DIRTY_BYTES), 0);
        bed.returns();
        bed.block(1, 0, 2);
        let content = [bed.content(1), bed.content(2)];
        bed.leaves();
        assert_eq!(bed.figure(CudaFigure::DIRTY_BYTES), 2 * UNIT);
        bed.returns();
        assert!([bed.content(1), bed.content(2)] == content);
    }
}

isolated! {
    what_the_copy_would_take_is_measured_and_nothing_is_copied {
        let bed = Bed::new();
        bed.block(0, 0, 1);
        bed.block(1, 4, 2);
        ok!("cuMemsetD8" 3020, bed.base + 4 * UNIT, 0u8, UNIT as usize);
        let content = [bed.content(0), bed.content(1)];
        let measured = || {
            bed.close();
            bed.worked();
            assert_eq!(bed.ask(CudaData::COMMAND_MEASURE), 0);
            bed.figure(CudaFigure::NEEDED_BYTES)
        };
        assert_eq!(measured(), 2 * UNIT, "what is zero needs nothing");
        assert_eq!((bed.data.copy.load(SeqCst), bed.data.state.load(SeqCst)), (0, CudaData::RESIDENT));
        bed.leaves();
        assert_eq!(bed.figure(CudaFigure::DIRTY_BYTES), 2 * UNIT);
        bed.returns();
        // what has a copy is overwritten there; what was zero and is not needs memory
        ok!("cuMemsetD8" 3020, bed.base, 3u8, UNIT as usize);
        assert_eq!(measured(), 0);
        ok!("cuMemsetD8" 3020, bed.base + 4 * UNIT + CHUNK, 3u8, 1usize);
        assert_eq!(measured(), CHUNK);
        gate::open(area::area());
        assert_eq!(bed.ask(CudaData::COMMAND_MEASURE), CudaData::FAULT_COMMAND, "the gate is open");
        assert!(bed.content(0).iter().all(|byte| *byte == 3));
        assert_eq!(bed.content(1)[CHUNK as usize + 1..], content[1][CHUNK as usize + 1..]);
    }
}

isolated! {
    /// Blocks come and go, some chunks are written, and checkpoints are made, at random, beside a model that has what
    /// every chunk holds, and whether there was any work since the last one.
    nothing_is_hashed_where_nothing_was_done {
        let bed = Bed::new();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % bound
        };
        let chunks = UNIT / CHUNK;
        let mut model: Vec<Option<Vec<Option<u8>>>> = vec![None; 4];
        let (mut idle, mut skipped, mut hashed) = (true, 0, 0);
        for _ in 0..120 {
            let index = below(4) as usize;
            match (below(6), &mut model[index]) {
                (0 | 1, slot @ None) => {
                    bed.empty_block(index, index as u64, 1);
                    *slot = Some(vec![None; chunks as usize]);
                }
                (0, slot @ Some(_)) => {
                    ok!("cuMemUnmap" 10020, bed.base + index as u64 * UNIT, UNIT as usize);
                    ok!("cuMemRelease" 10020, bed.blocks[index].handle.swap(0, SeqCst));
                    bed.blocks[index].address.store(0, SeqCst);
                    *slot = None;
                }
                (1 | 2 | 5, Some(content)) => {
                    let (chunk, byte) = (below(chunks), below(256) as u8);
                    let at = bed.base + index as u64 * UNIT + chunk * CHUNK;
                    ok!("cuMemsetD8" 3020, at, byte, CHUNK as usize);
                    content[chunk as usize] = Some(byte);
                    bed.worked();
                    idle = false;
                }
                (3 | 4, _) => {
                    let blocks = model.iter().flatten().count() as u64;
                    bed.leaves_idle();
                    let expected = if idle { 0 } else { blocks * UNIT };
                    assert_eq!(bed.figure(CudaFigure::HASHED_BYTES), expected);
                    if idle { skipped += 1 } else { hashed += 1 }
                    bed.returns();
                    idle = true;
                }
                _ => {}
            }
            for (index, content) in model.iter().enumerate() {
                let Some(content) = content else { continue };
                let found = bed.content(index);
                for (chunk, byte) in found.chunks(CHUNK as usize).zip(content) {
                    assert!(byte.is_none_or(|byte| chunk.iter().all(|found| *found == byte)));
                }
            }
        }
        assert!(skipped > 5 && hashed > 5, "{skipped} and {hashed}");
        // What no wrapper sees cannot be counted.
        area::area().export_tables.store(1, SeqCst);
        bed.empty_block(0, 8, 1);
        bed.leaves_idle();
        assert!(bed.figure(CudaFigure::HASHED_BYTES) >= UNIT);
        bed.returns();
    }
}

isolated! {
    a_device_without_room_is_hashed_by_the_processor ["STAND_IN_MEMORY" = "64M"] {
        let bed = Bed::new();
        bed.block(0, 0, 2);
        ok!("cuMemsetD8" 3020, bed.base + UNIT, 0u8, UNIT as usize);
        let mut size = 16usize << 20;
        while size >= 4096 {
            let mut at = 0u64;
            if cu!("cuMemAlloc" 3020, &mut at, size) != 0 {
                size /= 2;
            }
        }
        let content = bed.content(0);
        bed.leaves();
        assert_eq!(bed.figure(CudaFigure::DIRTY_BYTES), UNIT);
        assert_eq!(bed.figure(CudaFigure::ZERO_BYTES), UNIT);
        bed.returns();
        assert!(bed.content(0) == content);
        ok!("cuMemsetD8" 3020, bed.base + 3 * CHUNK, 9u8, CHUNK as usize);
        let content = bed.content(0);
        bed.leaves();
        assert_eq!(bed.figure(CudaFigure::DIRTY_BYTES), CHUNK);
        bed.damage(UNIT + 5);
        // what is there is given to no block
        assert_eq!(bed.ask(CudaData::COMMAND_RETURN), CudaData::FAULT_DAMAGED);
        bed.damage(UNIT + 5);
        bed.returns();
        assert!(bed.content(0) == content);
    }
}

/// Words of a ledger of the stand-in (`stand-in/driver/src/ledger.rs`).
fn ledger() -> [u64; 5] {
    let bytes =
        std::env::var_os("STAND_IN_LEDGER").and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
    let word =
        |at: usize| bytes.get(at * 8..at * 8 + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap()));
    [0, 1, 2, 3, 4].map(word)
}

/// Runs something, and says what it has added to the ledger.
fn copies(what: impl FnOnce()) -> [u64; 5] {
    let before = ledger();
    what();
    let after = ledger();
    [0, 1, 2, 3, 4].map(|word: usize| after[word] - before[word])
}

/// A file that is new for each test, and goes with it.
fn place_of_ledger() -> String {
    let name = format!("holdfast-ledger-{}-{:?}", std::process::id(), std::thread::current().id());
    std::env::temp_dir().join(name).to_str().unwrap().to_owned()
}

/// A copy from or to memory that is not pinned is many times slower, and one that is waited for leaves the engine idle.
fn moves_as_fast_as_the_device_copies(units: u64) {
    let bed = Bed::new();
    bed.block(0, 0, units);
    let (content, bytes) = (bed.content(0), units * UNIT);
    let longest = |bytes: u64| bytes * 12 / 10 / 20 + 1_000_000;
    for dirty in [bytes, CHUNK] {
        let [pinned, copied, pageable, _, took] = copies(|| bed.leaves());
        assert_eq!((bed.figure(CudaFigure::DIRTY_BYTES), pageable), (dirty, 0), "from the device");
        assert!(pinned > 0 && copied >= dirty && took < longest(copied), "{copied} bytes in {took} ns");
        let [_, copied, pageable, _, took] = copies(|| bed.returns());
        assert_eq!(pageable, 0, "to the device");
        assert!(copied >= bytes && took < longest(copied), "{copied} bytes in {took} ns");
        if dirty == bytes {
            assert!(bed.content(0) == content);
        }
        ok!("cuMemsetD8" 3020, bed.base + 7 * CHUNK, 77u8, CHUNK as usize);
        bed.worked();
    }
    std::fs::remove_file(std::env::var_os("STAND_IN_LEDGER").unwrap()).unwrap();
}

isolated! {
    content_moves_through_pinned_memory_as_fast_as_the_device_copies
        ["STAND_IN_LEDGER" = &place_of_ledger(), "STAND_IN_COPY_RATE" = "20000000000", "STAND_IN_DELAY" = "0"] {
        moves_as_fast_as_the_device_copies(8);
    }
}

isolated! {
    /// Its PTX is 8.7. What it refuses the processor would hash, many times slower.
    the_oldest_driver_takes_the_kernels ["STAND_IN_VERSION" = "12080"] {
        let bed = Bed::new();
        bed.block(0, 0, 1);
        let newer = CString::new(".version 9.0\n.target sm_75\n.address_size 64\n").unwrap();
        let mut module = 0u64;
        assert_eq!(cu!("cuModuleLoadData" 2000, &mut module, newer.as_bytes_with_nul()), 222);
        let older = CString::new(holdfast_cuda_kernels::PTX.strip_suffix(b"\0").unwrap()).unwrap();
        ok!("cuModuleLoadData" 2000, &mut module, older.as_bytes_with_nul());
        bed.leaves();
        bed.returns();
    }
}

isolated! {
    /// A driver that keeps no compiled code compiles it at each loading. Loaded before they are launched in the stop,
    /// which fails here; else the processor hashes.
    kernels_are_loaded_before_the_first_stop
        ["STAND_IN_FAIL" = "cuModuleLoadData:218,cuLaunchKernel:999", "STAND_IN_FAIL_THREAD" = "holdfast-cuda"] {
        let bed = Bed::new();
        bed.block(0, 0, 1);
        service::prepare(bed.context);
        bed.worked();
        bed.close();
        assert_eq!(bed.ask(CudaData::COMMAND_LEAVE), 999);
        service::context_ended(bed.context);
        assert_eq!(bed.ask(CudaData::COMMAND_LEAVE), 0);
        bed.returns();
    }
}

isolated! {
    /// 2 GiB, where HOLDFAST_TEST_FULL asks for it; hashed by the processor, as the interpreter would take minutes.
    two_gib_move_as_fast_as_the_device_copies
        ["STAND_IN_LEDGER" = &place_of_ledger(), "STAND_IN_COPY_RATE" = "20000000000", "STAND_IN_DELAY" = "0",
         "STAND_IN_MEMORY" = "3G", "STAND_IN_FAIL" = "cuMemAlloc:2", "STAND_IN_FAIL_THREAD" = "holdfast-cuda"] {
        if std::env::var_os("HOLDFAST_TEST_FULL").is_some() {
            moves_as_fast_as_the_device_copies(1024);
        }
    }
}

isolated! {
    a_byte_that_has_changed_meanwhile_is_noticed {
        let bed = Bed::new();
        bed.block(0, 0, 1);
        bed.block(1, 1, 1);
        let content = [bed.content(0), bed.content(1)];
        bed.leaves();
        let free = Bed::free_memory();
        bed.damage(UNIT + 3 * CHUNK + 4444);
        assert_eq!(bed.ask(CudaData::COMMAND_RETURN), CudaData::FAULT_DAMAGED);
        assert_eq!(bed.data.failed_block.load(SeqCst), 2);
        assert_eq!(bed.data.state.load(SeqCst), CudaData::AWAY);
        bed.damage(UNIT + 3 * CHUNK + 4444);
        bed.returns();
        assert!([bed.content(0), bed.content(1)] == content);
        assert_eq!(Bed::free_memory() + 2 * UNIT as usize, free, "tables are given back");
    }
}

isolated! {
    /// The gate is there for that: it is opened when content is back, and not before.
    memory_that_is_away_is_no_memory {
        let bed = Bed::new();
        bed.block(0, 0, 1);
        bed.leaves();
        let mut byte = [0u8];
        assert_ne!(cu!("cuMemcpyDtoH" 3020, &mut byte, bed.base, 1usize), 0);
        assert_ne!(cu!("cuMemsetD8" 3020, bed.base, 1u8, 1usize), 0);
        bed.returns();
        ok!("cuMemcpyDtoH" 3020, &mut byte, bed.base, 1usize);
    }
}

isolated! {
    commands_are_done_in_their_state_only {
        let bed = Bed::new();
        bed.block(0, 0, 1);
        for command in [CudaData::COMMAND_DRAIN, CudaData::COMMAND_LEAVE, 77] {
            assert_eq!(bed.ask(command), CudaData::FAULT_COMMAND, "{command}: the gate is open");
        }
        bed.close();
        assert_eq!(bed.ask(CudaData::COMMAND_DRAIN), 0);
        assert_eq!(bed.ask(CudaData::COMMAND_RETURN), 0, "it is there");
        bed.leaves();
        assert_eq!(bed.ask(CudaData::COMMAND_LEAVE), CudaData::FAULT_COMMAND);
        assert_eq!(bed.ask(CudaData::COMMAND_DRAIN), CudaData::FAULT_COMMAND);
        bed.returns();
        bed.data.owner.store(CudaData::BY_DRIVER, SeqCst);
        bed.close();
        assert_eq!(bed.ask(CudaData::COMMAND_LEAVE), CudaData::FAULT_COMMAND);
    }
}

isolated! {
    content_is_restored_by_itself_when_the_agent_ends {
        let bed = Bed::new();
        bed.block(0, 0, 1);
        let content = bed.content(0);
        bed.leaves();
        AGENT.store(false, SeqCst);
        until("an open gate", || area::area().closed.load(SeqCst) == 0);
        assert_eq!(bed.data.state.load(SeqCst), CudaData::RESIDENT);
        assert_eq!(area::area().abandoned.load(SeqCst), 1);
        assert!(bed.content(0) == content);
    }
}

static HOLDS: AtomicBool = AtomicBool::new(true);

extern "C" fn hold(_: *mut std::ffi::c_void) {
    until("the end of the work", || !HOLDS.load(SeqCst));
}

isolated! {
    /// On a stream that no other waits for: nothing but the drain does.
    work_that_was_submitted_is_in_the_copy {
        let bed = Bed::new();
        bed.block(0, 0, 1);
        let mut stream = 0u64;
        ok!("cuStreamCreate" 2000, &mut stream, 1u32);
        ok!("cuLaunchHostFunc" 10000, stream, hold as *const () as usize, NULL);
        ok!("cuMemsetD8Async" 3020, bed.base, 0x5au8, UNIT as usize, stream);
        bed.close();
        let number = bed.send(CudaData::COMMAND_LEAVE);
        std::thread::sleep(Duration::from_millis(20));
        HOLDS.store(false, SeqCst);
        until("an answer", || bed.data.done.load(SeqCst) == number);
        assert_eq!(bed.data.result.load(SeqCst), 0);
        assert!(bed.copy(0, UNIT).iter().all(|byte| *byte == 0x5a));
        bed.returns();
        assert!(bed.content(0).iter().all(|byte| *byte == 0x5a));
    }
}

isolated! {
    a_command_that_is_called_off_changes_nothing {
        let bed = Bed::new();
        bed.block(0, 0, 1);
        let content = bed.content(0);
        ok!("cuLaunchHostFunc" 10000, NULL, hold as *const () as usize, NULL);
        bed.close();
        bed.send(CudaData::COMMAND_LEAVE);
        std::thread::sleep(Duration::from_millis(5));
        let number = bed.send(CudaData::COMMAND_RETURN);
        assert_eq!(bed.data.state.load(SeqCst), CudaData::RESIDENT, "it waits for the work");
        HOLDS.store(false, SeqCst);
        until("an answer", || bed.data.done.load(SeqCst) == number);
        assert_eq!((bed.data.result.load(SeqCst), bed.data.state.load(SeqCst)), (0, CudaData::RESIDENT));
        assert_ne!(bed.blocks[0].handle.load(SeqCst), 0);
        gate::open(area::area());
        assert!(bed.content(0) == content);
    }
}

static CAME: AtomicBool = AtomicBool::new(false);

extern "C" fn came(_: i32, info: *mut libc::siginfo_t, _: *mut std::ffi::c_void) {
    // SAFETY: the kernel's.
    let info = unsafe { &*info };
    // SAFETY: sent with a value.
    CAME.store(unsafe { info.si_value() }.sival_ptr.addr() == 4242 && info.si_code == libc::SI_QUEUE, SeqCst);
}

isolated! {
    a_signal_of_the_program_is_sent_on {
        let bed = Bed::new();
        bed.block(0, 0, 1);
        let content = bed.content(0);
        // SAFETY: a handler that writes one word; a signal with a value to the service thread.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = came as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            assert_eq!(libc::sigaction(CudaData::SIGNAL, &action, std::ptr::null_mut()), 0);
            let mut info = [0u32; 32];
            (info[0], info[2]) = (CudaData::SIGNAL as u32, libc::SI_QUEUE as u32);
            (info[4], info[6]) = (libc::getpid() as u32, 4242);
            let thread = bed.data.service_thread.load(SeqCst);
            let sent = libc::syscall(
                libc::SYS_rt_tgsigqueueinfo, libc::getpid(), thread, CudaData::SIGNAL, info.as_ptr());
            assert_eq!(sent, 0);
        }
        until("the signal", || CAME.load(SeqCst));
        bed.leaves();
        bed.returns();
        assert!(bed.content(0) == content);
    }
}
