//! Holdfast's own kernels on a driver, launched as they are described, beside their twins: a checkpoint, another one of
//! what has changed, a restart. On a real device: the first proof that the PTX is right there.

use holdfast_cuda_kernels::PTX;
use holdfast_cuda_kernels::chunk::{CHUNK, Range, find, number};
use holdfast_cuda_kernels::digest::{Digest, Keys, digest};
use holdfast_cuda_kernels::launch::{
    Cache, Chunks, CopyChunks, CountsAt, Digests, HashChunks, Launch, ListChunks, Ranges, States, Table, Way,
};
use holdfast_cuda_kernels::list::Counts;

use crate::driver::{NULL, allocate, get, is_stand_in, kernel, put, start};
use crate::{isolated, ok};

/// Values without an order; the same every time.
fn noise(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 31)
}

/// Ranges on the device, the buffers of a checkpoint, and what has to be in the ranges.
struct Bench {
    module: usize,
    ranges: Vec<Range>,
    table: Table,
    keys: Keys,
    content: Vec<Vec<u8>>,
    digests: [u64; 2],
    states: u64,
    dirty: u64,
    zero: u64,
    counts: u64,
    cache: u64,
}

impl Bench {
    fn new() -> Bench {
        let large = if is_stand_in() { 5 } else { 2000 } * CHUNK;
        let content: Vec<Vec<u8>> = [large, 1000, 2 * CHUNK + 24, CHUNK]
            .iter()
            .zip(0..)
            .map(|(bytes, seed)| (0..bytes / 8).flat_map(|n| noise(seed << 40 | n).to_le_bytes()).collect())
            .collect();
        let mut slot = 0;
        let mut ranges: Vec<Range> = content
            .iter()
            .map(|bytes| {
                let range = Range::new(put(bytes), bytes.len() as u64, slot).unwrap();
                slot += range.chunks() + 3;
                range
            })
            .collect();
        let chunks = number(&mut ranges).unwrap();
        let bytes: Vec<u8> = ranges.iter().flat_map(|range| range.to_bytes()).collect();
        let buffer = |bytes: Option<u64>| allocate(bytes.unwrap() as usize);
        let mut module = 0usize;
        ok!("cuModuleLoadData" 2000, &mut module, PTX);
        Bench {
            module,
            table: Table { at: Ranges::at(put(&bytes)).unwrap(), count: ranges.len() as u64, chunks },
            ranges,
            keys: Keys::new(*b"of the test only"),
            content,
            digests: [0; 2].map(|_| put(&vec![0u8; Digests::bytes(slot).unwrap() as usize])),
            states: buffer(States::bytes(chunks)),
            dirty: buffer(Chunks::bytes(chunks)),
            zero: buffer(Chunks::bytes(chunks)),
            counts: buffer(Some(Counts::BYTES)),
            cache: buffer(Cache::bytes(chunks)),
        }
    }

    fn launch(&self, described: Option<Launch>) {
        let mut launch = described.expect("something to do");
        let function = kernel(self.module, launch.kernel().name().to_str().unwrap());
        let ([x, y, z], [a, b, c]) = (launch.grid(), launch.block());
        let pointers = launch.pointers();
        ok!("cuLaunchKernel" 4000, function, x, y, z, a, b, c, 0u32, 0usize, &pointers, NULL);
    }

    /// Compares with the digests of one table and writes the other; the chunks that differ.
    fn differing(&self, previous: usize) -> (Vec<u32>, Vec<u32>) {
        let [previous, fresh] = [previous, 1 - previous].map(|n| Digests::at(self.digests[n]).unwrap());
        let states = States::at(self.states).unwrap();
        self.launch(HashChunks { table: self.table, keys: self.keys, previous, fresh, states }.launch());
        let [dirty, zero] = [self.dirty, self.zero].map(|at| Chunks::at(at).unwrap());
        let counts = CountsAt::at(self.counts).unwrap();
        self.launch(ListChunks { states, chunks: self.table.chunks, dirty, zero, counts }.launch());
        let found = get::<u8>(self.counts, Counts::BYTES as usize);
        let counts = Counts::from_bytes(found.try_into().unwrap(), self.table.chunks).unwrap();
        (get(self.dirty, counts.dirty as usize), get(self.zero, counts.zero as usize))
    }

