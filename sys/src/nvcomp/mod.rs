//! nvCOMP, loaded at run time where a user has installed it: packs chunks of device memory on the device, into LZ4
//! blocks and Zstandard frames that processors unpack without it.
//!
//! For what flushes a cache on a device (`cli/src/keeper/packer.rs`, by `cuda_memory::Device::pack`): chunks go over
//! the link packed where that makes them durable sooner. Never linked and never shipped: its licence allows its use,
//! not its distribution. Sources: headers of nvCOMP 5.0.0.6 and 6.0.0.12 (lz4.h, zstd.h, shared_types.h, version.h):
//! names, numbers and types of arguments. Versions 5 and 6 are known, which differ in one function; others have other
//! arguments and are refused. Both were loaded without a GPU, where they answer what LZ4 needs, and say of Zstandard
//! that CUDA fails. Not verified: that what they make on a GPU is what `lz4_flex` and `zstd` unpack, as the vendor says
//! of the low-level interface.
//!
//! [`Nvcomp::plan`] says how much memory a batch takes and what is where in it ([`Plan`]); the caller has that memory
//! (from its cache: nvCOMP allocates nothing), writes [`Plan::head`] to its beginning, calls [`Nvcomp::compress`], and
//! when the stream is done reads [`Plan::results_at`], of which [`Plan::results`] makes where packed chunks are.
//! How it fails: [`NvcompError`]; a chunk that nvCOMP has not packed, or not to less, stays as it is.
//!
//! By hand: calls through what dlsym(3) gives (`crate::cuda::Library`).
//!
//! # Safety
//! A pointer is called with the arguments that the header of its version has for the name that it was asked for by.
//! Options are passed by value: 64 bytes, all zero but for what the header gives another default (none of those here).
//! The library stays loaded as long as the process lives.
#![allow(unsafe_code)]

mod error;
mod plan;

pub use error::NvcompError;
pub use plan::{Chunk, Format, Plan};

