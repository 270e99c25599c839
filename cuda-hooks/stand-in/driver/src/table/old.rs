//! What old programs use, and the linker: PyCUDA is linked with all of it, and is not loaded without. The profiler's
//! functions do nothing, as where none is attached; what cuFuncSet... sets only cuLaunch would use; a context that
//! no one attaches to is detached from once; the others are there, and refuse.
//!
//! # Safety
//! See `mod.rs`.
#![allow(unsafe_code)]

use std::ffi::c_void;

use super::entry::{Address, Entry, entry, functions};
use crate::api::context;
use crate::code::Code;
use crate::entrance::{self, DefaultStream, Rule};

functions! {
    Free "cuProfilerInitialize" 4000 cuProfilerInitialize (_a: usize, _b: usize, _c: u32) => Err(Code::NOT_SUPPORTED);
    Free "cuProfilerStart" 4000 cuProfilerStart () => Ok(());
    Free "cuProfilerStop" 4000 cuProfilerStop () => Ok(());
    Gated "cuCtxAttach" 2000 cuCtxAttach (_a: usize, _b: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuCtxDetach" 2000 cuCtxDetach (context: usize) => context::destroy(context);
    Gated "cuFuncSetBlockShape" 2000 cuFuncSetBlockShape
        (_a: usize, _b: usize, _c: usize, _d: usize)
        => Ok(());
    Gated "cuFuncSetSharedSize" 2000 cuFuncSetSharedSize (_a: usize, _b: usize) => Ok(());
    Gated "cuLaunch" 2000 cuLaunch (_a: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuLaunchGrid" 2000 cuLaunchGrid (_a: usize, _b: usize, _c: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuLaunchGridAsync" 2000 cuLaunchGridAsync
        (_a: usize, _b: usize, _c: usize, _d: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuLinkAddData" 6050 cuLinkAddData_v2
        (_a: usize, _b: usize, _c: usize, _d: usize, _e: usize, _f: usize, _g: usize, _h: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuLinkAddFile" 6050 cuLinkAddFile_v2
        (_a: usize, _b: usize, _c: usize, _d: usize, _e: usize, _f: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuLinkComplete" 5050 cuLinkComplete (_a: usize, _b: usize, _c: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuLinkCreate" 6050 cuLinkCreate_v2
        (_a: usize, _b: usize, _c: usize, _d: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuLinkDestroy" 5050 cuLinkDestroy (_a: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuMemcpy3DPeer" 4000 cuMemcpy3DPeer (_a: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuMemcpy3DPeerAsync" 4000 cuMemcpy3DPeerAsync (_a: usize, _b: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuModuleGetSurfRef" 3000 cuModuleGetSurfRef
        (_a: usize, _b: usize, _c: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuModuleGetTexRef" 2000 cuModuleGetTexRef
        (_a: usize, _b: usize, _c: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuParamSetSize" 2000 cuParamSetSize (_a: usize, _b: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuParamSetTexRef" 2000 cuParamSetTexRef
        (_a: usize, _b: usize, _c: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuParamSetf" 2000 cuParamSetf (_a: usize, _b: usize, _c: f32) => Err(Code::NOT_SUPPORTED);
    Gated "cuParamSeti" 2000 cuParamSeti (_a: usize, _b: usize, _c: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuParamSetv" 2000 cuParamSetv
        (_a: usize, _b: usize, _c: usize, _d: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuStreamAttachMemAsync" 6000 cuStreamAttachMemAsync
        (_a: usize, _b: usize, _c: usize, _d: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuSurfRefGetArray" 3000 cuSurfRefGetArray (_a: usize, _b: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuSurfRefSetArray" 3000 cuSurfRefSetArray
        (_a: usize, _b: usize, _c: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefCreate" 2000 cuTexRefCreate (_a: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefDestroy" 2000 cuTexRefDestroy (_a: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefGetAddressMode" 2000 cuTexRefGetAddressMode
        (_a: usize, _b: usize, _c: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefGetAddress" 3020 cuTexRefGetAddress_v2 (_a: usize, _b: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefGetArray" 2000 cuTexRefGetArray (_a: usize, _b: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefGetFilterMode" 2000 cuTexRefGetFilterMode
        (_a: usize, _b: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefGetFlags" 2000 cuTexRefGetFlags (_a: usize, _b: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefGetFormat" 2000 cuTexRefGetFormat
        (_a: usize, _b: usize, _c: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefSetAddress2D" 4010 cuTexRefSetAddress2D_v3
        (_a: usize, _b: usize, _c: usize, _d: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefSetAddressMode" 2000 cuTexRefSetAddressMode
        (_a: usize, _b: usize, _c: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefSetAddress" 3020 cuTexRefSetAddress_v2
        (_a: usize, _b: usize, _c: usize, _d: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefSetArray" 2000 cuTexRefSetArray
        (_a: usize, _b: usize, _c: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefSetFilterMode" 2000 cuTexRefSetFilterMode
        (_a: usize, _b: usize)
        => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefSetFlags" 2000 cuTexRefSetFlags (_a: usize, _b: usize) => Err(Code::NOT_SUPPORTED);
    Gated "cuTexRefSetFormat" 2000 cuTexRefSetFormat
        (_a: usize, _b: usize, _c: usize)
        => Err(Code::NOT_SUPPORTED);
}