    fn copy(&self, list: u64, number: usize, way: Way) {
        let list = Chunks::at(list).unwrap();
        self.launch(CopyChunks { table: self.table, list, number: number as u64, way }.launch());
    }

    /// What has to be in a chunk.
    fn chunk(&self, chunk: u32) -> &[u8] {
        let piece = find(&self.ranges, chunk.into()).unwrap();
        let n = self.ranges.iter().rposition(|range| range.first() <= chunk.into()).unwrap();
        let from = (piece.address - self.ranges[n].address()) as usize;
        &self.content[n][from..from + piece.bytes as usize]
    }

    fn check_digests(&self, table: usize) {
        for chunk in 0..self.table.chunks as u32 {
            let slot = find(&self.ranges, chunk.into()).unwrap().slot;
            let found = get::<u8>(self.digests[table] + slot * Digest::BYTES, Digest::BYTES as usize);
            let wanted = digest(&self.keys, self.chunk(chunk)).to_bytes();
            assert_eq!(found, wanted, "chunk {chunk}");
        }
    }
}

isolated! {
    a_checkpoint_and_a_restart_by_our_kernels {
        start();
        let mut bench = Bench::new();
        let all: Vec<u32> = (0..bench.table.chunks as u32).collect();
        assert_eq!(bench.differing(0), (all, vec![]));
        bench.check_digests(1);
        assert_eq!(bench.differing(1), (vec![], vec![]));
        // one byte of the third chunk, the last of the short range, and a chunk of zeros
        let [one, short, last] = [bench.ranges[0], bench.ranges[1], bench.ranges[3]];
        ok!("cuMemsetD8" 3020, one.address() + 2 * CHUNK + 5, 0x77u8, 1usize);
        ok!("cuMemsetD8" 3020, short.address() + 999, 0x78u8, 1usize);
        ok!("cuMemsetD8" 3020, last.address(), 0u8, CHUNK as usize);
        bench.content[0][2 * CHUNK as usize + 5] = 0x77;
        bench.content[1][999] = 0x78;
        bench.content[3].fill(0);
        let changed = (vec![2, short.first() as u32], vec![last.first() as u32]);
        assert_eq!(bench.differing(0), changed);
        bench.check_digests(1);
        let cache = Cache::at(bench.cache).unwrap();
        bench.copy(bench.dirty, 2, Way::Gather(cache));
        let gathered = get::<u8>(bench.cache, 2 * CHUNK as usize);
        assert_eq!(gathered[..CHUNK as usize], *bench.chunk(2));
        assert_eq!(gathered[CHUNK as usize..][..1000], *bench.content[1]);
        assert!(gathered[CHUNK as usize + 1000..].iter().all(|&byte| byte == 0));
        // what was changed is lost, and put back
        for range in [one, short, last] {
            ok!("cuMemsetD8" 3020, range.address(), 0xeeu8, if range == one { 3 * CHUNK } else { range.bytes() });
        }
        ok!("cuMemcpyHtoD" 3020, one.address(), bench.content[0].as_slice(), 2 * CHUNK as usize);
        assert_eq!(bench.differing(1).0.len(), 3);
        bench.copy(put(&changed.0), 2, Way::Scatter(cache));
        bench.copy(put(&changed.1), 1, Way::Clear);
        assert_eq!(bench.differing(1), (vec![], vec![]));
        for (range, content) in bench.ranges.iter().zip(&bench.content) {
            assert!(get::<u8>(range.address(), content.len()) == *content);
        }
    }
}
