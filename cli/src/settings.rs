//! What a job is run with: kept in `job.json`, so that a restart goes on with the same settings, and handed to the
//! agent.
//!
//! Invariants: plain data; a file that does not parse is an error that names it, never a default.

use crate::exit::{Exit, Failure};
use crate::same_run::Earlier;
use clap::ValueEnum;
use holdfast_image::PAGE_SIZE;
use holdfast_image::bytes::Name;
use holdfast_image::control::Wishes;
use holdfast_image::processor::CpuLevel;
use holdfast_image::size;
use holdfast_pager::CowLimit;
use holdfast_process::Saving;
use holdfast_tiers::Job;
use holdfast_tiers::codec::{Codec, Compression, UnknownCompression};
use holdfast_tiers::stack::{JobTiers, LocalRules};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

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

/// What becomes of TCP connections to peers outside the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TcpChoice {
    /// A checkpoint is refused and names the peer.
    #[default]
    Refuse,
    /// After a restart the program finds them reset by their peers.
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

    fn is_auto(&self) -> bool {
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
    /// TCP connections to peers outside.
    pub tcp: TcpChoice,
    /// The signal that asks for a checkpoint.
    pub signal: Option<i32>,
    /// The signal that asks for a checkpoint and the end of the program.
    pub stop_signal: Option<i32>,
    /// A program that cannot be protected any more is ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Run by a shell after each image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_after: Option<String>,
    /// Tiers: the rules of the first, and those below it, the fastest first.
    #[serde(skip_serializing_if = "JobTiers::is_empty")]
    pub tiers: JobTiers,
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
    /// TCP connections to peers outside: refuse the checkpoint, or close the connections at the restart [default: as
    /// the job was started]
    #[arg(long, value_enum)]
    pub tcp: Option<TcpChoice>,
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
            tcp: choice("tcp", wishes.tcp.as_ref())?,
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
            tcp: word(self.tcp),
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
            tcp: changes.tcp.unwrap_or(self.tcp),
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

/// As [`parse_duration`], or none: `0`.
///
/// # Errors
/// Says what is accepted.
pub fn parse_wait(text: &str) -> Result<Duration, String> {
    if matches!(text, "0" | "0s") { Ok(Duration::ZERO) } else { parse_duration(text) }
}

/// Parses `30s`, `10m`, `1h`, `2d`, `90` (seconds) and sums such as `1h30m`.
///
/// # Errors
/// Says what is accepted.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write 30s, 10m, 1h or 1h30m");
    let mut total = 0_u64;
    let mut rest = text;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit = rest.chars().next();
        let seconds = match unit {
            Some('s') => 1,
            None if total == 0 => 1,
            Some('m') => 60,
            Some('h') => 3600,
            Some('d') => 86400,
            _ => return Err(wrong()),
        };
        rest = &rest[unit.map_or(0, char::len_utf8)..];
        total = number.checked_mul(seconds).and_then(|n| n.checked_add(total)).ok_or_else(wrong)?;
    }
    if total == 0 { Err("the duration must be at least 1s".into()) } else { Ok(Duration::from_secs(total)) }
}

/// Parses a rate in bytes per second: `55M`, `1G`, `500K` (powers of 1024 each) or plain bytes.
///
/// # Errors
/// Says what is accepted.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a rate; write bytes per second, for example 55M or 1G");
    match size::parse(text) {
        Some(_) if size::lacks_unit(text) => Err(without_unit(text)),
        Some(rate) if rate >= PAGE_SIZE => Ok(rate),
        Some(_) => Err(format!("the rate {text} is below one page per second")),
        None => Err(wrong()),
    }
}

/// Reads a number of bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    if size::lacks_unit(text) {
        return Err(without_unit(text));
    }
    size::parse(text).ok_or_else(|| format!("{text:?} is not a size; write bytes, for example 64M or 2G"))
}

fn without_unit(text: &str) -> String {
    format!("{text} has no unit, and would be bytes; write {text}M or {text}G (or {text}K)")
}

const SIGNALS: &[(&str, i32)] = &[
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CONT", libc::SIGCONT),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("PWR", libc::SIGPWR),
];

