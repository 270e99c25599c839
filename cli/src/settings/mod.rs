//! What a job is run with: kept in `job.json`, so that a restart goes on with the same settings, and handed to the
//! agent.
//!
//! Invariants: plain data; a file that does not parse is an error that names it, never a default.

mod amounts;
mod choices;
mod export;
mod gang_place;
mod planned;
mod signal_names;

use crate::earlier::Earlier;
use crate::exit::{Exit, Failure};
use clap::ValueEnum;
use holdfast_image::bytes::Name;
use holdfast_image::control::Wishes;
use holdfast_image::processor::CpuLevel;
use holdfast_tiers::Job;
use holdfast_tiers::codec::{Codec, Compression, UnknownCompression};
use holdfast_tiers::stack::{JobTiers, LocalRules, TierSpec};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use amounts::{parse_duration, parse_rate, parse_seconds, parse_size, parse_wait};
pub use choices::{
    AioChoice, Allocator, Cow, CudaChoice, EngineChoice, IoUringChoice, OrderChoice, OutsideChoice,
    SaveFiles, Skipped, Spot,
};
pub use export::{Export, allowed, parse_export};
pub use gang_place::{GangChoice, GangPlace, member_job, parse_gang};
pub use planned::{Every, Planned};
pub use signal_names::{parse_any_signal, parse_on, parse_signal, signal_name};

fn is_auto(compression: &Compression) -> bool {
    *compression == Compression::Auto
}

fn write_compression<S: Serializer>(compression: &Compression, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(compression)
}

/// Earlier versions wrote only whether pages were to be stored as they are.
fn read_compression<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Compression, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        None(bool),
        Word(String),
    }
    match Written::deserialize(deserializer)? {
        Written::None(false) => Ok(Compression::Auto),
        Written::None(true) => Ok(Compression::By(Codec::Raw)),
        Written::Word(word) => word.parse().map_err(D::Error::custom),
    }
}

/// Settings of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Time between two checkpoints, seconds; none: only on request.
    pub every_s: Option<u64>,
    /// That time is planned anew after each image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<Planned>,
    /// Newest images to keep, older ones are deleted after each commit; none: all are kept.
    pub keep: Option<usize>,
    /// Of so many of the last days that have images the newest stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_daily: Option<u64>,
    /// Most bytes that the job's images may have in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_space: Option<u64>,
    /// How memory is frozen.
    pub engine: EngineChoice,
    /// What is flushed first.
    pub order: OrderChoice,
    /// Most bytes copied for the program while an image is written.
    pub cow: Cow,
    /// Most device memory for what has changed and is not in the image yet; none: as the environment says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_cache: Option<Cow>,
    /// Most bytes stored in a second, after compression, before the stop and after it; none: as fast as it goes.
    pub rate: Option<u64>,
    /// Whose malloc.
    pub malloc: Allocator,
    /// What is seen of the program's use of CUDA.
    #[serde(skip_serializing_if = "CudaChoice::is_auto")]
    pub cuda: CudaChoice,
    /// Which device memory images do not have, by the size of an allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_skip: Option<Skipped>,
    /// Whether the program finds io_uring.
    #[serde(skip_serializing_if = "IoUringChoice::is_off")]
    pub io_uring: IoUringChoice,
    /// Whether it finds Linux AIO.
    #[serde(skip_serializing_if = "AioChoice::is_keep")]
    pub aio: AioChoice,
    /// Store program text and libraries too.
    pub self_contained: bool,
    /// What the program is told to keep to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_baseline: Option<CpuLevel>,
    /// Store protected regions only.
    pub only_protected: bool,
    /// How frames are packed.
    #[serde(
        alias = "no_compress",
        serialize_with = "write_compression",
        deserialize_with = "read_compression",
        skip_serializing_if = "is_auto"
    )]
    pub compress: Compression,
    /// What is in the files that the program writes.
    #[serde(skip_serializing_if = "SaveFiles::is_auto")]
    pub save_files: SaveFiles,
    /// Small files that the program has written and closed are saved, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rollback_files: bool,
    /// Connections to peers outside.
    #[serde(rename = "tcp")]
    pub outside: OutsideChoice,
    /// The signal that asks for a checkpoint.
    pub signal: Option<i32>,
    /// The signal that asks for a checkpoint and the end of the program.
    pub stop_signal: Option<i32>,
    /// Who tells that this machine goes: then an image is taken, and the program ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_spot: Option<Spot>,
    /// A program that cannot be protected any more is ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// A failure is followed by a restart (`--restart-on-failure`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub supervised: bool,
    /// Run by a shell after each image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_after: Option<String>,
    /// Tiers: the rules of the first, and those below it, the fastest first.
    #[serde(skip_serializing_if = "JobTiers::is_empty")]
    pub tiers: JobTiers,
    /// Where the logs of its streams are, and what they are like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<TierSpec>,
    /// Which member of a gang it is, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangPlace>,
}

