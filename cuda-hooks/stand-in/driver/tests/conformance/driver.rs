//! The driver under test, as a program reaches it that was linked with nothing: `dlopen`, `cuGetProcAddress_v2`, and
//! from there every function by name and version.
//!
//! Every test is a process of its own (`isolated`), for a fault or a checkpoint is of a whole process.
#![allow(unsafe_code, dead_code)]

use std::ffi::{CString, c_char, c_void};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Names the real driver's library: then the suite runs there.
const LIBRARY: &str = "CONFORMANCE_LIBCUDA";
/// Names a library that every test's process loads before all others: then the suite is about what that makes of the
/// driver.
const PRELOAD: &str = "CONFORMANCE_PRELOAD";
const CHILD: &str = "CONFORMANCE_CHILD";
const LONGEST: Duration = Duration::from_secs(120);

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: i32) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The library's file.
pub fn library() -> String {
    std::env::var(LIBRARY).unwrap_or_else(|_| {
        let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        folder.join("libholdfast_stand_in.so").to_str().unwrap().to_owned()
    })
}

/// It is ours.
pub fn is_stand_in() -> bool {
    std::env::var_os(LIBRARY).is_none()
}

/// The address of an exported symbol.
pub fn symbol(name: &str) -> usize {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = *HANDLE.get_or_init(|| {
        let path = CString::new(library()).unwrap();
        // SAFETY: a string; RTLD_NOW.
        unsafe { dlopen(path.as_ptr(), 2) as usize }
    });
    assert_ne!(handle, 0, "{} cannot be loaded", library());
    let name = CString::new(name).unwrap();
    // SAFETY: a handle of dlopen and a string.
    unsafe { dlsym(handle as *mut c_void, name.as_ptr()) as usize }
}

/// An argument as a register has it. All functions that are called here take integers and pointers alone, which the
/// calling convention of x86-64 passes as 64 bits each.
pub trait Argument {
    fn bits(self) -> u64;
}

macro_rules! numbers {
    ($($type:ty),+) => { $(impl Argument for $type {
        fn bits(self) -> u64 {
            self as u64
        }
    })+ };
}
numbers!(i32, u8, u16, u32, u64, usize);

impl<T> Argument for &mut T {
    fn bits(self) -> u64 {
        std::ptr::from_mut(self) as u64
    }
}
impl<T> Argument for &T {
    fn bits(self) -> u64 {
        std::ptr::from_ref(self) as u64
    }
}
impl<T> Argument for &[T] {
    fn bits(self) -> u64 {
        self.as_ptr() as u64
    }
}
impl<T> Argument for &mut [T] {
    fn bits(self) -> u64 {
        self.as_mut_ptr() as u64
    }
}

/// No pointer.
pub const NULL: u64 = 0;