use crate::cuda::{Library, last_error};
use plan::Needs;
use std::ffi::{CString, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest chunk, of either format: nvcompLZ4CompressionMaxAllowedChunkSize.
pub const MOST_BYTES: usize = 1 << 24;
/// Most chunks of a batch: so many of 64 KiB are 64 GiB.
pub const MOST_CHUNKS: usize = 1 << 20;
/// nvcompSuccess.
const SUCCESS: c_int = 0;
/// Statuses that say something to a user (shared_types.h, nvcompStatus_t).
const STATUSES: &[(c_int, &str)] = &[
    (10, "invalid value"),
    (11, "not supported"),
    (17, "alignment"),
    (18, "chunk too large"),
    (19, "cannot compress"),
    (21, "batch too large"),
    (1000, "a call of CUDA failed"),
    (10_000, "internal error"),
];

/// A status in words, with its number.
fn describe(status: c_int) -> String {
    match STATUSES.iter().find(|(known, _)| *known == status) {
        Some((_, words)) => format!("{words} (status {status})"),
        None => format!("status {status}"),
    }
}

/// nvcompBatched*CompressOpts_t: the data type is NVCOMP_TYPE_CHAR, 0, without a bit shuffle, 0.
#[derive(Clone, Copy)]
#[repr(C)]
struct Options([u32; 16]);
const OPTIONS: Options = Options([0; 16]);

/// nvcompProperties_t.
#[derive(Default)]
#[repr(C)]
struct Properties {
    version: c_uint,
    cudart: c_uint,
}

/// nvcompAlignmentRequirements_t.
#[derive(Default)]
#[repr(C)]
struct Alignments {
    input: usize,
    output: usize,
    temporary: usize,
}

type GetProperties = unsafe extern "C" fn(*mut Properties) -> c_int;
type GetAlignments = unsafe extern "C" fn(Options, *mut Alignments) -> c_int;
type GetTemporary5 = unsafe extern "C" fn(usize, usize, Options, *mut usize, usize) -> c_int;
type GetTemporary6 = unsafe extern "C" fn(usize, usize, Options, *mut usize, usize, u64) -> c_int;
type GetMost = unsafe extern "C" fn(usize, Options, *mut usize) -> c_int;
/// Pointers, sizes, longest chunk, chunks; temporary memory and its size; pointers and sizes of the output; options,
/// statuses, stream. All addresses are of the device.
type Compress =
    unsafe extern "C" fn(u64, u64, usize, usize, u64, usize, u64, u64, Options, u64, u64) -> c_int;

#[derive(Clone, Copy)]
enum GetTemporary {
    Five(GetTemporary5),
    Six(GetTemporary6),
}

/// The functions of a format.
struct Functions {
    alignments: GetAlignments,
    temporary: GetTemporary,
    most: GetMost,
    compress: Compress,
}

/// A loaded nvCOMP.
pub struct Nvcomp {
    version: u32,
    lz4: Functions,
    zstd: Functions,
}

/// Those of the format whose functions begin so, in the form of this version; else what is missing.
fn functions(library: &Library, major: u32, prefix: &str) -> Result<Functions, String> {
    Ok(Functions {
        alignments: function(library, format!("{prefix}CompressGetRequiredAlignments"))?,
        temporary: if major == 5 {
            GetTemporary::Five(function(library, format!("{prefix}CompressGetTempSizeAsync"))?)
        } else {
            GetTemporary::Six(function(library, format!("{prefix}CompressGetTempSize"))?)
        },
        most: function(library, format!("{prefix}CompressGetMaxOutputChunkSize"))?,
        compress: function(library, format!("{prefix}CompressAsync"))?,
    })
}

/// The type is that of the field that it is for.
fn function<Function: Copy>(library: &Library, name: String) -> Result<Function, String> {
    let found = CString::new(name.as_str()).ok().and_then(|text| library.function(&text, 0));
    found.ok_or_else(|| format!("it has no function {name}"))
}

impl Nvcomp {
    /// Loads the library of this path, or of this name where the loader finds it. Its code runs here: whose file it is,
    /// is for the caller to judge.
    ///
    /// # Errors
    /// It cannot be loaded, is no nvCOMP, or of a version that is not known.
    pub fn load(path: &Path) -> Result<Nvcomp, NvcompError> {
        let name = path.display().to_string();
        let error = |reason: String| NvcompError::Load { path: name.clone(), reason };
        let text = CString::new(path.as_os_str().as_bytes()).map_err(|_| error("not a path".into()))?;
        let library = Library::open(&text).ok_or_else(|| error(last_error(path)))?;
        let properties: Option<GetProperties> = library.function(c"nvcompGetProperties", 0);
        let properties = properties
            .ok_or_else(|| error("it has no function nvcompGetProperties: it is no nvCOMP".into()))?;
        let mut found = Properties::default();
        // SAFETY: a local to write to.
        let status = unsafe { properties(&raw mut found) };
        if status != SUCCESS {
            return Err(error(format!("nvcompGetProperties: {}", describe(status))));
        }
        let version = found.version;
        let major = version / 1000;
        if !(5..=6).contains(&major) {
            return Err(NvcompError::Version { path: name, version: version_text(version) });
        }
        let lz4 = functions(&library, major, "nvcompBatchedLZ4").map_err(error)?;
        let zstd = functions(&library, major, "nvcompBatchedZstd").map_err(error)?;
        Ok(Nvcomp { version, lz4, zstd })
    }

    /// Its version, as `6.0.0`.
    pub fn version(&self) -> String {
        version_text(self.version)
    }

    fn functions(&self, format: Format) -> &Functions {
        match format {
            Format::Lz4 => &self.lz4,
            Format::Zstd => &self.zstd,
        }
    }

    /// What a batch of so many chunks, each of at most so many bytes, needs. The stream's context has to be current.
    ///
    /// # Errors
    /// nvCOMP refuses, or says what cannot be; there are too many or too long chunks.
    pub fn plan(
        &self,
        format: Format,
        chunks: usize,
        bytes: usize,
        stream: u64,
    ) -> Result<Plan, NvcompError> {
        if !(1..=MOST_CHUNKS).contains(&chunks) || !(1..=MOST_BYTES).contains(&bytes) {
            let what = format!(
                "{chunks} chunks of {bytes} bytes are no batch: at most {MOST_CHUNKS} of {MOST_BYTES}"
            );
            return Err(NvcompError::Chunks { what });
        }
        let functions = self.functions(format);
        let (mut alignments, mut temporary, mut most) = (Alignments::default(), 0, 0);
        let total = chunks * bytes;
        // SAFETY: locals to write to; the options are zeroed; the stream is the caller's.
        let statuses = unsafe {
            [
                ("CompressGetRequiredAlignments", (functions.alignments)(OPTIONS, &raw mut alignments)),
                (
                    "CompressGetTempSize",
                    match functions.temporary {
                        GetTemporary::Five(get) => get(chunks, bytes, OPTIONS, &raw mut temporary, total),
                        GetTemporary::Six(get) => {
                            get(chunks, bytes, OPTIONS, &raw mut temporary, total, stream)
                        }
                    },
                ),
                ("CompressGetMaxOutputChunkSize", (functions.most)(bytes, OPTIONS, &raw mut most)),
            ]
        };
        for (function, status) in statuses {
            succeeded(function, status)?;
        }
        let needs = Needs {
            input: alignments.input,
            output: alignments.output,
            temporary_alignment: alignments.temporary,
            temporary,
            most,
        };
        Plan::new(format, chunks, bytes, &needs)
    }

    /// Has the chunks of a plan packed, when the stream comes to it.
    ///
    /// # Errors
    /// nvCOMP refuses.
    ///
    /// # Safety
    /// The workspace is memory of the device, aligned to [`Plan::ALIGNMENT`], of [`Plan::bytes`], that nothing else
    /// uses before the stream is done; its beginning has, on this stream, what [`Plan::head`] gave for this address.
    /// The chunks that are named there are readable until then. The stream's context is current.
    pub unsafe fn compress(&self, plan: &Plan, workspace: u64, stream: u64) -> Result<(), NvcompError> {
        let at = |offset: u64| workspace + offset;
        // SAFETY: as the caller promises; what is where is the plan's.
        let status = unsafe {
            (self.functions(plan.format()).compress)(
                at(plan.pointers()),
                at(plan.sizes()),
                plan.chunk_bytes(),
                plan.chunks(),
                at(plan.temporary()),
                plan.temporary_bytes(),
                at(plan.outputs()),
                at(plan.packed_sizes()),
                OPTIONS,
                at(plan.statuses()),
                stream,
            )
        };
        succeeded("CompressAsync", status)
    }
}

fn version_text(version: u32) -> String {
    // version.h: major * 1000 + minor * 100 + patch.
    format!("{}.{}.{}", version / 1000, version % 1000 / 100, version % 100)
}

fn succeeded(function: &'static str, status: c_int) -> Result<(), NvcompError> {
    if status == SUCCESS { Ok(()) } else { Err(NvcompError::Call { function, status: describe(status) }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_statuses_are_said_in_words() {
        assert_eq!(version_text(6000), "6.0.0");
        assert_eq!(version_text(5112), "5.1.12");
        assert_eq!(describe(19), "cannot compress (status 19)");
        assert_eq!(describe(3), "status 3");
    }

    #[test]
    fn what_is_no_nvcomp_is_refused() {
        let missing = Nvcomp::load(Path::new("/nowhere/libnvcomp.so.6")).err().map(|error| error.to_string());
        assert!(missing.is_some_and(|text| text.contains("/nowhere/libnvcomp.so.6")));
        let other = Nvcomp::load(Path::new("libc.so.6")).err().map(|error| error.to_string());
        assert!(other.is_some_and(|text| text.contains("it is no nvCOMP")));
    }
}
