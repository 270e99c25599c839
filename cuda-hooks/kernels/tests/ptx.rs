//! The PTX and its twins: whatever ranges there are, in whatever order threads run, both compute the same.
//!
//! The short form runs a thousand chunks, `HOLDFAST_TEST_FULL=1` a million (half an hour of two processors;
//! `HOLDFAST_TEST_FROM=SEED` begins with another seed than 0, so that it can be done in parts). Lengths and contents
//! are of every kind; a chunk is hashed by the kernel and by the twin and listed; one in four is gathered, scattered
//! and hashed again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_cuda_kernels::PTX;
use holdfast_cuda_kernels::chunk::{CHUNK, Piece, Range, find, number};
use holdfast_cuda_kernels::digest::{Digest, Keys};
use holdfast_cuda_kernels::launch::{
    Cache, Chunks, CopyChunks, CountsAt, Digests, HashChunks, Kernel, Launch, ListChunks, Ranges, States,
    Table, Way,
};
use holdfast_cuda_kernels::list::{Counts, State, list};
use holdfast_ptx::{Grid, Memory, Module, OutOfRange, Program, Progress};

/// Device addresses of the tests: as high as a real driver's.
const BASE: u64 = 0x7f00_0000_0000;
/// Between two allocations there is nothing.
const GAP: u64 = 256;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Memory of a device in words, and which of its bytes are allocated.
#[derive(Default)]
struct Device {
    words: Vec<Cell<u64>>,
    allocated: Vec<(u64, u64)>,
}

impl Device {
    fn allocate(&mut self, bytes: u64) -> u64 {
        let at = (self.words.len() as u64 * 8 + GAP).next_multiple_of(256);
        self.words.resize((at + bytes.next_multiple_of(8)) as usize / 8, Cell::new(0xdead_dead_dead_dead));
        self.allocated.push((BASE + at, bytes));
        BASE + at
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        for (n, &byte) in bytes.iter().enumerate() {
            self.store(address + n as u64, 1, byte.into()).unwrap();
        }
    }

    fn read(&self, address: u64, bytes: u64) -> Vec<u8> {
        (0..bytes).map(|n| self.load(address + n, 1).unwrap() as u8).collect()
    }

    /// The word, and how far the bytes are shifted in it.
    fn word(&self, address: u64, bytes: u32) -> Result<(&Cell<u64>, u32, u64), OutOfRange> {
        let after = self.allocated.partition_point(|(at, _)| *at <= address);
        let (at, length) = self.allocated[after.checked_sub(1).ok_or(OutOfRange)?];
        if address - at + u64::from(bytes) > length {
            return Err(OutOfRange);
        }
        let cell = self.words.get((address - BASE) as usize / 8).ok_or(OutOfRange)?;
        Ok((cell, (address % 8) as u32 * 8, u64::MAX >> (64 - 8 * bytes)))
    }
}

impl Memory for Device {
    fn load(&self, address: u64, bytes: u32) -> Result<u64, OutOfRange> {
        let (cell, shift, mask) = self.word(address, bytes)?;
        Ok(cell.get() >> shift & mask)
    }

    fn store(&self, address: u64, bytes: u32, value: u64) -> Result<(), OutOfRange> {
        let (cell, shift, mask) = self.word(address, bytes)?;
        cell.set(cell.get() & !(mask << shift) | (value & mask) << shift);
        Ok(())
    }

    fn update(&self, address: u64, bytes: u32, new: &mut dyn FnMut(u64) -> u64) -> Result<u64, OutOfRange> {
        let old = self.load(address, bytes)?;
        self.store(address, bytes, new(old)).map(|()| old)
    }
}

fn program() -> Program {
    let text = std::str::from_utf8(PTX).unwrap().strip_suffix('\0').expect("a zero byte at the end");
    Program::new(Arc::new(Module::parse(text).unwrap()), Vec::new()).expect("no variables")
}