/// Options that change how images are made, each only if it was given: of `restart` for the rest of the job, of
/// `checkpoint` for one image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::Args)]
pub struct Changes {
    /// How memory is frozen [default: as the job was started]
    #[arg(long, value_enum)]
    pub engine: Option<EngineChoice>,
    /// The order in which pages are stored [default: as the job was started]
    #[arg(long, value_enum)]
    pub order: Option<OrderChoice>,
    /// Most memory for copies of pages that the program writes while an image is stored: 5%, 256M or none [default: as
    /// the job was started]
    #[arg(long, value_name = "LIMIT")]
    pub cow: Option<Cow>,
    /// Compression of pages: auto, none, lz4, zstd, shuffle-lz4 or shuffle-zstd [default: as the job was started]
    #[arg(long, value_name = "auto|none|CODEC")]
    pub compress: Option<Compression>,
    /// Connections to peers outside, TCP and unix: refuse the checkpoint, or close the connections at the restart
    /// [default: as the job was started]
    #[arg(long, alias = "tcp", value_enum)]
    pub outside: Option<OutsideChoice>,
}

impl Changes {
    /// Reads them from a request to the agent.
    ///
    /// # Errors
    /// Names what is not understood.
    pub fn of_wishes(wishes: &Wishes) -> Result<Changes, String> {
        fn choice<T: ValueEnum>(option: &str, word: Option<&String>) -> Result<Option<T>, String> {
            word.map(|word| T::from_str(word, false).map_err(|_| format!("{option} {word:?} is not known")))
                .transpose()
        }
        let codec = |error: UnknownCompression| error.to_string();
        Ok(Changes {
            engine: choice("engine", wishes.engine.as_ref())?,
            order: choice("order", wishes.order.as_ref())?,
            cow: wishes.cow.as_ref().map(|text| text.parse()).transpose()?,
            compress: wishes.compress.as_ref().map(|text| text.parse()).transpose().map_err(codec)?,
            outside: choice("outside", wishes.outside.as_ref())?,
        })
    }
    /// The request to the agent.
    pub fn wishes(&self) -> Wishes {
        fn word<T: ValueEnum>(choice: Option<T>) -> Option<String> {
            choice.and_then(|choice| Some(choice.to_possible_value()?.get_name().to_owned()))
        }
        Wishes {
            engine: word(self.engine),
            order: word(self.order),
            cow: self.cow.map(|limit| limit.to_string()),
            compress: self.compress.map(|compression| compression.to_string()),
            outside: word(self.outside),
            signal: None,
        }
    }
}

impl Settings {
    /// Which images the store keeps.
    pub fn store_rules(&self) -> LocalRules {
        // Of all but the newest, and those of days.
        let keep = self.keep.or(self.keep_daily.map(|_| 1));
        self.tiers.store_rules(keep.and_then(|keep| u64::try_from(keep).ok()))
    }

    /// These settings with some of them changed.
    #[must_use]
    pub fn with(&self, changes: &Changes) -> Settings {
        Settings {
            engine: changes.engine.unwrap_or(self.engine),
            order: changes.order.unwrap_or(self.order),
            cow: changes.cow.unwrap_or(self.cow),
            compress: changes.compress.unwrap_or(self.compress),
            outside: changes.outside.unwrap_or(self.outside),
            ..self.clone()
        }
    }
    /// Whether the program is stopped until its memory is stored.
    pub fn is_sync(&self) -> bool {
        self.engine == EngineChoice::Sync || self.order == OrderChoice::Sync
    }
}

/// Content of `job.json`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Recipe {
    /// The command line as given.
    pub command: Vec<Name>,
    /// Working folder in which it was given.
    pub cwd: Name,
    /// CLOCK_REALTIME of the start, nanoseconds: tells the run from others of the job.
    pub created_ns: u64,
    /// Settings.
    pub settings: Settings,
    /// Names the job's folder in lower tiers; empty in jobs that never had any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// It has the name that it was given for want of one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unnamed: bool,
    /// What there was when this run began.
    #[serde(default, skip_serializing_if = "Earlier::is_none")]
    pub earlier: Earlier,
}

