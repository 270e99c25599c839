//! Modules, libraries, launches, faults.

use std::ffi::CString;

use crate::driver::{NULL, allocate, float, get, global, kernel, launch, module, put, start};
use crate::{BASIC, cu, isolated, ok};

fn saxpy(n: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let x: Vec<f32> = (0..n).map(|i| i as f32 / 8.0).collect();
    let y: Vec<f32> = (0..n).map(|i| 1000.0 - i as f32).collect();
    let wanted = x.iter().zip(&y).map(|(x, y)| 2.5f32.mul_add(*x, *y)).collect();
    (x, y, wanted)
}

isolated! {
    a_kernel_computes {
        start();
        let saxpy_kernel = kernel(module(BASIC), "saxpy");
        let (x, y, wanted) = saxpy(1000);
        let (x, y) = (put(&x), put(&y));
        assert_eq!(launch(saxpy_kernel, 4, 256, 0, &[1000, float(2.5), x, y]), 0);
        assert_eq!(get::<f32>(y, 1000), wanted);
    }
}

isolated! {
    parameters_come_in_a_buffer_as_well {
        start();
        let function = kernel(module(BASIC), "saxpy");
        let (x, y, wanted) = saxpy(64);
        let (x, y) = (put(&x), put(&y));
        let mut buffer = Vec::new();
        buffer.extend(64u32.to_le_bytes());
        buffer.extend(2.5f32.to_le_bytes());
        buffer.extend(x.to_le_bytes());
        buffer.extend(y.to_le_bytes());
        let size = buffer.len();
        let extra = [1, buffer.as_ptr() as u64, 2, std::ptr::from_ref(&size) as u64, 0];
        ok!("cuLaunchKernel" 4000, function, 1u32, 1u32, 1u32, 64u32, 1u32, 1u32, 0u32, 0usize, NULL, &extra);
        assert_eq!(get::<f32>(y, 64), wanted);
        let each = [std::ptr::from_ref(&size) as u64; 4];
        let both =
            cu!("cuLaunchKernel" 4000, function, 1u32, 1u32, 1u32, 64u32, 1u32, 1u32, 0u32, 0usize, &each, &extra);
        assert_eq!(both, 1);
    }
}

isolated! {
    a_function_tells_its_parameters {
        start();
        let function = kernel(module(BASIC), "saxpy");
        let mut found = Vec::new();
        for index in 0usize.. {
            let (mut offset, mut size) = (0usize, 0usize);
            if cu!("cuFuncGetParamInfo" 12040, function, index, &mut offset, &mut size) != 0 {
                break;
            }
            found.push((offset, size));
        }
        assert_eq!(found, [(0, 4), (4, 4), (8, 8), (16, 8)]);
    }
}

isolated! {
    stores_go_through_pointers_in_memory_and_variables_are_memory {
        start();
        let module = module(BASIC);
        let rows: Vec<u64> = (0..3).map(|_| allocate(16)).collect();
        let table = put(&rows);
        assert_eq!(launch(kernel(module, "through_table"), 1, 32, 0, &[table, 3, 4]), 0);
        assert_eq!(get::<f32>(rows[1], 4), [2.5 + 7.0, -3.0 - 7.0, 0.125 + 100.0, 1.0 + 7.0]);
        let (at, bytes) = global(module, "table");
        assert_eq!(bytes, 16);
        assert_eq!(get::<f32>(at, 4), [1.0, 2.5, -3.0, 0.125]);
        ok!("cuMemcpyHtoD" 3020, at, &[9.0f32], 4usize);
        assert_eq!(launch(kernel(module, "through_table"), 1, 32, 0, &[table, 1, 1]), 0);
        assert_eq!(get::<f32>(rows[0], 1), [16.0]);
    }
}