/// Calls a function at an address.
pub fn invoke(address: usize, a: &[u64]) -> u32 {
    assert_ne!(address, 0);
    macro_rules! call {
        ($($n:literal),*) => {{
            $(let _ = $n;)*
            // SAFETY: the address is a function's, and the arguments are as it wants them (see `Argument`).
            let f: extern "C" fn($(call!(@u64 $n)),*) -> u32 = unsafe { std::mem::transmute(address) };
            f($(a[$n]),*)
        }};
        (@u64 $n:literal) => { u64 };
    }
    match a.len() {
        0 => call!(),
        1 => call!(0),
        2 => call!(0, 1),
        3 => call!(0, 1, 2),
        4 => call!(0, 1, 2, 3),
        5 => call!(0, 1, 2, 3, 4),
        6 => call!(0, 1, 2, 3, 4, 5),
        7 => call!(0, 1, 2, 3, 4, 5, 6),
        8 => call!(0, 1, 2, 3, 4, 5, 6, 7),
        10 => call!(0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
        11 => call!(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
        n => panic!("{n} arguments"),
    }
}

/// What `cuGetProcAddress_v2` says: result, address, status.
pub fn resolve(name: &str, version: i32, flags: u64) -> (u32, usize, u32) {
    let text = CString::new(name).unwrap();
    let (mut address, mut status) = (usize::MAX, u32::MAX);
    let arguments =
        [text.as_ptr() as u64, (&mut address).bits(), version.bits(), flags, (&mut status).bits()];
    let result = invoke(symbol("cuGetProcAddress_v2"), &arguments);
    (result, address, status)
}

/// Calls a function by name and version; the result is the driver's.
#[macro_export]
macro_rules! cu {
    ($name:literal $version:literal $(, $argument:expr)* $(,)?) => {{
        let (result, address, _) = $crate::driver::resolve($name, $version, 0);
        assert_eq!((result, address != 0), (0, true), "{} of {}", $name, $version);
        $crate::driver::invoke(address, &[$($crate::driver::Argument::bits($argument)),*])
    }};
}

/// The same where it has to succeed.
#[macro_export]
macro_rules! ok {
    ($name:literal $version:literal $(, $argument:expr)* $(,)?) => {
        assert_eq!($crate::cu!($name $version $(, $argument)*), 0, "{}", $name)
    };
}

/// A test as a process of its own.
#[macro_export]
macro_rules! isolated {
    ($(#[$doc:meta])* $name:ident $([$($variable:literal = $value:expr),*])? $body:block) => {
        $(#[$doc])*
        #[test]
        fn $name() {
            let path = concat!(module_path!(), "::", stringify!($name));
            $crate::driver::isolated(path, &[$($(($variable, $value)),*)?], || $body);
        }
    };
}

/// See the macro. The environment is for the stand-in alone.
pub fn isolated(path: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    let name = path.split_once("::").unwrap().1;
    if std::env::var(CHILD).is_ok_and(|child| child == name) {
        return body();
    }
    let output = run(name, environment);
    assert!(output.success, "{name} failed:\n{}", output.text);
}

/// How a child ended.
pub struct Output {
    pub success: bool,
    pub signal: Option<i32>,
    pub text: String,
}

/// Runs one test of this program as a child.
pub fn run(name: &str, environment: &[(&str, &str)]) -> Output {
    use std::os::unix::process::ExitStatusExt;
    let preload = std::env::var(PRELOAD).map(|library| ("LD_PRELOAD", library));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .envs(preload)
        .args([name, "--exact", "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(CHILD, name)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = err.read_to_string(&mut text);
        text
    });
    let second = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = out.read_to_string(&mut text);
        text
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > LONGEST {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = reader.join().unwrap() + &second.join().unwrap();
    Output { success: status.success(), signal: status.signal(), text }
}

/// The driver, and a context of the first device that is current.
pub fn start() -> usize {
    ok!("cuInit" 2000, 0);
    let mut device = -1;
    ok!("cuDeviceGet" 2000, &mut device, 0);
    let mut context = 0usize;
    ok!("cuDevicePrimaryCtxRetain" 7000, &mut context, device);
    ok!("cuCtxSetCurrent" 4000, context);
    context
}

/// Memory of the device.
pub fn allocate(bytes: usize) -> u64 {
    let mut at = 0;
    ok!("cuMemAlloc" 3020, &mut at, bytes);
    at
}

/// Memory of the device with values.
pub fn put<T: Copy>(values: &[T]) -> u64 {
    let at = allocate(size_of_val(values));
    ok!("cuMemcpyHtoD" 3020, at, values, size_of_val(values));
    at
}

/// Values from the device; waits for what was submitted to the default stream.
pub fn get<T: Copy + Default>(at: u64, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    ok!("cuMemcpyDtoH" 3020, values.as_mut_slice(), at, count * size_of::<T>());
    values
}

/// A module of a text.
pub fn module(text: &str) -> usize {
    let text = CString::new(text).unwrap();
    let mut module = 0usize;
    ok!("cuModuleLoadData" 2000, &mut module, text.as_bytes_with_nul());
    module
}

/// A kernel of a module.
pub fn kernel(module: usize, name: &str) -> usize {
    let name = CString::new(name).unwrap();
    let mut function = 0usize;
    ok!("cuModuleGetFunction" 2000, &mut function, module, name.as_bytes_with_nul());
    function
}

/// A variable of a module.
pub fn global(module: usize, name: &str) -> (u64, usize) {
    let name = CString::new(name).unwrap();
    let (mut at, mut bytes) = (0u64, 0usize);
    ok!("cuModuleGetGlobal" 3020, &mut at, &mut bytes, module, name.as_bytes_with_nul());
    (at, bytes)
}

/// Launches in one dimension; each parameter has at most 64 bits.
pub fn launch(function: usize, blocks: u32, threads: u32, stream: usize, parameters: &[u64]) -> u32 {
    let pointers: Vec<*const u64> = parameters.iter().map(std::ptr::from_ref).collect();
    cu!("cuLaunchKernel" 4000, function, blocks, 1u32, 1u32, threads, 1u32, 1u32, 0u32, stream,
        pointers.as_slice(), NULL)
}

/// A stream.
pub fn stream(flags: u32) -> usize {
    let mut stream = 0usize;
    ok!("cuStreamCreate" 2000, &mut stream, flags);
    stream
}

/// An event.
pub fn event() -> usize {
    let mut event = 0usize;
    ok!("cuEventCreate" 2000, &mut event, 0u32);
    event
}

/// A float as a parameter.
pub fn float(value: f32) -> u64 {
    value.to_bits().into()
}
