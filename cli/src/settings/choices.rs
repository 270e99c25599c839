//! What options and `job.json` let a user choose between, each with its words.

use super::amounts::parse_size;
use holdfast_pager::CowLimit;
use holdfast_process::Saving;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// How the memory is frozen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// Chosen at each checkpoint: `copy` when little is left to store at the stop, else `fork`.
    #[default]
    Auto,
    /// Changed memory is copied while the program is stopped.
    Copy,
    /// A frozen copy of the process is flushed while the program runs on.
    Fork,
    /// Changed memory is made read-only; libholdfast copies pages into slots as they are written.
    Slots,
    /// The program is stopped until its memory is stored. For comparison.
    Sync,
}

/// The order in which pages are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OrderChoice {
    /// First the pages that the program will probably write first.
    #[default]
    History,
    /// As AI-Ckpt (HPDC'13) does it: by the last image alone, first pages that the program waited for then, then those
    /// that were copied for it, then those that it wrote after they were stored. For comparison.
    Classes,
    /// By ascending address.
    Address,
    /// The program is stopped until its memory is stored (the same as `--engine sync`). For comparison.
    Sync,
}

impl OrderChoice {
    /// The name that is recorded in an image.
    pub fn name(self) -> &'static str {
        match self {
            OrderChoice::History => "history",
            OrderChoice::Classes => "classes",
            OrderChoice::Address => "address",
            OrderChoice::Sync => "sync",
        }
    }
}

/// Most bytes copied for the program while an image is written, as `job.json` and the command line have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cow(pub CowLimit);

impl FromStr for Cow {
    type Err = String;
    fn from_str(text: &str) -> Result<Cow, String> {
        text.parse().map(Cow).map_err(|error: <CowLimit as FromStr>::Err| error.to_string())
    }
}

impl fmt::Display for Cow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Cow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cow, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Whose allocator the program uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Allocator {
    /// The jemalloc in libholdfast.
    #[default]
    Jemalloc,
    /// The program's own.
    System,
}

/// What is seen of the program's use of CUDA.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum CudaChoice {
    /// All that a checkpoint needs.
    #[default]
    Auto,
    /// Nothing: the program gets the driver's own functions, and a checkpoint is refused while it uses them.
    Off,
}

impl CudaChoice {
    /// The usual.
    #[allow(clippy::trivially_copy_pass_by_ref)] // as serde wants it
    pub fn is_auto(&self) -> bool {
        *self == CudaChoice::Auto
    }
}

/// Sizes of device memory that images do not have: the least and the most, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Skipped {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
}

impl FromStr for Skipped {
    type Err = String;

    fn from_str(text: &str) -> Result<Skipped, String> {
        let wrong =
            || format!("{text:?} is no range of sizes; write MIN..MAX, for example 1G.. or 64M..256M");
        let (least, most) = text.split_once("..").ok_or_else(wrong)?;
        let least = if least.is_empty() { 1 } else { parse_size(least)? };
        let most = if most.is_empty() { u64::MAX } else { parse_size(most)? };
        if least > most || (least, most) == (1, u64::MAX) {
            return Err(wrong());
        }
        Ok(Skipped { least, most })
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.least, self.most)
    }
}

/// Whether the program finds io_uring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum IoUringChoice {
    /// It finds none, as on a kernel without.
    #[default]
    Off,
    /// It finds the kernel's; a checkpoint is refused while it has a ring.
    Keep,
}

impl IoUringChoice {
    /// As [`Default`]: written to the settings of a job otherwise only.
    #[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
    pub fn is_off(&self) -> bool {
        *self == IoUringChoice::Off
    }
}

/// Whether the program finds Linux AIO.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AioChoice {
    /// It finds the kernel's; a checkpoint is refused while it has a context.
    #[default]
    Keep,
    /// It finds none, as on a kernel without.
    Off,
}

impl AioChoice {
    /// As [`Default`]: written to the settings of a job otherwise only.
    #[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
    pub fn is_keep(&self) -> bool {
        *self == AioChoice::Keep
    }
}

/// Who tells that this machine is about to be taken away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spot {
    /// Amazon's.
    Aws,
    /// Google's.
    Google,
    /// Microsoft's.
    Azure,
    /// A command of the user's, run by a shell: status 0 is the notice.
    Command(String),
}

impl FromStr for Spot {
    type Err = String;

    fn from_str(text: &str) -> Result<Spot, String> {
        match text {
            "aws" => Ok(Spot::Aws),
            "gcp" => Ok(Spot::Google),
            "azure" => Ok(Spot::Azure),
            _ if text.trim().is_empty() || text.contains('\0') => {
                Err("write aws, gcp, azure, or a command that ends with status 0 at the notice".to_owned())
            }
            _ => Ok(Spot::Command(text.to_owned())),
        }
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Spot::Aws => "aws",
            Spot::Google => "gcp",
            Spot::Azure => "azure",
            Spot::Command(command) => command,
        })
    }
}

impl Serialize for Spot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Spot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Spot, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// What becomes of connections to peers outside the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OutsideChoice {
    /// A checkpoint is refused and names the peer.
    #[default]
    Refuse,
    /// After a restart the program finds them closed by their peers.
    Close,
}

/// What is in the files that the program writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SaveFiles {
    /// Saved of those that it changes in place, if it is not too much.
    #[default]
    Auto,
    /// Not saved.
    None,
    /// Saved of all of them up to so many bytes, else a checkpoint is refused.
    UpTo(u64),
}

impl SaveFiles {
    /// Most bytes that are saved of all files together, if nothing else was asked for.
    pub const LIMIT: u64 = 256 << 20;

    /// In the words of the capture.
    pub fn saving(self) -> Option<Saving> {
        match self {
            SaveFiles::Auto => Some(Saving::InPlace(SaveFiles::LIMIT)),
            SaveFiles::None => None,
            SaveFiles::UpTo(limit) => Some(Saving::All(limit)),
        }
    }

    pub(super) fn is_auto(&self) -> bool {
        *self == SaveFiles::Auto
    }
}

impl FromStr for SaveFiles {
    type Err = String;
    fn from_str(text: &str) -> Result<SaveFiles, String> {
        match text {
            "auto" => Ok(SaveFiles::Auto),
            "none" => Ok(SaveFiles::None),
            _ => parse_size(text).map(SaveFiles::UpTo).map_err(|why| format!("{why}, auto or none")),
        }
    }
}

impl Serialize for SaveFiles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            SaveFiles::Auto => serializer.serialize_str("auto"),
            SaveFiles::None => serializer.serialize_str("none"),
            SaveFiles::UpTo(limit) => serializer.serialize_u64(*limit),
        }
    }
}

impl<'de> Deserialize<'de> for SaveFiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SaveFiles, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Limit(u64),
            Word(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Limit(limit) => Ok(SaveFiles::UpTo(limit)),
            Written::Word(word) => word.parse().map_err(D::Error::custom),
        }
    }
}
