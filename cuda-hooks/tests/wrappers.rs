//! Every wrapper on a driver that checks what it is called with: made from the header's list, compiled here.
//!
//! One process is one driver (`driver.rs`): all tests of this file share it.
//!
//! # Safety
//! The functions of the driver are made by this file, with the arguments that it calls them with.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic)]

use holdfast_abi::{CudaArea, CudaKind};
use holdfast_cuda_hooks::{area, driver, gate, resolve, table};
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Letters of the arguments of each symbol: header/list.py.
fn header() -> Vec<(&'static str, &'static str)> {
    include_str!("../header/symbols.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[0], if words[5] == "-" { "" } else { words[5] })
        })
        .collect()
}

/// The source of the driver: each function notes its number and a digest of its arguments.
fn source() -> String {
    let mut text = String::from(
        "#include <string.h>\n\
         typedef unsigned long w; typedef float f; typedef struct { unsigned long x[8]; } s;\n\
         volatile w last = ~0ul, digest, result, hold, entered;\n\
         static w bits(float x) { unsigned y; memcpy(&y, &x, 4); return y; }\n",
    );
    for (number, (symbol, arguments)) in header().into_iter().enumerate() {
        if OWN.contains(&symbol) {
            continue;
        }
        let list: Vec<String> =
            arguments.chars().enumerate().map(|(index, kind)| format!("{kind} a{index}")).collect();
        let list = if list.is_empty() { "void".to_owned() } else { list.join(", ") };
        write!(text, "unsigned {symbol}({list}) {{ w d = 0;").unwrap();
        for (index, kind) in arguments.chars().enumerate() {
            let value = match kind {
                'f' => format!("bits(a{index})"),
                's' => format!("a{index}.x[0] + 3 * a{index}.x[7]"),
                _ => format!("a{index}"),
            };
            write!(text, " d = d * 31 + {value};").unwrap();
        }
        writeln!(text, " last = {number}; digest = d; return result; }}").unwrap();
    }
    text.push_str(OWN_SOURCE);
    text
}

/// What [`OWN_SOURCE`] defines.
const OWN: [&str; 7] = [
    "cuCtxGetCurrent",
    "cuGetProcAddress_v2",
    "cuStreamSynchronize",
    "cuLaunchHostFunc",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuDevicePrimaryCtxGetState",
];

/// Functions that do something. Of the resolver's answers one is an address that is not exported, one is a function
/// that the header does not have.
const OWN_SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
unsigned cuCtxGetCurrent(w *out) { *out = 0x77; return 0; }
unsigned cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 0; return 0; }
unsigned cuStreamSynchronize(w stream) { entered++; while (hold) __builtin_ia32_pause(); return result; }
unsigned cuLaunchHostFunc(w stream, void (*function)(void *), void *data) { function(data); return result; }
unsigned cuMemAlloc_v2(w *out, w bytes) { if (result) return result; *out = 0x7000000000 + bytes * 4096; return 0; }
unsigned cuMemFree_v2(w address) { return result; }
static unsigned hidden(w stream, w event, w flags) { last = 4242; return result; }
static unsigned unknown(void) { return 99; }
unsigned cuGetProcAddress_v2(const char *name, void **out, int version, w flags, int *status) {
    if (!name[0]) { *out = 0; return 0; }
    if (!strcmp(name, "cuStreamWaitEvent") && !(flags & 2)) { *out = hidden; return 0; }
    if (!strcmp(name, "cuOfTheFuture")) { *out = unknown; return 0; }
    if (!strcmp(name, "cuMemAlloc")) { *out = cuMemAlloc_v2; return 0; }
    char full[128];
    strcpy(full, name);
    if (flags & 2) strcat(full, "_ptsz");
    void *self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    *out = dlsym(self, full);
    if (status) *status = *out ? 0 : 1;
    return *out ? 0 : 500;
}
"#;

struct Fake {
    handle: *mut c_void,
}
// SAFETY: a handle of the loader, used by all threads.
unsafe impl Send for Fake {}
// SAFETY: as above.
unsafe impl Sync for Fake {}

