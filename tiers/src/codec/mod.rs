//! How frames are packed: the codecs, and which one is worth it.
//!
//! * [`Codec`], [`Coder`], [`decode`]: what each makes of a frame, and back.
//! * [`choice`]: which makes a frame durable soonest, from what each made of a sample. Pure.
//! * [`Packer`]: takes the samples, remembers the choice, and notices when the data have changed.
//! * [`SourceChoices`]: the same for what is packed on a device, by batches.
//! * `lz4`: sections of a manifest, too.
//!
//! Called by the pipeline's workers, which share the choices, and by whatever reads frames.
//! Invariant: [`decode`] gives an error for any bytes that are no frame's, never a panic, and takes no more memory than
//! the frame has, and what a thread keeps: as much again, and 160 KiB.

pub mod choice;
mod compression;
mod lz4;
mod packer;
mod shuffle;
mod source;

pub use compression::{Compression, UnknownCompression};
pub(crate) use lz4::{compress_into, decompress};
pub use packer::{Choices, Packer};
pub use source::SourceChoices;

use std::cell::RefCell;

/// How the data of a frame is stored. The numbers stand in segments and manifests (docs/format.md).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u32)]
pub enum Codec {
    /// The pages themselves, page-aligned in the file.
    Raw = 0,
    /// One LZ4 block (without a length in front).
    Lz4 = 1,
    /// Zstandard frames, one behind the other: together the pages.
    Zstd = 2,
    /// The bytes of eight-byte words apart, then LZ4.
    ShuffleLz4 = 3,
    /// The bytes of eight-byte words apart, then Zstandard.
    ShuffleZstd = 4,
}

impl Codec {
    /// All of them, by number.
    pub const ALL: [Codec; 5] = [Codec::Raw, Codec::Lz4, Codec::Zstd, Codec::ShuffleLz4, Codec::ShuffleZstd];

    /// The codec with this number in a file.
    pub fn from_number(number: u32) -> Option<Codec> {
        Codec::ALL.into_iter().find(|codec| *codec as u32 == number)
    }
    /// What users call it.
    pub fn name(self) -> &'static str {
        match self {
            Codec::Raw => "none",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
            Codec::ShuffleLz4 => "shuffle-lz4",
            Codec::ShuffleZstd => "shuffle-zstd",
        }
    }
    fn shuffles(self) -> bool {
        matches!(self, Codec::ShuffleLz4 | Codec::ShuffleZstd)
    }
}

/// The level of Zstandard: each further one costs more time than the link saves, at the speeds of links that there are.
const ZSTD_LEVEL: i32 = 1;

