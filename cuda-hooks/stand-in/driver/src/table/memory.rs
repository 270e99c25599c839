//! Memory: of the device, of the host, copies and fills, virtual, shared, of pools.
//!
//! # Safety
//! See `mod.rs`.
#![allow(unsafe_code)]

use std::ffi::c_void;

use super::entry::{Address, Entry, entry, functions};
use crate::api::{array, copy, hint, host, memory, pool, shared, texture, vmm};
use crate::entrance::{self, DefaultStream, Rule};
use crate::layout::{
    AccessDescription, AllocationProperties, ArrayDescriptor, ArrayDescriptor2, Copy2D, Copy3D, IpcHandle,
    Location, MulticastProperties, PoolProperties, ResourceDescription, ResourceView, TextureDescription,
};
use crate::pointer::{In, Out};

functions! {
    // linear memory
    Gated "cuMemGetInfo" 3020 cuMemGetInfo_v2 (free: Out<usize>, total: Out<usize>) => memory::information(free, total);
    Gated "cuMemAlloc" 3020 cuMemAlloc_v2 (pointer: Out<u64>, size: usize) => memory::allocate(pointer, size);
    Gated "cuMemAllocPitch" 3020 cuMemAllocPitch_v2
        (pointer: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32)
        => memory::allocate_pitch(pointer, pitch, width, height, element);
    Gated "cuMemFree" 3020 cuMemFree_v2 (pointer: u64) => memory::free(pointer);
    Gated "cuMemGetAddressRange" 3020 cuMemGetAddressRange_v2
        (base: Out<u64>, size: Out<usize>, pointer: u64)
        => memory::address_range(base, size, pointer);
    Gated "cuMemAllocManaged" 6000 cuMemAllocManaged
        (pointer: Out<u64>, size: usize, flags: u32)
        => memory::allocate_managed(pointer, size, flags);
    Gated "cuPointerGetAttribute" 4000 cuPointerGetAttribute
        (data: Out<u8>, attribute: u32, pointer: u64)
        => memory::attribute(data, attribute, pointer);
    Gated "cuPointerGetAttributes" 7000 cuPointerGetAttributes
        (count: u32, attributes: In<u32>, data: In<Out<u8>>, pointer: u64)
        => memory::attributes(count, attributes, data, pointer);
    Gated "cuPointerSetAttribute" 6000 cuPointerSetAttribute
        (value: In<u32>, attribute: u32, pointer: u64)
        => memory::set_attribute(value, attribute, pointer);
    Gated "cuMemPrefetchAsync" 8000 cuMemPrefetchAsync
        (at: u64, bytes: usize, to: i32, stream: usize) | 8000 cuMemPrefetchAsync_ptsz
        => hint::prefetch_v1(at, bytes, to, stream);
    Gated "cuMemPrefetchAsync" 12020 cuMemPrefetchAsync_v2
        (at: u64, bytes: usize, to: Location, flags: u32, stream: usize) | 12020 cuMemPrefetchAsync_v2_ptsz
        => hint::prefetch(at, bytes, to, flags, stream);
    Gated "cuMemAdvise" 8000 cuMemAdvise (at: u64, bytes: usize, advice: u32, of: i32)
        => hint::advise_v1(at, bytes, advice, of);
    Gated "cuMemAdvise" 12020 cuMemAdvise_v2 (at: u64, bytes: usize, advice: u32, of: Location)
        => hint::advise(at, bytes, advice, of);
    // arrays
    Gated "cuArrayCreate" 3020 cuArrayCreate_v2 (array: Out<usize>, descriptor: In<ArrayDescriptor2>)
        => array::create(array, descriptor);
    Gated "cuArray3DCreate" 3020 cuArray3DCreate_v2 (array: Out<usize>, descriptor: In<ArrayDescriptor>)
        => array::create_3d(array, descriptor);
    // textures and surfaces
    Gated "cuTexObjectCreate" 5000 cuTexObjectCreate
        (texture: Out<u64>, resource: In<ResourceDescription>, sampling: In<TextureDescription>,
         view: In<ResourceView>)
        => texture::create(texture, resource, sampling, view);
    Gated "cuTexObjectDestroy" 5000 cuTexObjectDestroy (texture: u64) => texture::destroy(texture);
    Gated "cuTexObjectGetResourceDesc" 5000 cuTexObjectGetResourceDesc
        (resource: Out<ResourceDescription>, texture: u64)
        => texture::resource(resource, texture);
    Gated "cuTexObjectGetTextureDesc" 5000 cuTexObjectGetTextureDesc
        (sampling: Out<TextureDescription>, texture: u64)
        => texture::sampling(sampling, texture);
    Gated "cuTexObjectGetResourceViewDesc" 5000 cuTexObjectGetResourceViewDesc
        (view: Out<ResourceView>, texture: u64)
        => texture::view(view, texture);
    Gated "cuSurfObjectCreate" 5000 cuSurfObjectCreate
        (surface: Out<u64>, resource: In<ResourceDescription>)
        => texture::create_surface(surface, resource);
    Gated "cuSurfObjectDestroy" 5000 cuSurfObjectDestroy (surface: u64) => texture::destroy_surface(surface);
    Gated "cuSurfObjectGetResourceDesc" 5000 cuSurfObjectGetResourceDesc
        (resource: Out<ResourceDescription>, surface: u64)
        => texture::surface_resource(resource, surface);
    Gated "cuArrayDestroy" 2000 cuArrayDestroy (array: usize) => array::destroy(array);
    Gated "cuArrayGetDescriptor" 3020 cuArrayGetDescriptor_v2 (descriptor: Out<ArrayDescriptor2>, array: usize)
        => array::describe(descriptor, array);
    Gated "cuArray3DGetDescriptor" 3020 cuArray3DGetDescriptor_v2 (descriptor: Out<ArrayDescriptor>, array: usize)
        => array::describe_3d(descriptor, array);
    // memory of the host
    Gated "cuMemAllocHost" 3020 cuMemAllocHost_v2 (pointer: Out<u64>, size: usize) => host::allocate(pointer, size);
    Gated "cuMemHostAlloc" 2020 cuMemHostAlloc
        (pointer: Out<u64>, size: usize, flags: u32)
        => host::allocate_with(pointer, size, flags);
    Gated "cuMemFreeHost" 2000 cuMemFreeHost (pointer: u64) => host::free(pointer);
    Gated "cuMemHostRegister" 6050 cuMemHostRegister_v2
        (pointer: u64, size: usize, flags: u32)
        => host::register(pointer, size, flags);
    Gated "cuMemHostUnregister" 4000 cuMemHostUnregister (pointer: u64) => host::unregister(pointer);
    Gated "cuMemHostGetDevicePointer" 3020 cuMemHostGetDevicePointer_v2
        (pointer: Out<u64>, host: u64, flags: u32)
        => host::device_pointer(pointer, host, flags);
    Gated "cuMemHostGetFlags" 2030 cuMemHostGetFlags (flags: Out<u32>, host: u64) => host::flags(flags, host);
    // copies
    Gated "cuMemcpy" 4000 cuMemcpy
        (to: u64, from: u64, bytes: usize) | 7000 cuMemcpy_ptds
        => copy::any(to, from, bytes);
    Gated "cuMemcpyAsync" 4000 cuMemcpyAsync
        (to: u64, from: u64, bytes: usize, stream: usize) | 7000 cuMemcpyAsync_ptsz
        => copy::any_async(to, from, bytes, stream);
    Gated "cuMemcpyHtoD" 3020 cuMemcpyHtoD_v2
        (to: u64, from: u64, bytes: usize) | 7000 cuMemcpyHtoD_v2_ptds
        => copy::to_device(to, from, bytes);
    Gated "cuMemcpyHtoDAsync" 3020 cuMemcpyHtoDAsync_v2
        (to: u64, from: u64, bytes: usize, stream: usize) | 7000 cuMemcpyHtoDAsync_v2_ptsz
        => copy::to_device_async(to, from, bytes, stream);
    Gated "cuMemcpyDtoH" 3020 cuMemcpyDtoH_v2
        (to: u64, from: u64, bytes: usize) | 7000 cuMemcpyDtoH_v2_ptds
        => copy::to_host(to, from, bytes);
    Gated "cuMemcpyDtoHAsync" 3020 cuMemcpyDtoHAsync_v2
        (to: u64, from: u64, bytes: usize, stream: usize) | 7000 cuMemcpyDtoHAsync_v2_ptsz
        => copy::to_host_async(to, from, bytes, stream);
    Gated "cuMemcpyDtoD" 3020 cuMemcpyDtoD_v2
        (to: u64, from: u64, bytes: usize) | 7000 cuMemcpyDtoD_v2_ptds
        => copy::device_to_device(to, from, bytes);
    Gated "cuMemcpyDtoDAsync" 3020 cuMemcpyDtoDAsync_v2
        (to: u64, from: u64, bytes: usize, stream: usize) | 7000 cuMemcpyDtoDAsync_v2_ptsz
        => copy::device_to_device_async(to, from, bytes, stream);
    // of this driver alone: for tests of what a table of functions cannot know
    Gated "cuStandInCopyAsync" 2000 cuStandInCopyAsync (to: u64, from: u64, bytes: usize, stream: usize)
        => copy::device_to_device_async(to, from, bytes, stream);
    Gated "cuMemcpyDtoA" 3020 cuMemcpyDtoA_v2
        (to: usize, offset: usize, from: u64, bytes: usize)
        | 7000 cuMemcpyDtoA_v2_ptds
        => copy::device_to_array(to, offset, from, bytes);
    Gated "cuMemcpyAtoD" 3020 cuMemcpyAtoD_v2
        (to: u64, from: usize, offset: usize, bytes: usize)
        | 7000 cuMemcpyAtoD_v2_ptds
        => copy::array_to_device(to, from, offset, bytes);
    Gated "cuMemcpyHtoA" 3020 cuMemcpyHtoA_v2
        (to: usize, offset: usize, from: u64, bytes: usize)
        | 7000 cuMemcpyHtoA_v2_ptds
        => copy::host_to_array(to, offset, from, bytes);
    Gated "cuMemcpyAtoH" 3020 cuMemcpyAtoH_v2
        (to: u64, from: usize, offset: usize, bytes: usize)
        | 7000 cuMemcpyAtoH_v2_ptds
        => copy::array_to_host(to, from, offset, bytes);
    Gated "cuMemcpyAtoA" 3020 cuMemcpyAtoA_v2
        (to: usize, to_offset: usize, from: usize, offset: usize, bytes: usize)
        | 7000 cuMemcpyAtoA_v2_ptds
        => copy::array_to_array(to, to_offset, from, offset, bytes);
    Gated "cuMemcpyHtoAAsync" 3020 cuMemcpyHtoAAsync_v2
        (to: usize, offset: usize, from: u64, bytes: usize, stream: usize)
        | 7000 cuMemcpyHtoAAsync_v2_ptsz
        => copy::host_to_array_async(to, offset, from, bytes, stream);
    Gated "cuMemcpyAtoHAsync" 3020 cuMemcpyAtoHAsync_v2
        (to: u64, from: usize, offset: usize, bytes: usize, stream: usize)
        | 7000 cuMemcpyAtoHAsync_v2_ptsz
        => copy::array_to_host_async(to, from, offset, bytes, stream);
    Gated "cuMemcpyBatchAsync" 12080 cuMemcpyBatchAsync
        (to: In<u64>, from: In<u64>, sizes: In<usize>, count: usize, _hints: In<u8>, _places: In<usize>,
         _hint_count: usize,
         failed: Out<usize>, stream: usize)
        | 12080 cuMemcpyBatchAsync_ptsz
        => { failed.offer(usize::MAX); copy::batch(to, from, sizes, count, stream) };
    Gated "cuMemcpyBatchAsync" 13000 cuMemcpyBatchAsync_v2
        (to: In<u64>, from: In<u64>, sizes: In<usize>, count: usize, _hints: In<u8>, _places: In<usize>,
         _hint_count: usize,
         stream: usize)
        | 13000 cuMemcpyBatchAsync_v2_ptsz
        => copy::batch(to, from, sizes, count, stream);
    Gated "cuMemcpyPeer" 4000 cuMemcpyPeer
        (to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize) | 7000 cuMemcpyPeer_ptds
        => copy::peer(to, to_context, from, from_context, bytes);
    Gated "cuMemcpyPeerAsync" 4000 cuMemcpyPeerAsync
        (to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize, stream: usize)
        | 7000 cuMemcpyPeerAsync_ptsz
        => copy::peer_async(to, to_context, from, from_context, bytes, stream);
    Gated "cuMemcpy2D" 3020 cuMemcpy2D_v2 (parameters: In<Copy2D>) | 7000 cuMemcpy2D_v2_ptds => copy::two(parameters);
    Gated "cuMemcpy2DUnaligned" 3020 cuMemcpy2DUnaligned_v2
        (parameters: In<Copy2D>) | 7000 cuMemcpy2DUnaligned_v2_ptds
        => copy::two(parameters);
    Gated "cuMemcpy2DAsync" 3020 cuMemcpy2DAsync_v2
        (parameters: In<Copy2D>, stream: usize) | 7000 cuMemcpy2DAsync_v2_ptsz
        => copy::two_async(parameters, stream);
    Gated "cuMemcpy3D" 3020 cuMemcpy3D_v2 (parameters: In<Copy3D>) | 7000 cuMemcpy3D_v2_ptds => copy::three(parameters);
    Gated "cuMemcpy3DAsync" 3020 cuMemcpy3DAsync_v2
        (parameters: In<Copy3D>, stream: usize) | 7000 cuMemcpy3DAsync_v2_ptsz
        => copy::three_async(parameters, stream);
    // fills
    Gated "cuMemsetD8" 3020 cuMemsetD8_v2
        (to: u64, value: u8, count: usize) | 7000 cuMemsetD8_v2_ptds
        => copy::fill_8(to, value, count);
    Gated "cuMemsetD16" 3020 cuMemsetD16_v2
        (to: u64, value: u16, count: usize) | 7000 cuMemsetD16_v2_ptds
        => copy::fill_16(to, value, count);
    Gated "cuMemsetD32" 3020 cuMemsetD32_v2
        (to: u64, value: u32, count: usize) | 7000 cuMemsetD32_v2_ptds
        => copy::fill_32(to, value, count);
    Gated "cuMemsetD8Async" 3020 cuMemsetD8Async
        (to: u64, value: u8, count: usize, stream: usize) | 7000 cuMemsetD8Async_ptsz
        => copy::fill_8_async(to, value, count, stream);
    Gated "cuMemsetD16Async" 3020 cuMemsetD16Async
        (to: u64, value: u16, count: usize, stream: usize) | 7000 cuMemsetD16Async_ptsz
        => copy::fill_16_async(to, value, count, stream);
    Gated "cuMemsetD32Async" 3020 cuMemsetD32Async
        (to: u64, value: u32, count: usize, stream: usize) | 7000 cuMemsetD32Async_ptsz
        => copy::fill_32_async(to, value, count, stream);
    Gated "cuMemsetD2D8" 3020 cuMemsetD2D8_v2
        (to: u64, pitch: usize, value: u8, width: usize, height: usize) | 7000 cuMemsetD2D8_v2_ptds
        => copy::fill_2d_8(to, pitch, value, width, height);
    Gated "cuMemsetD2D16" 3020 cuMemsetD2D16_v2
        (to: u64, pitch: usize, value: u16, width: usize, height: usize) | 7000 cuMemsetD2D16_v2_ptds
        => copy::fill_2d_16(to, pitch, value, width, height);
    Gated "cuMemsetD2D32" 3020 cuMemsetD2D32_v2
        (to: u64, pitch: usize, value: u32, width: usize, height: usize) | 7000 cuMemsetD2D32_v2_ptds
        => copy::fill_2d_32(to, pitch, value, width, height);
    Gated "cuMemsetD2D8Async" 3020 cuMemsetD2D8Async
        (to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: usize) | 7000 cuMemsetD2D8Async_ptsz
        => copy::fill_2d_8_async(to, pitch, value, width, height, stream);
    Gated "cuMemsetD2D16Async" 3020 cuMemsetD2D16Async
        (to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: usize) | 7000 cuMemsetD2D16Async_ptsz
        => copy::fill_2d_16_async(to, pitch, value, width, height, stream);
    Gated "cuMemsetD2D32Async" 3020 cuMemsetD2D32Async
        (to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: usize) | 7000 cuMemsetD2D32Async_ptsz
        => copy::fill_2d_32_async(to, pitch, value, width, height, stream);
    // virtual memory management
    Gated "cuMemGetAllocationGranularity" 10020 cuMemGetAllocationGranularity
        (granularity: Out<usize>, properties: In<AllocationProperties>, which: u32)
        => vmm::granularity(granularity, properties, which);
    Gated "cuMemAddressReserve" 10020 cuMemAddressReserve
        (at: Out<u64>, size: usize, alignment: usize, near: u64, flags: u64)
        => vmm::reserve(at, size, alignment, near, flags);
    Gated "cuMemAddressFree" 10020 cuMemAddressFree (at: u64, size: usize) => vmm::free_range(at, size);
    Gated "cuMemCreate" 10020 cuMemCreate
        (handle: Out<u64>, size: usize, properties: In<AllocationProperties>, flags: u64)
        => vmm::create(handle, size, properties, flags);
    Gated "cuMemRelease" 10020 cuMemRelease (handle: u64) => vmm::release(handle);
    Gated "cuMemMap" 10020 cuMemMap
        (at: u64, size: usize, offset: usize, handle: u64, flags: u64)
        => vmm::map(at, size, offset, handle, flags);
    Gated "cuMemUnmap" 10020 cuMemUnmap (at: u64, size: usize) => vmm::unmap(at, size);
    Gated "cuMemSetAccess" 10020 cuMemSetAccess
        (at: u64, size: usize, descriptions: In<AccessDescription>, count: usize)
        => vmm::set_access(at, size, descriptions, count);
    Gated "cuMemGetAccess" 10020 cuMemGetAccess
        (flags: Out<u64>, location: In<Location>, at: u64)
        => vmm::get_access(flags, location, at);
    Gated "cuMemExportToShareableHandle" 10020 cuMemExportToShareableHandle
        (to: Out<i32>, handle: u64, kind: u32, flags: u64)
        => vmm::export(to, handle, kind, flags);
    Gated "cuMemImportFromShareableHandle" 10020 cuMemImportFromShareableHandle
        (handle: Out<u64>, from: usize, kind: u32)
        => vmm::import(handle, from, kind);
    Gated "cuMemGetAllocationPropertiesFromHandle" 10020 cuMemGetAllocationPropertiesFromHandle
        (properties: Out<AllocationProperties>, handle: u64)
        => vmm::properties(properties, handle);
    Gated "cuMemRetainAllocationHandle" 11000 cuMemRetainAllocationHandle
        (handle: Out<u64>, at: u64)
        => vmm::retain(handle, at);
    // what other processes share
    Gated "cuIpcGetMemHandle" 4010 cuIpcGetMemHandle
        (handle: Out<IpcHandle>, pointer: u64)
        => shared::ipc_handle(handle, pointer);
    Gated "cuIpcOpenMemHandle" 11000 cuIpcOpenMemHandle_v2
        (pointer: Out<u64>, handle: IpcHandle, flags: u32)
        => shared::ipc_open(pointer, handle, flags);
    Gated "cuIpcCloseMemHandle" 4010 cuIpcCloseMemHandle (pointer: u64) => shared::ipc_close(pointer);
    Gated "cuIpcGetEventHandle" 4010 cuIpcGetEventHandle
        (handle: Out<IpcHandle>, event: usize)
        => shared::no_handle(handle, event as u64);
    Gated "cuIpcOpenEventHandle" 4010 cuIpcOpenEventHandle
        (event: Out<u64>, handle: IpcHandle)
        => shared::ipc_open(event, handle, 0);
    Gated "cuMemGetHandleForAddressRange" 11070 cuMemGetHandleForAddressRange
        (handle: Out<i32>, at: u64, _size: usize, _kind: u32, _flags: u64)
        => shared::no_handle(handle, at);
    Gated "cuMulticastCreate" 12010 cuMulticastCreate
        (handle: Out<u64>, properties: In<MulticastProperties>)
        => shared::multicast_create(handle, properties);
    Gated "cuMulticastAddDevice" 12010 cuMulticastAddDevice
        (handle: u64, device: i32)
        => shared::multicast_add_device(handle, device);
    Gated "cuMulticastGetGranularity" 12010 cuMulticastGetGranularity
        (granularity: Out<usize>, properties: In<MulticastProperties>, which: u32)
        => shared::multicast_granularity(granularity, properties, which);
    // pools
    Gated "cuDeviceGetDefaultMemPool" 11020 cuDeviceGetDefaultMemPool
        (pool: Out<usize>, device: i32)
        => pool::get_default(pool, device);
    Gated "cuDeviceGetMemPool" 11020 cuDeviceGetMemPool (pool: Out<usize>, device: i32) => pool::get(pool, device);
    Gated "cuDeviceSetMemPool" 11020 cuDeviceSetMemPool (device: i32, pool: usize) => pool::set(device, pool);
    Gated "cuMemPoolCreate" 11020 cuMemPoolCreate
        (pool: Out<usize>, properties: In<PoolProperties>)
        => pool::create(pool, properties);
    Gated "cuMemPoolDestroy" 11020 cuMemPoolDestroy (pool: usize) => pool::destroy(pool);
    Gated "cuMemPoolTrimTo" 11020 cuMemPoolTrimTo (pool: usize, keep: usize) => pool::trim(pool, keep);
    Gated "cuMemPoolSetAttribute" 11020 cuMemPoolSetAttribute
        (pool: usize, attribute: u32, value: In<u32>)
        => pool::set_attribute(pool, attribute, value);
    Gated "cuMemPoolGetAttribute" 11020 cuMemPoolGetAttribute
        (pool: usize, attribute: u32, value: Out<u32>)
        => pool::get_attribute(pool, attribute, value);
    Gated "cuMemPoolSetAccess" 11020 cuMemPoolSetAccess
        (pool: usize, descriptions: In<u8>, count: usize)
        => pool::set_access(pool, descriptions, count);
    Gated "cuMemPoolGetAccess" 11020 cuMemPoolGetAccess
        (flags: Out<u32>, pool: usize, location: In<Location>)
        => pool::get_access(flags, pool, location);
    Gated "cuMemAllocAsync" 11020 cuMemAllocAsync
        (pointer: Out<u64>, size: usize, stream: usize) | 11020 cuMemAllocAsync_ptsz
        => pool::allocate(pointer, size, stream);
    Gated "cuMemAllocFromPoolAsync" 11020 cuMemAllocFromPoolAsync
        (pointer: Out<u64>, size: usize, pool: usize, stream: usize) | 11020 cuMemAllocFromPoolAsync_ptsz
        => pool::allocate_from(pointer, size, pool, stream);
    Gated "cuMemFreeAsync" 11020 cuMemFreeAsync
        (pointer: u64, stream: usize) | 11020 cuMemFreeAsync_ptsz
        => pool::free(pointer, stream);
    // memory and semaphores of other interfaces: there are none here, but Taichi looks all of them up at its start
    Gated "cuImportExternalMemory" 10000 cuImportExternalMemory
        (_memory: Out<usize>, _description: In<u8>)
        => shared::no_other_interface();
    Gated "cuExternalMemoryGetMappedBuffer" 10000 cuExternalMemoryGetMappedBuffer
        (_pointer: Out<u64>, _memory: usize, _description: In<u8>)
        => shared::no_other_interface();
    Gated "cuExternalMemoryGetMappedMipmappedArray" 10000 cuExternalMemoryGetMappedMipmappedArray
        (_array: Out<usize>, _memory: usize, _description: In<u8>)
        => shared::no_other_interface();
    Gated "cuDestroyExternalMemory" 10000 cuDestroyExternalMemory (_memory: usize) => shared::no_other_interface();
    Gated "cuImportExternalSemaphore" 10000 cuImportExternalSemaphore
        (_semaphore: Out<usize>, _description: In<u8>)
        => shared::no_other_interface();
    Gated "cuDestroyExternalSemaphore" 10000 cuDestroyExternalSemaphore
        (_semaphore: usize)
        => shared::no_other_interface();
    Gated "cuSignalExternalSemaphoresAsync" 10000 cuSignalExternalSemaphoresAsync
        (_semaphores: In<usize>, _values: In<u8>, _count: u32, _stream: usize)
        | 10000 cuSignalExternalSemaphoresAsync_ptsz
        => shared::no_other_interface();
    Gated "cuWaitExternalSemaphoresAsync" 10000 cuWaitExternalSemaphoresAsync
        (_semaphores: In<usize>, _values: In<u8>, _count: u32, _stream: usize)
        | 10000 cuWaitExternalSemaphoresAsync_ptsz
        => shared::no_other_interface();
    Gated "cuMipmappedArrayGetLevel" 5000 cuMipmappedArrayGetLevel
        (_array: Out<usize>, _mipmapped: usize, _level: u32)
        => shared::no_other_interface();
}