/// The driver, loaded once; tests that change it hold the lock.
fn fake() -> (&'static Fake, MutexGuard<'static, ()>) {
    static FAKE: OnceLock<Fake> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let fake = FAKE.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("fake.c");
        std::fs::write(&file, source()).unwrap();
        let library = folder.join("libcuda.so.1");
        let status = Command::new("cc")
            .args(["-O1", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"])
            .arg(&library)
            .arg(&file)
            .status()
            .unwrap();
        assert!(status.success());
        let path = CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: a library of this file's making.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        std::fs::remove_dir_all(&folder).unwrap();
        Fake { handle }
    });
    fake.set(c"result", 0);
    (fake, turn)
}

impl Fake {
    fn plain(&self, symbol: &CStr) -> *mut c_void {
        // SAFETY: a handle and a name.
        unsafe { libc::dlsym(self.handle, symbol.as_ptr()) }
    }
    /// As a program's dlsym has it.
    fn hooked(&self, symbol: &CStr) -> *mut c_void {
        // SAFETY: as above.
        let answer =
            unsafe { resolve::look_up(self.handle, symbol.as_ptr(), std::ptr::null(), main_address()) };
        if answer.decided == 0 { self.plain(symbol) } else { answer.value }
    }
    fn variable(&self, name: &CStr) -> &AtomicU64 {
        // SAFETY: an aligned word of the library's.
        unsafe { &*self.plain(name).cast::<AtomicU64>() }
    }
    fn get(&self, name: &CStr) -> u64 {
        self.variable(name).load(SeqCst)
    }
    fn set(&self, name: &CStr, value: u64) {
        self.variable(name).store(value, SeqCst);
    }
    fn words(&self, symbol: &CStr) -> Words {
        // SAFETY: the functions called so take words, at most as many.
        unsafe { std::mem::transmute::<*mut c_void, Words>(self.hooked(symbol)) }
    }
}

fn main_address() -> *const c_void {
    fake as *const c_void
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Big([u64; 8]);
type W = usize;
type Words = unsafe extern "C" fn(W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W) -> u32;

/// Calls a function of words with up to sixteen; more than it takes do no harm (System V ABI: the caller's own).
fn call(function: Words, given: &[usize]) -> u32 {
    let a = |index: usize| given.get(index).copied().unwrap_or(0);
    // SAFETY: functions of this file's driver, or their wrappers.
    unsafe {
        function(
            a(0),
            a(1),
            a(2),
            a(3),
            a(4),
            a(5),
            a(6),
            a(7),
            a(8),
            a(9),
            a(10),
            a(11),
            a(12),
            a(13),
            a(14),
            a(15),
        )
    }
}

fn fold(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, |digest, value| digest.wrapping_mul(31).wrapping_add(value))
}

#[test]
fn every_wrapper_passes_all_arguments_and_the_result() {
    let (fake, _turn) = fake();
    // Words that can be read, wherever an effect looks.
    let words: Vec<u64> = (0..32).map(|index| 0x1000 + index).collect();
    let mut wrapped = 0;
    for (number, (symbol, arguments)) in header().into_iter().enumerate() {
        let name = CString::new(symbol).unwrap();
        let row = table::find(&name).unwrap();
        let hooked = fake.hooked(&name);
        assert!(!hooked.is_null(), "{symbol}");
        let is_wrapped = hooked != fake.plain(&name);
        assert_eq!(is_wrapped, table::ROWS[row].has_wrapper(), "{symbol}");
        wrapped += usize::from(is_wrapped);
        if OWN.contains(&symbol) {
            continue;
        }
        let given: Vec<usize> = (0..arguments.len()).map(|index| (&raw const words[index]).addr()).collect();
        let big = Big([7, 0, 0, 0, 0, 0, 0, 9]);
        for result in [0, 719] {
            fake.set(c"result", result);
            fake.set(c"last", u64::MAX);
            // SAFETY: the types of the header.
            let returned = unsafe {
                match arguments {
                    "ws" => std::mem::transmute::<*mut c_void, unsafe extern "C" fn(W, Big) -> u32>(hooked)(
                        given[0], big,
                    ),
                    "wsw" => std::mem::transmute::<*mut c_void, unsafe extern "C" fn(W, Big, W) -> u32>(
                        hooked,
                    )(given[0], big, given[2]),
                    "wf" => std::mem::transmute::<*mut c_void, unsafe extern "C" fn(W, f32) -> u32>(hooked)(
                        given[0], 1.5,
                    ),
                    "wwf" => std::mem::transmute::<*mut c_void, unsafe extern "C" fn(W, W, f32) -> u32>(
                        hooked,
                    )(given[0], given[1], 1.5),
                    "wff" => std::mem::transmute::<*mut c_void, unsafe extern "C" fn(W, f32, f32) -> u32>(
                        hooked,
                    )(given[0], 1.5, 1.5),
                    _ => {
                        assert!(arguments.chars().all(|kind| kind == 'w'), "{symbol} {arguments}");
                        call(std::mem::transmute::<*mut c_void, Words>(hooked), &given)
                    }
                }
            };
            assert_eq!(u64::from(returned), result, "{symbol}");
            if result != 0 && symbol.starts_with("cuStreamEndCapture") {
                // The driver is asked whether the capture is over.
                continue;
            }
            assert_eq!(fake.get(c"last"), number as u64, "{symbol} calls another function");
            let expected = fold(arguments.chars().enumerate().map(|(index, kind)| match kind {
                'f' => u64::from(1.5_f32.to_bits()),
                's' => 7 + 3 * 9,
                _ => given[index] as u64,
            }));
            assert_eq!(fake.get(c"digest"), expected, "{symbol} gets other arguments");
        }
    }
    assert!(wrapped > 300, "{wrapped} wrappers");
    assert_eq!(gate::inside(area::area(), area::threads().unwrap()), None);
}

