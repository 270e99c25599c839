//! Structures of the driver's API as they lie in memory (cuda.h 13.0), under names of our own. Used by `api`.
//!
//! # Safety
//! Numbers and pointers as numbers alone: every pattern of bits is a value. Padding is written out.
#![allow(unsafe_code)]

use crate::pointer::{In, plain};

/// `CUDA_MEMCPY2D_v2`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Copy2D {
    pub from_x: u64,
    pub from_y: u64,
    pub from_kind: u32,
    pub padding: u32,
    pub from_host: u64,
    pub from_device: u64,
    pub from_array: u64,
    pub from_pitch: u64,
    pub to_x: u64,
    pub to_y: u64,
    pub to_kind: u32,
    pub padding_too: u32,
    pub to_host: u64,
    pub to_device: u64,
    pub to_array: u64,
    pub to_pitch: u64,
    pub width: u64,
    pub height: u64,
}

/// `CUDA_MEMCPY3D_v2`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Copy3D {
    pub from_place: [u64; 3],
    pub from_level: u64,
    pub from_kind: u32,
    pub padding: u32,
    pub from_host: u64,
    pub from_device: u64,
    pub from_array: u64,
    pub reserved: u64,
    pub from_pitch: u64,
    pub from_height: u64,
    pub to_place: [u64; 3],
    pub to_level: u64,
    pub to_kind: u32,
    pub padding_too: u32,
    pub to_host: u64,
    pub to_device: u64,
    pub to_array: u64,
    pub reserved_too: u64,
    pub to_pitch: u64,
    pub to_height: u64,
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

/// `CUDA_ARRAY_DESCRIPTOR_v2`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct ArrayDescriptor2 {
    pub width: u64,
    pub height: u64,
    pub format: u32,
    pub channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v2`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct ArrayDescriptor {
    pub width: u64,
    pub height: u64,
    pub depth: u64,
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
    pub padding: u32,
}

/// `CUDA_RESOURCE_DESC`: the words of what it is of come in the order of that kind's members.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct ResourceDescription {
    pub kind: u32,
    pub padding: u32,
    pub resource: [u64; 16],
    pub flags: u32,
    pub padding_too: u32,
}

/// `CUDA_TEXTURE_DESC`, which is kept as it is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TextureDescription(pub [u32; 26]);

/// `CUDA_RESOURCE_VIEW_DESC`, likewise.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ResourceView(pub [u64; 14]);

/// `CUstreamBatchMemOpParams`, of which values to write and to wait for are alike.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct MemoryOperation {
    pub operation: u32,
    pub padding: u32,
    pub at: u64,
    pub value: u64,
    pub flags: u32,
    pub padding_too: u32,
    pub rest: [u64; 2],
}

/// `CUlaunchConfig`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub padding: u32,
    pub stream: usize,
    pub attributes: In<LaunchAttribute>,
    pub count: u32,
    pub padding_too: u32,
}

/// `CUlaunchAttribute`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct LaunchAttribute {
    pub id: u32,
    pub padding: u32,
    pub value: [u32; 16],
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`, and the beginning of `_v2`, whose kernel and context follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct KernelNode {
    pub function: usize,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub padding: u32,
    pub parameters: In<In<u8>>,
    pub extra: In<usize>,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct KernelNode2 {
    pub first: KernelNode,
    pub kernel: usize,
    pub context: usize,
}

/// `CUDA_MEMSET_NODE_PARAMS_v1`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct FillNode {
    pub to: u64,
    pub pitch: u64,
    pub value: u32,
    pub bytes: u32,
    pub width: u64,
    pub height: u64,
}

/// `CUDA_HOST_NODE_PARAMS_v1`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct HostNode {
    pub function: usize,
    pub data: usize,
}

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Location {
    pub kind: u32,
    pub id: i32,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct AllocationProperties {
    pub kind: u32,
    pub handle_types: u32,
    pub location: Location,
    pub windows: u64,
    pub flags: [u8; 8],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct AccessDescription {
    pub location: Location,
    pub flags: u32,
}

/// `CUmemPoolProps`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct PoolProperties {
    pub kind: u32,
    pub handle_types: u32,
    pub location: Location,
    pub windows: u64,
    pub most: u64,
    pub usage: u16,
    pub reserved: [u8; 54],
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS_v1`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct MemoryNode {
    pub pool: PoolProperties,
    pub access: u64,
    pub count: u64,
    pub bytes: u64,
    pub pointer: u64,
}

/// `CUipcMemHandle`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcHandle(pub [u8; 64]);

/// `CUmulticastObjectProp`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct MulticastProperties {
    pub devices: u32,
    pub padding: u32,
    pub size: u64,
    pub handle_types: u64,
    pub flags: u64,
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Instantiate {
    pub flags: u64,
    pub stream: usize,
    pub node: usize,
    pub result: u32,
    pub padding: u32,
}

plain!(
    ArrayDescriptor,
    ArrayDescriptor2,
    MemoryOperation,
    ResourceDescription,
    TextureDescription,
    ResourceView,
    Copy2D,
    Copy3D,
    LaunchConfig,
    LaunchAttribute,
    KernelNode,
    KernelNode2,
    FillNode,
    HostNode,
    Location,
    AllocationProperties,
    AccessDescription,
    PoolProperties,
    MemoryNode,
    MulticastProperties,
    Instantiate,
    IpcHandle,
);

const _: () = {
    assert!(size_of::<Copy2D>() == 128);
    assert!(size_of::<Copy3D>() == 200);
    assert!(size_of::<ArrayDescriptor>() == 40);
    assert!(size_of::<MemoryOperation>() == 48);
    assert!(size_of::<ResourceDescription>() == 144 && size_of::<TextureDescription>() == 104);
    assert!(size_of::<ResourceView>() == 112);
    assert!(size_of::<LaunchConfig>() == 56);
    assert!(size_of::<LaunchAttribute>() == 72);
    assert!(size_of::<KernelNode2>() == 72);
    assert!(size_of::<AllocationProperties>() == 32);
    assert!(size_of::<PoolProperties>() == 88 && size_of::<MemoryNode>() == 120);
};
