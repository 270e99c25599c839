//! What the environment says: `STAND_IN_*`. Read once, by the first call that needs it; the program's environment may
//! change later. Used by all other files.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `STAND_IN_VERSION` | what `cuDriverGetVersion` says: 13000; what is newer is not found |
//! | `STAND_IN_MEMORY` | bytes of device memory, `K`, `M`, `G` behind it: 1G |
//! | `STAND_IN_DEVICE` | a folder: the processes that have the same one share a device (`shared_device.rs`) |
//! | `STAND_IN_SEED` | a number: order of threads and delays come from it; without it threads run in their order |
//! | `STAND_IN_DELAY` | longest delay before a piece of work on a stream, in microseconds: 100 |
//! | `STAND_IN_UUID` | 32 hexadecimal digits of the device: another machine has another one |
//! | `STAND_IN_RANGES` | `keep` (as newer drivers) or `drop` reserved addresses while CHECKPOINTED |
//! | `STAND_IN_LEDGER` | a file to which copies between host and device are added (`ledger.rs`) |
//! | `STAND_IN_COPY_RATE` | bytes per second of them there: 20G |
//! | `STAND_IN_MPS` | `1`: the process is a client of the Multi-Process Service |
//! | `STAND_IN_FAULT` | what goes wrong: `NAME`, `NAME@3` the third time, `@3+` from then on, `@3-5`; commas between |
//! | `STAND_IN_FAIL` | a function that fails with a code and does nothing else: `cuMemCreate:2`, and when, as above |
//! | `STAND_IN_FAIL_THREAD` | only in threads of this name, and only there it is counted |
//!
//! Fails by: `cuInit` says on standard error what it does not understand, and returns CUDA_ERROR_INVALID_VALUE. A test
//! whose faults are misspelt must not pass.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What can be made to go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// An allocation of device memory fails.
    OutOfMemory,
    /// A launch is refused by the driver.
    Launch,
    /// Lock returns when its time is over.
    LockTimeout,
    /// Lock never returns.
    LockHangs,
    /// Checkpoint fails, the process stays LOCKED.
    Checkpoint,
    /// Checkpoint never returns.
    CheckpointHangs,
    /// Restore is out of memory, and every further one fails with CUDA_ERROR_OPERATING_SYSTEM.
    Restore,
    /// Restore never returns.
    RestoreHangs,
    /// Restore puts back what the checkpoint before the last one has found: host and device of different moments.
    StaleRestore,
    /// Unlock fails, the process stays LOCKED.
    Unlock,
    /// When a process is seen to be CHECKPOINTED, another program takes all that is free on the shared device.
    Crowded,
}

const NAMES: [(&str, Fault); 11] = [
    ("out-of-memory", Fault::OutOfMemory),
    ("launch", Fault::Launch),
    ("lock-timeout", Fault::LockTimeout),
    ("lock-hangs", Fault::LockHangs),
    ("checkpoint", Fault::Checkpoint),
    ("checkpoint-hangs", Fault::CheckpointHangs),
    ("restore", Fault::Restore),
    ("restore-hangs", Fault::RestoreHangs),
    ("stale-restore", Fault::StaleRestore),
    ("unlock", Fault::Unlock),
    ("crowded", Fault::Crowded),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rule {
    fault: Fault,
    first: u64,
    last: u64,
}

/// A function that is to fail.
#[derive(Debug)]
struct Failing {
    name: String,
    code: u32,
    first: u64,
    last: u64,
    count: AtomicU64,
}

/// All of it.
#[derive(Debug)]
pub struct Settings {
    /// Of the driver's API, as `cuDriverGetVersion` has it.
    pub version: i32,
    /// Bytes of device memory.
    pub memory: u64,
    /// Who is told the same folder is on the same device.
    pub device: Option<String>,
    /// Zero: none was given.
    pub seed: u64,
    /// The longest before a piece of work.
    pub delay: Duration,
    /// Of the device.
    pub uuid: [u8; 16],
    /// The process is a client of the Multi-Process Service.
    pub mps: bool,
    /// Reserved addresses are kept while CHECKPOINTED.
    pub keep_ranges: bool,
    /// Where copies are added to.
    pub ledger: Option<String>,
    /// Bytes per second of the copy engine, as the ledger has it.
    pub copy_rate: u64,
    failing: Vec<Failing>,
    failing_thread: Option<String>,
    rules: Vec<Rule>,
    counts: [AtomicU64; NAMES.len()],
}

/// Those of this process, or what is wrong with them.
pub fn read() -> &'static Result<Settings, String> {
    static SETTINGS: OnceLock<Result<Settings, String>> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings::parse(|name| std::env::var(name).ok()))
}

