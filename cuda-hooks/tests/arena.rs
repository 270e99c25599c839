//! Memory that libholdfast owns, on a driver of two devices (`vmm_driver.c`): access between devices, operations that
//! are to be over when they return, what is left when contexts end. The rest is tested on the stand-in driver, by its
//! own suite and by `tests/`.
//!
//! # Safety
//! The functions of the driver are made by this file, with the arguments that it calls them with.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic)]

use holdfast_abi::{CudaBlock, CudaData, CudaKind};
use holdfast_cuda_hooks::{area, resolve};
use std::ffi::{CStr, CString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// What preload says: libholdfast owns device memory.
#[unsafe(no_mangle)]
extern "C" fn holdfast_cuda_owner() -> u64 {
    CudaData::BY_LIBRARY
}

type Words = unsafe extern "C" fn(usize, usize, usize, usize) -> u32;

#[derive(Clone, Copy)]
struct Driver(*mut c_void);

impl Driver {
    fn load() -> Driver {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("vmm-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (file, library) = (folder.join("vmm.c"), folder.join("libcuda.so.1"));
        std::fs::write(&file, include_str!("vmm_driver.c")).unwrap();
        let options = ["-O1", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"];
        assert!(Command::new("cc").args(options).arg(&library).arg(&file).status().unwrap().success());
        let path = CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: a library of this file's making.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        std::fs::remove_dir_all(&folder).unwrap();
        Driver(handle)
    }

    fn plain(self, symbol: &CStr) -> *mut c_void {
        // SAFETY: a handle and a name.
        unsafe { libc::dlsym(self.0, symbol.as_ptr()) }
    }

    /// Calls a function as a program does that has asked dlsym for it.
    fn call(self, symbol: &CStr, given: &[u64]) -> u32 {
        // SAFETY: as above.
        let answer = unsafe {
            resolve::look_up(self.0, symbol.as_ptr(), std::ptr::null(), Driver::load as *const c_void)
        };
        let function = if answer.decided == 0 { self.plain(symbol) } else { answer.value };
        assert!(!function.is_null(), "{symbol:?}");
        let a = |index: usize| given.get(index).copied().unwrap_or(0) as usize;
        // SAFETY: all functions that are called take words, four at most.
        unsafe { std::mem::transmute::<*mut c_void, Words>(function)(a(0), a(1), a(2), a(3)) }
    }

    fn variable(self, name: &CStr) -> &'static AtomicU64 {
        // SAFETY: an aligned word of the library's, which stays loaded.
        unsafe { &*self.plain(name).cast::<AtomicU64>() }
    }

    fn get(self, name: &CStr) -> u64 {
        self.variable(name).load(SeqCst)
    }

    /// Which devices may reach the memory at an address.
    fn readers(self, address: u64) -> u64 {
        // SAFETY: the function of this name.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(u64) -> u64>(self.plain(c"readers_of"))(address)
        }
    }

    fn mapped(self) -> u64 {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(self.plain(c"mapped"))() }
    }

    /// The context of a device is current.
    fn use_device(self, device: u64) -> u64 {
        let mut context = 0_u64;
        assert_eq!(self.call(c"cuDevicePrimaryCtxRetain", &[(&raw mut context).addr() as u64, device]), 0);
        assert_eq!(self.call(c"cuCtxSetCurrent", &[context]), 0);
        context
    }

    fn allocate(self, bytes: u64) -> u64 {
        let mut address = 0_u64;
        assert_eq!(self.call(c"cuMemAlloc_v2", &[(&raw mut address).addr() as u64, bytes]), 0);
        address
    }

    fn free(self, address: u64) {
        assert_eq!(self.call(c"cuMemFree_v2", &[address]), 0);
    }
}

/// The words that the agent reads.
fn words() -> &'static CudaData {
    let at = area::area().data.load(SeqCst) as usize;
    assert_ne!(at, 0);
    // SAFETY: the library's words, which are static.
    unsafe { &*std::ptr::with_exposed_provenance::<CudaData>(at) }
}

/// Blocks in force, as the agent finds them.
fn blocks() -> Vec<&'static CudaBlock> {
    let (at, count) = (words().blocks.load(SeqCst) as usize, words().block_count.load(SeqCst) as usize);
    // SAFETY: the library's table, which is never unmapped.
    let all =
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<CudaBlock>(at), count) };
    all.iter().filter(|block| block.address.load(SeqCst) != 0).collect()
}