fn run(program: &Program, device: &Device, launch: Option<Launch>, seed: u64) {
    let launch = launch.expect("something to launch");
    let described = holdfast_ptx::Launch {
        grid: launch.grid(),
        block: launch.block(),
        shared_bytes: 0,
        parameters: launch.parameters().iter().flat_map(|p| p.to_le_bytes()).collect(),
        seed,
        resident: 2,
    };
    let mut grid = Grid::new(program.clone(), launch.kernel().name().to_str().unwrap(), described).unwrap();
    match grid.run(device, u64::MAX) {
        Ok(progress) => assert_eq!(progress, Progress::Done),
        Err(fault) => panic!("{fault}"),
    }
}

#[test]
fn descriptions_are_those_of_the_kernels() {
    let program = program();
    let at = 0x1000;
    let (ranges, list, cache) = (Ranges::at(at).unwrap(), Chunks::at(at).unwrap(), Cache::at(at).unwrap());
    let (previous, fresh) = (Digests::at(at).unwrap(), Digests::at(2 * at).unwrap());
    let (states, counts, zero) =
        (States::at(at).unwrap(), CountsAt::at(at).unwrap(), Chunks::at(2 * at).unwrap());
    let table = Table { at: ranges, count: 1, chunks: 5 };
    let copy = |way| CopyChunks { table, list, number: 3, way }.launch();
    let launches = [
        HashChunks { table, keys: Keys::new([1; 16]), previous, fresh, states }.launch(),
        ListChunks { states, chunks: 5, dirty: list, zero, counts }.launch(),
        copy(Way::Gather(cache)),
        copy(Way::Scatter(cache)),
        copy(Way::Clear),
    ];
    for (launch, kernel) in launches.into_iter().zip(Kernel::ALL) {
        let launch = launch.unwrap();
        assert_eq!(launch.kernel(), kernel);
        let number = program.module.kernel(kernel.name().to_str().unwrap()).expect("in the PTX");
        let function = &program.module.functions[number];
        let sizes: Vec<u32> = function.parameters.iter().map(|p| p.size).collect();
        assert_eq!(sizes, vec![8; launch.parameters().len()], "{kernel:?}");
        assert_eq!(function.max_threads, Some(launch.block()[0]), "{kernel:?}");
    }
    let kernels = program.module.functions.iter().filter(|f| f.entry).count();
    assert_eq!(kernels, Kernel::ALL.len());
    assert!(program.module.target <= 75, "{} is a device that few have", program.module.target);
}

/// Of every kind: whole chunks, a little more or less, few bytes, anything.
fn length(random: &mut Random) -> u64 {
    match random.below(8) {
        0 | 1 => CHUNK * (1 + random.below(3)),
        2 => CHUNK * random.below(2) + CHUNK - 1 - random.below(40),
        3 => CHUNK + 1 + random.below(40),
        4 => 1 + random.below(64),
        5 => 16 * (1 + random.below(4096)),
        _ => 1 << random.below(17),
    }
}

fn content(random: &mut Random, bytes: u64) -> Vec<u8> {
    let mut content = vec![0; bytes as usize];
    match random.below(6) {
        0 => {}
        1 => content.fill(random.next() as u8),
        2 => content[random.below(bytes) as usize] = 1 << random.below(8),
        3 => content.chunks_mut(4).zip(random.next() as u32..).for_each(|(to, n)| {
            to.copy_from_slice(&n.to_le_bytes()[..to.len()]);
        }),
        _ => {
            content.chunks_mut(8).for_each(|to| to.copy_from_slice(&random.next().to_le_bytes()[..to.len()]))
        }
    }
    content
}

/// Ranges on a device, what is in their chunks, and the buffers of a checkpoint.
struct Bench {
    device: Device,
    ranges: Vec<Range>,
    table: Table,
    content: Vec<Vec<u8>>,
    previous: u64,
    fresh: u64,
    states: u64,
    dirty: u64,
    zero: u64,
    counts: u64,
    cache: u64,
}

