//! Modules: texts in, handles out.

use crate::code::{Answer, Code};
use crate::context;
use crate::handles::Handles;
use crate::image;
use crate::module::{self, Loaded, MODULES};
use crate::pointer::{In, Out, Text};

pub fn load_file(module: Out<usize>, path: Text) -> Answer {
    let bytes = std::fs::read(path.get()?).map_err(|_| Code::FILE_NOT_FOUND)?;
    load(module, &image::text_of_file(bytes)?, In::NONE, In::NONE, 0)
}

pub fn load_data(module: Out<usize>, data: In<u8>) -> Answer {
    load(module, &image::text(data)?, In::NONE, In::NONE, 0)
}

pub fn load_data_with(
    module: Out<usize>,
    data: In<u8>,
    count: u32,
    options: In<u32>,
    values: In<usize>,
) -> Answer {
    load(module, &image::text(data)?, options, values, count)
}

fn load(module: Out<usize>, text: &str, options: In<u32>, values: In<usize>, count: u32) -> Answer {
    let context = context::current()?;
    module.require()?;
    let parsed = module::parse(text).map_err(|(code, said)| {
        image::log(&said, options, values, count);
        code
    })?;
    module.put(MODULES.add(&Loaded::new(&parsed, context.handle())?))
}

/// Waits for the context: kernels of the module may run.
pub fn unload(module: usize) -> Answer {
    let context = context::current()?;
    let loaded = MODULES.remove(module)?;
    let state = context.synchronize();
    loaded.unload();
    state
}

pub fn function(function: Out<usize>, module: usize, name: Text) -> Answer {
    function.require()?;
    function.put(Handles::of(&MODULES.get(module)?.function(&name.get()?)?))
}

pub fn global(pointer: Out<u64>, bytes: Out<usize>, module: usize, name: Text) -> Answer {
    let (at, size) = MODULES.get(module)?.global(&name.get()?)?;
    pointer.offer(at);
    bytes.offer(size as usize);
    Ok(())
}

pub fn function_count(count: Out<u32>, module: usize) -> Answer {
    count.put(MODULES.get(module)?.kernels().len() as u32)
}

pub fn functions(functions: Out<usize>, count: u32, module: usize) -> Answer {
    let module = MODULES.get(module)?;
    let names = module.kernels();
    let handles: Answer<Vec<usize>> =
        names.iter().take(count as usize).map(|name| Ok(Handles::of(&module.function(name)?))).collect();
    functions.fill(&handles?)
}

/// CU_MODULE_EAGER_LOADING
pub fn loading_mode(mode: Out<u32>) -> Answer {
    mode.put(1)
}