fn counts(kind: u8) -> (u64, u64) {
    let (count, bytes) = area::count(kind);
    (count.load(SeqCst), bytes.load(SeqCst))
}

#[test]
fn memory_is_counted_until_it_is_freed() {
    let (fake, _turn) = fake();
    let (alloc, free) = (fake.words(c"cuMemAlloc_v2"), fake.words(c"cuMemFree_v2"));
    let before = counts(CudaKind::DEVICE);
    let mut places = Vec::new();
    for index in 1..=1000_usize {
        let mut place = 0_u64;
        assert_eq!(call(alloc, &[(&raw mut place).addr(), index * 16]), 0);
        places.push(place);
    }
    let bytes: u64 = (1..=1000).map(|index| index * 16).sum();
    assert_eq!(counts(CudaKind::DEVICE), (before.0 + 1000, before.1 + bytes));
    // A call that fails changes nothing.
    fake.set(c"result", 2);
    assert_eq!(call(alloc, &[(&raw mut places[0]).addr(), 16]), 2);
    assert_eq!(call(free, &[places[3] as usize]), 2);
    assert_eq!(counts(CudaKind::DEVICE), (before.0 + 1000, before.1 + bytes));
    fake.set(c"result", 0);
    for place in places {
        assert_eq!(call(free, &[place as usize]), 0);
    }
    assert_eq!(counts(CudaKind::DEVICE), before);
    assert_eq!(area::area().lost.load(SeqCst), 0);
}

