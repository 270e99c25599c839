//! Wrappers for functions of the driver that the table does not have: a driver may be newer than it.
//!
//! Runs in: the host program. A function of which nothing is known may give the device work, so it gets a wrapper with
//! the gate that counts as work, as those of the table do; what it makes or ends is not seen. Its arguments are not
//! known either: all registers that can carry some are passed on, and so much of the stack as no function of the driver
//! fills today (System V ABI, AMD64, 3.2.3; the longest of its headers has 13 arguments).
//! Invariants: one function has one wrapper, from the first question on; it is never given up.
//! Fails by: [`wrapper`] gives none where all are in use; the caller counts that, and nothing is taken for unchanged.
//!
//! # Safety
//! The words of the stack that a wrapper passes on are those above its return address: the frame of the caller, whose
//! memory is there whether they are arguments or not. The addresses are the driver's own.
#![allow(unsafe_code)]

use crate::entry::{enter, leave};
use core::ffi::c_void;
use core::mem;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

/// The row of a call in there: none of the table's, so that the agent finds no name for it.
const ROW: u64 = u32::MAX as u64;
/// CUDA_ERROR_NOT_SUPPORTED, of a wrapper that is given to nothing.
const NO_SUCH: usize = 801;
/// How many functions can have one.
const ROOM: usize = 64;

static REAL: [AtomicUsize; ROOM] = [const { AtomicUsize::new(0) }; ROOM];

/// The general registers of arguments, those of floats (the callee reads as much of them as it wants), and stack.
type Any = unsafe extern "C-unwind" fn(
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
) -> usize;

/// The wrapper of the function at `address`; none: all are in use.
pub fn wrapper(address: *mut c_void) -> Option<*mut c_void> {
    let wanted = address.addr();
    let has = |place: &AtomicUsize| match place.compare_exchange(0, wanted, AcqRel, Acquire) {
        Ok(_) => true,
        Err(found) => found == wanted,
    };
    let slot = REAL.iter().position(has)?;
    let found = of(slot);
    (found != 0).then(|| with_exposed_provenance_mut(found))
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn unknown<const SLOT: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: f64,
    h: f64,
    i: f64,
    j: f64,
    k: f64,
    l: f64,
    m: f64,
    n: f64,
    o: usize,
    p: usize,
    q: usize,
    r: usize,
    s: usize,
    t: usize,
    u: usize,
    v: usize,
    w: usize,
    x: usize,
) -> usize {
    let real = REAL.get(SLOT).map_or(0, |place| place.load(Acquire));
    if real == 0 {
        return NO_SUCH;
    }
    let call = enter(ROW, 1);
    // SAFETY: the program's own call of a function of the driver; what it takes is among these.
    let result = unsafe {
        let real = mem::transmute::<usize, Any>(real);
        real(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x)
    };
    leave(call);
    result
}

macro_rules! slots {
    ($($slot:literal)*) => {
        /// The address of a slot's wrapper; 0: there is no such slot.
        fn of(slot: usize) -> usize {
            match slot {
                $($slot => (unknown::<$slot> as *const ()).expose_provenance(),)*
                _ => 0,
            }
        }
    };
}
slots! {
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area;
    use core::ptr::null_mut;

    /// As one of the driver's: words in registers and on the stack, and a float among them.
    extern "C" fn twelve(
        a: u64,
        b: u32,
        x: f32,
        c: u64,
        d: u64,
        e: u64,
        f: u64,
        g: u64,
        h: u64,
        i: u64,
        j: u64,
        k: u64,
    ) -> u32 {
        let words = [a, u64::from(b), c, d, e, f, g, h, i, j, k];
        let right = words.iter().enumerate().all(|(n, word)| *word == n as u64 + 1);
        if right && x == 1.5 { 904 } else { 1 }
    }

    #[test]
    fn what_is_not_known_gets_its_arguments_and_counts_as_work() {
        type Twelve = unsafe extern "C" fn(u64, u32, f32, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u32;
        area::prepare();
        let real = twelve as *mut c_void;
        let found = wrapper(real).unwrap();
        assert_ne!(found, real);
        assert_eq!(wrapper(real), Some(found), "one for each");
        let before = area::work().unwrap();
        // SAFETY: a wrapper of a function of this type.
        let result = unsafe {
            let call = mem::transmute::<*mut c_void, Twelve>(found);
            call(1, 2, 1.5, 3, 4, 5, 6, 7, 8, 9, 10, 11)
        };
        assert_eq!(result, 904);
        assert_eq!(area::work(), Some(before + 1));
        // Until there is no room.
        let others = (1..2 * ROOM).map(|n| wrapper(null_mut::<c_void>().wrapping_byte_add(n << 8)));
        assert_eq!(others.flatten().count(), ROOM - 1);
    }
}
