//! The exported functions.
//!
//! # Safety
//! They are called with the arguments that nvCOMP's headers declare; addresses of the host are checked for null alone,
//! those of the device by the driver.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use crate::driver::{read, synchronize, write};

const SUCCESS: i32 = 0;
const INVALID_VALUE: i32 = 10;
const NOT_SUPPORTED: i32 = 11;
const ALIGNMENT: i32 = 17;
const CHUNK_TOO_LARGE: i32 = 18;
const CANNOT_COMPRESS: i32 = 19;
const CUDA_ERROR: i32 = 1000;

/// nvcompLZ4CompressionMaxAllowedChunkSize; Zstandard takes more.
const LZ4_MOST: usize = 1 << 24;
/// nvcompLZ4RequiredCompressionAlignment and that of Zstandard.
const MEMORY: u64 = 4;
const TEMPORARY: u64 = 8;

/// The options of both formats: bytes of zero are the default, and the only ones that are known here.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Options([u32; 16]);

/// nvcompAlignmentRequirements_t.
#[repr(C)]
pub struct Alignments {
    input: usize,
    output: usize,
    temporary: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Lz4,
    Zstd,
}

fn version() -> u32 {
    std::env::var("NVCOMP_STAND_IN_VERSION").ok().and_then(|text| text.parse().ok()).unwrap_or(6000)
}

fn fault(name: &str) -> bool {
    std::env::var("NVCOMP_STAND_IN_FAULT").is_ok_and(|fault| fault == name)
}

/// Writes one value to the host.
fn put<T>(to: *mut T, value: T) -> i32 {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's, not null.
    unsafe { to.write(value) };
    SUCCESS
}

impl Format {
    fn pack(self, raw: &[u8]) -> Option<Vec<u8>> {
        match self {
            Format::Lz4 => Some(lz4_flex::block::compress(raw)),
            Format::Zstd => zstd::bulk::compress(raw, 1).ok(),
        }
    }

    /// What may become of so many bytes: LZ4_compressBound, ZSTD_compressBound.
    fn most(self, bytes: usize) -> usize {
        match self {
            Format::Lz4 => bytes + bytes / 255 + 16,
            Format::Zstd => zstd::zstd_safe::compress_bound(bytes),
        }
    }

    fn temporary(self, chunks: usize) -> usize {
        // As nvCOMP 5 and 6 say of LZ4; of Zstandard it is not known.
        chunks * 32_768
    }

    fn refuses(self, bytes: usize, options: Options) -> Option<i32> {
        if options.0 != [0; 16] {
            return Some(INVALID_VALUE);
        }
        (self == Format::Lz4 && bytes > LZ4_MOST).then_some(CHUNK_TOO_LARGE)
    }
}

/// The arguments of CompressAsync.
struct Batch {
    pointers: u64,
    sizes: u64,
    most: usize,
    chunks: usize,
    temporary: u64,
    temporary_bytes: usize,
    outputs: u64,
    packed_sizes: u64,
    statuses: u64,
    stream: u64,
}