impl Recipe {
    /// Reads the job's recipe.
    ///
    /// # Errors
    /// The file is missing or does not parse.
    pub fn read(job: &Job) -> Result<Recipe, Failure> {
        serde_json::from_value(job.recipe()?).map_err(|error| {
            let path = job.dir().join("job.json");
            Failure::new(
                Exit::BadImage,
                format!("{}: {error}; another program has changed the file", path.display()),
            )
        })
    }
    /// Writes it.
    ///
    /// # Errors
    /// Of the store.
    pub fn write(&self, job: &Job) -> Result<(), Failure> {
        let value = serde_json::to_value(self)
            .map_err(|error| Failure::new(Exit::Internal, format!("encoding job.json: {error}")))?;
        job.write_recipe(&value).map_err(Failure::from)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn changes_survive_the_way_to_the_agent() {
        for changes in [
            Changes::default(),
            Changes {
                engine: Some(EngineChoice::Copy),
                order: Some(OrderChoice::Address),
                cow: Some("256M".parse().unwrap()),
                compress: Some(Compression::By(Codec::Zstd)),
                outside: Some(OutsideChoice::Close),
            },
            Changes { cow: Some("none".parse().unwrap()), ..Changes::default() },
            Changes { compress: Some("shuffle-zstd".parse().unwrap()), ..Changes::default() },
        ] {
            assert_eq!(Changes::of_wishes(&changes.wishes()).unwrap(), changes);
        }
        assert!(Changes::default().wishes().is_none());
        let wishes = Wishes { engine: Some("steam".into()), ..Wishes::default() };
        assert!(Changes::of_wishes(&wishes).unwrap_err().contains("steam"));
        assert!(Changes::of_wishes(&Wishes { cow: Some("much".into()), ..Wishes::default() }).is_err());
        let wishes = Wishes { compress: Some("brotli".into()), ..Wishes::default() };
        assert!(Changes::of_wishes(&wishes).unwrap_err().contains("brotli"));
    }

    #[test]
    fn changes_change_nothing_else() {
        let settings = Settings { keep: Some(3), order: OrderChoice::Address, ..Settings::default() };
        assert_eq!(settings.with(&Changes::default()), settings);
        let changed = settings.with(&Changes { engine: Some(EngineChoice::Fork), ..Changes::default() });
        assert_eq!(changed, Settings { engine: EngineChoice::Fork, ..settings.clone() });
        assert!(!changed.is_sync());
        assert!(Settings { order: OrderChoice::Sync, ..settings }.is_sync());
    }

    #[test]
    fn settings_survive_job_json() {
        for cow in ["5%", "256M", "none", "0"] {
            let settings =
                Settings { cow: cow.parse().unwrap(), rate: Some(55 << 20), ..Settings::default() };
            let text = serde_json::to_string(&settings).unwrap();
            assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings, "{text}");
        }
        assert!(serde_json::from_str::<Settings>(r#"{"cow": "much"}"#).is_err());
        for (text, save_files) in [
            (r#"{"save_files": 7}"#, SaveFiles::UpTo(7)),
            (r#"{"save_files": "none"}"#, SaveFiles::None),
            ("{}", SaveFiles::Auto),
        ] {
            let settings: Settings = serde_json::from_str(text).unwrap();
            assert_eq!(settings.save_files, save_files);
            let again = serde_json::to_string(&settings).unwrap();
            assert_eq!(serde_json::from_str::<Settings>(&again).unwrap(), settings, "{again}");
        }
        assert!("much".parse::<SaveFiles>().is_err());
        for (text, compress) in [
            (r#"{"compress": "zstd"}"#, Compression::By(Codec::Zstd)),
            // As versions before wrote it.
            (r#"{"no_compress": true}"#, Compression::By(Codec::Raw)),
            (r#"{"no_compress": false}"#, Compression::Auto),
        ] {
            let settings: Settings = serde_json::from_str(text).unwrap();
            assert_eq!(settings.compress, compress);
            let again = serde_json::to_string(&settings).unwrap();
            assert_eq!(serde_json::from_str::<Settings>(&again).unwrap(), settings, "{again}");
        }
        assert!(serde_json::from_str::<Settings>(r#"{"compress": "brotli"}"#).is_err());
    }

    #[test]
    fn settings_of_an_older_version_are_read() {
        let read: Settings = serde_json::from_str(r#"{"every_s": 5}"#).unwrap();
        assert_eq!(read, Settings { every_s: Some(5), ..Settings::default() });
    }
}
