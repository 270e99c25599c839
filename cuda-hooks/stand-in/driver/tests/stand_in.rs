//! What only the stand-in has: injected faults, refusals and hangs, and what is left of the driver in a process that is
//! CHECKPOINTED.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "conformance/driver.rs"]
mod driver;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use driver::{NULL, allocate, get, put, start, stream};

fn own() -> i32 {
    std::process::id() as i32
}

fn lock(process: i32, timeout_ms: u32) -> u32 {
    let mut arguments = [0u8; 64];
    arguments[..4].copy_from_slice(&timeout_ms.to_le_bytes());
    cu!("cuCheckpointProcessLock" 12080, process, &arguments)
}

fn checkpoint(process: i32) -> u32 {
    cu!("cuCheckpointProcessCheckpoint" 12080, process, NULL)
}

fn restore(process: i32) -> u32 {
    cu!("cuCheckpointProcessRestore" 12080, process, NULL)
}

fn unlock(process: i32) -> u32 {
    cu!("cuCheckpointProcessUnlock" 12080, process, NULL)
}

fn state(process: i32) -> u32 {
    let mut state = 9u32;
    ok!("cuCheckpointProcessGetState" 12080, process, &mut state);
    state
}

/// Descriptors and mappings that no image of a process could have.
fn traces() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut found: Vec<String> =
        maps.lines().filter(|line| line.contains("nvidia")).map(str::to_owned).collect();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default().display().to_string();
        if target.contains("nvidia") || target.starts_with("socket:") {
            found.push(target);
        }
    }
    found
}

isolated! {
    a_checkpointed_process_has_nothing_of_the_device {
        start();
        let at = put(&[7u8; 100_000]);
        assert!(traces().iter().any(|line| line.contains("/memfd:nvidia0")), "{:?}", traces());
        assert_eq!((lock(own(), 0), checkpoint(own())), (0, 0));
        assert_eq!(traces(), Vec::<String>::new());
        assert_eq!((restore(own()), unlock(own())), (0, 0));
        assert_eq!(get::<u8>(at, 100_000), [7; 100_000]);
    }
}

isolated! {
    memory_that_was_given_away_goes_through_a_checkpoint {
        start();
        let unit = 2usize << 20;
        let (mut at, mut handle) = (0u64, 0u64);
        ok!("cuMemAddressReserve" 10020, &mut at, unit, 0usize, NULL, 0u64);
        // exportable, but not exported
        ok!("cuMemCreate" 10020, &mut handle, unit, &[1u32, 1, 1, 0, 0, 0, 0, 0], 0u64);
        ok!("cuMemMap" 10020, at, unit, 0usize, handle, 0u64);
        ok!("cuMemSetAccess" 10020, at, unit, &[1u32, 0, 3], 1usize);
        ok!("cuMemsetD32" 3020, at, 5u32, 1000usize);
        assert_eq!((lock(own(), 0), checkpoint(own())), (0, 0));
        assert_eq!(traces(), Vec::<String>::new());
        assert_eq!((restore(own()), unlock(own())), (0, 0));
        assert_eq!(get::<u32>(at, 1000), [5; 1000]);
        let mut descriptor = -1;
        ok!("cuMemExportToShareableHandle" 10020, &mut descriptor, handle, 1u32, 0u64);
        assert_eq!((lock(own(), 0), checkpoint(own())), (0, 801), "exported memory is refused");
        assert_eq!((state(own()), unlock(own())), (1, 0));
    }
}

isolated! {
    managed_memory_and_ipc_are_refused {
        start();
        let mut at = 0u64;
        ok!("cuMemAllocManaged" 6000, &mut at, 4096usize, 1u32);
        assert_eq!((lock(own(), 0), checkpoint(own()), state(own())), (0, 801, 1));
        assert_eq!(unlock(own()), 0);
        ok!("cuMemFree" 3020, at);
        assert_eq!((lock(own(), 0), checkpoint(own())), (0, 0));
        assert_eq!((restore(own()), unlock(own())), (0, 0));
        ok!("cuIpcGetMemHandle" 4010, &mut [0u8; 64], allocate(64));
        assert_eq!((lock(own(), 0), checkpoint(own())), (0, 801));
    }
}