#[test]
fn what_forbids_a_checkpoint_is_counted_while_it_is_in_force() {
    let (fake, _turn) = fake();
    let blocking = || -> u64 {
        CudaKind::ALL.iter().filter(|(_, _, blocks)| *blocks).map(|(kind, _, _)| counts(*kind).0).sum()
    };
    // What other tests have left in the context that this driver says is current.
    assert_eq!(call(fake.words(c"cuCtxDestroy_v2"), &[0x77]), 0);
    let before = blocking();
    let word = 0x5550_u64;
    let at = (&raw const word).addr();
    // What begins it, with which arguments; what ends it.
    let pairs: [(&CStr, &[usize], &CStr, &[usize]); 14] = [
        (c"cuStreamBeginCapture_v2", &[9, 0], c"cuStreamEndCapture", &[9, at]),
        (c"cuStreamBeginCaptureToGraph_ptsz", &[9, 0, 0, 0, 0, 0], c"cuStreamEndCapture_ptsz", &[9, at]),
        (c"cuMemAllocManaged", &[at, 64, 1], c"cuMemFree_v2", &[0x5550]),
        (c"cuLibraryGetManaged", &[at, at, 8, at], c"cuLibraryUnload", &[8]),
        (c"cuIpcGetMemHandle", &[at, 0x99], c"cuMemFree_v2", &[0x99]),
        (c"cuIpcGetEventHandle", &[at, 0x99], c"cuEventDestroy_v2", &[0x99]),
        (c"cuMemExportToShareableHandle", &[at, 0x66, 1, 0], c"cuMemRelease", &[0x66]),
        (c"cuMemImportFromShareableHandle", &[at, 3, 1], c"cuMemRelease", &[0x5550]),
        (c"cuMulticastCreate", &[at, at], c"cuMemRelease", &[0x5550]),
        (c"cuCtxEnablePeerAccess", &[0x44, 0], c"cuCtxDisablePeerAccess", &[0x44]),
        (c"cuImportExternalMemory", &[at, at], c"cuDestroyExternalMemory", &[0x5550]),
        (c"cuGraphicsGLRegisterBuffer", &[at, 1, 0], c"cuGraphicsUnregisterResource", &[0x5550]),
        (c"cuMemGetHandleForAddressRange", &[at, 0x88, 64, 1, 0], c"cuMemFree_v2", &[0x88]),
        (c"cuCtxEnablePeerAccess", &[0x44, 0], c"cuCtxDestroy_v2", &[0x77]),
    ];
    for (begin, given, end, ended) in pairs {
        assert_eq!(call(fake.words(begin), given), 0);
        assert_eq!(blocking(), before + 1, "{begin:?}");
        assert_eq!(call(fake.words(end), ended), 0);
        assert_eq!(blocking(), before, "{end:?} after {begin:?}");
    }
    // Exported memory lasts as long as it is mapped.
    call(fake.words(c"cuMemCreate"), &[at, 64, at, 0]);
    call(fake.words(c"cuMemExportToShareableHandle"), &[at, 0x5550, 1, 0]);
    call(fake.words(c"cuMemMap"), &[0x10_0000, 64, 0, 0x5550, 0]);
    call(fake.words(c"cuMemRelease"), &[0x5550]);
    assert_eq!(blocking(), before + 1);
    call(fake.words(c"cuMemUnmap"), &[0x10_0000, 64]);
    assert_eq!(blocking(), before);
    // A capture that was invalidated has ended, too.
    call(fake.words(c"cuStreamBeginCapture_v2"), &[9, 0]);
    fake.set(c"result", 901);
    assert_eq!(call(fake.words(c"cuStreamEndCapture"), &[9, at]), 901);
    assert_eq!(blocking(), before);
}

type Get = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut i32) -> u32;

#[test]
fn the_resolvers_answer_is_replaced_by_its_address() {
    let (fake, _turn) = fake();
    // SAFETY: the driver's function, or its wrapper.
    let get = unsafe { std::mem::transmute::<*mut c_void, Get>(fake.hooked(c"cuGetProcAddress_v2")) };
    let ask = |name: &CStr, version: i32, flags: u64| {
        let (mut found, mut status) = (std::ptr::null_mut(), 0);
        // SAFETY: as the driver has it.
        unsafe { get(name.as_ptr(), &raw mut found, version, flags, &raw mut status) };
        found
    };
    assert_eq!(ask(c"cuLaunchKernel", 4000, 1), fake.hooked(c"cuLaunchKernel"));
    assert_eq!(ask(c"cuLaunchKernel", 7000, 2), fake.hooked(c"cuLaunchKernel_ptsz"));
    assert_eq!(
        ask(c"cuMemAlloc", 13000, 1),
        fake.hooked(c"cuMemAlloc_v2"),
        "of which version, the address says"
    );
    assert_eq!(ask(c"cuCtxGetCurrent", 4000, 0), fake.plain(c"cuCtxGetCurrent"), "has no wrapper");
    assert!(ask(c"", 0, 0).is_null());
    let future = ask(c"cuOfTheFuture", 99000, 0);
    // SAFETY: a function without arguments.
    let future = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u32>(future) };
    assert_eq!(future(), 99);
    // What the resolver gives without exporting it has the wrapper of its name and version.
    let hidden = ask(c"cuStreamWaitEvent", 3020, 1);
    // SAFETY: a function of three words.
    let hidden = unsafe { std::mem::transmute::<*mut c_void, Words>(hidden) };
    let calls = driver::is_found();
    assert!(calls);
    assert_eq!(hidden as usize, fake.hooked(c"cuStreamWaitEvent").addr());
    assert_eq!(call(hidden, &[1, 2, 3]), 0);
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_closed_gate_holds_calls_and_a_call_that_is_inside_is_named() {
    let (fake, _turn) = fake();
    let wait = fake.words(c"cuStreamSynchronize");
    let launch = fake.words(c"cuLaunchKernel");
    // Made at the first look at a function: no other test need have been before this one.
    let (words, table) = (area::area(), area::threads().unwrap());
    fake.set(c"hold", 1);
    fake.set(c"entered", 0);
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| call(wait, &[0]));
        eventually("the call is inside", || fake.get(c"entered") == 1);
        assert!(gate::close(words));
        assert!(!gate::close(words), "once");
        let busy = gate::drain(words, table, 20).unwrap_err();
        assert_eq!(busy.row.map(|row| table::ROWS[row as usize].symbol()), Some(c"cuStreamSynchronize"));
        assert_ne!(busy.thread, 0);
        assert_eq!(words.closed.load(SeqCst), 0, "it is open again");
        assert!(gate::close(words));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(call(launch, &[0; 11]), 0);
                done.store(true, SeqCst);
            });
            eventually("the launch waits", || words.waiting.load(SeqCst) == 1);
            fake.set(c"hold", 0);
            assert_eq!(gate::drain(words, table, 60_000), Ok(()));
            assert!(!done.load(SeqCst), "nothing passes");
            gate::open(words);
        });
        assert!(done.load(SeqCst));
        assert_eq!(inside.join().unwrap(), 0);
    });
    assert_eq!(words.waiting.load(SeqCst), 0);
}

