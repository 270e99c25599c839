//! Modules and libraries: PTX texts whose variables have addresses on the device, and their kernels. Used by
//! `api::module`, `api::library`, `context`.
//!
//! Only PTX is executed: a text, or a text in a fat binary. Machine code of a GPU is
//! CUDA_ERROR_NO_BINARY_FOR_GPU, which a real driver says where nothing fits its device.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use holdfast_ptx::{Module, Program};
use parking_lot::Mutex;

use crate::code::{Answer, Code};
use crate::handles::Handles;
use crate::memory::{heap, space};
use crate::settings::settings;

/// Shared memory of a block without asking for more (CUDA C++ Programming Guide, "Shared Memory" of each architecture).
pub const DEFAULT_SHARED: u32 = 48 << 10;

/// All modules.
pub static MODULES: Handles<Loaded> = Handles::new();
/// All functions that a program has a handle of.
pub static FUNCTIONS: Handles<Function> = Handles::new();
/// All libraries.
pub static LIBRARIES: Handles<Library> = Handles::new();
/// All kernels of libraries that a program has a handle of.
pub static KERNELS: Handles<LibraryKernel> = Handles::new();

/// A module in a context.
pub struct Loaded {
    /// Handle of the context.
    pub context: usize,
    program: Program,
    addresses: Vec<u64>,
    functions: Mutex<BTreeMap<String, Arc<Function>>>,
}

/// A kernel in a context.
pub struct Function {
    /// Handle of the context.
    pub context: usize,
    /// The module with its addresses.
    pub program: Program,
    /// Its number there.
    pub number: usize,
    /// As a string for the program.
    pub name: CString,
    /// CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, where it was set.
    pub dynamic_shared: AtomicU32,
}

impl Function {
    /// As it was decoded.
    pub fn decoded(&self) -> &holdfast_ptx::Function {
        &self.program.module.functions[self.number]
    }

    /// Its name in the text.
    pub fn kernel(&self) -> &str {
        &self.decoded().name
    }

    /// Dynamic shared memory without asking for more.
    pub fn default_dynamic(&self) -> u32 {
        DEFAULT_SHARED.saturating_sub(self.decoded().shared_bytes)
    }
}

/// Texts that are remembered, and what they are.
static KNOWN: Mutex<Vec<(String, Arc<Module>)>> = Mutex::new(Vec::new());
const MOST_KNOWN: usize = 16;

/// Decodes a text, once, as the real driver's cache of compiled code does; the error is for the log that a program may
/// want.
pub fn parse(text: &str) -> Result<Arc<Module>, (Code, String)> {
    let mut known = KNOWN.lock();
    if let Some((_, module)) = known.iter().find(|(other, _)| other == text) {
        return Ok(Arc::clone(module));
    }
    let module = Module::parse(text).map(Arc::new).map_err(|error| {
        let said = format!("ptxas: {error}");
        eprintln!("stand-in: {said}");
        (Code::INVALID_PTX, said)
    })?;
    if module.version > newest_ptx(settings().version) {
        let said =
            format!("ptxas: version {}.{} is newer than the driver", module.version.0, module.version.1);
        eprintln!("stand-in: {said}");
        return Err((Code::UNSUPPORTED_PTX_VERSION, said));
    }
    // "No kernel image that is suitable": the text is for newer devices
    if module.target > TARGET {
        return Err((
            Code::NO_BINARY_FOR_GPU,
            format!("ptxas: sm_{} is newer than the device", module.target),
        ));
    }
    if known.len() < MOST_KNOWN {
        known.push((text.to_owned(), Arc::clone(&module)));
    }
    Ok(module)
}

/// Of the device.
const TARGET: u32 = 90;

/// The newest version of PTX that a driver of this version takes ("Parallel Thread Execution ISA", release history).
fn newest_ptx(version: i32) -> (u32, u32) {
    let (major, minor) = (version / 1000, u32::try_from(version % 1000 / 10).unwrap_or(0));
    match major {
        // 12.5 and 12.6 have one version
        12 => (8, if minor < 6 { minor } else { minor - 1 }),
        13.. => (9, minor),
        _ => (7, 8),
    }
}

impl Loaded {
    /// Loads a decoded text into a context.
    pub fn new(module: &Arc<Module>, context: usize) -> Answer<Arc<Loaded>> {
        let mut addresses = Vec::new();
        let loaded = module.variables.iter().try_for_each(|variable| {
            if variable.external {
                return Err(Code::NOT_FOUND);
            }
            let size = variable.size.max(1);
            addresses.push(if variable.managed {
                heap::manage(size, context)?
            } else {
                heap::allocate(size, heap::Kind::Module, context)?
            });
            Ok(())
        });
        let program = loaded.and_then(|()| {
            let program = Program::new(Arc::clone(module), addresses.clone()).ok_or(Code::INVALID_IMAGE)?;
            let view = space::view();
            for (number, &address) in addresses.iter().enumerate() {
                view.write(address, &program.initial(number).ok_or(Code::INVALID_IMAGE)?)?;
            }
            Ok(program)
        });
        match program {
            Ok(program) => Ok(Arc::new(Loaded { context, program, addresses, functions: Mutex::default() })),
            Err(code) => {
                free(&addresses);
                Err(code)
            }
        }
    }