/// One process is one driver: one test.
#[test]
fn memory_of_two_devices() {
    let driver = Driver::load();
    assert_eq!(driver.call(c"cuInit", &[0]), 0);
    let contexts = [driver.use_device(0), driver.use_device(1)];
    let (large, small) = (driver.allocate(5 << 20), driver.allocate(700));
    assert_eq!([driver.readers(large), driver.readers(small)], [2, 2], "the device's own");
    driver.use_device(0);
    let other = driver.allocate(3 << 20);

    // Device 0 may reach device 1: what there is, what comes; not the other way.
    assert_eq!(driver.call(c"cuCtxEnablePeerAccess", &[contexts[1], 0]), 0);
    assert_eq!([driver.readers(large), driver.readers(small), driver.readers(other)], [3, 3, 1]);
    driver.use_device(1);
    let later = driver.allocate(2 << 20);
    assert_eq!(driver.readers(later), 3);
    driver.use_device(0);
    assert_eq!(driver.call(c"cuCtxDisablePeerAccess", &[contexts[1]]), 0);
    assert_eq!([driver.readers(large), driver.readers(later), driver.readers(other)], [2, 2, 1]);
    // What fails has not happened.
    driver.variable(c"refuse_access").store(1, SeqCst);
    assert_eq!(driver.call(c"cuCtxEnablePeerAccess", &[contexts[1], 0]), 2);
    driver.variable(c"refuse_access").store(0, SeqCst);
    assert_eq!(driver.get(c"peers"), 0);

    // The table that the agent reads.
    let found = blocks();
    assert_eq!(found.len(), 4);
    let mut ends: Vec<(u64, u64)> =
        found.iter().map(|block| (block.offset.load(SeqCst), block.bytes.load(SeqCst))).collect();
    ends.sort_unstable();
    assert!(
        ends.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0),
        "offsets of devices do not overlap"
    );
    for block in &found {
        assert_eq!(block.slot.load(SeqCst), block.offset.load(SeqCst) / (64 << 10));
        let device = block.device.load(SeqCst) as u32;
        assert_eq!(block.context.load(SeqCst), contexts[device as usize]);
        assert_eq!(block.device.load(SeqCst) & CudaBlock::SMALL != 0, block.address.load(SeqCst) == small);
    }
    assert_eq!(words().requested_bytes.load(SeqCst), (5 << 20) + 700 + (3 << 20) + (2 << 20));
    assert_eq!(words().block_bytes.load(SeqCst), driver.get(c"used"));

    // Operations are over when they return, once the program has asked for it.
    let one = 1_u32;
    assert_eq!(driver.call(c"cuMemsetD8_v2", &[large, 0, 1]), 0);
    assert_eq!(driver.get(c"settled"), 0);
    assert_eq!(driver.call(c"cuPointerSetAttribute", &[(&raw const one).addr() as u64, 6, large]), 0);
    assert_eq!(driver.call(c"cuMemsetD8_v2", &[large, 0, 1]), 0);
    assert_eq!(driver.call(c"cuMemsetD8_v2_ptds", &[large, 0, 1]), 0);
    assert_eq!(driver.get(c"settled"), 12, "the legacy default stream, then the thread's own");

    // A free waits; an empty block is kept, until memory is short.
    let waits = driver.get(c"waits");
    for address in [small, other, later] {
        driver.free(address);
    }
    assert_eq!(driver.get(c"waits"), waits + 3);
    assert_eq!(driver.mapped(), 2);
    let rest = driver.allocate((1 << 30) - (6 << 20));
    assert_eq!(driver.mapped(), 2, "the empty one is gone");
    driver.free(rest);

    // Memory that the program wants to share has to be the driver's: new memory is. (This one has none.)
    let mut handle = [0_u64; 8];
    assert_eq!(driver.call(c"cuIpcGetMemHandle", &[handle.as_mut_ptr().addr() as u64, large]), 1);
    let mut address = 0_u64;
    assert_eq!(driver.call(c"cuMemAlloc_v2", &[(&raw mut address).addr() as u64, 100]), 2);

    // All ends with its context.
    assert_eq!(driver.call(c"cuDevicePrimaryCtxReset_v2", &[1]), 0);
    assert_eq!(driver.call(c"cuDevicePrimaryCtxReset_v2", &[0]), 0);
    assert_eq!((driver.mapped(), driver.get(c"handles"), driver.get(c"used")), (0, 0, 0));
    assert_eq!(
        (blocks().len(), words().block_bytes.load(SeqCst), words().requested_bytes.load(SeqCst)),
        (0, 0, 0)
    );
    assert_eq!(area::count(CudaKind::DEVICE).0.load(SeqCst), 0);
}
