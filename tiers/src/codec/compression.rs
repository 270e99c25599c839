//! How frames are to be packed, as a user says it.

use super::Codec;
use std::fmt;
use std::str::FromStr;

/// How frames are to be packed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Compression {
    /// By the codec that makes them durable soonest.
    #[default]
    Auto,
    /// By this one, unless a frame becomes hardly shorter by it.
    By(Codec),
}

/// A word that names no codec.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no codec: auto, none, lz4, zstd, shuffle-lz4 or shuffle-zstd")]
pub struct UnknownCompression(String);

impl FromStr for Compression {
    type Err = UnknownCompression;
    fn from_str(word: &str) -> Result<Compression, UnknownCompression> {
        let codec = Codec::ALL.into_iter().find(|codec| codec.name() == word).map(Compression::By);
        let auto = (word == "auto").then_some(Compression::Auto);
        auto.or(codec).ok_or_else(|| UnknownCompression(word.to_owned()))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Compression::Auto => "auto",
            Compression::By(codec) => codec.name(),
        })
    }
}
