//! CUDA arrays: memory of the device that programs know by a handle alone. Used by `api::array`, `api::copy`.
//!
//! Here rows lie one behind the other; where they lie on a device is its own affair, and no address of them is given
//! out.

use std::sync::Arc;

use crate::code::{Answer, Code};
use crate::handles::Handles;
use crate::layout::ArrayDescriptor;
use crate::memory::copy::Side;
use crate::memory::heap::{self, Kind};

/// All arrays.
pub static ARRAYS: Handles<Array> = Handles::new();

/// `CUDA_ARRAY3D_SURFACE_LDST`: there may be surfaces of it.
const SURFACES: u32 = 2;

/// An array.
pub struct Array {
    /// As it was asked for; a height or depth of zero is one of fewer dimensions.
    pub described: ArrayDescriptor,
    /// Handle of its context.
    pub context: usize,
    base: u64,
    row: u64,
}

/// Bytes of an element (`CUarray_format`): numbers of 8, 16 and 32 bits, halves and floats.
fn bytes_of(format: u32) -> Answer<u64> {
    match format {
        1 | 8 => Ok(1),
        2 | 9 | 0x10 => Ok(2),
        3 | 0x0a | 0x20 => Ok(4),
        // planes, blocks and normalised numbers
        _ => Err(Code::NOT_SUPPORTED),
    }
}

impl Array {
    /// Allocates one in the context of a handle; its content is whatever was there.
    pub fn new(described: ArrayDescriptor, context: usize) -> Answer<Arc<Array>> {
        // layers, cubes and sparse arrays are read by kernels alone, which cannot read arrays here
        if described.flags & !SURFACES != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        // "NumChannels ... it may be 1, 2, or 4"
        if ![1, 2, 4].contains(&described.channels) || described.width == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let element = bytes_of(described.format)? * u64::from(described.channels);
        let row = described.width.checked_mul(element).ok_or(Code::OUT_OF_MEMORY)?;
        let planes = described.height.max(1).checked_mul(described.depth.max(1));
        let bytes = planes.and_then(|n| n.checked_mul(row)).ok_or(Code::OUT_OF_MEMORY)?;
        let base = heap::allocate(bytes, Kind::Array, context)?;
        let array = Arc::new(Array { described, context, base, row });
        ARRAYS.add(&array);
        Ok(array)
    }

    /// A box of it as one side of a copy; `place` and `size` are bytes, rows, planes.
    pub fn side(&self, place: [u64; 3], size: [u64; 3]) -> Answer<Side> {
        let most = [self.row, self.described.height.max(1), self.described.depth.max(1)];
        let inside = |n: usize| place[n].checked_add(size[n]).is_some_and(|end| end <= most[n]);
        if !(0..3).all(inside) {
            return Err(Code::INVALID_VALUE);
        }
        let plane = self.row * most[1];
        let at = self.base + place[2] * plane + place[1] * self.row + place[0];
        Ok(Side { at, pitch: self.row, plane })
    }

    /// So many bytes of it, rows one behind the other.
    pub fn bytes(&self, offset: u64, length: u64) -> Answer<u64> {
        let whole = self.row * self.described.height.max(1) * self.described.depth.max(1);
        let inside = offset.checked_add(length).is_some_and(|end| end <= whole);
        if inside { Ok(self.base + offset) } else { Err(Code::INVALID_VALUE) }
    }

    /// Gives its memory back.
    pub fn free(&self) -> Answer {
        heap::free(heap::forget(self.base, |kind| kind == Kind::Array)?);
        Ok(())
    }
}
