//! Arrays: what they are like.

use crate::array::{ARRAYS, Array};
use crate::code::{Answer, Code};
use crate::context::{self, CONTEXTS};
use crate::handles::Handles;
use crate::layout::{ArrayDescriptor, ArrayDescriptor2};
use crate::pointer::{In, Out};

pub fn create(array: Out<usize>, descriptor: In<ArrayDescriptor2>) -> Answer {
    let of = descriptor.get()?;
    make(
        array,
        ArrayDescriptor {
            width: of.width,
            height: of.height,
            depth: 0,
            format: of.format,
            channels: of.channels,
            flags: 0,
            padding: 0,
        },
    )
}

pub fn create_3d(array: Out<usize>, descriptor: In<ArrayDescriptor>) -> Answer {
    make(array, descriptor.get()?)
}

fn make(array: Out<usize>, described: ArrayDescriptor) -> Answer {
    array.require()?;
    array.put(Handles::of(&Array::new(described, context::current()?.handle())?))
}

/// Waits for the context, as cuMemFree does.
pub fn destroy(array: usize) -> Answer {
    let array = ARRAYS.remove(array)?;
    let state = CONTEXTS.get(array.context).map_or(Ok(()), |context| context.synchronize());
    array.free()?;
    state
}

pub fn describe(descriptor: Out<ArrayDescriptor2>, array: usize) -> Answer {
    let of = ARRAYS.get(array)?.described;
    // "CUDA_ERROR_INVALID_VALUE"? of three dimensions: what the real driver says is not verified
    if of.depth != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let (width, height, format, channels) = (of.width, of.height, of.format, of.channels);
    descriptor.put(ArrayDescriptor2 { width, height, format, channels })
}

pub fn describe_3d(descriptor: Out<ArrayDescriptor>, array: usize) -> Answer {
    descriptor.put(ARRAYS.get(array)?.described)
}