fn words(at: u64, count: usize, stream: u64) -> Option<Vec<u64>> {
    let bytes = read(at, count * 8, stream)?;
    Some(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

impl Batch {
    fn run(&self, format: Format) -> Option<i32> {
        let stream = self.stream;
        synchronize(stream)?;
        let [pointers, sizes, outputs] =
            [self.pointers, self.sizes, self.outputs].map(|at| words(at, self.chunks, stream));
        let (pointers, sizes, outputs) = (pointers?, sizes?, outputs?);
        let is_aligned = |at: &u64| at.is_multiple_of(MEMORY);
        if !pointers.iter().chain(&outputs).all(is_aligned) || !self.temporary.is_multiple_of(TEMPORARY) {
            return Some(ALIGNMENT);
        }
        let (mut packed_sizes, mut statuses) = (Vec::new(), Vec::new());
        for (index, (at, bytes)) in pointers.into_iter().zip(sizes).enumerate() {
            let raw = read(at, usize::try_from(bytes).ok().filter(|bytes| *bytes <= self.most)?, stream)?;
            let packed = format.pack(&raw).filter(|_| !(fault("status") && index % 2 == 1));
            statuses.push(if packed.is_some() { SUCCESS } else { CANNOT_COMPRESS });
            let packed = packed.unwrap_or_default();
            packed_sizes.push(if fault("size") { u64::MAX - index as u64 } else { packed.len() as u64 });
            if !packed.is_empty() {
                write(outputs[index], packed, stream)?;
            }
        }
        write(self.packed_sizes, packed_sizes.into_iter().flat_map(u64::to_le_bytes).collect(), stream)?;
        if self.statuses != 0 {
            write(self.statuses, statuses.into_iter().flat_map(i32::to_le_bytes).collect(), stream)?;
        }
        Some(SUCCESS)
    }

    fn compress(&self, format: Format, options: Options) -> i32 {
        if let Some(status) = format.refuses(self.most, options) {
            return status;
        }
        if fault("launch") {
            return CUDA_ERROR;
        }
        if self.chunks == 0 || self.temporary_bytes < format.temporary(self.chunks) {
            return INVALID_VALUE;
        }
        self.run(format).unwrap_or(CUDA_ERROR)
    }
}

/// nvcompGetProperties: version, and that of the runtime it was built with.
#[unsafe(no_mangle)]
pub extern "C" fn nvcompGetProperties(to: *mut [u32; 2]) -> i32 {
    put(to, [version(), 13_000])
}

macro_rules! format {
    ($format:expr, $alignments:ident, $temporary5:ident, $temporary6:ident, $most:ident, $compress:ident) => {
        /// Of the memory that is passed.
        #[unsafe(no_mangle)]
        pub extern "C" fn $alignments(options: Options, to: *mut Alignments) -> i32 {
            if let Some(status) = $format.refuses(0, options) {
                return status;
            }
            put(
                to,
                Alignments { input: MEMORY as usize, output: MEMORY as usize, temporary: TEMPORARY as usize },
            )
        }

        /// As version 5 has it.
        #[unsafe(no_mangle)]
        pub extern "C" fn $temporary5(
            chunks: usize,
            bytes: usize,
            options: Options,
            to: *mut usize,
            _total: usize,
        ) -> i32 {
            let refused = (version() / 1000 != 5).then_some(NOT_SUPPORTED);
            refused
                .or_else(|| $format.refuses(bytes, options))
                .unwrap_or_else(|| put(to, $format.temporary(chunks)))
        }

        /// As version 6 has it.
        #[unsafe(no_mangle)]
        pub extern "C" fn $temporary6(
            chunks: usize,
            bytes: usize,
            options: Options,
            to: *mut usize,
            _total: usize,
            _stream: u64,
        ) -> i32 {
            let refused = (version() / 1000 != 6).then_some(NOT_SUPPORTED);
            refused
                .or_else(|| $format.refuses(bytes, options))
                .unwrap_or_else(|| put(to, $format.temporary(chunks)))
        }

        /// How long the output of a chunk may be.
        #[unsafe(no_mangle)]
        pub extern "C" fn $most(bytes: usize, options: Options, to: *mut usize) -> i32 {
            $format.refuses(bytes, options).unwrap_or_else(|| put(to, $format.most(bytes)))
        }

        /// Packs a batch. All addresses are of the device.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)] // they are nvCOMP's
        pub extern "C" fn $compress(
            pointers: u64,
            sizes: u64,
            most: usize,
            chunks: usize,
            temporary: u64,
            temporary_bytes: usize,
            outputs: u64,
            packed_sizes: u64,
            options: Options,
            statuses: u64,
            stream: u64,
        ) -> i32 {
            let batch = Batch {
                pointers,
                sizes,
                most,
                chunks,
                temporary,
                temporary_bytes,
                outputs,
                packed_sizes,
                statuses,
                stream,
            };
            batch.compress($format, options)
        }
    };
}

format!(
    Format::Lz4,
    nvcompBatchedLZ4CompressGetRequiredAlignments,
    nvcompBatchedLZ4CompressGetTempSizeAsync,
    nvcompBatchedLZ4CompressGetTempSize,
    nvcompBatchedLZ4CompressGetMaxOutputChunkSize,
    nvcompBatchedLZ4CompressAsync
);
format!(
    Format::Zstd,
    nvcompBatchedZstdCompressGetRequiredAlignments,
    nvcompBatchedZstdCompressGetTempSizeAsync,
    nvcompBatchedZstdCompressGetTempSize,
    nvcompBatchedZstdCompressGetMaxOutputChunkSize,
    nvcompBatchedZstdCompressAsync
);
