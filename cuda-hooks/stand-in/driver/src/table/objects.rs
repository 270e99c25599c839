//! Versions, devices, contexts, modules, functions and launches.
//!
//! # Safety
//! See `mod.rs`.
#![allow(unsafe_code)]

use std::ffi::c_void;

use super::entry::{Address, Entry, entry, functions};
use super::private;
use crate::api::{context, device, function, hint, library, module};
use crate::entrance::{self, DefaultStream, Rule};
use crate::launch::Shape;
use crate::layout::LaunchConfig;
use crate::pointer::{In, Out, Text};

functions! {
    // errors, versions
    Free "cuGetErrorString" 6000 cuGetErrorString (code: u32, text: Out<Text>) => device::error_string(code, text);
    Free "cuGetErrorName" 6000 cuGetErrorName (code: u32, text: Out<Text>) => device::error_name(code, text);
    Free "cuInit" 2000 cuInit (flags: u32) => device::init(flags);
    Free "cuDriverGetVersion" 2020 cuDriverGetVersion (version: Out<i32>) => device::version(version);
    Free "cuGetExportTable" 3000 cuGetExportTable
        (table: Out<usize>, id: In<[u8; 16]>)
        => private::export_table(table, id);
    // devices
    Gated "cuDeviceGet" 2000 cuDeviceGet (device: Out<i32>, ordinal: i32) => device::get(device, ordinal);
    Gated "cuDeviceGetCount" 2000 cuDeviceGetCount (count: Out<i32>) => device::count(count);
    Gated "cuDeviceGetName" 2000 cuDeviceGetName
        (name: Out<u8>, length: i32, device: i32)
        => device::name(name, length, device);
    Gated "cuDeviceGetUuid" 9020 cuDeviceGetUuid (uuid: Out<[u8; 16]>, device: i32) => device::uuid(uuid, device);
    Gated "cuDeviceGetUuid" 11040 cuDeviceGetUuid_v2 (uuid: Out<[u8; 16]>, device: i32) => device::uuid(uuid, device);
    Gated "cuDeviceTotalMem" 3020 cuDeviceTotalMem_v2
        (bytes: Out<usize>, device: i32)
        => device::total_memory(bytes, device);
    Gated "cuDeviceGetAttribute" 2000 cuDeviceGetAttribute
        (value: Out<i32>, attribute: u32, device: i32)
        => device::attribute(value, attribute, device);
    Gated "cuDeviceComputeCapability" 2000 cuDeviceComputeCapability
        (major: Out<i32>, minor: Out<i32>, device: i32)
        => device::compute_capability(major, minor, device);
    Gated "cuDeviceGetByPCIBusId" 4010 cuDeviceGetByPCIBusId
        (device: Out<i32>, name: Text)
        => device::by_pci_bus_id(device, name);
    Gated "cuDeviceGetPCIBusId" 4010 cuDeviceGetPCIBusId
        (name: Out<u8>, length: i32, device: i32)
        => device::pci_bus_id(name, length, device);
    Gated "cuDeviceCanAccessPeer" 4000 cuDeviceCanAccessPeer
        (can: Out<i32>, device: i32, peer: i32)
        => device::can_access_peer(can, device, peer);
    // contexts
    Gated "cuDevicePrimaryCtxRetain" 7000 cuDevicePrimaryCtxRetain
        (context: Out<usize>, device: i32)
        => context::primary_retain(context, device);
    Gated "cuDevicePrimaryCtxRelease" 7000 cuDevicePrimaryCtxRelease (device: i32) => context::primary_release(device);
    Gated "cuDevicePrimaryCtxRelease" 11000 cuDevicePrimaryCtxRelease_v2
        (device: i32)
        => context::primary_release(device);
    Gated "cuDevicePrimaryCtxReset" 7000 cuDevicePrimaryCtxReset (device: i32) => context::primary_reset(device);
    Gated "cuDevicePrimaryCtxReset" 11000 cuDevicePrimaryCtxReset_v2 (device: i32) => context::primary_reset(device);
    Gated "cuDevicePrimaryCtxSetFlags" 7000 cuDevicePrimaryCtxSetFlags
        (device: i32, flags: u32)
        => context::primary_set_flags(device, flags);
    Gated "cuDevicePrimaryCtxSetFlags" 11000 cuDevicePrimaryCtxSetFlags_v2
        (device: i32, flags: u32)
        => context::primary_set_flags(device, flags);
    Gated "cuDevicePrimaryCtxGetState" 7000 cuDevicePrimaryCtxGetState
        (device: i32, flags: Out<u32>, active: Out<i32>)
        => context::primary_state(device, flags, active);
    Gated "cuCtxCreate" 3020 cuCtxCreate_v2
        (context: Out<usize>, flags: u32, device: i32)
        => context::create(context, flags, device);
    Gated "cuCtxCreate" 11040 cuCtxCreate_v3
        (context: Out<usize>, affinity: In<u8>, count: i32, flags: u32, device: i32)
        => context::create_v3(context, affinity, count, flags, device);
    Gated "cuCtxCreate" 12050 cuCtxCreate_v4
        (context: Out<usize>, parameters: In<u8>, flags: u32, device: i32)
        => context::create_v4(context, parameters, flags, device);
    Gated "cuCtxDestroy" 4000 cuCtxDestroy_v2 (context: usize) => context::destroy(context);
    Gated "cuCtxPushCurrent" 4000 cuCtxPushCurrent_v2 (context: usize) => context::push(context);
    Gated "cuCtxPopCurrent" 4000 cuCtxPopCurrent_v2 (context: Out<usize>) => context::pop(context);
    Gated "cuCtxSetCurrent" 4000 cuCtxSetCurrent (context: usize) => context::set_current(context);
    Gated "cuCtxGetCurrent" 4000 cuCtxGetCurrent (context: Out<usize>) => context::get_current(context);
    Gated "cuCtxGetDevice" 2000 cuCtxGetDevice (device: Out<i32>) => context::get_device(device);
    Gated "cuCtxGetDevice" 13000 cuCtxGetDevice_v2
        (device: Out<i32>, context: usize)
        => context::get_device_v2(device, context);
    Gated "cuCtxGetId" 12000 cuCtxGetId (context: usize, id: Out<u64>) => context::get_id(context, id);
    Gated "cuCtxGetFlags" 7000 cuCtxGetFlags (flags: Out<u32>) => context::get_flags(flags);
    Gated "cuCtxSetFlags" 12010 cuCtxSetFlags (flags: u32) => context::set_flags(flags);
    Gated "cuCtxGetApiVersion" 3020 cuCtxGetApiVersion
        (context: usize, version: Out<u32>)
        => context::api_version(context, version);
    Gated "cuCtxSynchronize" 2000 cuCtxSynchronize () => context::synchronize();
    Gated "cuCtxSynchronize" 13000 cuCtxSynchronize_v2 (context: usize) => context::synchronize_v2(context);
    Gated "cuCtxGetStreamPriorityRange" 5050 cuCtxGetStreamPriorityRange
        (least: Out<i32>, greatest: Out<i32>)
        => context::priority_range(least, greatest);
    Gated "cuCtxSetLimit" 3010 cuCtxSetLimit (limit: u32, value: usize) => context::set_limit(limit, value);
    Gated "cuCtxGetLimit" 3010 cuCtxGetLimit (value: Out<usize>, limit: u32) => context::get_limit(value, limit);
    Gated "cuCtxGetCacheConfig" 3020 cuCtxGetCacheConfig (value: Out<u32>) => context::get_preference(value);
    Gated "cuCtxSetCacheConfig" 3020 cuCtxSetCacheConfig (value: u32) => context::set_preference(value);
    Gated "cuCtxGetSharedMemConfig" 4020 cuCtxGetSharedMemConfig (value: Out<u32>) => context::get_preference(value);
    Gated "cuCtxSetSharedMemConfig" 4020 cuCtxSetSharedMemConfig (value: u32) => context::set_preference(value);
    Gated "cuCtxResetPersistingL2Cache" 11000 cuCtxResetPersistingL2Cache () => context::reset_persisting_cache();
    Gated "cuCtxEnablePeerAccess" 4000 cuCtxEnablePeerAccess
        (context: usize, flags: u32)
        => context::enable_peer(context, flags);
    Gated "cuCtxDisablePeerAccess" 4000 cuCtxDisablePeerAccess (context: usize) => context::disable_peer(context);
    // green contexts
    Gated "cuDeviceGetDevResource" 12040 cuDeviceGetDevResource
        (_device: i32, _resource: Out<u8>, _kind: u32)
        => context::no_green_contexts();
    Gated "cuGreenCtxCreate" 12040 cuGreenCtxCreate
        (_context: Out<usize>, _description: usize, _device: i32, _flags: u32)
        => context::no_green_contexts();
    // modules
    Gated "cuModuleLoad" 2000 cuModuleLoad (module: Out<usize>, path: Text) => module::load_file(module, path);
    Gated "cuModuleLoadData" 2000 cuModuleLoadData
        (module: Out<usize>, data: In<u8>)
        => module::load_data(module, data);
    Gated "cuModuleLoadDataEx" 2010 cuModuleLoadDataEx
        (module: Out<usize>, data: In<u8>, count: u32, options: In<u32>, values: In<usize>)
        => module::load_data_with(module, data, count, options, values);
    Gated "cuModuleLoadFatBinary" 2000 cuModuleLoadFatBinary
        (module: Out<usize>, data: In<u8>)
        => module::load_data(module, data);
    Gated "cuModuleUnload" 2000 cuModuleUnload (module: usize) => module::unload(module);
    Gated "cuModuleGetFunction" 2000 cuModuleGetFunction
        (function: Out<usize>, module: usize, name: Text)
        => module::function(function, module, name);
    Gated "cuModuleGetGlobal" 3020 cuModuleGetGlobal_v2
        (pointer: Out<u64>, bytes: Out<usize>, module: usize, name: Text)
        => module::global(pointer, bytes, module, name);
    Gated "cuModuleGetFunctionCount" 12040 cuModuleGetFunctionCount
        (count: Out<u32>, module: usize)
        => module::function_count(count, module);
    Gated "cuModuleEnumerateFunctions" 12040 cuModuleEnumerateFunctions
        (functions: Out<usize>, count: u32, module: usize)
        => module::functions(functions, count, module);
    Free "cuModuleGetLoadingMode" 11070 cuModuleGetLoadingMode (mode: Out<u32>) => module::loading_mode(mode);
    // libraries
    Gated "cuLibraryLoadData" 12000 cuLibraryLoadData
        (library: Out<usize>, data: In<u8>, options: In<u32>, values: In<usize>, count: u32,
         _library_options: In<u32>, _library_values: In<usize>, _library_count: u32)
        => library::load_data(library, data, library::Options { options, values, count });
    Gated "cuLibraryLoadFromFile" 12000 cuLibraryLoadFromFile
        (library: Out<usize>, path: Text, options: In<u32>, values: In<usize>, count: u32, _library_options:
         In<u32>, _library_values: In<usize>, _library_count: u32)
        => library::load_file(library, path, library::Options { options, values, count });
    Gated "cuLibraryUnload" 12000 cuLibraryUnload (library: usize) => library::unload(library);
    Gated "cuLibraryGetKernel" 12000 cuLibraryGetKernel
        (kernel: Out<usize>, library: usize, name: Text)
        => library::kernel(kernel, library, name);
    Gated "cuLibraryGetModule" 12000 cuLibraryGetModule
        (module: Out<usize>, library: usize)
        => library::module_of(module, library);
    Gated "cuLibraryGetKernelCount" 12040 cuLibraryGetKernelCount
        (count: Out<u32>, library: usize)
        => library::kernel_count(count, library);
    Gated "cuLibraryEnumerateKernels" 12040 cuLibraryEnumerateKernels
        (kernels: Out<usize>, count: u32, library: usize)
        => library::kernels(kernels, count, library);
    Gated "cuLibraryGetGlobal" 12000 cuLibraryGetGlobal
        (pointer: Out<u64>, bytes: Out<usize>, library: usize, name: Text)
        => library::global(pointer, bytes, library, name);
    Gated "cuLibraryGetManaged" 12000 cuLibraryGetManaged
        (pointer: Out<u64>, bytes: Out<usize>, library: usize, name: Text)
        => library::managed(pointer, bytes, library, name);
    Gated "cuLibraryGetUnifiedFunction" 12000 cuLibraryGetUnifiedFunction
        (pointer: Out<usize>, library: usize, name: Text)
        => library::unified(pointer, library, name);
    Gated "cuKernelGetFunction" 12000 cuKernelGetFunction
        (function: Out<usize>, kernel: usize)
        => library::function(function, kernel);
    Gated "cuKernelGetLibrary" 12050 cuKernelGetLibrary
        (library: Out<usize>, kernel: usize)
        => library::library_of(library, kernel);
    Gated "cuKernelGetName" 12030 cuKernelGetName
        (name: Out<Text>, kernel: usize)
        => library::kernel_name(name, kernel);
    Gated "cuKernelGetAttribute" 12000 cuKernelGetAttribute
        (value: Out<i32>, attribute: u32, kernel: usize, device: i32)
        => library::attribute(value, attribute, kernel, device);
    Gated "cuKernelSetAttribute" 12000 cuKernelSetAttribute
        (attribute: u32, value: i32, kernel: usize, device: i32)
        => library::set_attribute(attribute, value, kernel, device);
    Gated "cuKernelSetCacheConfig" 12000 cuKernelSetCacheConfig
        (kernel: usize, preference: u32, device: i32)
        => library::set_preference(kernel, preference, device);
    Gated "cuKernelGetParamInfo" 12040 cuKernelGetParamInfo
        (kernel: usize, index: usize, offset: Out<usize>, size: Out<usize>)
        => library::parameter(kernel, index, offset, size);
    // functions and launches
    Gated "cuFuncGetAttribute" 2020 cuFuncGetAttribute
        (value: Out<i32>, attribute: u32, function: usize)
        => function::attribute(value, attribute, function);
    Gated "cuFuncSetAttribute" 9000 cuFuncSetAttribute
        (function: usize, attribute: u32, value: i32)
        => function::set_attribute(function, attribute, value);
    Gated "cuFuncSetCacheConfig" 3000 cuFuncSetCacheConfig
        (function: usize, preference: u32)
        => function::set_preference(function, preference);
    Gated "cuFuncSetSharedMemConfig" 4020 cuFuncSetSharedMemConfig
        (function: usize, preference: u32)
        => function::set_preference(function, preference);
    Gated "cuFuncGetModule" 11000 cuFuncGetModule
        (module: Out<usize>, function: usize)
        => function::module_of(module, function);
    Gated "cuFuncGetName" 12030 cuFuncGetName (name: Out<Text>, function: usize) => function::name(name, function);
    Gated "cuFuncGetParamInfo" 12040 cuFuncGetParamInfo
        (function: usize, index: usize, offset: Out<usize>, size: Out<usize>)
        => function::parameter(function, index, offset, size);
    Gated "cuFuncIsLoaded" 12040 cuFuncIsLoaded
        (state: Out<u32>, function: usize)
        => function::is_loaded(state, function);
    Gated "cuFuncLoad" 12040 cuFuncLoad (function: usize) => function::load(function);
    Gated "cuLaunchKernel" 4000 cuLaunchKernel
        (function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: usize,
         parameters: In<In<u8>>, extra: In<usize>) | 7000 cuLaunchKernel_ptsz
        => function::launch(function, Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared, cooperative:
            false }, stream, parameters, extra);
    Gated "cuLaunchKernelEx" 11060 cuLaunchKernelEx
        (config: In<LaunchConfig>, function: usize, parameters: In<In<u8>>, extra: In<usize>)
        | 11060 cuLaunchKernelEx_ptsz
        => function::launch_with(config, function, parameters, extra);
    Gated "cuLaunchCooperativeKernel" 9000 cuLaunchCooperativeKernel
        (function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: usize,
         parameters: In<In<u8>>) | 9000 cuLaunchCooperativeKernel_ptsz
        => function::launch(function, Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared, cooperative:
            true }, stream, parameters, In::NONE);
    Gated "cuOccupancyMaxPotentialBlockSize" 6050 cuOccupancyMaxPotentialBlockSize
        (blocks: Out<i32>, threads: Out<i32>, function: usize, _shared_of: usize, _shared: usize, limit: i32)
        => hint::block_size(blocks, threads, function, limit);
    Gated "cuOccupancyMaxPotentialBlockSizeWithFlags" 7000 cuOccupancyMaxPotentialBlockSizeWithFlags
        (blocks: Out<i32>, threads: Out<i32>, function: usize, _shared_of: usize, _shared: usize, limit: i32,
         _flags: u32)
        => hint::block_size(blocks, threads, function, limit);
    Gated "cuOccupancyMaxActiveBlocksPerMultiprocessor" 6050 cuOccupancyMaxActiveBlocksPerMultiprocessor
        (blocks: Out<i32>, function: usize, size: i32, shared: usize)
        => function::blocks_per_multiprocessor(blocks, function, size, shared);
    Gated "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" 7000
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
        (blocks: Out<i32>, function: usize, size: i32, shared: usize, flags: u32)
        => function::blocks_per_multiprocessor_with(blocks, function, size, shared, flags);
}
