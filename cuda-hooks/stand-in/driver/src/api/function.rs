//! Functions: what they are like, and their launch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::capture;
use crate::code::{Answer, Code};
use crate::command::Command;
use crate::context::{self, CONTEXTS};
use crate::launch::{Kernel, Shape};
use crate::layout::LaunchConfig;
use crate::module::{self, Function};
use crate::pointer::{In, Out, Text};
use crate::submit;

fn of(handle: usize) -> Answer<Arc<Function>> {
    let context = context::top().map_or(0, |context| context.handle());
    module::function(handle, context)
}

/// A value of `CUfunction_attribute`.
pub fn attribute_of(function: &Function, attribute: u32) -> Answer<i32> {
    let decoded = function.decoded();
    let module = &function.program.module;
    Ok(match attribute {
        0 => decoded.max_threads.map_or(1024, |most| most as i32),
        1 => decoded.shared_bytes as i32,
        2 => 0,
        3 => decoded.local_bytes as i32,
        // registers are the interpreter's own affair
        4 => 32,
        5 => (module.version.0 * 10 + module.version.1) as i32,
        6 => module.target as i32,
        7 => 0,
        8 => function.dynamic_shared.load(Ordering::Relaxed).max(function.default_dynamic()) as i32,
        9 => -1,
        10..=15 => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: 227 KiB with what is static (compute capability 9.0). A preference
/// of how to divide the cache is taken.
pub fn set_attribute_of(function: &Function, attribute: u32, value: i32) -> Answer {
    match attribute {
        8 => {
            let value = u32::try_from(value).map_err(|_| Code::INVALID_VALUE)?;
            if value.saturating_add(function.decoded().shared_bytes) > 227 << 10 {
                return Err(Code::INVALID_VALUE);
            }
            function.dynamic_shared.store(value, Ordering::Relaxed);
            Ok(())
        }
        9 | 14 | 15 => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    }
}

pub fn attribute(value: Out<i32>, attribute: u32, function: usize) -> Answer {
    value.put(attribute_of(&*of(function)?, attribute)?)
}

pub fn set_attribute(function: usize, attribute: u32, value: i32) -> Answer {
    set_attribute_of(&*of(function)?, attribute, value)
}

pub fn set_preference(function: usize, _preference: u32) -> Answer {
    of(function).map(drop)
}

/// Threads that a block of it may have.
pub fn most_threads(function: usize) -> Answer<u32> {
    Ok(of(function)?.decoded().max_threads.unwrap_or(1024))
}

pub fn name(name: Out<Text>, function: usize) -> Answer {
    name.put(Text::kept(&of(function)?.name))
}

pub fn module_of(module: Out<usize>, function: usize) -> Answer {
    let function = of(function)?;
    let all = module::MODULES.all();
    let found = all.iter().find(|loaded| loaded.has(&function)).ok_or(Code::INVALID_HANDLE)?;
    module.put(crate::handles::Handles::of(found))
}

/// "CUDA_ERROR_INVALID_VALUE" beyond the last parameter: that is how they are counted.
pub fn parameter(function: usize, index: usize, offset: Out<usize>, size: Out<usize>) -> Answer {
    parameter_of(&*of(function)?, index, offset, size)
}

/// The same for a kernel of a library.
pub fn parameter_of(function: &Function, index: usize, offset: Out<usize>, size: Out<usize>) -> Answer {
    let parameter = function.decoded().parameters.get(index).ok_or(Code::INVALID_VALUE)?;
    offset.require()?;
    offset.put(parameter.offset as usize)?;
    size.offer(parameter.size as usize);
    Ok(())
}

pub fn is_loaded(state: Out<u32>, function: usize) -> Answer {
    of(function)?;
    // CU_FUNCTION_LOADING_STATE_LOADED
    state.put(1)
}

pub fn load(function: usize) -> Answer {
    of(function).map(drop)
}

/// The parameters as they lie in the kernel's memory: from pointers to each, or from one buffer.
pub fn parameters(function: &Function, each: In<In<u8>>, extra: In<usize>) -> Answer<Vec<u8>> {
    let wanted = &function.decoded().parameters;
    let whole = wanted.last().map_or(0, |last| (last.offset + last.size) as usize);
    if !extra.is_null() {
        // "kernelParams and extra ... if both are specified ... CUDA_ERROR_INVALID_VALUE"
        if !each.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        return buffer(extra, whole);
    }
    if whole > 0 && each.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let mut bytes = vec![0; whole];
    for (index, parameter) in wanted.iter().enumerate() {
        let from = parameter.offset as usize;
        let value = each.at(index)?.list(parameter.size as usize)?;
        bytes[from..from + value.len()].copy_from_slice(&value);
    }
    Ok(bytes)
}

/// CU_LAUNCH_PARAM_BUFFER_POINTER 1, CU_LAUNCH_PARAM_BUFFER_SIZE 2, CU_LAUNCH_PARAM_END 0: "must be the last".
fn buffer(extra: In<usize>, whole: usize) -> Answer<Vec<u8>> {
    let (mut data, mut size) = (In::NONE, 0);
    for index in (0..).step_by(2).take(8) {
        match extra.at(index)? {
            0 => {
                let mut bytes: Vec<u8> = if whole == 0 { Vec::new() } else { data_of(data, size)? };
                if bytes.len() < whole {
                    return Err(Code::INVALID_VALUE);
                }
                bytes.truncate(whole);
                return Ok(bytes);
            }
            1 => data = extra.offset(8 * (index + 1)).cast::<In<u8>>().get()?,
            2 => size = extra.offset(8 * (index + 1)).cast::<In<usize>>().get()?.get()?,
            _ => return Err(Code::INVALID_VALUE),
        }
    }
    Err(Code::INVALID_VALUE)
}

fn data_of(data: In<u8>, size: usize) -> Answer<Vec<u8>> {
    if data.is_null() { Err(Code::INVALID_VALUE) } else { data.list(size) }
}

/// A launch that was checked, for a stream or a graph.
pub fn kernel(
    function: usize,
    context: usize,
    shape: Shape,
    each: In<In<u8>>,
    extra: In<usize>,
) -> Answer<Kernel> {
    let function = module::function(function, context)?;
    // "CUDA_ERROR_INVALID_HANDLE": a function belongs to a context
    if function.context != context {
        return Err(Code::INVALID_HANDLE);
    }
    CONTEXTS.get(context).map_err(|_| Code::INVALID_CONTEXT)?.check()?;
    let bytes = parameters(&function, each, extra)?;
    Kernel::new(&function, shape, bytes)
}

/// A launch on a stream.
pub fn launch(function: usize, shape: Shape, stream: usize, each: In<In<u8>>, extra: In<usize>) -> Answer {
    let target = submit::target(stream)?;
    let kernel = kernel(function, target.context.handle(), shape, each, extra).inspect_err(|_| {
        // a launch that is refused ends the capture (driver 580.159.04)
        capture::invalidate(&target.stream);
    })?;
    target.put(Command::Launch(Arc::new(kernel))).map(drop)
}

/// CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
const COOPERATIVE: u32 = 2;
const CLUSTER: u32 = 4;

pub fn launch_with(config: In<LaunchConfig>, function: usize, each: In<In<u8>>, extra: In<usize>) -> Answer {
    let config = config.get()?;
    let mut cooperative = false;
    for index in 0..config.count as usize {
        let attribute = config.attributes.at(index)?;
        match attribute.id {
            COOPERATIVE => cooperative = attribute.value[0] != 0,
            // the interpreter has no clusters
            CLUSTER if attribute.value[..3] != [1, 1, 1] => return Err(Code::NOT_SUPPORTED),
            _ => {}
        }
    }
    let shape = Shape { grid: config.grid, block: config.block, shared: config.shared, cooperative };
    launch(function, shape, config.stream, each, extra)
}

/// By threads, blocks and shared memory of a multiprocessor of compute capability 9.0.
pub fn blocks_per_multiprocessor(blocks: Out<i32>, function: usize, size: i32, shared: usize) -> Answer {
    let function = of(function)?;
    let size = u32::try_from(size).ok().filter(|&n| n > 0 && n <= 1024).ok_or(Code::INVALID_VALUE)?;
    let used = shared + function.decoded().shared_bytes as usize + 1024;
    let by_memory = (228 << 10) / used;
    blocks.put((2048 / size.next_multiple_of(32)).min(32).min(by_memory as u32) as i32)
}

pub fn blocks_per_multiprocessor_with(
    blocks: Out<i32>,
    function: usize,
    size: i32,
    shared: usize,
    _flags: u32,
) -> Answer {
    blocks_per_multiprocessor(blocks, function, size, shared)
}
