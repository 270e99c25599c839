//! Virtual memory management, pools.

use crate::driver::{NULL, get, kernel, launch, module, start, stream};
use crate::{BASIC, cu, isolated, ok};

#[repr(C)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location: i32,
    windows: u64,
    flags: u64,
}

fn properties(handle_types: u32) -> Properties {
    Properties { kind: 1, handle_types, location_kind: 1, location: 0, windows: 0, flags: 0 }
}

/// Access of the device: read and write.
const BOTH: [u32; 3] = [1, 0, 3];

fn granularity() -> usize {
    let mut granularity = 0usize;
    ok!("cuMemGetAllocationGranularity" 10020, &mut granularity, &properties(0), 0u32);
    assert!(granularity.is_power_of_two());
    granularity
}

fn reserve(size: usize, near: u64) -> u64 {
    let mut at = 0u64;
    ok!("cuMemAddressReserve" 10020, &mut at, size, 0usize, near, 0u64);
    at
}

fn create(size: usize, handle_types: u32) -> u64 {
    let mut handle = 0u64;
    ok!("cuMemCreate" 10020, &mut handle, size, &properties(handle_types), 0u64);
    handle
}

isolated! {
    memory_is_mapped_where_it_was_reserved {
        start();
        let unit = granularity();
        let at = reserve(4 * unit, 0);
        assert_eq!(at % unit as u64, 0);
        let (first, second) = (create(unit, 0), create(2 * unit, 0));
        ok!("cuMemMap" 10020, at, unit, 0usize, first, 0u64);
        ok!("cuMemMap" 10020, at + unit as u64, 2 * unit, 0usize, second, 0u64);
        // nothing can be accessed before cuMemSetAccess
        assert_ne!(cu!("cuMemsetD8" 3020, at, 1u8, 16usize), 0);
        ok!("cuMemSetAccess" 10020, at, 3 * unit, &BOTH, 1usize);
        let across = at + unit as u64 - 8;
        ok!("cuMemsetD8" 3020, across, 7u8, 16usize);
        assert_eq!(get::<u8>(across, 16), [7; 16]);
        let mut access = 0u64;
        ok!("cuMemGetAccess" 10020, &mut access, &[1u32, 0], at);
        assert_eq!(access, 3);
        // handles may go before mappings
        ok!("cuMemRelease" 10020, first);
        assert_eq!(get::<u8>(at + unit as u64 - 8, 8), [7; 8]);
        let mut again = 0u64;
        ok!("cuMemRetainAllocationHandle" 11000, &mut again, at);
        ok!("cuMemRelease" 10020, again);
        ok!("cuMemUnmap" 10020, at, unit);
        ok!("cuMemUnmap" 10020, at + unit as u64, 2 * unit);
        // the same memory somewhere else
        ok!("cuMemMap" 10020, at + 2 * unit as u64, 2 * unit, 0usize, second, 0u64);
        ok!("cuMemSetAccess" 10020, at + 2 * unit as u64, 2 * unit, &BOTH, 1usize);
        assert_eq!(get::<u8>(at + 2 * unit as u64, 8), [7; 8]);
        ok!("cuMemUnmap" 10020, at + 2 * unit as u64, 2 * unit);
        ok!("cuMemRelease" 10020, second);
        ok!("cuMemAddressFree" 10020, at, 4 * unit);
        // a wish for addresses is granted where they are free
        assert_eq!(reserve(4 * unit, at), at);
    }
}

