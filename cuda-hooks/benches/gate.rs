//! What a wrapper costs: `cargo bench -q -p holdfast-cuda-hooks` prints nanoseconds a call, plain and wrapped.
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
unsigned cuInit(unsigned flags) { return 0; }
unsigned cuDriverGetVersion(int *out) { *out = 13000; return 0; }
unsigned cuCtxGetCurrent(void **out) { *out = 0; return 0; }
unsigned cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h,
                        void *stream, void **params, void **extra) { return 0; }
unsigned cuStreamQuery(void *stream) { return 0; }
";
const CALLS: u32 = 20_000_000;
const ROUNDS: usize = 7;

type Launch = unsafe extern "C" fn(usize, u32, u32, u32, u32, u32, u32, u32, usize, usize, usize) -> u32;
type Query = unsafe extern "C" fn(usize) -> u32;

fn load() -> *mut c_void {
    let folder = std::env::temp_dir().join(format!("holdfast-gate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, library) = (folder.join("empty.c"), folder.join("libcuda.so.1"));
    std::fs::write(&file, SOURCE).unwrap();
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

/// The best of some rounds, nanoseconds a call.
fn measure(call: impl Fn()) -> f64 {
    let round = |_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
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
                measure(|| assert_eq!(unsafe { black_box(query)(0) }, 0))
            } else {
                // SAFETY: as above.
                let launch = unsafe { std::mem::transmute::<*mut c_void, Launch>(address) };
                // SAFETY: as above.
                measure(|| assert_eq!(unsafe { black_box(launch)(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) }, 0))
            }
        });
        println!(
            "{name}: {plain:.2} ns plain, {wrapped:.2} ns wrapped: {:.2} ns for the wrapper",
            wrapped - plain
        );
    }
}
