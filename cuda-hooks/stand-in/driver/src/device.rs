//! The one device: what it is like, and which one it is. Used by `api::device`, `checkpoint`.

use parking_lot::Mutex;

use crate::settings::settings;

/// Its name. Nothing may take it for a real one.
pub const NAME: &str = "Holdfast stand-in H100";
/// Where it says that it is.
pub const PCI: &str = "0000:3B:00.0";

static UUID: Mutex<Option<[u8; 16]>> = Mutex::new(None);

/// Which one it is; another after a restore onto another machine.
pub fn uuid() -> [u8; 16] {
    *UUID.lock().get_or_insert_with(|| settings().uuid)
}

/// It is another one now.
pub fn set_uuid(uuid: [u8; 16]) {
    *UUID.lock() = Some(uuid);
}

/// A value of `CUdevice_attribute`: those of an H100 SXM (CUDA C++ Programming Guide, table of compute capability 9.0;
/// clock rates and the like as NVIDIA's data sheet has them). What the stand-in cannot do is 0.
pub fn attribute(number: u32) -> Option<i32> {
    let value = match number {
        // threads of a block: all, x, y, z; blocks of a grid: x, y, z
        1 => 1024,
        2 | 3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        // shared memory of a block, constant memory, warp, pitch, registers of a block
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 => 65536,
        // clock in kHz, alignment of textures, copies beside kernels, multiprocessors
        13 => 1_980_000,
        14 => 512,
        15 => 1,
        16 => 132,
        // run-time limit, integrated, maps host memory, compute mode
        17 | 18 => 0,
        19 => 1,
        20 => 0,
        // textures and surfaces: sizes as of every device since 5.0
        21 => 131_072,
        22 | 27 => 131_072,
        23 => 65536,
        24..=26 => 16384,
        28 => 32768,
        29 => 2048,
        30 => 512,
        // kernels beside each other, ECC, PCI bus, device, TCC
        31 | 32 => 1,
        33 => 0x3b,
        34 | 35 => 0,
        // memory clock in kHz, bits of the bus, L2 cache, threads of a multiprocessor, copy engines, unified addresses
        36 => 2_619_000,
        37 => 5120,
        38 => 50 << 20,
        39 => 2048,
        40 => 3,
        41 => 1,
        50 => 0,
        51 => 32,
        // compute capability
        75 => 9,
        76 => 0,
        // priorities of streams, L1 caches of global and local memory
        78..=80 => 1,
        81 => 228 << 10,
        82 => 65536,
        // managed memory, boards with several devices, atomics of the host
        83 => 1,
        84..=86 => 0,
        87 => 2,
        // pageable memory by the device, managed memory at a time with the host
        88 => 0,
        89 => 1,
        90 => 1,
        // registered memory at its own addresses; values in memory, old and new calls
        91 => 1,
        92..=94 => 1,
        95 => 1,
        96 => 0,
        97 => 227 << 10,
        98 => 0,
        99 => 1,
        100 | 101 => 0,
        // virtual memory management; descriptors
        102 | 103 => 1,
        104 | 105 => 0,
        106 => 32,
        107 => 0,
        108 => 32 << 20,
        109 => 128 << 20,
        110 => 0,
        111 => 1 << 10,
        112..=114 => 0,
        // pools; GPUDirect RDMA
        115 => 1,
        116..=118 => 0,
        119 => 1,
        // clusters: not executed
        120 | 121 => 0,
        122 | 123 => 1,
        124 => 0,
        125 => 1,
        126 => 1,
        127..=129 => 0,
        // NUMA: none, no node
        130 => 0,
        131 => -1,
        // multicast: objects can be made, which is what hangs a checkpoint
        132 => 1,
        133 => settings().mps.into(),
        134 => -1,
        52..=74 | 77 => 16384,
        42..=49 => 16384,
        135..=147 => 0,
        _ => return None,
    };
    Some(value)
}
