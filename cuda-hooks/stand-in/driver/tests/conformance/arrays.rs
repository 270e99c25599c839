//! Arrays, and calls that only hint.

use crate::driver::{NULL, allocate, get, put, start, stream};
use crate::{cu, isolated, ok};

#[repr(C)]
struct Descriptor {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

#[repr(C)]
#[derive(Default)]
struct Copy3D {
    from_place: [u64; 3],
    from_level: u64,
    from_kind: u64,
    from_host: u64,
    from_device: u64,
    from_array: u64,
    reserved: u64,
    from_pitch: u64,
    from_height: u64,
    to_place: [u64; 3],
    to_level: u64,
    to_kind: u64,
    to_host: u64,
    to_device: u64,
    to_array: u64,
    reserved_too: u64,
    to_pitch: u64,
    to_height: u64,
    width: u64,
    height: u64,
    depth: u64,
}

isolated! {
    an_array_keeps_what_is_copied_into_it {
        start();
        let mut array = 0usize;
        // floats, one channel
        ok!("cuArrayCreate" 3020, &mut array, &Descriptor { width: 10, height: 4, format: 0x20, channels: 1 });
        let rows: Vec<f32> = (0..40).map(|n| n as f32).collect();
        let mut copy = Copy3D {
            from_kind: 1,
            from_host: rows.as_ptr() as u64,
            from_pitch: 40,
            from_height: 4,
            to_kind: 3,
            to_array: array as u64,
            width: 40,
            height: 4,
            depth: 1,
            ..Copy3D::default()
        };
        ok!("cuMemcpy3D" 3020, &copy);
        // a part of it to memory of the device
        let at = put(&[0f32; 16]);
        copy = Copy3D {
            from_kind: 3,
            from_array: array as u64,
            from_place: [8, 1, 0],
            to_kind: 2,
            to_device: at,
            to_pitch: 12,
            to_height: 3,
            width: 12,
            height: 3,
            depth: 1,
            ..Copy3D::default()
        };
        ok!("cuMemcpy3D" 3020, &copy);
        assert_eq!(get::<f32>(at, 9), [12.0, 13.0, 14.0, 22.0, 23.0, 24.0, 32.0, 33.0, 34.0]);
        copy.from_place = [32, 1, 0];
        assert_eq!(cu!("cuMemcpy3D" 3020, &copy), 1);
        let mut described = Descriptor { width: 0, height: 0, format: 0, channels: 0 };
        ok!("cuArrayGetDescriptor" 3020, &mut described, array);
        assert_eq!((described.width, described.height, described.format, described.channels), (10, 4, 0x20, 1));
        ok!("cuArrayDestroy" 2000, array);
        let odd = Descriptor { width: 10, height: 4, format: 0x20, channels: 3 };
        assert_eq!(cu!("cuArrayCreate" 3020, &mut array, &odd), 1);
    }
}

isolated! {
    an_array_of_one_dimension_is_bytes {
        start();
        let mut array = 0usize;
        ok!("cuArrayCreate" 3020, &mut array, &Descriptor { width: 1000, height: 0, format: 1, channels: 1 });
        let bytes: Vec<u8> = (0..=249).collect();
        ok!("cuMemcpyHtoA" 3020, array, 100usize, bytes.as_slice(), 250usize);
        let at = allocate(250);
        ok!("cuMemcpyAtoD" 3020, at, array, 100usize, 250usize);
        assert_eq!(get::<u8>(at, 250), bytes);
        let mut back = vec![0u8; 10];
        ok!("cuMemcpyAtoH" 3020, back.as_mut_slice(), array, 110usize, 10usize);
        assert_eq!(back, bytes[10..20]);
        assert_eq!(cu!("cuMemcpyAtoH" 3020, back.as_mut_slice(), array, 995usize, 10usize), 1);
    }
}

isolated! {
    values_come_in_batches {
        start();
        let (at, on) = (put(&[0u32; 4]), stream(1));
        ok!("cuCtxSynchronize" 2000);
        // write 5, wait for it, write 6 beside it
        let batch = [[2, at, 5, 0, 0, 0], [1, at, 5, 1, 0, 0], [2, at + 4, 6, 0, 0, 0u64]];
        ok!("cuStreamBatchMemOp" 12000, on, 3u32, &batch, 0u32);
        ok!("cuStreamSynchronize" 2000, on);
        assert_eq!(get::<u32>(at, 2), [5, 6]);
    }
}

isolated! {
    hints_are_for_managed_memory {
        start();
        let on = stream(0);
        let mut managed = 0u64;
        ok!("cuMemAllocManaged" 6000, &mut managed, 1usize << 20, 1u32);
        ok!("cuMemPrefetchAsync" 8000, managed, 4096usize, 0, on);
        ok!("cuMemAdvise" 8000, managed, 4096usize, 1u32, 0);
        let linear = allocate(4096);
        assert_eq!(cu!("cuMemPrefetchAsync" 8000, linear, 4096usize, 0, on), 1);
        // SAFETY: managed memory is the host's as well.
        #[allow(unsafe_code)]
        unsafe { (managed as *mut u32).write(77) };
        ok!("cuMemcpyDtoD" 3020, linear, managed, 4usize);
        assert_eq!(get::<u32>(linear, 1), [77]);
        ok!("cuMemFree" 3020, managed);
        assert_ne!(cu!("cuMemcpyDtoD" 3020, linear, NULL, 4usize), 0);
    }
}
