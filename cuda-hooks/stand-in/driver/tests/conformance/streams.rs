//! Streams, events, host functions, values in memory.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::driver::{
    Argument, NULL, allocate, event, get, invoke, kernel, launch, module, resolve, start, stream,
};
use crate::{cu, isolated, ok};

/// A kernel that goes round until a word is not zero, and another that writes one. By hand: nvcc would do it so.
const SPIN: &str = r#"
.version 7.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 flag, .param .u64 to, .param .u32 value) {
    .reg .pred %p; .reg .b32 %r<3>; .reg .b64 %rd<3>;
    ld.param.u64 %rd0, [flag];
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r0, [value];
AGAIN:
    ld.volatile.global.u32 %r1, [%rd0];
    setp.eq.u32 %p, %r1, 0;
    @%p bra AGAIN;
    st.global.u32 [%rd1], %r0;
    ret;
}
"#;

/// A word of pinned memory.
fn word() -> (u64, &'static AtomicU32) {
    let mut at = 0u64;
    ok!("cuMemHostAlloc" 2020, &mut at, 4096usize, 2u32);
    // SAFETY: pinned memory, which stays for the process.
    #[allow(unsafe_code)]
    let word = unsafe { &*(at as *const AtomicU32) };
    word.store(0, Ordering::SeqCst);
    (at, word)
}

/// A kernel that does not end before the word is set: then it writes 1 to `to`.
fn spin(flag: u64, to: u64, on: usize) {
    assert_eq!(launch(kernel(module(SPIN), "spin"), 1, 1, on, &[flag, to, 1]), 0);
}

isolated! {
    a_stream_runs_in_order_and_beside_the_host {
        start();
        let (flag, word) = word();
        let (at, on) = (allocate(4), stream(0));
        ok!("cuMemsetD32" 3020, at, 0u32, 1usize);
        ok!("cuCtxSynchronize" 2000);
        spin(flag, at, on);
        ok!("cuMemsetD32Async" 3020, at, 2u32, 1usize, on);
        assert_eq!(cu!("cuStreamQuery" 2000, on), 600);
        word.store(1, Ordering::SeqCst);
        ok!("cuStreamSynchronize" 2000, on);
        ok!("cuStreamQuery" 2000, on);
        assert_eq!(get::<u32>(at, 1), [2]);
    }
}

isolated! {
    the_legacy_stream_waits_for_blocking_streams_alone {
        start();
        let (flag, word) = word();
        let at = allocate(8);
        let (blocking, other) = (stream(0), stream(1));
        spin(flag, at, other);
        // a non-blocking stream is not waited for
        ok!("cuMemsetD32" 3020, at + 4, 7u32, 1usize);
        ok!("cuStreamSynchronize" 2000, 0usize);
        assert_eq!(cu!("cuStreamQuery" 2000, other), 600);
        word.store(1, Ordering::SeqCst);
        ok!("cuCtxSynchronize" 2000);
        word.store(0, Ordering::SeqCst);
        spin(flag, at, blocking);
        ok!("cuMemsetD32Async" 3020, at, 9u32, 1usize, 0usize);
        // the legacy stream waits for the blocking one, and so does another blocking one for the legacy stream
        let behind = stream(0);
        ok!("cuMemsetD32Async" 3020, at + 4, 8u32, 1usize, behind);
        assert_eq!(cu!("cuStreamQuery" 2000, 0usize), 600);
        assert_eq!(cu!("cuStreamQuery" 2000, behind), 600);
        word.store(1, Ordering::SeqCst);
        ok!("cuCtxSynchronize" 2000);
        assert_eq!(get::<u32>(at, 2), [9, 8]);
    }
}

isolated! {
    each_thread_has_its_default_stream_where_it_wants_one {
        let context = start();
        let (flag, word) = word();
        let at = allocate(8);
        ok!("cuCtxSynchronize" 2000);
        let fill = resolve("cuMemsetD32Async", 12000, 2).1;
        let query = resolve("cuStreamQuery", 12000, 2).1;
        spin(flag, at, 2);
        assert_eq!(invoke(query, &[0]), 600);
        std::thread::spawn(move || {
            ok!("cuCtxSetCurrent" 4000, context);
            assert_eq!(invoke(fill, &[at + 4, 5, 1, 0]), 0);
            let synchronize = resolve("cuStreamSynchronize", 12000, 2).1;
            assert_eq!(invoke(synchronize, &[0]), 0);
        })
        .join()
        .unwrap();
        assert_eq!(invoke(query, &[0]), 600);
        word.store(1, Ordering::SeqCst);
        ok!("cuCtxSynchronize" 2000);
        assert_eq!(get::<u32>(at, 2), [1, 5]);
    }
}