impl Bench {
    fn new(random: &mut Random, least: u64) -> Bench {
        let mut device = Device::default();
        let mut ranges = Vec::new();
        let mut chunks = 0;
        while chunks < least {
            let bytes = length(random);
            // slots in another order than chunks, with holes
            let slot = (7919 - ranges.len() as u64 % 64 * 100) % 8000;
            let range = Range::new(device.allocate(bytes), bytes, slot).unwrap();
            chunks += range.chunks();
            ranges.push(range);
        }
        chunks = number(&mut ranges).unwrap();
        let count = ranges.len() as u64;
        let at = device.allocate(Ranges::bytes(count).unwrap());
        let table: Vec<u8> = ranges.iter().flat_map(|range| range.to_bytes()).collect();
        device.write(at, &table);
        let mut content_of = Vec::new();
        for chunk in 0..chunks {
            let piece = find(&ranges, chunk).unwrap();
            content_of.push(content(random, piece.bytes));
            device.write(piece.address, &content_of[chunk as usize]);
        }
        let mut allocate = |bytes: Option<u64>| device.allocate(bytes.unwrap());
        Bench {
            previous: allocate(Digests::bytes(8000)),
            fresh: allocate(Digests::bytes(8000)),
            states: allocate(States::bytes(chunks)),
            dirty: allocate(Chunks::bytes(chunks)),
            zero: allocate(Chunks::bytes(chunks)),
            counts: allocate(Some(Counts::BYTES)),
            cache: allocate(Cache::bytes(chunks)),
            table: Table { at: Ranges::at(at).unwrap(), count, chunks },
            device,
            ranges,
            content: content_of,
        }
    }

    fn piece(&self, chunk: u64) -> Piece {
        find(&self.ranges, chunk).unwrap()
    }

    fn digest(&self, at: u64, slot: u64) -> Digest {
        let bytes = self.device.read(at + slot * Digest::BYTES, Digest::BYTES);
        Digest::from_bytes(bytes.try_into().unwrap())
    }

    fn hash(&self, keys: Keys, previous: u64, fresh: u64) -> Option<Launch> {
        let (previous, fresh) = (Digests::at(previous).unwrap(), Digests::at(fresh).unwrap());
        HashChunks { table: self.table, keys, previous, fresh, states: States::at(self.states).unwrap() }
            .launch()
    }

    fn list(&self) -> Option<Launch> {
        let at = |address| Chunks::at(address).unwrap();
        ListChunks {
            states: States::at(self.states).unwrap(),
            chunks: self.table.chunks,
            dirty: at(self.dirty),
            zero: at(self.zero),
            counts: CountsAt::at(self.counts).unwrap(),
        }
        .launch()
    }

    fn copy(&self, list: u64, number: u64, way: Way) -> Option<Launch> {
        CopyChunks { table: self.table, list: Chunks::at(list).unwrap(), number, way }.launch()
    }

    fn numbers(&self, at: u64, count: u64) -> Vec<u32> {
        self.device.read(at, 4 * count).chunks(4).map(|n| u32::from_le_bytes(n.try_into().unwrap())).collect()
    }
}

