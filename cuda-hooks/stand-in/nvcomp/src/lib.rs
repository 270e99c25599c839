//! nvCOMP's batched compression without a GPU, for the tests of Holdfast. Never shipped.
//!
//! Packs memory of whatever driver of CUDA the process has loaded, through the driver's API, on the processor: LZ4
//! blocks and Zstandard frames, as the vendor says of the low-level interface. Names, arguments, statuses and limits
//! are those of the headers of nvCOMP 5.0.0.6 and 6.0.0.12 (lz4.h, zstd.h, shared_types.h); of decompression
//! there is nothing, for Holdfast unpacks on the processor. Kinder than the true one in this alone: a call waits for
//! what is on the stream before it.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `NVCOMP_STAND_IN_VERSION` | as nvcompGetProperties says it: 6000 |
//! | `NVCOMP_STAND_IN_FAULT` | `status`: half of the chunks fail; `size`: sizes that cannot be; `launch`: calls fail |
//!
//! Fails by: nvcompStatus_t.

mod api;
mod driver;
