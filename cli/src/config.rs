//! Configuration files: `config.toml` in the store, else the one that `HOLDFAST_CONFIG` names, or without that in
//! `$XDG_CONFIG_HOME/holdfast` (`~/.config` without it).
//!
//! ```toml
//! compress = "zstd"          # as run --compress
//! max_space = "50G"          # as `run --max-space`
//! [tiers.local]              # the store itself
//! keep = 2
//! [tiers.pfs]                # any name; the order in the file is that of the tiers
//! address = "dir=/pfs/me"
//! keep = 8
//! every = 4
//! max = "200G"
//! rate = "50M"
//! ```
//! Read by `run`, and by whatever needs the tiers of a job that is not here. Invariants: a key that is not known is an
//! error that names file and line: a rule that is misspelled must not be one that is not there. A file that others
//! may change says nothing: images come from where it says. In the home folder of another user (`sudo -E`) that is
//! said, once, and the command goes on without; a file that was named is used whatever its owner.

use crate::exit::{Exit, Failure};
use crate::report;
use crate::settings::parse_size;
use holdfast_tiers::Store;
use holdfast_tiers::codec::Compression;
use holdfast_tiers::stack::{self, TierSpec};
use holdfast_tiers::trust::{self, Untrusted};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Longest file that is read, bytes.
const MOST: u64 = 1 << 20;

/// A whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    #[serde(deserialize_with = "read_compression")]
    compress: Option<Compression>,
    tiers: Tiers,
    /// See `run --max-space`.
    max_space: Option<MaxSpace>,
}

/// A number of bytes, as on the command line.
#[derive(Clone, Copy, Debug)]
struct MaxSpace(u64);

impl<'de> Deserialize<'de> for MaxSpace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MaxSpace, D::Error> {
        parse_size(&String::deserialize(deserializer)?).map(MaxSpace).map_err(D::Error::custom)
    }
}

fn read_compression<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Compression>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(D::Error::custom)
}

/// The table of tiers, in the order of the file.
#[derive(Debug, Default)]
struct Tiers(Vec<TierSpec>);

/// One of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    address: Option<String>,
    keep: Option<u64>,
    every: Option<u64>,
    max: Option<String>,
    rate: Option<String>,
}

impl<'de> Deserialize<'de> for Tiers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tiers, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = Tiers;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a table of tiers, for example [tiers.pfs] with address = \"dir=/pfs/me\"")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tiers, A::Error> {
                let mut tiers = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    let rules: Rules = map.next_value()?;
                    let spec =
                        spec(&name, &rules).map_err(|why| A::Error::custom(format!("tier {name}: {why}")))?;
                    tiers.push(spec);
                }
                Ok(Tiers(tiers))
            }
        }
        deserializer.deserialize_map(Table)
    }
}

fn spec(name: &str, rules: &Rules) -> Result<TierSpec, String> {
    let place = match &rules.address {
        Some(address) => stack::Place::parse(address)?,
        None if stack::Place::is_store(name) => stack::Place::Store,
        None => return Err("it needs address = \"...\", for example \"dir=/pfs/me\"".into()),
    };
    if let stack::Place::Log(_) = place {
        return Err(format!("{}; there is one for each job: `run --tier {place}`", stack::Place::NO_IMAGES));
    }
    let mut spec = TierSpec::new(place);
    let numbers = [("keep", rules.keep), ("every", rules.every)];
    for (rule, value) in numbers.into_iter().filter_map(|(rule, value)| Some((rule, value?))) {
        spec.set(rule, &value.to_string())?;
    }
    let sizes = [("max", &rules.max), ("rate", &rules.rate)];
    for (rule, value) in sizes.into_iter().filter_map(|(rule, value)| Some((rule, value.as_ref()?))) {
        spec.set(rule, value)?;
    }
    Ok(spec)
}

/// The tiers that the configuration of this store, or else that of the user, names.
///
/// # Errors
/// A file cannot be read, or is wrong.
pub fn tiers(store: &Store) -> Result<Vec<TierSpec>, Failure> {
    let found = first(store, |config| (!config.tiers.0.is_empty()).then_some(config.tiers.0))?;
    Ok(found.unwrap_or_default())
}

/// How pages are to be compressed, if the configuration of this store, or else that of the user, says so.
///
/// # Errors
/// A file cannot be read, or is wrong.
pub fn compression(store: &Store) -> Result<Option<Compression>, Failure> {
    first(store, |config| config.compress)
}

/// The bound on a job's space in the store that they name.
///
/// # Errors
/// A file cannot be read, or is wrong.
pub fn max_space(store: &Store) -> Result<Option<u64>, Failure> {
    first(store, |config| config.max_space.map(|max| max.0))
}