isolated! {
    what_is_wrong_with_a_launch_is_told {
        start();
        let module = module(BASIC);
        let function = kernel(module, "saxpy");
        assert_eq!(launch(function, 0, 32, 0, &[0, 0, 0, 0]), 1);
        assert_eq!(launch(function, 1, 2000, 0, &[0, 0, 0, 0]), 1);
        let mut missing = 0usize;
        let name = CString::new("missing").unwrap();
        assert_eq!(cu!("cuModuleGetFunction" 2000, &mut missing, module, name.as_bytes_with_nul()), 500);
        let (mut at, mut bytes) = (0u64, 0usize);
        assert_eq!(cu!("cuModuleGetGlobal" 3020, &mut at, &mut bytes, module, name.as_bytes_with_nul()), 500);
        let text = CString::new(".version 7.0\n.target sm_75\n.address_size 64\n.entry broken( { }\n").unwrap();
        let mut broken = 0usize;
        assert_eq!(cu!("cuModuleLoadData" 2000, &mut broken, text.as_bytes_with_nul()), 218);
    }
}

isolated! {
    /// CUDA_ERROR_ILLEGAL_ADDRESS: "any further CUDA work will return the same error".
    a_fault_is_for_good {
        start();
        let module = module(BASIC);
        let at = allocate(1 << 20);
        assert_eq!(launch(kernel(module, "wild"), 1, 1, 0, &[at, 1 << 40]), 0);
        assert_eq!(cu!("cuCtxSynchronize" 2000), 700);
        let mut other = 0u64;
        assert_eq!(cu!("cuMemAlloc" 3020, &mut other, 16usize), 700);
        assert_eq!(launch(kernel_or_fault(module), 1, 1, 0, &[at, 0]), 700);
        assert_eq!(cu!("cuCtxSynchronize" 2000), 700);
    }
}

/// Handles stay; asking for one may return the fault.
fn kernel_or_fault(module: usize) -> usize {
    let name = CString::new("wild").unwrap();
    let mut function = 0usize;
    let result = cu!("cuModuleGetFunction" 2000, &mut function, module, name.as_bytes_with_nul());
    if result == 0 { function } else { 1 }
}

isolated! {
    a_library_is_loaded_into_the_context_that_uses_it {
        start();
        let text = CString::new(BASIC).unwrap();
        let mut library = 0usize;
        ok!("cuLibraryLoadData" 12000, &mut library, text.as_bytes_with_nul(), NULL, NULL, 0u32, NULL, NULL, 0u32);
        let name = CString::new("saxpy").unwrap();
        let mut its_kernel = 0usize;
        ok!("cuLibraryGetKernel" 12000, &mut its_kernel, library, name.as_bytes_with_nul());
        let (x, y, wanted) = saxpy(100);
        let (x, y) = (put(&x), put(&y));
        // a kernel of a library is launched like a function
        assert_eq!(launch(its_kernel, 1, 128, 0, &[100, float(2.5), x, y]), 0);
        assert_eq!(get::<f32>(y, 100), wanted);
        let mut function = 0usize;
        ok!("cuKernelGetFunction" 12000, &mut function, its_kernel);
        assert_eq!(launch(function, 1, 128, 0, &[0, 0, x, y]), 0);
        let counter = CString::new("counter").unwrap();
        let (mut at, mut bytes) = (0u64, 0usize);
        ok!("cuLibraryGetGlobal" 12000, &mut at, &mut bytes, library, counter.as_bytes_with_nul());
        assert_eq!((get::<u64>(at, 1), bytes), (vec![0], 8));
        ok!("cuLibraryUnload" 12000, library);
    }
}

isolated! {
    atomics_of_all_threads_count {
        start();
        let module = module(BASIC);
        let (ints, sum) = (put(&[0u32; 16]), put(&[0f32]));
        let (sum64, most, least) = (put(&[0f64]), put(&[0u32]), put(&[0i32]));
        assert_eq!(launch(kernel(module, "count"), 4, 128, 0, &[ints, sum, sum64, most, least]), 0);
        assert_eq!(get::<f32>(sum, 1), [512.0]);
        assert_eq!(get::<f64>(sum64, 1), [256.0]);
        assert_eq!(get::<i32>(least, 1), [5 - 511]);
        let (counter, _) = global(module, "counter");
        assert_eq!(get::<u64>(counter, 1), [3 * 512]);
        let total: u32 = get::<u32>(ints, 8).iter().sum();
        assert_eq!(total, 511 * 512 / 2);
    }
}