/// A checkpoint of everything by the PTX and by the twins; each fourth time a restart, too. How many chunks.
fn round(program: &Program, random: &mut Random, least: u64) -> u64 {
    let bench = Bench::new(random, least);
    let chunks = bench.table.chunks;
    let keys = Keys::new((u128::from(random.next()) << 64 | u128::from(random.next())).to_le_bytes());
    // of a third of the chunks the digest is known, of others it was another, or there is none
    let mut wanted = Vec::new();
    for chunk in 0..chunks {
        let (piece, content) = (bench.piece(chunk), &bench.content[chunk as usize]);
        let (_, right) = State::of(&keys, content, Digest::NONE);
        let mut known = match random.below(3) {
            0 => Digest::NONE.to_bytes(),
            _ => right.to_bytes(),
        };
        if random.below(3) == 0 {
            known[random.below(16) as usize] ^= 1 << random.below(8);
        }
        bench.device.write(bench.previous + piece.slot * Digest::BYTES, &known);
        wanted.push(State::of(&keys, content, Digest::from_bytes(known)));
    }
    let order = if random.below(8) == 0 { random.next() | 1 } else { 0 };
    let blocks = if random.below(2) == 0 { u32::MAX } else { 1 + random.below(3) as u32 };
    let narrow = |launch: Option<Launch>| launch.map(|launch| launch.at_most(blocks));
    run(program, &bench.device, narrow(bench.hash(keys, bench.previous, bench.fresh)), order);
    let states = bench.device.read(bench.states, chunks);
    for (chunk, (state, digest)) in (0..).zip(&wanted) {
        assert_eq!(bench.digest(bench.fresh, bench.piece(chunk).slot), *digest, "chunk {chunk}");
        assert_eq!(State::from_byte(states[chunk as usize]), Some(*state), "chunk {chunk}");
    }
    run(program, &bench.device, bench.list(), order);
    let (mut dirty, mut zero) = (vec![0; chunks as usize], vec![0; chunks as usize]);
    let counts = list(&states, &mut dirty, &mut zero);
    let found = bench.device.read(bench.counts, Counts::BYTES);
    assert_eq!(Counts::from_bytes(found.try_into().unwrap(), chunks), Some(counts));
    assert_eq!(bench.numbers(bench.dirty, counts.dirty), dirty[..counts.dirty as usize]);
    assert_eq!(bench.numbers(bench.zero, counts.zero), zero[..counts.zero as usize]);
    // hashing is what has to be right most of all, and half of the time
    if random.below(4) == 0 {
        there_and_back(program, &bench, &dirty[..counts.dirty as usize], counts, order);
        // after the restart nothing has changed, by the digests of this checkpoint
        run(program, &bench.device, narrow(bench.hash(keys, bench.fresh, bench.previous)), 0);
        assert_eq!(bench.device.read(bench.states, chunks), vec![State::Clean as u8; chunks as usize]);
    }
    chunks
}

/// Dirty chunks into the cache, their memory spoiled, and back; those that are zero spoiled and cleared.
fn there_and_back(program: &Program, bench: &Bench, dirty: &[u32], counts: Counts, order: u64) {
    let cache = Cache::at(bench.cache).unwrap();
    if counts.dirty > 0 {
        run(program, &bench.device, bench.copy(bench.dirty, counts.dirty, Way::Gather(cache)), order);
    }
    for (&chunk, k) in dirty.iter().zip(0..) {
        let mut content = bench.content[chunk as usize].clone();
        content.resize(CHUNK as usize, 0);
        assert_eq!(bench.device.read(bench.cache + k * CHUNK, CHUNK), content, "chunk {chunk}");
    }
    for chunk in dirty.iter().copied().chain(bench.numbers(bench.zero, counts.zero)) {
        let piece = bench.piece(chunk.into());
        bench.device.write(piece.address, &vec![0x55; piece.bytes as usize]);
    }
    if counts.dirty > 0 {
        run(program, &bench.device, bench.copy(bench.dirty, counts.dirty, Way::Scatter(cache)), order);
    }
    if counts.zero > 0 {
        run(program, &bench.device, bench.copy(bench.zero, counts.zero, Way::Clear), order);
    }
    for (chunk, content) in (0..).zip(&bench.content) {
        let piece = bench.piece(chunk);
        assert_eq!(
            &bench.device.read(piece.address, piece.bytes),
            content,
            "chunk {chunk} after the restart"
        );
    }
}