/// Packs frames; keeps its memory from one to the next.
#[derive(Default)]
pub struct Coder {
    shuffled: Vec<u8>,
    out: Vec<u8>,
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

impl Coder {
    /// `raw` as `codec` stores it; `None`: it cannot, or what it makes is no shorter.
    pub fn encode<'a>(&'a mut self, codec: Codec, raw: &'a [u8]) -> Option<&'a [u8]> {
        let Coder { shuffled, out, zstd } = self;
        let mut data = raw;
        if codec.shuffles() {
            shuffled.resize(raw.len(), 0);
            shuffle::shuffle(raw, shuffled);
            data = shuffled;
        }
        let len = match codec {
            Codec::Raw => return Some(raw),
            Codec::Lz4 | Codec::ShuffleLz4 => compress_into(data, out)?,
            Codec::Zstd | Codec::ShuffleZstd => zstd_into(zstd, data, out)?,
        };
        (len < raw.len()).then(|| &out[..len])
    }
}

fn zstd_into(
    zstd: &mut Option<zstd::bulk::Compressor<'static>>,
    raw: &[u8],
    out: &mut Vec<u8>,
) -> Option<usize> {
    // A frame that does not become shorter is no use: an error for want of room is as good as that.
    if out.len() < raw.len() {
        out.resize(raw.len(), 0);
    }
    if zstd.is_none() {
        *zstd = zstd::bulk::Compressor::new(ZSTD_LEVEL).ok();
    }
    zstd.as_mut()?.compress_to_buffer(raw, &mut out[..]).ok()
}

/// What a thread keeps from one frame to the next.
#[derive(Default)]
struct Decoder {
    shuffled: Vec<u8>,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

thread_local! {
    static DECODER: RefCell<Decoder> = RefCell::default();
}

/// Unpacks into exactly `raw`.
///
/// # Errors
/// Says what is wrong with the data; never panics on any data.
pub fn decode(codec: Codec, stored: &[u8], raw: &mut [u8]) -> Result<(), String> {
    DECODER.with_borrow_mut(|decoder| decoder.decode(codec, stored, raw))
}

impl Decoder {
    fn decode(&mut self, codec: Codec, stored: &[u8], raw: &mut [u8]) -> Result<(), String> {
        let Decoder { shuffled, zstd } = self;
        if codec.shuffles() {
            shuffled.resize(raw.len(), 0);
            match codec {
                Codec::ShuffleLz4 => decompress(stored, shuffled)?,
                _ => zstd_decode(zstd, stored, shuffled)?,
            }
            shuffle::unshuffle(shuffled, raw);
            return Ok(());
        }
        match codec {
            Codec::Raw if stored.len() == raw.len() => raw.copy_from_slice(stored),
            Codec::Raw => return Err(wrong_len(stored.len(), raw.len())),
            Codec::Zstd | Codec::ShuffleZstd => zstd_decode(zstd, stored, raw)?,
            Codec::Lz4 | Codec::ShuffleLz4 => decompress(stored, raw)?,
        }
        Ok(())
    }
}

fn wrong_len(is: usize, should: usize) -> String {
    format!("the data became {is} bytes, not {should}")
}

/// libzstd writes within the slice that it is given, and keeps its window there (zstd.h, ZSTD_decompress).
fn zstd_decode(
    zstd: &mut Option<zstd::bulk::Decompressor<'static>>,
    stored: &[u8],
    raw: &mut [u8],
) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the data cannot be decompressed: {error}");
    let zstd = match zstd {
        Some(zstd) => zstd,
        none => none.insert(zstd::bulk::Decompressor::new().map_err(failed)?),
    };
    match zstd.decompress_to_buffer(stored, raw) {
        Ok(len) if len == raw.len() => Ok(()),
        Ok(len) => Err(wrong_len(len, raw.len())),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A cheap generator of bytes that do not compress.
    pub(super) fn noise(len: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut out = Vec::new();
        while out.len() < len {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            out.extend_from_slice(&state.to_le_bytes());
        }
        out
    }

    fn packed(codec: Codec, raw: &[u8]) -> Option<Vec<u8>> {
        Coder::default().encode(codec, raw).map(<[u8]>::to_vec)
    }

    #[test]
    fn numbers_and_names_are_each_one_codecs() {
        for (number, codec) in (0..).zip(Codec::ALL) {
            assert_eq!(Codec::from_number(number), Some(codec));
            let same = Codec::ALL.into_iter().filter(|other| other.name() == codec.name()).count();
            assert_eq!(same, 1);
        }
        assert_eq!(Codec::from_number(Codec::ALL.len() as u32), None);
    }

    #[test]
    fn numbers_gain_by_the_shuffle() {
        let numbers: Vec<u8> =
            (0..8192_u32).flat_map(|n| (1.0 + f64::from(n).sqrt() / 100.0).to_le_bytes()).collect();
        let len = |codec| packed(codec, &numbers).map_or(numbers.len(), |data| data.len());
        assert!(len(Codec::ShuffleLz4) < len(Codec::Lz4) * 9 / 10);
        assert!(len(Codec::ShuffleZstd) < len(Codec::Zstd) * 9 / 10);
    }

    proptest! {
        #[test]
        fn whatever_is_packed_is_unpacked_the_same(
            words in prop::collection::vec((any::<u64>(), 1..40_usize), 1..60), cut in 0..8_usize,
        ) {
            let mut raw: Vec<u8> =
                words.iter().flat_map(|(word, times)| word.to_le_bytes().repeat(*times)).collect();
            raw.truncate(raw.len() - cut);
            for codec in Codec::ALL {
                let Some(stored) = packed(codec, &raw) else { continue };
                let mut back = vec![0; raw.len()];
                decode(codec, &stored, &mut back).unwrap();
                prop_assert_eq!(&back, &raw);
                prop_assert!(decode(codec, &stored, &mut vec![0; raw.len() + 1]).is_err());
                prop_assert!(decode(codec, &stored, &mut back[1..]).is_err());
            }
        }

        #[test]
        fn hostile_bytes_are_an_error_or_other_pages_never_a_panic(
            noise in prop::collection::vec(any::<u8>(), 0..2000), len in 0..70_000_usize,
            flip in any::<prop::sample::Index>(), cut in any::<prop::sample::Index>(), value in any::<u8>(),
        ) {
            let text = b"all work and no play makes jack ".repeat(300);
            let mut raw = vec![0; len];
            for codec in Codec::ALL {
                let _ = decode(codec, &noise, &mut raw);
                // Nearly right.
                let Some(mut stored) = packed(codec, &text) else { continue };
                let at = flip.index(stored.len());
                stored[at] ^= value;
                let mut back = vec![0; text.len()];
                let _ = decode(codec, &stored, &mut back);
                stored.truncate(cut.index(stored.len()));
                prop_assert!(decode(codec, &stored, &mut back).is_err());
            }
        }
    }
}
