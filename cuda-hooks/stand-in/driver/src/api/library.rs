//! Libraries: modules that load themselves into whatever context uses them.

use std::sync::Arc;

use super::function;
use crate::code::{Answer, Code};
use crate::context;
use crate::handles::Handles;
use crate::image;
use crate::module::{self, Function, KERNELS, LIBRARIES, Library};
use crate::pointer::{In, Out, Text};

/// How libraries are loaded: options of the compiler, of which only the log is used; those of the library are hints.
#[derive(Clone, Copy)]
pub struct Options {
    /// `CUjit_option`s.
    pub options: In<u32>,
    /// Their values.
    pub values: In<usize>,
    /// How many.
    pub count: u32,
}

pub fn load_data(library: Out<usize>, data: In<u8>, options: Options) -> Answer {
    load(library, &image::text(data)?, options)
}

pub fn load_file(library: Out<usize>, path: Text, options: Options) -> Answer {
    let bytes = std::fs::read(path.get()?).map_err(|_| Code::FILE_NOT_FOUND)?;
    load(library, &image::text_of_file(bytes)?, options)
}

fn load(library: Out<usize>, text: &str, by: Options) -> Answer {
    library.require()?;
    let module = module::parse(text).map_err(|(code, said)| {
        image::log(&said, by.options, by.values, by.count);
        code
    })?;
    library.put(LIBRARIES.add(&Library::new(module)))
}

pub fn unload(library: usize) -> Answer {
    let library = LIBRARIES.remove(library)?;
    let state = context::top().map_or(Ok(()), |context| context.synchronize());
    library.unload();
    state
}

pub fn kernel(kernel: Out<usize>, library: usize, name: Text) -> Answer {
    kernel.require()?;
    kernel.put(Handles::of(&LIBRARIES.get(library)?.kernel(library, &name.get()?)?))
}

pub fn module_of(module: Out<usize>, library: usize) -> Answer {
    let context = context::current()?;
    module.put(Handles::of(&LIBRARIES.get(library)?.in_context(context.handle())?))
}

pub fn kernel_count(count: Out<u32>, library: usize) -> Answer {
    count.put(LIBRARIES.get(library)?.names().len() as u32)
}

pub fn kernels(kernels: Out<usize>, count: u32, library: usize) -> Answer {
    let of = LIBRARIES.get(library)?;
    let names = of.names();
    let handles: Answer<Vec<usize>> =
        names.iter().take(count as usize).map(|name| Ok(Handles::of(&of.kernel(library, name)?))).collect();
    kernels.fill(&handles?)
}

pub fn global(pointer: Out<u64>, bytes: Out<usize>, library: usize, name: Text) -> Answer {
    let context = context::current()?;
    let (at, size) = LIBRARIES.get(library)?.in_context(context.handle())?.global(&name.get()?)?;
    pointer.offer(at);
    bytes.offer(size as usize);
    Ok(())
}

pub fn managed(pointer: Out<u64>, bytes: Out<usize>, library: usize, name: Text) -> Answer {
    let context = context::current()?;
    let loaded = LIBRARIES.get(library)?.in_context(context.handle())?;
    let name = name.get()?;
    if !loaded.is_managed(&name) {
        return Err(Code::NOT_FOUND);
    }
    let (at, size) = loaded.global(&name)?;
    pointer.offer(at);
    bytes.offer(size as usize);
    Ok(())
}

fn of(kernel: usize) -> Answer<Arc<Function>> {
    KERNELS.get(kernel)?.in_context(context::current()?.handle())
}

pub fn function(function: Out<usize>, kernel: usize) -> Answer {
    function.put(Handles::of(&of(kernel)?))
}

pub fn library_of(library: Out<usize>, kernel: usize) -> Answer {
    library.put(KERNELS.get(kernel)?.library)
}

pub fn kernel_name(name: Out<Text>, kernel: usize) -> Answer {
    name.put(Text::kept(&KERNELS.get(kernel)?.name))
}

pub fn attribute(value: Out<i32>, attribute: u32, kernel: usize, device: i32) -> Answer {
    super::device::check(device)?;
    value.put(function::attribute_of(&*of(kernel)?, attribute)?)
}

pub fn set_attribute(attribute: u32, value: i32, kernel: usize, device: i32) -> Answer {
    super::device::check(device)?;
    function::set_attribute_of(&*of(kernel)?, attribute, value)
}

pub fn set_preference(kernel: usize, _preference: u32, device: i32) -> Answer {
    super::device::check(device)?;
    KERNELS.get(kernel).map(drop)
}

pub fn parameter(kernel: usize, index: usize, offset: Out<usize>, size: Out<usize>) -> Answer {
    function::parameter_of(&*of(kernel)?, index, offset, size)
}

/// Pointers to functions of the host are not made.
pub fn unified(pointer: Out<usize>, library: usize, _name: Text) -> Answer {
    LIBRARIES.get(library)?;
    pointer.put(0)?;
    Err(Code::NOT_FOUND)
}