/// Parses a signal that may ask for a checkpoint: `USR1`, `SIGUSR1` or a number.
///
/// # Errors
/// Says what is accepted.
pub fn parse_signal(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let number = name.parse::<i32>().ok();
    SIGNALS
        .iter()
        .find(|(known, value)| *known == name || number == Some(*value))
        .map(|&(_, value)| value)
        .or(number.filter(|n| (34..=64).contains(n)))
        .ok_or_else(|| {
            let names: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
            format!(
                "{text:?} is not a signal that can ask for a checkpoint; use one of {}, 34 to 64",
                names.join(", ")
            )
        })
}

/// Parses any signal that may be sent: `KILL`, `SIGKILL` or a number.
///
/// # Errors
/// Says what is accepted.
pub fn parse_any_signal(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let number = name.parse::<i32>().ok().filter(|number| (1..=64).contains(number));
    let known = SIGNALS.iter().chain(OTHER_SIGNALS).find(|(known, _)| *known == name);
    known
        .map(|&(_, value)| value)
        .or(number)
        .ok_or_else(|| format!("{text:?} is not a signal; write TERM, KILL or a number"))
}

/// Parses `TERM=checkpoint-stop`.
///
/// # Errors
/// Says what is accepted.
pub fn parse_on(text: &str) -> Result<i32, String> {
    match text.split_once('=') {
        Some((signal, "checkpoint-stop")) => parse_signal(signal),
        _ => Err(format!("{text:?} is not SIGNAL=checkpoint-stop, for example TERM=checkpoint-stop")),
    }
}

/// Those that ask for nothing, but end programs.
const OTHER_SIGNALS: &[(&str, i32)] = &[
    ("KILL", libc::SIGKILL),
    ("SEGV", libc::SIGSEGV),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("ILL", libc::SIGILL),
    ("PIPE", libc::SIGPIPE),
    ("SYS", libc::SIGSYS),
    ("TRAP", libc::SIGTRAP),
    ("XFSZ", libc::SIGXFSZ),
];

/// The name of a signal, for messages.
pub fn signal_name(signal: i32) -> String {
    SIGNALS
        .iter()
        .chain(OTHER_SIGNALS)
        .find(|(_, value)| *value == signal)
        .map_or_else(|| format!("signal {signal}"), |(name, _)| format!("SIG{name}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, seconds) in
            [("30s", 30), ("10m", 600), ("1h", 3600), ("90", 90), ("1h30m", 5400), ("2d", 172_800)]
        {
            assert_eq!(parse_duration(text).unwrap().as_secs(), seconds, "{text}");
        }
        for text in [
            "",
            "0",
            "0s",
            "m",
            "-1s",
            "10x",
            "1.5h",
            "1h 5m",
            "99999999999999999999s",
            "9999999999999999999h",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn signals() {
        assert_eq!(parse_signal("USR1").unwrap(), libc::SIGUSR1);
        assert_eq!(parse_signal("sigterm").unwrap(), libc::SIGTERM);
        assert_eq!(parse_signal("12").unwrap(), libc::SIGUSR2);
        assert_eq!(parse_signal("40").unwrap(), 40);
        for text in ["KILL", "STOP", "9", "SEGV", "0", "65", "", "CHLD"] {
            assert!(parse_signal(text).is_err(), "{text}");
        }
        assert_eq!(parse_on("TERM=checkpoint-stop").unwrap(), libc::SIGTERM);
        assert!(parse_on("TERM=stop").is_err());
        assert!(parse_on("TERM").is_err());
    }

    #[test]
    fn rates() {
        assert_eq!(parse_rate("55M").unwrap(), 55 << 20);
        assert_eq!(parse_rate("1g").unwrap(), 1 << 30);
        assert_eq!(parse_rate("4K").unwrap(), 4096);
        assert_eq!(parse_rate("1048576").unwrap(), 1 << 20);
        assert!(parse_rate("55").unwrap_err().contains("55M"));
        for text in ["", "M", "-1M", "1.5M", "55MB", "4096", "3K", "0", "99999999999G"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn changes_survive_the_way_to_the_agent() {
        for changes in [
            Changes::default(),
            Changes {
                engine: Some(EngineChoice::Copy),
                order: Some(OrderChoice::Address),
                cow: Some("256M".parse().unwrap()),
                compress: Some(Compression::By(Codec::Zstd)),
                tcp: Some(TcpChoice::Close),
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