/// Those of this process; what was not understood is as if it had not been said (`cuInit` has failed by then).
pub fn settings() -> &'static Settings {
    static DEFAULT: OnceLock<Settings> = OnceLock::new();
    read().as_ref().unwrap_or_else(|_| DEFAULT.get_or_init(Settings::default))
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            version: 13000,
            memory: 1 << 30,
            device: None,
            seed: 0,
            delay: Duration::from_micros(100),
            uuid: *b"Holdfast stand-0",
            mps: false,
            keep_ranges: true,
            ledger: None,
            copy_rate: 20_000_000_000,
            failing: Vec::new(),
            failing_thread: None,
            rules: Vec::new(),
            counts: Default::default(),
        }
    }
}

impl Settings {
    fn parse(value: impl Fn(&str) -> Option<String>) -> Result<Settings, String> {
        let mut it = Settings::default();
        let wrong = |name: &str, text: &str| format!("{name}={text} is not understood");
        if let Some(text) = value("STAND_IN_VERSION") {
            it.version = text.parse().map_err(|_| wrong("STAND_IN_VERSION", &text))?;
        }
        if let Some(text) = value("STAND_IN_MEMORY") {
            it.memory = bytes(&text).ok_or_else(|| wrong("STAND_IN_MEMORY", &text))?;
        }
        it.device = value("STAND_IN_DEVICE");
        if let Some(text) = value("STAND_IN_SEED") {
            it.seed = text.parse().map_err(|_| wrong("STAND_IN_SEED", &text))?;
        }
        if let Some(text) = value("STAND_IN_DELAY") {
            let micros = text.parse().map_err(|_| wrong("STAND_IN_DELAY", &text))?;
            it.delay = Duration::from_micros(micros);
        }
        if let Some(text) = value("STAND_IN_UUID") {
            it.uuid = uuid(&text).ok_or_else(|| wrong("STAND_IN_UUID", &text))?;
        }
        if let Some(text) = value("STAND_IN_RANGES") {
            it.keep_ranges = match text.as_str() {
                "keep" => true,
                "drop" => false,
                _ => return Err(wrong("STAND_IN_RANGES", &text)),
            };
        }
        it.ledger = value("STAND_IN_LEDGER");
        if let Some(text) = value("STAND_IN_COPY_RATE") {
            it.copy_rate = bytes(&text).ok_or_else(|| wrong("STAND_IN_COPY_RATE", &text))?;
        }
        if let Some(text) = value("STAND_IN_MPS") {
            it.mps = match text.as_str() {
                "1" => true,
                "0" => false,
                _ => return Err(wrong("STAND_IN_MPS", &text)),
            };
        }
        if let Some(text) = value("STAND_IN_FAULT") {
            for part in text.split(',').filter(|part| !part.is_empty()) {
                it.rules.push(rule(part).ok_or_else(|| wrong("STAND_IN_FAULT", part))?);
            }
        }
        it.failing_thread = value("STAND_IN_FAIL_THREAD");
        if let Some(text) = value("STAND_IN_FAIL") {
            for part in text.split(',').filter(|part| !part.is_empty()) {
                it.failing.push(failing(part).ok_or_else(|| wrong("STAND_IN_FAIL", part))?);
            }
        }
        Ok(it)
    }

    /// The code that this function, as `cuGetProcAddress` calls it, is to fail with now. Counts the occasion.
    pub fn fails(&self, function: &str) -> Option<u32> {
        let named = self.failing.iter().filter(|failing| failing.name == function);
        // in the order of the list, and each counts for itself
        named.fold(None, |found, failing| {
            let here = self.failing_thread.as_ref().is_none_or(|name| *name == own_thread());
            if !here {
                return found;
            }
            let occasion = failing.count.fetch_add(1, Ordering::Relaxed) + 1;
            found.or((failing.first..=failing.last).contains(&occasion).then_some(failing.code))
        })
    }

    /// Whether that can ever go wrong.
    pub fn expects(&self, fault: Fault) -> bool {
        self.rules.iter().any(|rule| rule.fault == fault)
    }

    /// Counts an occasion, and says whether it has to go wrong.
    pub fn strikes(&self, fault: Fault) -> bool {
        let Some(at) = NAMES.iter().position(|name| name.1 == fault) else { return false };
        let occasion = self.counts[at].fetch_add(1, Ordering::Relaxed) + 1;
        self.rules.iter().any(|r| r.fault == fault && (r.first..=r.last).contains(&occasion))
    }
}