isolated! {
    a_client_of_mps_is_refused ["STAND_IN_MPS" = "1"] {
        start();
        let mut value = 0;
        ok!("cuDeviceGetAttribute" 2000, &mut value, 133u32, 0);
        assert_eq!((value, lock(own(), 0), checkpoint(own()), unlock(own())), (1, 0, 801, 0));
    }
}

/// The call has not returned after a while, in which others do.
fn hangs(call: impl FnOnce() + Send + 'static) {
    let returned = std::sync::Arc::new(AtomicBool::new(false));
    let its = std::sync::Arc::clone(&returned);
    std::thread::spawn(move || {
        call();
        its.store(true, Ordering::SeqCst);
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(!returned.load(Ordering::SeqCst));
}

isolated! {
    a_checkpoint_with_multicast_hangs {
        start();
        let mut handle = 0u64;
        ok!("cuMulticastCreate" 12010, &mut handle, &[1u64, 2 << 20, 0, 0]);
        assert_eq!(lock(own(), 0), 0);
        hangs(|| assert_eq!(checkpoint(own()), 0));
    }
}

isolated! {
    out_of_memory_comes_when_it_is_told_to ["STAND_IN_FAULT" = "out-of-memory@2"] {
        start();
        allocate(4 << 20);
        let mut at = 0u64;
        assert_eq!(cu!("cuMemAlloc" 3020, &mut at, 4usize << 20), 2);
        allocate(4 << 20);
    }
}

isolated! {
    a_device_has_so_much_memory ["STAND_IN_MEMORY" = "16M"] {
        start();
        allocate(12 << 20);
        let mut at = 0u64;
        assert_eq!(cu!("cuMemAlloc" 3020, &mut at, 8usize << 20), 2);
        allocate(4 << 20);
    }
}

isolated! {
    a_lock_times_out_and_leaves_the_process_running {
        start();
        let mut host = 0u64;
        ok!("cuMemHostAlloc" 2020, &mut host, 4096usize, 0u32);
        let on = stream(1);
        ok!("cuStreamWaitValue32" 12000, on, host, 1u32, 1u32);
        let before = Instant::now();
        assert_eq!(lock(own(), 50), 600);
        assert!(before.elapsed() >= Duration::from_millis(50));
        assert_eq!(state(own()), 0);
        // SAFETY: pinned memory.
        #[allow(unsafe_code)]
        unsafe { (host as *mut u32).write_volatile(1) };
        ok!("cuStreamSynchronize" 2000, on);
        assert_eq!((lock(own(), 5000), unlock(own())), (0, 0));
    }
}

isolated! {
    an_injected_timeout_is_one ["STAND_IN_FAULT" = "lock-timeout@1"] {
        start();
        assert_eq!((lock(own(), 10), state(own())), (600, 0));
        assert_eq!((lock(own(), 0), unlock(own())), (0, 0));
    }
}

isolated! {
    /// NVIDIA/cuda-checkpoint#44: after a failed restore every retry gives 304.
    a_failed_restore_cannot_be_tried_again ["STAND_IN_FAULT" = "restore@1"] {
        start();
        assert_eq!((lock(own(), 0), checkpoint(own())), (0, 0));
        assert_eq!((restore(own()), state(own())), (2, 2));
        assert_eq!((restore(own()), state(own())), (304, 2));
        assert_eq!((unlock(own()), lock(own(), 0)), (401, 401));
    }
}

isolated! {
    other_operations_fail_and_hang_too ["STAND_IN_FAULT" = "checkpoint@1,unlock@1,checkpoint-hangs@2"] {
        start();
        assert_eq!((lock(own(), 0), checkpoint(own()), state(own())), (0, 304, 1));
        assert_eq!((unlock(own()), state(own())), (304, 1));
        hangs(|| assert_eq!(checkpoint(own()), 0));
    }
}

isolated! {
    /// DMTCP, plugin/cuda: the process's name must be what it was.
    a_process_that_was_renamed_is_not_found {
        start();
        assert_eq!((lock(own(), 0), checkpoint(own())), (0, 0));
        let path = format!("/proc/self/task/{}/comm", own());
        let name = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, "other").unwrap();
        assert_eq!((restore(own()), state(own())), (304, 2));
        std::fs::write(&path, name.trim_end()).unwrap();
        assert_eq!((restore(own()), unlock(own())), (0, 0));
    }
}

isolated! {
    /// DMTCP, plugin/cuda: what the driver had mapped is free for the host; what that puts there is replaced (driver
    /// 580.159.04, where it leaves a place free).
    what_is_put_into_dropped_ranges_is_replaced ["STAND_IN_RANGES" = "drop"] {
        start();
        let at = put(&[1u8; 4 << 20]);
        assert_eq!((lock(own(), 0), checkpoint(own())), (0, 0));
        let first = mmap(at);
        assert_eq!(first, at, "the driver has not given its addresses back");
        assert_eq!((restore(own()), unlock(own())), (0, 0));
        assert_eq!(get::<u8>(at, 4096), [1; 4096]);
    }
}

#[allow(unsafe_code)]
fn mmap(at: u64) -> u64 {
    unsafe extern "C" {
        fn mmap(at: u64, length: usize, access: i32, flags: i32, fd: i32, offset: i64) -> u64;
    }
    // SAFETY: MAP_FIXED_NOREPLACE: nothing that is there is lost.
    unsafe { mmap(at, 4096, 0, 0x10_0022, -1, 0) }
}

isolated! {
    another_device_has_to_be_named {
        start();
        let (mut old, mut values) = ([0u8; 16], vec![0u32; 4]);
        ok!("cuDeviceGetUuid" 11040, &mut old, 0);
        let at = put(&[1u32, 2, 3, 4]);
        assert_eq!((lock(own(), 0), checkpoint(own())), (0, 0));
        let pairs = [[9u8; 16], old];
        let restore_by = |pairs: &[[u8; 16]]| {
            let mut arguments = [0u8; 64];
            arguments[..8].copy_from_slice(&(pairs.as_ptr() as u64).to_le_bytes());
            arguments[8..12].copy_from_slice(&(pairs.len() as u32 / 2).to_le_bytes());
            cu!("cuCheckpointProcessRestore" 12080, own(), &arguments)
        };
        assert_eq!(restore_by(&pairs), 1, "the pairs do not name the device");
        assert_eq!(restore_by(&[old, [8; 16]]), 101, "no such device here");
        assert_eq!((restore_by(&[old, old]), unlock(own())), (0, 0));
        ok!("cuMemcpyDtoH" 3020, values.as_mut_slice(), at, 16usize);
        assert_eq!(values, [1, 2, 3, 4]);
    }
}

isolated! {
    an_older_driver_has_no_checkpoint_api ["STAND_IN_VERSION" = "12040"] {
        start();
        assert_eq!(driver::resolve("cuCheckpointProcessLock", 12040, 0), (0, 0, 1));
        let lock = driver::symbol("cuCheckpointProcessLock");
        assert_eq!(driver::invoke(lock, &[own() as u64, NULL]), 801);
    }
}

/// Several streams whose sums are known, for as long as the other end of standard input is open.
#[test]
#[ignore = "run by the test of random moments"]
fn a_busy_process() {
    if std::env::var_os("STAND_IN_OTHER").is_none() {
        return;
    }
    start();
    let module = driver::module(include_str!("../../ptx/tests/kernels/basic.ptx"));
    let saxpy = driver::kernel(module, "saxpy");
    let streams: Vec<usize> = (0..3).map(|_| stream(1)).collect();
    let ones = put(&[1f32; 256]);
    let sums: Vec<u64> = streams.iter().map(|_| put(&[0f32; 256])).collect();
    ok!("cuCtxSynchronize" 2000);
    println!("ready");
    let ended = std::sync::Arc::new(AtomicBool::new(false));
    let its = std::sync::Arc::clone(&ended);
    std::thread::spawn(move || {
        for _ in std::io::stdin().lines() {}
        its.store(true, Ordering::SeqCst);
    });
    let mut rounds = 0u32;
    while !ended.load(Ordering::SeqCst) || rounds < 5 {
        rounds += 1;
        for (on, sum) in streams.iter().zip(&sums) {
            assert_eq!(driver::launch(saxpy, 1, 256, *on, &[256, driver::float(1.0), ones, *sum]), 0);
        }
        ok!("cuStreamSynchronize" 2000, streams[rounds as usize % 3]);
    }
    ok!("cuCtxSynchronize" 2000);
    for sum in sums {
        assert_eq!(get::<f32>(sum, 256), vec![rounds as f32; 256]);
    }
    println!("whole");
}

isolated! {
    a_process_is_checkpointed_at_any_moment ["STAND_IN_DELAY" = "2000", "STAND_IN_SEED" = "7"] {
        ok!("cuInit" 2000, 0);
        let mut other = Other::named("a_busy_process");
        for moment in 0u64..20 {
            std::thread::sleep(Duration::from_micros(moment * 997 % 7000));
            assert_eq!(lock(other.id(), 0), 0);
            assert_eq!(checkpoint(other.id()), 0);
            assert_eq!((restore(other.id()), unlock(other.id())), (0, 0));
        }
        drop(other.0.stdin.take());
        other.expect("whole");
        assert!(other.0.wait().unwrap().success());
    }
}

/// A process that computes: a child of the test below, which reads commands from it.
#[test]
#[ignore = "run by the test of other processes"]
fn another_process() {
    if std::env::var_os("STAND_IN_OTHER").is_none() {
        return;
    }
    start();
    let at = put(&[0u32; 1024]);
    println!("ready");
    for (round, line) in (1u32..).zip(std::io::stdin().lines()) {
        assert_eq!(line.unwrap(), "go");
        assert_eq!(get::<u32>(at, 1024), vec![round - 1; 1024]);
        ok!("cuMemsetD32" 3020, at, round, 1024usize);
        println!("done {round}");
    }
}

struct Other(Child, BufReader<std::process::ChildStdout>);

impl Other {
    fn new() -> Other {
        Other::named("another_process")
    }

    fn named(test: &str) -> Other {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([test, "--exact", "--include-ignored", "--nocapture"])
            .env("STAND_IN_OTHER", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut other = Other(child, lines);
        other.expect("ready");
        other
    }

    fn expect(&mut self, wanted: &str) {
        let mut line = String::new();
        while line.trim_end() != wanted {
            line.clear();
            assert!(self.1.read_line(&mut line).unwrap() > 0, "the other process has ended");
        }
    }

    fn go(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    fn id(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

isolated! {
    another_process_is_checkpointed_and_goes_on {
        ok!("cuInit" 2000, 0);
        let mut other = Other::new();
        for round in 1..4 {
            assert_eq!(lock(other.id(), 1000), 0);
            assert_eq!(state(other.id()), 1);
            other.go();
            assert_eq!(checkpoint(other.id()), 0);
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", other.id())).unwrap();
            assert!(!maps.contains("nvidia"), "{maps}");
            assert_eq!((restore(other.id()), unlock(other.id())), (0, 0));
            other.expect(&format!("done {round}"));
        }
        let id = other.id();
        drop(other);
        let mut state = 0u32;
        assert_eq!(cu!("cuCheckpointProcessGetState" 12080, id, &mut state), 1);
    }
}

isolated! {
    /// The asking process waits as long as the other one is stopped, and not after its end.
    a_process_that_ends_is_not_waited_for {
        ok!("cuInit" 2000, 0);
        let other = Other::new();
        let id = other.id();
        let stop = Command::new("kill").args(["-STOP", &id.to_string()]).status().unwrap();
        assert!(stop.success());
        let asked = std::thread::spawn(move || lock(id, 10));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!asked.is_finished());
        drop(other);
        assert_eq!(asked.join().unwrap(), 1);
    }
}

isolated! {
    /// A real driver has them on devices of compute capability 6.0 and later: this one says that it has not.
    green_contexts_are_not_supported {
        start();
        let (mut context, mut resource) = (0usize, [0u64; 24]);
        assert_eq!(cu!("cuDeviceGetDevResource" 12040, 0, &mut resource, 1u32), 801);
        assert_eq!(cu!("cuGreenCtxCreate" 12040, &mut context, NULL, 0, 1u32), 801);
    }
}
