//! Functions of the program that a stream calls. Used by `command`, made by `api::launch`.
//!
//! # Safety
//! The program gave the address as a function of the type that the call's documentation names, with data that is valid
//! until the function has been called. It runs on the stream's worker, with the API closed to it
//! (`entrance::as_callback`).
#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::code::{Answer, Code};
use crate::entrance;

/// `CUhostFn` with its data.
#[derive(Clone, Copy, Debug)]
pub struct HostFunction {
    function: unsafe extern "C" fn(*mut c_void),
    data: usize,
}

/// `CUstreamCallback` with the stream and its data.
#[derive(Clone, Copy, Debug)]
pub struct StreamCallback {
    function: unsafe extern "C" fn(usize, u32, *mut c_void),
    stream: usize,
    data: usize,
}

impl HostFunction {
    /// Of an argument.
    pub fn new(function: Option<unsafe extern "C" fn(*mut c_void)>, data: usize) -> Answer<HostFunction> {
        function.map(|function| HostFunction { function, data }).ok_or(Code::INVALID_VALUE)
    }

    /// Of a field of a structure.
    pub fn at(address: usize, data: usize) -> Answer<HostFunction> {
        if address == 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the program's promise (file head); not null.
        let function = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(address) };
        Ok(HostFunction { function, data })
    }

    /// Calls it.
    pub fn call(&self) {
        // SAFETY: the program's promise (file head).
        entrance::as_callback(|| unsafe { (self.function)(self.data as *mut c_void) });
    }

    /// Address and data, as the program gave them.
    pub fn parts(&self) -> (usize, usize) {
        (self.function as usize, self.data)
    }
}

impl StreamCallback {
    /// Of an argument.
    pub fn new(
        function: Option<unsafe extern "C" fn(usize, u32, *mut c_void)>,
        stream: usize,
        data: usize,
    ) -> Answer<StreamCallback> {
        function.map(|function| StreamCallback { function, stream, data }).ok_or(Code::INVALID_VALUE)
    }

    /// Calls it with the stream's state.
    pub fn call(&self, code: u32) {
        // SAFETY: the program's promise (file head).
        entrance::as_callback(|| unsafe { (self.function)(self.stream, code, self.data as *mut c_void) });
    }
}
