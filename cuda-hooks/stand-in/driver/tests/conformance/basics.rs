//! Finding functions, initialisation, devices, contexts.

use crate::driver::{NULL, invoke, resolve, start, symbol};
use crate::{cu, isolated, ok};

isolated! {
    /// cuGetProcAddress: "If the specified CUDA version is greater than the driver version, the API will return
    /// CUDA_ERROR_INVALID_VALUE"; success and a null pointer where there is no such function.
    functions_are_found_by_name_version_and_flags {
        let mut version = 0;
        assert_eq!(invoke(symbol("cuDriverGetVersion"), &[std::ptr::from_mut(&mut version) as u64]), 0);
        assert!(version >= 12080);
        assert_eq!(resolve("cuMemAddressReserve", 10020, 0), (0, symbol("cuMemAddressReserve"), 0));
        assert_eq!(resolve("cuMemAddressReserve", 10010, 0), (0, 0, 2));
        assert_eq!(resolve("cuHoldfast", 12000, 0), (0, 0, 1));
        assert_eq!(resolve("cuInit", version + 10, 0).0, 1);
        // of several versions the newest that the program knows
        assert_eq!(resolve("cuMemAlloc", 12000, 0).1, symbol("cuMemAlloc_v2"));
        assert_eq!(resolve("cuGetProcAddress", 11030, 0).1, symbol("cuGetProcAddress"));
        assert_eq!(resolve("cuGetProcAddress", 12000, 0).1, symbol("cuGetProcAddress_v2"));
        // per-thread default streams, where there is such a function
        assert_eq!(resolve("cuStreamSynchronize", 12000, 1).1, symbol("cuStreamSynchronize"));
        assert_eq!(resolve("cuStreamSynchronize", 12000, 2).1, symbol("cuStreamSynchronize_ptsz"));
        assert_eq!(resolve("cuMemcpyHtoD", 12000, 2).1, symbol("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(resolve("cuMemAlloc", 12000, 2).1, symbol("cuMemAlloc_v2"));
    }
}

isolated! {
    nothing_works_before_cu_init {
        let mut count = 0;
        assert_eq!(cu!("cuDeviceGetCount" 2000, &mut count), 3);
        let mut context = 0usize;
        assert_eq!(cu!("cuCtxGetCurrent" 4000, &mut context), 3);
        assert_eq!(cu!("cuInit" 2000, 1), 1);
        ok!("cuInit" 2000, 0);
        ok!("cuInit" 2000, 0);
        ok!("cuDeviceGetCount" 2000, &mut count);
        assert!(count >= 1);
    }
}

isolated! {
    errors_have_names {
        let mut text: *const std::ffi::c_char = std::ptr::null();
        ok!("cuGetErrorName" 6000, 401, &mut text);
        // SAFETY: a string of the driver's.
        #[allow(unsafe_code)]
        let name = unsafe { std::ffi::CStr::from_ptr(text) };
        assert_eq!(name.to_str(), Ok("CUDA_ERROR_ILLEGAL_STATE"));
        assert_eq!(cu!("cuGetErrorName" 6000, 12345, &mut text), 1);
        assert!(text.is_null());
    }
}

isolated! {
    devices_are_described {
        ok!("cuInit" 2000, 0);
        let attribute = |number: u32| {
            let mut value = -1;
            ok!("cuDeviceGetAttribute" 2000, &mut value, number, 0);
            value
        };
        assert_eq!(attribute(10), 32, "warp size");
        assert_eq!(attribute(1), 1024, "threads per block");
        assert_eq!(attribute(41), 1, "unified addressing");
        assert_eq!(attribute(102), 1, "virtual memory management");
        let (mut bytes, mut device) = (0usize, 0);
        ok!("cuDeviceTotalMem" 3020, &mut bytes, 0);
        assert!(bytes > 0);
        assert_eq!(cu!("cuDeviceGet" 2000, &mut device, 1000), 101);
        let mut value = 0;
        assert_eq!(cu!("cuDeviceGetAttribute" 2000, &mut value, 99_999u32, 0), 1);
        let mut uuid = [0u8; 16];
        ok!("cuDeviceGetUuid" 11040, &mut uuid, 0);
        assert_ne!(uuid, [0; 16]);
    }
}

isolated! {
    contexts_are_a_stack_of_each_thread {
        ok!("cuInit" 2000, 0);
        let current = || {
            let mut context = usize::MAX;
            ok!("cuCtxGetCurrent" 4000, &mut context);
            context
        };
        assert_eq!(current(), 0);
        let mut at = 0u64;
        assert_eq!(cu!("cuMemAlloc" 3020, &mut at, 64usize), 201);
        let primary = start();
        assert_eq!(current(), primary);
        let mut own = 0usize;
        ok!("cuCtxCreate" 3020, &mut own, 0u32, 0);
        assert_eq!(current(), own);
        std::thread::spawn(move || assert_eq!(current(), 0)).join().unwrap();
        let mut popped = 0usize;
        ok!("cuCtxPopCurrent" 4000, &mut popped);
        assert_eq!((popped, current()), (own, primary));
        ok!("cuCtxDestroy" 4000, own);
        let (mut flags, mut active) = (0u32, 0);
        ok!("cuDevicePrimaryCtxGetState" 7000, 0, &mut flags, &mut active);
        assert_eq!(active, 1);
        ok!("cuDevicePrimaryCtxRelease" 11000, 0);
        ok!("cuDevicePrimaryCtxGetState" 7000, 0, &mut flags, &mut active);
        assert_eq!(active, 0);
        assert_eq!(cu!("cuDevicePrimaryCtxRelease" 11000, 0), 201);
    }
}

isolated! {
    an_unknown_export_table_is_not_found {
        ok!("cuInit" 2000, 0);
        let mut table = 1usize;
        assert_ne!(cu!("cuGetExportTable" 3000, &mut table, &[0xabu8; 16]), 0);
        assert_ne!(cu!("cuGetExportTable" 3000, NULL, &[0xabu8; 16]), 0);
    }
}
