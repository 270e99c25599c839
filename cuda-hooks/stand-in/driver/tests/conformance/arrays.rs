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

/// Kind, then an array; or address, format and channels, and bytes or columns, rows, pitch.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
struct Resource {
    kind: u64,
    of: [u64; 16],
    flags: u64,
}

impl Resource {
    fn new(kind: u64, of: &[u64]) -> Resource {
        let mut resource = Resource { kind, of: [0; 16], flags: 0 };
        resource.of[..of.len()].copy_from_slice(of);
        resource
    }
}

/// Wraps around, linear, coordinates from 0 to 1.
const SAMPLING: [u32; 26] = {
    let mut sampling = [0; 26];
    (sampling[3], sampling[4]) = (1, 2);
    sampling
};
/// Floats, one channel.
const FLOATS: u64 = 1 << 32 | 0x20;

fn checkpoint() {
    let own = std::process::id() as i32;
    ok!("cuCheckpointProcessLock" 12080, own, NULL);
    ok!("cuCheckpointProcessCheckpoint" 12080, own, NULL);
    ok!("cuCheckpointProcessRestore" 12080, own, NULL);
    ok!("cuCheckpointProcessUnlock" 12080, own, NULL);
}

isolated! {
    textures_are_of_arrays_linear_memory_and_rows_and_outlive_a_checkpoint {
        start();
        let mut array = 0usize;
        ok!("cuArrayCreate" 3020, &mut array, &Descriptor { width: 16, height: 4, format: 0x20, channels: 1 });
        let at = allocate(64 << 10);
        let resources = [
            Resource::new(0, &[array as u64]),
            Resource::new(2, &[at, FLOATS, 4096]),
            Resource::new(3, &[at, FLOATS, 100, 8, 512]),
        ];
        let textures = resources.map(|resource| {
            let mut texture = 0u64;
            ok!("cuTexObjectCreate" 5000, &mut texture, &resource, &SAMPLING, NULL);
            texture
        });
        assert!(textures.iter().all(|texture| *texture != 0) && textures[0] != textures[1]);
        checkpoint();
        for (texture, resource) in textures.into_iter().zip(resources) {
            let (mut found, mut sampling) = (Resource::new(9, &[]), [0u32; 26]);
            ok!("cuTexObjectGetResourceDesc" 5000, &mut found, texture);
            ok!("cuTexObjectGetTextureDesc" 5000, &mut sampling, texture);
            assert_eq!((found.kind as u32, found.of[..3].to_vec()), (resource.kind as u32, resource.of[..3].to_vec()));
            assert_eq!(sampling[..5], SAMPLING[..5]);
            // there is no view, which is no error (driver 580.159.04)
            ok!("cuTexObjectGetResourceViewDesc" 5000, &mut [0u64; 14], texture);
            ok!("cuTexObjectDestroy" 5000, texture);
        }
        let mut texture = 0u64;
        // an address that is not aligned, a pitch that is not, flags
        let wrong = [
            Resource::new(2, &[at + 4, FLOATS, 4096]),
            Resource::new(3, &[at, FLOATS, 100, 8, 500]),
            Resource { flags: 1, ..resources[1] },
        ];
        for resource in wrong {
            assert_eq!(cu!("cuTexObjectCreate" 5000, &mut texture, &resource, &SAMPLING, NULL), 1, "{resource:?}");
        }
        // a view of linear memory is taken (driver 580.159.04)
        ok!("cuTexObjectCreate" 5000, &mut texture, &resources[1], &SAMPLING, &[0u64; 14]);
        ok!("cuArrayDestroy" 2000, array);
    }
}

#[repr(C)]
struct Descriptor3D {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

isolated! {
    surfaces_are_of_arrays {
        start();
        let (mut array, mut plain) = (0usize, 0usize);
        let made = |flags| Descriptor3D { width: 16, height: 4, depth: 0, format: 0x20, channels: 1, flags };
        ok!("cuArray3DCreate" 3020, &mut array, &made(2));
        ok!("cuArray3DCreate" 3020, &mut plain, &made(0));
        let (resource, mut surface, mut found) = (Resource::new(0, &[array as u64]), 0u64, Resource::new(9, &[]));
        ok!("cuSurfObjectCreate" 5000, &mut surface, &resource);
        checkpoint();
        ok!("cuSurfObjectGetResourceDesc" 5000, &mut found, surface);
        assert_eq!((found.kind as u32, found.of[0]), (0, array as u64));
        ok!("cuSurfObjectDestroy" 5000, surface);
        // an array that was not made for surfaces is taken, too (driver 580.159.04)
        let other = Resource::new(0, &[plain as u64]);
        ok!("cuSurfObjectCreate" 5000, &mut surface, &other);
        ok!("cuSurfObjectDestroy" 5000, surface);
        let linear = Resource::new(2, &[allocate(4096), FLOATS, 4096]);
        assert_eq!(cu!("cuSurfObjectCreate" 5000, &mut surface, &linear), 1);
        ok!("cuArrayDestroy" 2000, plain);
        ok!("cuArrayDestroy" 2000, array);
    }
}