isolated! {
    events_order_streams {
        start();
        let (flag, word) = word();
        let at = allocate(8);
        ok!("cuMemsetD32" 3020, at, 0u32, 2usize);
        ok!("cuCtxSynchronize" 2000);
        let (first, second, done) = (stream(1), stream(1), event());
        // "has no effect" before it is recorded
        ok!("cuStreamWaitEvent" 3020, second, done, 0u32);
        ok!("cuEventQuery" 2000, done);
        spin(flag, at, first);
        ok!("cuEventRecord" 2000, done, first);
        ok!("cuStreamWaitEvent" 3020, second, done, 0u32);
        ok!("cuMemcpyDtoDAsync" 3020, at + 4, at, 4usize, second);
        assert_eq!(cu!("cuEventQuery" 2000, done), 600);
        assert_eq!(cu!("cuStreamQuery" 2000, second), 600);
        let mut time = -1f32;
        let start = event();
        ok!("cuEventRecord" 2000, start, second);
        assert_eq!(cu!("cuEventElapsedTime" 2000, &mut time, done, start), 600);
        word.store(1, Ordering::SeqCst);
        ok!("cuEventSynchronize" 2000, done);
        ok!("cuStreamSynchronize" 2000, second);
        assert_eq!(get::<u32>(at, 2), [1, 1]);
        ok!("cuEventElapsedTime" 2000, &mut time, done, start);
        assert!(time >= 0.0);
        ok!("cuEventDestroy" 4000, done);
    }
}

static RESULT: AtomicU32 = AtomicU32::new(u32::MAX);

extern "C" fn calls_the_driver(data: *mut c_void) {
    std::thread::sleep(Duration::from_millis(20));
    let mut at = 0u64;
    let allocate = data as usize;
    RESULT.store(invoke(allocate, &[(&mut at).bits(), 64]), Ordering::SeqCst);
}

isolated! {
    host_functions_run_in_order_and_may_not_call_the_driver {
        start();
        let on = stream(0);
        let allocate = resolve("cuMemAlloc", 3020, 0).1;
        ok!("cuLaunchHostFunc" 10000, on, calls_the_driver as *const () as u64, allocate);
        ok!("cuStreamSynchronize" 2000, on);
        assert_eq!(RESULT.load(Ordering::SeqCst), 800);
        assert_eq!(cu!("cuLaunchHostFunc" 10000, on, NULL, NULL), 1);
    }
}

isolated! {
    values_in_memory_are_waited_for_and_written {
        start();
        let (flag, word) = word();
        let at = allocate(4);
        let on = stream(1);
        ok!("cuMemsetD32" 3020, at, 0u32, 1usize);
        ok!("cuCtxSynchronize" 2000);
        ok!("cuStreamWaitValue32" 12000, on, flag, 5u32, 0u32);
        ok!("cuStreamWriteValue32" 12000, on, at, 6u32, 0u32);
        word.store(4, Ordering::SeqCst);
        assert_eq!(cu!("cuStreamQuery" 2000, on), 600);
        word.store(5, Ordering::SeqCst);
        ok!("cuStreamSynchronize" 2000, on);
        assert_eq!(get::<u32>(at, 1), [6]);
    }
}

isolated! {
    /// "Releases ... once the device has completed all work in the stream".
    a_destroyed_stream_finishes_its_work {
        start();
        let (flag, word) = word();
        let (at, on) = (allocate(4), stream(0));
        ok!("cuCtxSynchronize" 2000);
        spin(flag, at, on);
        ok!("cuStreamDestroy" 4000, on);
        word.store(1, Ordering::SeqCst);
        ok!("cuCtxSynchronize" 2000);
        assert_eq!(get::<u32>(at, 1), [1]);
    }
}

isolated! {
    streams_tell_what_they_are {
        let context = start();
        let (mut least, mut greatest) = (1, 1);
        ok!("cuCtxGetStreamPriorityRange" 5050, &mut least, &mut greatest);
        assert!(least == 0 && greatest <= least);
        let mut on = 0usize;
        ok!("cuStreamCreateWithPriority" 5050, &mut on, 1u32, -100);
        let (mut priority, mut flags, mut of) = (7, 0u32, 0usize);
        ok!("cuStreamGetPriority" 5050, on, &mut priority);
        ok!("cuStreamGetFlags" 5050, on, &mut flags);
        ok!("cuStreamGetCtx" 9020, on, &mut of);
        assert_eq!((priority, flags, of), (greatest, 1, context));
        assert_eq!(cu!("cuStreamCreate" 2000, &mut on, 77u32), 1);
    }
}
