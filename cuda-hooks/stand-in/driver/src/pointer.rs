//! Pointers that came with a call of the driver's API, as types of their own: `Out` is written to, `In` is read, `Text`
//! is a string. Used by `api`; all the rest of the driver works with values.
//!
//! # Safety
//! A value of these types is never made here: it is an argument of an exported function, and what the driver's API says
//! of the argument (so many elements, writable, ended by a zero) is the caller's promise, as it is to the real driver.
//! A null pointer is checked for; any other wrong pointer crashes the program, as it does with the real driver.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};

use crate::code::{Answer, Code};

/// Types for which every pattern of bits is a value.
///
/// # Safety
/// No implementation may have padding that is read, references, or invalid patterns.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),+ $(,)?) => { $(
        // SAFETY: numbers, pointers, and structures of them alone.
        unsafe impl $crate::pointer::Plain for $type {}
    )+ };
}
pub(crate) use plain;

plain!(u8, u16, i32, u32, u64, usize, f32, [u8; 16]);
// SAFETY: pointers; they are not followed but by the promise above.
unsafe impl<T> Plain for In<T> {}
// SAFETY: as above.
unsafe impl<T> Plain for Out<T> {}
// SAFETY: as above.
unsafe impl Plain for Text {}

/// Where a result goes.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T: Plain> Out<T> {
    /// Writes a result that must be wanted.
    pub fn put(self, value: T) -> Answer {
        self.require()?;
        self.offer(value);
        Ok(())
    }

    /// Writes a result that may be unwanted.
    pub fn offer(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller's promise (file head); alignment is not relied on.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Writes some results, one behind the other.
    pub fn fill(self, values: &[T]) -> Answer {
        if values.is_empty() {
            return Ok(());
        }
        self.require()?;
        for (n, value) in values.iter().enumerate() {
            // SAFETY: the caller's promise: room for as many as it has said.
            unsafe { self.0.add(n).write_unaligned(*value) }
        }
        Ok(())
    }

    /// An argument that is read and written.
    pub fn get(self) -> Answer<T> {
        In(self.0.cast_const()).get()
    }

    /// Fails where a result is not wanted.
    pub fn require(self) -> Answer {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// A result that nothing wants.
    pub const NONE: Out<T> = Out(std::ptr::null_mut());

    /// The same place, for another type.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// Where an argument is.
#[repr(transparent)]
#[derive(Debug)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T: Plain> In<T> {
    /// One value.
    pub fn get(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise (file head); `Plain` has no invalid values.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// One of many.
    pub fn at(self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise: there are as many as the API says.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// So many values.
    pub fn list(self, count: usize) -> Answer<Vec<T>> {
        (0..count).map(|index| self.at(index)).collect()
    }

    /// None.
    pub const NONE: In<T> = In(std::ptr::null());

    /// A list of the driver's, which stays as long as the API says.
    pub fn kept(list: &[T]) -> In<T> {
        In(list.as_ptr())
    }

    /// So many bytes further.
    pub fn offset(self, bytes: usize) -> In<T> {
        In(self.0.wrapping_byte_add(bytes))
    }

    /// Nothing was given.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The same place, for another type.
    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }
}

/// A string that ends with a zero.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Text(*const c_char);

impl Text {
    /// The string.
    pub fn get(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise: a zero ends it.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| Code::INVALID_VALUE)
    }

    /// A string of ours, which stays.
    pub fn of(text: &'static CStr) -> Text {
        Text(text.as_ptr())
    }

    /// A string that the object it belongs to keeps; valid until that is destroyed, as the API says.
    pub fn kept(text: &CStr) -> Text {
        Text(text.as_ptr())
    }

    /// None.
    pub const NULL: Text = Text(std::ptr::null());
}
