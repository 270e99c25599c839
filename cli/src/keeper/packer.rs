//! Packs chunks of a GPU cache on their device, before they come over the link to the host: by nvCOMP, where a user has
//! installed it.
//!
//! Used by [`super::blocks`]. nvCOMP is loaded when it is first wanted, behind the program's back: `HOLDFAST_NVCOMP`
//! names the library (`none`: there is to be none), else the loader looks for it. Its workspace is a gap in the cache.
//! Invariants: what is packed is in formats that the processor unpacks; one chunk of sixteen is unpacked here and
//! compared with its digest, another sixteenth in each batch. Fails by: words, after which it is not to be asked
//! again; what it was to pack stays as it is.

use crate::cuda::caller;
use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_cuda_kernels::digest::{Digest, Keys, digest};
use holdfast_image::pages::SourceCodec;
use holdfast_sys::cuda_memory::Device;
use holdfast_sys::fault;
use holdfast_sys::nvcomp::{Chunk, Format, Nvcomp, NvcompError};
use holdfast_tiers::codec::{Codec, decode};
use std::env;
use std::ops::Range;
use std::path::Path;

/// Which library.
pub const VARIABLE: &str = "HOLDFAST_NVCOMP";
/// There is to be none.
pub const NONE: &str = "none";
/// Names that the loader may know: of the versions that are known, the newer one first.
const NAMES: [&str; 2] = ["libnvcomp.so.6", "libnvcomp.so.5"];
/// Fewer chunks are not worth the trouble, where there is no room for more.
const FEWEST: usize = 8;
/// One chunk of so many is compared.
const SAMPLED: usize = 16;
const SIZE: usize = CHUNK as usize;

/// A chunk in a cache.
#[derive(Clone, Copy, Debug)]
pub struct Cached {
    /// Where on the device.
    pub at: u64,
    /// What it was when it was taken.
    pub digest: Digest,
}

/// Chunks of a device, and the keys of their digests.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// The device.
    pub device: &'a Device,
    /// See there.
    pub keys: &'a Keys,
    /// What is to be packed.
    pub chunks: &'a [Cached],
}

/// See the head of the file.
#[derive(Default)]
pub struct Packer {
    nvcomp: Option<Nvcomp>,
    /// What a batch has needed, most of all.
    workspace: u64,
    batches: usize,
}

/// Loads nvCOMP, as the environment says.
///
/// # Errors
/// There is none, or none that is known; in words.
pub fn load() -> Result<Nvcomp, String> {
    let loaded = |name: &str| Nvcomp::load(Path::new(name)).map_err(|error| error.to_string());
    match env::var(VARIABLE) {
        Ok(name) if name == NONE => Err(format!("{VARIABLE} is {NONE}")),
        Ok(name) if !name.is_empty() => {
            if Path::new(&name).is_absolute() {
                caller::trust(Path::new(&name))?;
            }
            loaded(&name)
        }
        _ => loaded(NAMES[0]).or_else(|_| loaded(NAMES[1])),
    }
}

impl Packer {
    /// Bytes that should be free beside the chunks; 0: nothing was packed yet.
    pub fn workspace(&self) -> u64 {
        self.workspace
    }

    /// Packs chunks into the ring, one behind the other: how many bytes each has become, as many as it has: it is as
    /// it was. Where there is no room for all of them now these are the first ones, or none. `room` gives that many
    /// bytes of the device, which nothing else uses.
    ///
    /// # Errors
    /// See the head of the file.
    pub fn pack(
        &mut self,
        batch: &Batch<'_>,
        codec: SourceCodec,
        room: &mut dyn FnMut(u64) -> Option<u64>,
        ring: &mut [u8],
    ) -> Result<Vec<u32>, String> {
        let Batch { device, keys, mut chunks } = *batch;
        let nvcomp = match self.nvcomp.take() {
            Some(nvcomp) => nvcomp,
            None => load()?,
        };
        let nvcomp = self.nvcomp.insert(nvcomp);
        let (format, codec) = match codec {
            SourceCodec::Lz4 => (Format::Lz4, Codec::Lz4),
            SourceCodec::Zstd => (Format::Zstd, Codec::Zstd),
        };
        let words = |error: NvcompError| error.to_string();
        device.enter_context().map_err(|error| error.to_string())?;
        let (plan, workspace) = loop {
            let plan = nvcomp.plan(format, chunks.len(), SIZE, 0).map_err(words)?;
            self.workspace = self.workspace.max(plan.bytes());
            if let Some(workspace) = room(plan.bytes()) {
                break (plan, workspace);
            }
            if chunks.len() < 2 * FEWEST {
                return Ok(Vec::new());
            }
            chunks = &chunks[..chunks.len() / 2];
        };
        let of_device: Vec<Chunk> =
            chunks.iter().map(|chunk| Chunk { address: chunk.at, bytes: SIZE }).collect();
        let packed = device.pack(nvcomp, &plan, workspace, &of_device)?;
        // What has not become shorter comes from where it is.
        let places: Vec<Range<u64>> = packed
            .into_iter()
            .zip(chunks)
            .map(|(place, chunk)| {
                place.map_or(chunk.at..chunk.at + CHUNK, |place| {
                    workspace + place.start..workspace + place.end
                })
            })
            .collect();
        device.to_host_all(&places, ring).map_err(|error| error.to_string())?;
        self.batches += 1;
        check(keys, chunks, &places, codec, ring, self.batches)?;
        Ok(places.iter().map(|place| (place.end - place.start) as u32).collect())
    }
}

/// Unpacks a sample of a batch, and compares it with what was taken.
fn check(
    keys: &Keys,
    chunks: &[Cached],
    places: &[Range<u64>],
    codec: Codec,
    ring: &mut [u8],
    batch: usize,
) -> Result<(), String> {
    let mut at = 0;
    let mut packed = Vec::new();
    for (chunk, place) in chunks.iter().zip(places) {
        let len = (place.end - place.start) as usize;
        if len < SIZE {
            packed.push((chunk, at..at + len));
        }
        at += len;
    }
    let first = batch % SAMPLED.min(packed.len().max(1));
    let mut raw = vec![0; SIZE];
    for (chunk, place) in packed.into_iter().skip(first).step_by(SAMPLED) {
        let len = place.len();
        let packed = &mut ring[place];
        if fault::is_asked("other-packed-chunk") {
            packed[len / 2] ^= 1;
        }
        let is_right = decode(codec, packed, &mut raw).is_ok() && digest(keys, &raw) == chunk.digest;
        if !is_right {
            return Err(format!(
                "nvCOMP has made {len} bytes of a chunk that are not its content any more: what it was to pack stays \
                 as it is"
            ));
        }
    }
    Ok(())
}