fn bytes(text: &str) -> Option<u64> {
    let shift = match text.bytes().last()? {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|&n| n > 0)
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|&c| c != '-').collect();
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    let mut uuid = [0; 16];
    for (n, byte) in uuid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).ok()?;
    }
    Some(uuid)
}

/// The name of the calling thread.
fn own_thread() -> String {
    let (_, thread) = crate::system::ids();
    let path = format!("/proc/self/task/{thread}/comm");
    std::fs::read_to_string(path).map(|name| name.trim_end().to_owned()).unwrap_or_default()
}

/// What is before an `@`, and the first and the last occasion behind it.
fn when(text: &str) -> Option<(&str, u64, u64)> {
    let Some((name, when)) = text.split_once('@') else { return Some((text, 1, u64::MAX)) };
    let (first, last) = match (when.strip_suffix('+'), when.split_once('-')) {
        (Some(first), _) => (first.parse().ok()?, u64::MAX),
        (None, Some((first, last))) => (first.parse().ok()?, last.parse().ok()?),
        (None, None) => (when.parse().ok()?, when.parse().ok()?),
    };
    Some((name, first, last))
}

fn rule(text: &str) -> Option<Rule> {
    let (name, first, last) = when(text)?;
    let fault = NAMES.iter().find(|row| row.0 == name)?.1;
    Some(Rule { fault, first, last })
}

fn failing(text: &str) -> Option<Failing> {
    let (what, first, last) = when(text)?;
    let (name, code) = what.split_once(':')?;
    let code = code.parse().ok().filter(|code| *code != 0)?;
    name.starts_with("cu").then(|| Failing {
        name: name.to_owned(),
        code,
        first,
        last,
        count: AtomicU64::new(0),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::parse(|name| pairs.iter().find(|p| p.0 == name).map(|p| p.1.to_string()))
    }

    #[test]
    fn faults_strike_when_they_are_told_to() {
        let it = of(&[("STAND_IN_FAULT", "out-of-memory@2,restore@2+,unlock")]).unwrap();
        let strikes = |fault| [(); 4].map(|()| it.strikes(fault));
        assert_eq!(strikes(Fault::OutOfMemory), [false, true, false, false]);
        assert_eq!(strikes(Fault::Restore), [false, true, true, true]);
        assert_eq!(strikes(Fault::Unlock), [true; 4]);
        assert_eq!(strikes(Fault::LockHangs), [false; 4]);
    }

    #[test]
    fn functions_fail_when_they_are_told_to() {
        let it = of(&[("STAND_IN_FAIL", "cuMemCreate:2@2-3,cuMemMap:999,cuMemCreate:1@4")]).unwrap();
        let of = |name| [(); 5].map(|()| it.fails(name));
        assert_eq!(of("cuMemCreate"), [None, Some(2), Some(2), Some(1), None]);
        assert_eq!(of("cuMemMap"), [Some(999); 5]);
        assert_eq!(of("cuMemUnmap"), [None; 5]);
        let other = super::Settings::parse(|name| match name {
            "STAND_IN_FAIL" => Some("cuMemMap:2".into()),
            "STAND_IN_FAIL_THREAD" => Some("nobody".into()),
            _ => None,
        });
        assert_eq!(other.unwrap().fails("cuMemMap"), None);
    }

    #[test]
    fn what_is_misspelt_is_an_error() {
        for pair in [
            ("STAND_IN_FAULT", "oom"),
            ("STAND_IN_FAULT", "restore@x"),
            ("STAND_IN_FAIL", "cuMemCreate"),
            ("STAND_IN_FAIL", "cuMemCreate:0"),
            ("STAND_IN_FAIL", "out-of-memory:2"),
            ("STAND_IN_MEMORY", "0"),
            ("STAND_IN_MEMORY", "G"),
            ("STAND_IN_UUID", "12"),
            ("STAND_IN_RANGES", "maybe"),
            ("STAND_IN_VERSION", "13.0"),
        ] {
            assert!(of(&[pair]).is_err(), "{pair:?}");
        }
        let it = of(&[("STAND_IN_MEMORY", "64M"), ("STAND_IN_UUID", "00010203-0405-0607-0809-0a0b0c0d0e0f")]);
        assert_eq!(it.as_ref().unwrap().memory, 64 << 20);
        assert_eq!(it.unwrap().uuid[15], 15);
    }
}
