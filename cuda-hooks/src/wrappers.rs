//! One wrapper per function that is not forwarded, and the names by which linked programs find them.
//!
//! Called by: the program, any thread. Made by `build.rs`: for each row a function with the arguments of the header,
//! as registers and stack carry them (integers and pointers as words, floats, and 64 bytes by value), and an export of
//! the row's symbol that jumps to it.
//! Invariants: the driver's function gets the program's arguments, and the program gets its result, whatever the hooks
//! do. Nothing needs to be undone if the call is left by a jump or by the end of the thread (see `gate.rs`): no
//! landing pad, so the unwinder passes.
//! Fails by: [`driver::missing`], where there is no such function.
//!
//! # Safety
//! The exports have the signatures of the driver's header; pointers are passed on, and read only where the driver has
//! just read or written them (`track.rs`).
#![allow(unsafe_code)]
#![allow(non_snake_case)] // the driver's names

use crate::arena::Served;
use crate::entry::{enter, leave};
use crate::track::{self, Effect, Source};
use crate::{arena, driver};
use core::mem;
use holdfast_abi::CudaKind;

/// Handles of inter-process communication, which are passed by value on the stack (System V ABI, AMD64, 3.2.3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes64([u64; 8]);

/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: u32 = 2;

/// The type of an argument.
macro_rules! kind {
    (w) => {
        usize
    };
    (f) => {
        f32
    };
    (s) => {
        Bytes64
    };
}

/// An argument as the effects see it.
macro_rules! word {
    (w $name:ident) => {
        $name
    };
    ($other:ident $name:ident) => {
        0
    };
}

/// The driver's own answer, where libholdfast has none.
macro_rules! served {
    (once $ask:expr) => {
        $ask
    };
    (again $ask:expr) => {
        match $ask {
            OUT_OF_MEMORY if arena::makes_room() => $ask,
            result => result,
        }
    };
}

/// A wrapper and its export.
macro_rules! hook {
    ($row:literal $symbol:ident $hook:ident [$($name:ident: $kind:ident),*] $how:ident $($what:tt)+) => {
        unsafe extern "C-unwind" fn $hook($($name: kind!($kind)),*) -> u32 {
            let real = driver::real($row);
            if real == 0 {
                return driver::missing();
            }
            // SAFETY: the driver's function of this row, with the types of its header.
            let real = unsafe {
                mem::transmute::<usize, unsafe extern "C-unwind" fn($(kind!($kind)),*) -> u32>(real)
            };
            hook!(@$how $row real [$($name: $kind),*] $($what)+)
        }

        /// The driver's function of this name.
        ///
        /// # Safety
        /// As for the driver's.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol() {
            core::arch::naked_asm!("jmp {}", sym $hook)
        }
    };
    (@gated $row:literal $real:ident [$($name:ident: $kind:ident),*] $work:literal) => {{
        let call = enter($row, $work);
        // SAFETY: the program's own call.
        let result = unsafe { $real($($name),*) };
        leave(call);
        result
    }};
    (@settled $row:literal $real:ident [$($name:ident: $kind:ident),*] $per_thread:literal) => {{
        let call = enter($row, 1);
        // SAFETY: the program's own call.
        let result = arena::settle(unsafe { $real($($name),*) }, $per_thread);
        leave(call);
        result
    }};
    (@tracked $row:literal $real:ident [$($name:ident: $kind:ident),*] $effect:expr) => {{
        const EFFECT: Effect = $effect;
        let call = enter($row, 0);
        let arguments: [usize; _] = [$(word!($kind $name)),*];
        let ended = track::before(&EFFECT, &arguments);
        // SAFETY: the program's own call.
        let result = unsafe { $real($($name),*) };
        track::after(&EFFECT, &arguments, result, &ended);
        leave(call);
        result
    }};
    (@again $row:literal $real:ident [$($name:ident: $kind:ident),*] $work:literal $effect:expr) => {{
        const EFFECT: Effect = $effect;
        let call = enter($row, $work);
        let arguments: [usize; _] = [$(word!($kind $name)),*];
        let ended = track::before(&EFFECT, &arguments);
        // SAFETY: the program's own call.
        let mut result = unsafe { $real($($name),*) };
        if result == OUT_OF_MEMORY && arena::makes_room() {
            // SAFETY: the same; the one before has had no effect.
            result = unsafe { $real($($name),*) };
        }
        track::after(&EFFECT, &arguments, result, &ended);
        leave(call);
        result
    }};
    (@served $row:literal $real:ident [$($name:ident: w),*] $again:ident $effect:expr => $served:expr) => {{
        const EFFECT: Effect = $effect;
        let call = enter($row, 0);
        let arguments: [usize; _] = [$($name),*];
        let ended = track::before(&EFFECT, &arguments);
        let ask = |change: Option<(usize, usize)>| {
            let mut arguments = arguments;
            if let Some((index, value)) = change
                && let Some(place) = arguments.get_mut(index)
            {
                *place = value;
            }
            let [$($name),*] = arguments;
            // SAFETY: the program's own call, or one with another address that the driver may be asked about.
            unsafe { $real($($name),*) }
        };
        let result = match arena::serve($served, &arguments, &ask) {
            Some(result) => result,
            None => served!($again ask(None)),
        };
        track::after(&EFFECT, &arguments, result, &ended);
        leave(call);
        result
    }};
    (@free $row:literal $real:ident [$($name:ident: $kind:ident),*] $effect:expr) => {{
        const EFFECT: Effect = $effect;
        let arguments: [usize; _] = [$(word!($kind $name)),*];
        // SAFETY: the program's own call.
        let result = unsafe { $real($($name),*) };
        track::after(&EFFECT, &arguments, result, &track::Ended::NONE);
        result
    }};
}

include!(concat!(env!("OUT_DIR"), "/wrappers.rs"));