/// A host function that calls the driver from within a call of the same thread.
extern "C" fn within(data: *mut c_void) {
    let launch: usize = data.addr();
    // SAFETY: what the test has passed.
    let launch = unsafe { std::mem::transmute::<usize, Words>(launch) };
    // The outer call has passed; the gate is closed by now.
    assert!(gate::close(area::area()));
    assert_eq!(call(launch, &[0; 11]), 0);
    gate::open(area::area());
}

#[test]
fn a_call_within_a_call_passes_a_closed_gate_and_counts_as_work() {
    let (fake, _turn) = fake();
    let launch = fake.hooked(c"cuLaunchKernel");
    let work = || -> u64 { area::threads().unwrap().iter().map(|entry| entry.work.load(SeqCst)).sum() };
    let before = work();
    assert_eq!(call(fake.words(c"cuLaunchHostFunc"), &[0, within as *const () as usize, launch.addr()]), 0);
    assert_eq!(work(), before + 2);
    assert_eq!(gate::inside(area::area(), area::threads().unwrap()), None);
}

#[test]
fn a_gate_whose_agent_is_gone_opens_by_itself() {
    let (fake, _turn) = fake();
    let words = area::area();
    let abandoned = words.abandoned.load(SeqCst);
    words.closed.store(CudaArea::BY_AGENT, SeqCst);
    assert_eq!(call(fake.words(c"cuLaunchKernel"), &[0; 11]), 0);
    assert_eq!(words.abandoned.load(SeqCst), abandoned + 1);
    assert_eq!(words.closed.load(SeqCst), 0);
}

#[test]
fn threads_take_over_the_entries_of_those_that_have_ended() {
    let (fake, _turn) = fake();
    let launch = fake.words(c"cuLaunchKernel");
    for _ in 0..200 {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(call(launch, &[0; 11]), 0));
            }
        });
    }
    let used = area::area().thread_count.load(SeqCst);
    assert!(used < 400, "{used} entries for 800 threads, of which four lived at a time");
}

#[test]
fn a_child_of_a_fork_has_nothing() {
    let (fake, _turn) = fake();
    let (alloc, launch) = (fake.words(c"cuMemAlloc_v2"), fake.words(c"cuLaunchKernel"));
    let mut place = 0_u64;
    call(alloc, &[(&raw mut place).addr(), 4096]);
    let before = counts(CudaKind::DEVICE);
    // SAFETY: the child calls functions of this file's libraries only, and ends at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            holdfast_cuda_hooks::forked();
            let empty = counts(CudaKind::DEVICE) == (0, 0)
                && area::area().initialised.load(SeqCst) == 0
                && area::area().thread_count.load(SeqCst) == 0
                && call(launch, &[0; 11]) == 0
                && area::area().thread_count.load(SeqCst) == 1;
            libc::_exit(i32::from(!empty));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0, "the child has found something");
    }
    assert_eq!(counts(CudaKind::DEVICE), before);
    call(fake.words(c"cuMemFree_v2"), &[place as usize]);
}