    /// A kernel; the same handle every time.
    pub fn function(&self, name: &str) -> Answer<Arc<Function>> {
        let number = self.program.module.kernel(name).ok_or(Code::NOT_FOUND)?;
        let mut functions = self.functions.lock();
        if let Some(function) = functions.get(name) {
            return Ok(Arc::clone(function));
        }
        let function = Arc::new(Function {
            context: self.context,
            program: self.program.clone(),
            number,
            name: CString::new(name).map_err(|_| Code::INVALID_VALUE)?,
            dynamic_shared: AtomicU32::new(0),
        });
        FUNCTIONS.add(&function);
        functions.insert(name.into(), Arc::clone(&function));
        Ok(function)
    }

    /// Names of all kernels.
    pub fn kernels(&self) -> Vec<String> {
        kernels(&self.program.module)
    }

    /// Whether a function is of it.
    pub fn has(&self, function: &Arc<Function>) -> bool {
        self.functions.lock().values().any(|it| Arc::ptr_eq(it, function))
    }

    /// Address and size of a variable that another module could see. nvcc makes `__device__` variables `.visible` or
    /// not, and the real driver finds both.
    pub fn global(&self, name: &str) -> Answer<(u64, u64)> {
        let number = self.program.module.variable(name).ok_or(Code::NOT_FOUND)?;
        Ok((self.addresses[number], self.program.module.variables[number].size))
    }

    /// Whether a variable is managed.
    pub fn is_managed(&self, name: &str) -> bool {
        self.program.module.variables.iter().any(|variable| variable.name == name && variable.managed)
    }

    /// Frees its variables and forgets its functions.
    pub fn unload(&self) {
        for function in self.functions.lock().values() {
            let _ = FUNCTIONS.remove(Handles::of(function));
        }
        free(&self.addresses);
    }
}

fn free(addresses: &[u64]) {
    for &address in addresses {
        let ours = |kind| matches!(kind, heap::Kind::Module | heap::Kind::Managed);
        if let Ok(it) = heap::forget(address, ours) {
            heap::free(it);
        }
    }
}

fn kernels(module: &Module) -> Vec<String> {
    let all = module.functions.iter().filter(|function| function.entry && function.defined);
    all.map(|function| function.name.clone()).collect()
}

/// A library: a module for every context that uses it.
pub struct Library {
    module: Arc<Module>,
    loaded: Mutex<BTreeMap<usize, Arc<Loaded>>>,
    kernels: Mutex<BTreeMap<String, Arc<LibraryKernel>>>,
}

/// A kernel of a library, in whatever context it is launched.
pub struct LibraryKernel {
    /// Handle of the library.
    pub library: usize,
    /// As a string for the program.
    pub name: CString,
    text: String,
}

impl Library {
    /// Of a decoded text; nothing is loaded yet.
    pub fn new(module: Arc<Module>) -> Arc<Library> {
        Arc::new(Library { module, loaded: Mutex::default(), kernels: Mutex::default() })
    }

    /// The module of a context: loaded when it is wanted first.
    pub fn in_context(&self, context: usize) -> Answer<Arc<Loaded>> {
        let mut loaded = self.loaded.lock();
        if let Some(there) = loaded.get(&context) {
            return Ok(Arc::clone(there));
        }
        let new = Loaded::new(&self.module, context)?;
        MODULES.add(&new);
        loaded.insert(context, Arc::clone(&new));
        Ok(new)
    }

    /// Forgets what was loaded into a context that has ended.
    pub fn leave(&self, context: usize) {
        self.loaded.lock().remove(&context);
    }

    /// A kernel; the same handle every time.
    pub fn kernel(&self, handle: usize, name: &str) -> Answer<Arc<LibraryKernel>> {
        self.module.kernel(name).ok_or(Code::NOT_FOUND)?;
        let mut kernels = self.kernels.lock();
        if let Some(kernel) = kernels.get(name) {
            return Ok(Arc::clone(kernel));
        }
        let text = name.to_owned();
        let name = CString::new(name).map_err(|_| Code::INVALID_VALUE)?;
        let kernel = Arc::new(LibraryKernel { library: handle, name, text: text.clone() });
        KERNELS.add(&kernel);
        kernels.insert(text, Arc::clone(&kernel));
        Ok(kernel)
    }

    /// Names of all kernels.
    pub fn names(&self) -> Vec<String> {
        kernels(&self.module)
    }

    /// Ends it in all contexts.
    pub fn unload(&self) {
        for (_, loaded) in std::mem::take(&mut *self.loaded.lock()) {
            let _ = MODULES.remove(Handles::of(&loaded));
            loaded.unload();
        }
        for (_, kernel) in std::mem::take(&mut *self.kernels.lock()) {
            let _ = KERNELS.remove(Handles::of(&kernel));
        }
    }
}

impl LibraryKernel {
    /// The function in a context.
    pub fn in_context(&self, context: usize) -> Answer<Arc<Function>> {
        LIBRARIES.get(self.library)?.in_context(context)?.function(&self.text)
    }
}

/// The function of a handle: of a module, or of a library's kernel, which cuLaunchKernel takes as well ("CUkernel can
/// be cast to CUfunction": cuLaunchKernel).
pub fn function(handle: usize, context: usize) -> Answer<Arc<Function>> {
    match KERNELS.get(handle) {
        Ok(kernel) => kernel.in_context(context),
        Err(_) => FUNCTIONS.get(handle),
    }
}
