//! What a wrapper costs: `cargo bench -q -p holdfast-cuda-hooks` prints nanoseconds a call, plain and wrapped; and what
//! memory costs that libholdfast owns.
//!
//! The driver is an empty one, compiled here: what is measured is the wrapper and a call through a pointer.
//!
//! # Safety
//! The functions of the driver are made by this file, with the arguments that it calls them with.
#![allow(unsafe_code, clippy::unwrap_used, clippy::panic)]

use holdfast_cuda_hooks::resolve;
use std::ffi::{CStr, CString, c_void};
use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

const SOURCE: &str = "
unsigned cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h,
                        void *stream, void **params, void **extra) { return 0; }
";
const CALLS: u32 = 20_000_000;
/// Allocations of a round.
const ALLOCATIONS: u32 = 1_000_000;
const ROUNDS: usize = 7;

type Launch = unsafe extern "C" fn(usize, u32, u32, u32, u32, u32, u32, u32, usize, usize, usize) -> u32;
type Query = unsafe extern "C" fn(usize) -> u32;

fn load() -> *mut c_void {
    let folder = std::env::temp_dir().join(format!("holdfast-gate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, library) = (folder.join("empty.c"), folder.join("libcuda.so.1"));
    std::fs::write(&file, include_str!("../tests/vmm_driver.c").to_owned() + SOURCE).unwrap();
    let status = Command::new("cc")
        .args(["-O2", "-w", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&file)
        .status()
        .unwrap();
    assert!(status.success());
    let path = CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: a library of this file's making.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null());
    std::fs::remove_dir_all(&folder).unwrap();
    handle
}

/// What preload says: libholdfast owns device memory.
#[unsafe(no_mangle)]
extern "C" fn holdfast_cuda_owner() -> u64 {
    holdfast_abi::CudaData::BY_LIBRARY
}

/// What cuMemAlloc and cuMemFree cost in libholdfast, which makes nothing but its own calls of the empty driver.
fn memory(driver: *mut c_void) {
    type Call = unsafe extern "C" fn(usize, usize) -> u32;
    let call = |symbol: &CStr, first: usize, second: usize| {
        // SAFETY: a handle and names.
        let address = unsafe {
            let answer = resolve::look_up(driver, symbol.as_ptr(), std::ptr::null(), main as *const c_void);
            if answer.decided == 0 { libc::dlsym(driver, symbol.as_ptr()) } else { answer.value }
        };
        // SAFETY: functions of two words at most.
        assert_eq!(unsafe { std::mem::transmute::<*mut c_void, Call>(address)(first, second) }, 0);
        address
    };
    let mut context = 0_usize;
    call(c"cuDevicePrimaryCtxRetain", (&raw mut context).addr(), 0);
    call(c"cuCtxSetCurrent", context, 0);
    for (what, bytes) in [("512 bytes", 512), ("2 MiB", 2 << 20)] {
        let mut address = 0_usize;
        let alloc = call(c"cuMemAlloc_v2", (&raw mut address).addr(), bytes);
        let free = call(c"cuMemFree_v2", address, 0);
        // SAFETY: the wrappers of functions of these names.
        let [alloc, free] = [alloc, free].map(|it| unsafe { std::mem::transmute::<*mut c_void, Call>(it) });
        let both = measure(ALLOCATIONS, || {
            let mut address = 0_usize;
            // SAFETY: as above.
            let results = unsafe { (alloc((&raw mut address).addr(), bytes), free(address, 0)) };
            assert_eq!(results, (0, 0));
        });
        println!("cuMemAlloc and cuMemFree of {what}: {both:.0} ns in libholdfast");
    }
}

/// The best of some rounds, nanoseconds a call.
fn measure(calls: u32, call: impl Fn()) -> f64 {
    let round = |_| {
        let start = Instant::now();
        for _ in 0..calls {
            call();
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

fn main() {
    let driver = load();
    let find = |symbol: &CStr| {
        // SAFETY: a handle and names.
        let plain = unsafe { libc::dlsym(driver, symbol.as_ptr()) };
        // SAFETY: as above.
        let answer =
            unsafe { resolve::look_up(driver, symbol.as_ptr(), std::ptr::null(), main as *const c_void) };
        assert!(answer.decided == 1 && answer.value != plain, "{symbol:?} has no wrapper");
        [plain, answer.value]
    };
    for (name, addresses) in
        [("cuLaunchKernel", find(c"cuLaunchKernel")), ("cuStreamQuery", find(c"cuStreamQuery"))]
    {
        let [plain, wrapped] = addresses.map(|address| {
            if name == "cuStreamQuery" {
                // SAFETY: the function of this name, or its wrapper.
                let query = unsafe { std::mem::transmute::<*mut c_void, Query>(address) };
                // SAFETY: as above.
                measure(CALLS, || assert_eq!(unsafe { black_box(query)(0) }, 0))
            } else {
                // SAFETY: as above.
                let launch = unsafe { std::mem::transmute::<*mut c_void, Launch>(address) };
                measure(CALLS, || {
                    // SAFETY: as above.
                    assert_eq!(unsafe { black_box(launch)(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) }, 0)
                })
            }
        });
        println!(
            "{name}: {plain:.2} ns plain, {wrapped:.2} ns wrapped: {:.2} ns for the wrapper",
            wrapped - plain
        );
    }
    memory(driver);
}