/// What the first file has of it that has any.
fn first<T>(store: &Store, get: impl Fn(Config) -> Option<T>) -> Result<Option<T>, Failure> {
    let of_store =
        Source { path: store.root().join("config.toml"), place: Place::Below(store.root().to_owned()) };
    for source in std::iter::once(of_store).chain(user_file()) {
        let Some(text) = source.read()? else { continue };
        let found = get(parse(&source.path, &text)?);
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// A file that may be there.
struct Source {
    path: PathBuf,
    place: Place,
}

/// Why it is looked for.
enum Place {
    /// It was named.
    Named,
    /// It is in the usual place, below this folder.
    Usual(PathBuf),
    /// It is in the store.
    Below(PathBuf),
}

fn user_file() -> Option<Source> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = variable("HOLDFAST_CONFIG") {
        return Some(Source { path, place: Place::Named });
    }
    // The XDG base directory specification: a relative path in such a variable is to be ignored.
    let config = variable("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let home = || std::env::home_dir().filter(|home| home.is_absolute());
    let usual = |top: PathBuf, folder: PathBuf| Source {
        path: folder.join("holdfast/config.toml"),
        place: Place::Usual(top),
    };
    config
        .map(|config| usual(config.clone(), config))
        .or_else(|| home().map(|home| usual(home.clone(), home.join(".config"))))
}

impl Source {
    /// Its text, if it is there and may be used.
    fn read(&self) -> Result<Option<String>, Failure> {
        let path = self.path.display();
        let failed = |error: &io::Error| Failure::system(format_args!("reading {path}"), error);
        let is_named = matches!(self.place, Place::Named);
        if !is_named
            && std::fs::metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        {
            return Ok(None);
        }
        let untrusted = match &self.place {
            Place::Named => Ok(None),
            Place::Usual(top) | Place::Below(top) => trust::judge(&self.path, top),
        };
        let text = match untrusted {
            Ok(None) => self.text(),
            Ok(Some(Untrusted::Anothers(why))) if matches!(self.place, Place::Usual(_)) => {
                return Ok(self.pass_over(&why));
            }
            Ok(Some(Untrusted::Anothers(why) | Untrusted::Open(why))) => {
                let why = format!("{path} is not used, because it decides which images are restarted: {why}");
                return Err(Failure::new(Exit::Permission, why));
            }
            Err(error) => Err(error),
        };
        match (text, &self.place) {
            (Ok(Some(text)), _) => Ok(Some(text)),
            (Ok(None), _) => Err(Failure::new(Exit::Usage, format!("{path}: this is no configuration file"))),
            (Err(error), Place::Usual(_)) if error.kind() == io::ErrorKind::PermissionDenied => {
                Ok(self.pass_over(&error.to_string()))
            }
            (Err(error), _) => Err(failed(&error)),
        }
    }

    /// `None`: it is no file of text, or too long.
    fn text(&self) -> io::Result<Option<String>> {
        let meta = std::fs::metadata(&self.path)?;
        if !meta.is_file() || meta.len() > MOST {
            return Ok(None);
        }
        std::fs::read_to_string(&self.path).map(Some)
    }

    /// Says once that it is not used.
    fn pass_over(&self, why: &str) -> Option<String> {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            report::warn(&format!(
                "warning: {} is not used: {why}; HOLDFAST_CONFIG=FILE names the one to use",
                self.path.display()
            ));
        });
        None
    }
}

fn parse(path: &Path, text: &str) -> Result<Config, Failure> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text.as_bytes()[..before].iter().filter(|&&c| c == b'\n').count() + 1;
        let message = error.message().trim().replace('\n', "; ");
        Failure::new(Exit::Usage, format!("{}: line {line}: {message}", path.display()))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>, String> {
        let config = parse(Path::new("/x/config.toml"), text).map_err(|failure| failure.message)?;
        Ok(config.tiers.0.iter().map(TierSpec::to_string).collect())
    }

    #[test]
    fn tiers_come_in_the_order_of_the_file() {
        let text = "\
            [tiers.scratch]\naddress = \"dir=/scratch\"\nkeep = 8\n\
            [tiers.archive]\naddress = \"s3://bucket/prefix\"\nevery = 4\nmax = \"200G\"\nrate = \"50M\"\n\
            [tiers.local]\nkeep = 2\n";
        let expected =
            ["dir=/scratch,keep=8", "s3://bucket/prefix,every=4,max=200G,rate=50M", "local,keep=2"];
        assert_eq!(read(text).unwrap(), expected);
        assert!(read("").unwrap().is_empty() && read("[tiers]\n").unwrap().is_empty());
    }

    #[test]
    fn compression_is_a_word_or_not_there() {
        let read = |text| parse(Path::new("/x"), text).unwrap().compress.map(|compress| compress.to_string());
        assert_eq!(read("compress = \"shuffle-lz4\"\n[tiers.local]\n").as_deref(), Some("shuffle-lz4"));
        assert_eq!(read("[tiers.local]\n"), None);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, line, word) in [
            ("[tiers.a]\naddress = \"dir=/x\"\nkep = 2\n", 3, "kep"),
            ("\n[tires.a]\n", 2, "tires"),
            ("[tiers.a]\nkeep = 2\n", 1, "address"),
            ("[tiers.a]\naddress = \"dir=/x\"\nkeep = \"two\"\n", 3, "two"),
            ("[tiers.a]\naddress = \"dir=/x\"\nmax = \"lots\"\n", 1, "lots"),
            ("[tiers.a]\naddress = \"s3://a:b@c/d\"\n", 1, "credentials"),
            ("tiers = 3\n", 1, "table"),
            ("\ncompress = \"brotli\"\n", 2, "brotli"),
            ("[tiers.a\n", 1, ""),
        ] {
            let message = read(text).unwrap_err();
            let begin = format!("/x/config.toml: line {line}: ");
            assert!(message.starts_with(&begin) && message.contains(word), "{text}: {message}");
        }
    }
}