#[test]
fn ptx_and_twins_agree() {
    let wanted = if std::env::var_os("HOLDFAST_TEST_FULL").is_some() { 1_000_000 } else { 1_000 };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let from = std::env::var("HOLDFAST_TEST_FROM").map_or(0, |seed| seed.parse().expect("a number"));
    let (next, done) = (AtomicU64::new(from), AtomicU64::new(0));
    let program = program();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) < wanted {
                    let mut random = Random(next.fetch_add(1, Ordering::Relaxed));
                    let least = 1 + random.below(60);
                    let chunks = round(&program, &mut random, least);
                    let before = done.fetch_add(chunks, Ordering::Relaxed);
                    if (before + chunks) / 10_000 > before / 10_000 {
                        println!("{} chunks", before + chunks);
                    }
                }
            });
        }
    });
    println!("{} chunks", done.load(Ordering::Relaxed));
}

#[test]
fn lists_of_many_chunks_are_ascending() {
    let (program, mut random) = (program(), Random(77));
    for chunks in [1, 3, 4, 31, 4095, 4096, 4097, 20_001] {
        let mut device = Device::default();
        let mut allocate = |bytes: Option<u64>| device.allocate(bytes.unwrap());
        let at = allocate(States::bytes(chunks));
        let (dirty_at, zero_at) = (allocate(Chunks::bytes(chunks)), allocate(Chunks::bytes(chunks)));
        let counts_at = allocate(Some(Counts::BYTES));
        let rare = 1 + random.below(9);
        let mut states: Vec<u8> =
            (0..chunks).map(|_| if random.below(rare) == 0 { random.below(3) as u8 } else { 0 }).collect();
        device.write(at, &states);
        // what is behind the last state is not read as one
        let padding = vec![State::Dirty as u8; (States::bytes(chunks).unwrap() - chunks) as usize];
        device.write(at + chunks, &padding);
        let launch = ListChunks {
            states: States::at(at).unwrap(),
            chunks,
            dirty: Chunks::at(dirty_at).unwrap(),
            zero: Chunks::at(zero_at).unwrap(),
            counts: CountsAt::at(counts_at).unwrap(),
        }
        .launch();
        run(&program, &device, launch, chunks % 2 * 5);
        let (mut dirty, mut zero) = (vec![0; chunks as usize], vec![0; chunks as usize]);
        let counts = list(&states, &mut dirty, &mut zero);
        let found = device.read(counts_at, Counts::BYTES).try_into().unwrap();
        assert_eq!(Counts::from_bytes(found, chunks), Some(counts));
        for (at, wanted, count) in [(dirty_at, &dirty, counts.dirty), (zero_at, &zero, counts.zero)] {
            let found = device.read(at, 4 * count);
            let wanted: Vec<u8> = wanted[..count as usize].iter().flat_map(|n| n.to_le_bytes()).collect();
            assert_eq!(found, wanted, "of {chunks}");
        }
        states.clear();
    }
}

#[test]
fn numbers_that_no_range_has_are_left_out() {
    let (program, mut random) = (program(), Random(5));
    let bench = Bench::new(&mut random, 4);
    let (chunks, cache) = (bench.table.chunks as u32, Cache::at(bench.cache).unwrap());
    bench.device.write(bench.dirty, &[chunks.to_le_bytes(), u32::MAX.to_le_bytes()].concat());
    let before = bench.device.read(bench.cache, 2 * CHUNK);
    for way in [Way::Scatter(cache), Way::Clear] {
        run(&program, &bench.device, bench.copy(bench.dirty, 2, way), 0);
    }
    assert_eq!(bench.device.read(bench.cache, 2 * CHUNK), before);
    for (chunk, content) in (0..).zip(&bench.content) {
        let piece = bench.piece(chunk);
        assert_eq!(&bench.device.read(piece.address, piece.bytes), content);
    }
}

/// A driver refuses a text of a newer version than its own, and one for newer devices than it has: the oldest driver
/// that checkpoints takes 8.7, the oldest device that it knows is sm_50.
#[test]
fn it_is_for_every_driver_and_every_device() {
    let module = Module::parse(std::str::from_utf8(&PTX[..PTX.len() - 1]).unwrap()).unwrap();
    assert!(module.version <= (7, 8) && module.target <= 50, "{:?}, sm_{}", module.version, module.target);
}