isolated! {
    what_does_not_fit_is_refused {
        start();
        let unit = granularity();
        let mut out = 0u64;
        assert_eq!(cu!("cuMemCreate" 10020, &mut out, unit / 2, &properties(0), 0u64), 1);
        assert_eq!(cu!("cuMemAddressReserve" 10020, &mut out, unit + 4096, 0usize, NULL, 0u64), 1);
        assert_eq!(cu!("cuMemAddressReserve" 10020, &mut out, unit, 3usize, NULL, 0u64), 1);
        let (at, handle) = (reserve(2 * unit, 0), create(unit, 0));
        assert_eq!(cu!("cuMemMap" 10020, at + 4096, unit, 0usize, handle, 0u64), 1);
        assert_eq!(cu!("cuMemMap" 10020, at, 2 * unit, 0usize, handle, 0u64), 801);
        assert_eq!(cu!("cuMemMap" 10020, at, unit, unit, handle, 0u64), 801);
        ok!("cuMemMap" 10020, at, unit, 0usize, handle, 0u64);
        assert_eq!(cu!("cuMemMap" 10020, at, unit, 0usize, handle, 0u64), 1);
        assert_eq!(cu!("cuMemSetAccess" 10020, at, 2 * unit, &BOTH, 1usize), 1);
        assert_eq!(cu!("cuMemAddressFree" 10020, at, 2 * unit), 1);
        ok!("cuMemUnmap" 10020, at, unit);
        // where nothing is mapped, too
        ok!("cuMemUnmap" 10020, at, unit);
        ok!("cuMemRelease" 10020, handle);
        assert_eq!(cu!("cuMemRelease" 10020, handle), 1);
    }
}

isolated! {
    memory_that_was_exported_can_be_imported {
        start();
        let unit = granularity();
        let (at, handle) = (reserve(2 * unit, 0), create(unit, 1));
        ok!("cuMemMap" 10020, at, unit, 0usize, handle, 0u64);
        let mut descriptor = -1i32;
        ok!("cuMemExportToShareableHandle" 10020, &mut descriptor, handle, 1u32, 0u64);
        let mut twin = 0u64;
        ok!("cuMemImportFromShareableHandle" 10020, &mut twin, descriptor as u64, 1u32);
        ok!("cuMemMap" 10020, at + unit as u64, unit, 0usize, twin, 0u64);
        ok!("cuMemSetAccess" 10020, at, 2 * unit, &BOTH, 1usize);
        ok!("cuMemsetD32" 3020, at + 64, 99u32, 4usize);
        assert_eq!(get::<u32>(at + unit as u64 + 64, 4), [99; 4]);
        let plain = create(unit, 0);
        assert_ne!(cu!("cuMemExportToShareableHandle" 10020, &mut descriptor, plain, 1u32, 0u64), 0);
    }
}

isolated! {
    a_kernel_faults_where_nothing_is_mapped {
        start();
        let unit = granularity();
        let (at, handle) = (reserve(2 * unit, 0), create(unit, 0));
        ok!("cuMemMap" 10020, at, unit, 0usize, handle, 0u64);
        ok!("cuMemSetAccess" 10020, at, unit, &BOTH, 1usize);
        let wild = kernel(module(BASIC), "wild");
        assert_eq!(launch(wild, 1, 1, 0, &[at, unit as u64 / 4 - 1]), 0);
        ok!("cuCtxSynchronize" 2000);
        assert_eq!(launch(wild, 1, 1, 0, &[at, unit as u64 / 4]), 0);
        assert_eq!(cu!("cuCtxSynchronize" 2000), 700);
    }
}

isolated! {
    pools_follow_the_stream {
        start();
        let on = stream(1);
        let mut pool = 0usize;
        ok!("cuDeviceGetDefaultMemPool" 11020, &mut pool, 0);
        let mut at = 0u64;
        ok!("cuMemAllocAsync" 11020, &mut at, 4096usize, on);
        ok!("cuMemsetD32Async" 3020, at, 3u32, 1024usize, on);
        let mut values = vec![0u32; 1024];
        ok!("cuMemcpyDtoHAsync" 3020, values.as_mut_slice(), at, 4096usize, on);
        ok!("cuStreamSynchronize" 2000, on);
        assert_eq!(values, [3; 1024]);
        let mut of = 0usize;
        ok!("cuPointerGetAttribute" 4000, &mut of, 17u32, at);
        assert_eq!(of, pool);
        ok!("cuMemFreeAsync" 11020, at, on);
        ok!("cuStreamSynchronize" 2000, on);
        let mut threshold = 0u64;
        ok!("cuMemPoolSetAttribute" 11020, pool, 4u32, &(1u64 << 20));
        ok!("cuMemPoolGetAttribute" 11020, pool, 4u32, &mut threshold);
        assert_eq!(threshold, 1 << 20);
    }
}
