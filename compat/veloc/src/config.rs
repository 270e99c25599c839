//! VELOC's configuration: an INI file, of which each key may be an environment variable VELOC_KEY instead.
//!
//! Keys that mean nothing here are accepted, and said once.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What there is in VELOC, and has no effect here, with the reason.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("persistent_interval", "every version goes to the persistent path"),
    ("ec_interval", "there are no erasure codes yet"),
    ("watchdog_interval", "the server sees the end of a client at once"),
    ("failure_domain", "there are no erasure codes yet"),
    ("axl_type", "the server copies"),
    ("chksum", "there always are checksums"),
    ("meta", "checksums are beside the data"),
    ("threaded", "the server is a process of its own"),
    ("aggregated", "the store has its own files"),
    ("max_parallelism", "the server knows its tiers"),
    ("daos_pool", "a persistent path is used"),
    ("daos_cont", "a persistent path is used"),
    ("log_prefix", "messages are on standard error and in the server's log"),
];

/// What is configured.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The store.
    pub scratch: PathBuf,
    /// The tier below it.
    pub persistent: Option<PathBuf>,
    /// A checkpoint's end waits until it is on disk.
    pub is_sync: bool,
    /// So many versions are kept at the persistent path; 0: all.
    pub max_versions: u64,
    /// So many in the store; 0: as many as there.
    pub scratch_versions: u64,
    /// What has no effect.
    pub notes: Vec<String>,
}

impl Config {
    /// Of the text of a file, and the environment.
    ///
    /// # Errors
    /// What is missing or wrong.
    pub fn parse(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Config, String> {
        let file = keys(text)?;
        let value = |key: &str| {
            let said = variable(&format!("VELOC_{}", key.to_uppercase())).or_else(|| file.get(key).cloned());
            said.filter(|value| !value.is_empty())
        };
        let number = |key: &str| match value(key) {
            None => Ok(0),
            Some(text) => {
                text.parse().map_err(|_| format!("{key} = {text}: a number of versions is expected"))
            }
        };
        let is_sync = match value("mode").as_deref() {
            Some("sync") => true,
            Some("async") => false,
            other => return Err(format!("mode = {}: sync or async is expected", other.unwrap_or(""))),
        };
        let ours = ["scratch", "persistent", "mode", "max_versions", "scratch_versions"];
        let without = WITHOUT_EFFECT.iter().filter(|(key, _)| value(key).is_some());
        let unknown = file.keys().filter(|key| {
            !ours.contains(&key.as_str()) && WITHOUT_EFFECT.iter().all(|(known, _)| known != key)
        });
        let notes = without.map(|(key, why)| format!("{key} has no effect: {why}"));
        let notes = notes.chain(unknown.map(|key| format!("{key} is not known"))).collect();
        Ok(Config {
            scratch: value("scratch").ok_or("scratch = DIR is missing: the folder of the store")?.into(),
            persistent: value("persistent").map(PathBuf::from),
            is_sync,
            max_versions: number("max_versions")?,
            scratch_versions: number("scratch_versions")?,
            notes,
        })
    }

    /// How many versions stay in the store; `None`: all.
    pub fn keep(&self) -> Option<u64> {
        [self.scratch_versions, self.max_versions].into_iter().find(|versions| *versions > 0)
    }

    /// Addresses of the lower tiers.
    pub fn tiers(&self) -> Vec<String> {
        let keep = if self.max_versions > 0 { format!(",keep={}", self.max_versions) } else { String::new() };
        self.persistent.iter().map(|path| format!("dir={}{keep}", path.display())).collect()
    }
}

fn keys(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut keys = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split(" ;").next().unwrap_or("").trim();
        if line.is_empty() || line.starts_with([';', '#', '[']) {
            continue;
        }
        let (key, value) =
            line.split_once(['=', ':']).ok_or(format!("line {number}: KEY = VALUE is expected"))?;
        keys.insert(key.trim().to_lowercase(), value.trim().to_owned());
    }
    Ok(keys)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_veloc_is_understood() {
        let text = "; of a program\nscratch = /dev/shm/me\npersistent=/pfs/me ; slow\n\nmode = async\n\
                    max_versions = 3\naxl_type = default\nodd = 1\n";
        let config = Config::parse(text, |_| None).unwrap();
        assert_eq!((config.scratch.as_path(), config.is_sync), ("/dev/shm/me".as_ref(), false));
        assert_eq!((config.keep(), config.tiers()), (Some(3), vec!["dir=/pfs/me,keep=3".to_owned()]));
        assert_eq!(config.notes, ["axl_type has no effect: the server copies", "odd is not known"]);
        let variable = |name: &str| match name {
            "VELOC_SCRATCH" => Some("/other".to_owned()),
            "VELOC_MODE" => Some("sync".to_owned()),
            "VELOC_SCRATCH_VERSIONS" => Some("2".to_owned()),
            _ => None,
        };
        let config = Config::parse(text, variable).unwrap();
        assert_eq!(
            (config.scratch.as_path(), config.is_sync, config.keep()),
            ("/other".as_ref(), true, Some(2))
        );
        assert!(Config::parse("", variable).is_ok());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("mode = sync", "scratch"),
            ("scratch = /s", "mode"),
            ("scratch = /s\nmode = later", "later"),
            ("scratch = /s\nmode = sync\nmax_versions = many", "many"),
            ("scratch", "line 1"),
        ] {
            let error = Config::parse(text, |_| None).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
