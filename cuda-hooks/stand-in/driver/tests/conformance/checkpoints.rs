//! The checkpoint API, of the process itself and of another one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::driver::{NULL, allocate, float, get, kernel, launch, module, put, start, stream};
use crate::{BASIC, cu, isolated, ok};

fn own() -> i32 {
    std::process::id() as i32
}

fn state() -> u32 {
    let mut state = 9u32;
    ok!("cuCheckpointProcessGetState" 12080, own(), &mut state);
    state
}

const RUNNING: u32 = 0;
const LOCKED: u32 = 1;
const CHECKPOINTED: u32 = 2;
const ILLEGAL_STATE: u32 = 401;

isolated! {
    a_process_goes_through_all_states_and_keeps_its_memory {
        start();
        let values: Vec<u32> = (0..1_000_000).map(|n: u32| n.wrapping_mul(2_654_435_761)).collect();
        let small: Vec<u64> = (0..50).map(|n: u32| put(&[n; 16])).collect();
        let large = put(&values);
        let module = module(BASIC);
        let saxpy = kernel(module, "saxpy");
        let on = stream(1);
        let (x, y) = (put(&[1f32; 64]), put(&[2f32; 64]));
        // a copy from pageable memory may still run when it returns, and a non-blocking stream does not wait for it
        ok!("cuCtxSynchronize" 2000);
        assert_eq!(launch(saxpy, 1, 64, on, &[64, float(3.0), x, y]), 0);
        let mut thread = 0;
        ok!("cuCheckpointProcessGetRestoreThreadId" 12080, own(), &mut thread);
        assert!(thread > 0);
        assert_eq!(state(), RUNNING);
        for operation in ["Checkpoint", "Restore", "Unlock"] {
            assert_eq!(do_it(operation), ILLEGAL_STATE, "{operation} while RUNNING");
        }
        assert_eq!(do_it("Lock"), 0);
        assert_eq!(state(), LOCKED);
        for operation in ["Lock", "Restore"] {
            assert_eq!(do_it(operation), ILLEGAL_STATE, "{operation} while LOCKED");
        }
        assert_eq!(do_it("Checkpoint"), 0);
        assert_eq!(state(), CHECKPOINTED);
        for operation in ["Lock", "Checkpoint", "Unlock"] {
            assert_eq!(do_it(operation), ILLEGAL_STATE, "{operation} while CHECKPOINTED");
        }
        assert_eq!(do_it("Restore"), 0);
        assert_eq!(state(), LOCKED);
        assert_eq!(do_it("Unlock"), 0);
        assert_eq!(state(), RUNNING);
        // the work was done before, and everything is as it was, handles too
        assert_eq!(get::<f32>(y, 64), [5.0; 64]);
        assert_eq!(get::<u32>(large, values.len()), values);
        for (n, at) in small.iter().enumerate() {
            assert_eq!(get::<u32>(*at, 16), [n as u32; 16]);
        }
        assert_eq!(launch(saxpy, 1, 64, on, &[64, float(1.0), x, y]), 0);
        ok!("cuStreamSynchronize" 2000, on);
        assert_eq!(get::<f32>(y, 64), [6.0; 64]);
    }
}

fn do_it(operation: &str) -> u32 {
    match operation {
        "Lock" => cu!("cuCheckpointProcessLock" 12080, own(), NULL),
        "Checkpoint" => cu!("cuCheckpointProcessCheckpoint" 12080, own(), NULL),
        "Restore" => cu!("cuCheckpointProcessRestore" 12080, own(), NULL),
        _ => cu!("cuCheckpointProcessUnlock" 12080, own(), NULL),
    }
}

isolated! {
    calls_wait_while_the_process_is_locked {
        let context = start();
        static DONE: AtomicBool = AtomicBool::new(false);
        ok!("cuCheckpointProcessLock" 12080, own(), NULL);
        let caller = std::thread::spawn(move || {
            ok!("cuCtxSetCurrent" 4000, context);
            allocate(64);
            DONE.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(!DONE.load(Ordering::SeqCst));
        ok!("cuCheckpointProcessUnlock" 12080, own(), NULL);
        caller.join().unwrap();
        assert!(DONE.load(Ordering::SeqCst));
    }
}

extern "C" fn sleeps(_: *mut std::ffi::c_void) {
    std::thread::sleep(Duration::from_millis(150));
    SLEPT.store(true, Ordering::SeqCst);
}
static SLEPT: AtomicBool = AtomicBool::new(false);

isolated! {
    /// "Already-submitted CUDA work, including stream callbacks, are completed" (NVIDIA/cuda-checkpoint, README).
    a_lock_waits_for_work_and_host_functions {
        start();
        let (at, on) = (allocate(4), stream(1));
        ok!("cuCtxSynchronize" 2000);
        ok!("cuLaunchHostFunc" 10000, on, sleeps as *const () as u64, NULL);
        ok!("cuMemsetD32Async" 3020, at, 5u32, 1usize, on);
        ok!("cuCheckpointProcessLock" 12080, own(), NULL);
        assert!(SLEPT.load(Ordering::SeqCst));
        ok!("cuCheckpointProcessCheckpoint" 12080, own(), NULL);
        ok!("cuCheckpointProcessRestore" 12080, own(), NULL);
        ok!("cuCheckpointProcessUnlock" 12080, own(), NULL);
        assert_eq!(get::<u32>(at, 1), [5]);
    }
}

isolated! {
    arguments_are_64_bytes_of_zeros {
        start();
        let mut arguments = [0u8; 64];
        arguments[0] = 100;
        ok!("cuCheckpointProcessLock" 12080, own(), &arguments);
        ok!("cuCheckpointProcessUnlock" 12080, own(), &[0u8; 64]);
        arguments[8] = 1;
        assert_eq!(cu!("cuCheckpointProcessLock" 12080, own(), &arguments), 1);
        assert_eq!(cu!("cuCheckpointProcessCheckpoint" 12080, own(), &[1u8; 64]), 1);
        assert_eq!(state(), RUNNING);
    }
}

isolated! {
    a_process_without_the_driver_cannot_be_asked {
        start();
        let mut state = 0u32;
        assert_eq!(cu!("cuCheckpointProcessGetState" 12080, 1, &mut state), 3);
        assert_ne!(cu!("cuCheckpointProcessGetState" 12080, i32::MAX, &mut state), 0);
    }
}
