//! A tier as the user names it: `ADDRESS[,keep=N][,every=N][,max=SIZE][,rate=SIZE/s]`, or
//! `log=/FOLDER[,max=SIZE][,full=drop|keep][,wait=SECONDS]`.
//!
//! Read from the command line, from `job.json` and, by parts, from configuration files. Pure.
//! Invariant: there is no password in an address: credentials come from the environment and its files, so that none
//! reaches `job.json`, a listing or a log.

use super::place::Place;
use crate::policy::Retention;
use holdfast_image::size::{self, Size};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A tier and its rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TierSpec {
    /// Where it is.
    pub place: Place,
    /// What it takes and keeps.
    pub rules: Retention,
    /// Most bytes per second towards it, for all jobs of the user on this host together; none: as fast as it goes.
    pub rate: Option<u64>,
    /// What happens in a log that is full; none: [`Full::Drop`].
    pub full: Option<Full>,
    /// For how many seconds a put into a full log waits for a consumer; none: it does not.
    pub wait_s: Option<u64>,
}

/// What happens in a log that is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Full {
    /// The oldest version goes that nothing needs.
    Drop,
    /// A put fails.
    Keep,
}

impl Full {
    /// As users write it.
    pub fn text(self) -> &'static str {
        match self {
            Full::Drop => "drop",
            Full::Keep => "keep",
        }
    }
}

impl TierSpec {
    /// A tier without rules.
    pub fn new(place: Place) -> TierSpec {
        TierSpec { place, rules: Retention::default(), rate: None, full: None, wait_s: None }
    }

    /// Whether this is a log.
    pub fn is_log(&self) -> bool {
        matches!(self.place, Place::Log(_))
    }

    /// Whether this is the store itself, where only rules can be given.
    pub fn is_store(&self) -> bool {
        self.place == Place::Store
    }

    /// Whether this is memory, above the store.
    pub fn is_memory(&self) -> bool {
        matches!(self.place, Place::Memory(_))
    }

    /// How listings, records and messages call it.
    pub fn name(&self) -> String {
        self.place.to_string()
    }

    /// Sets one rule: `keep`, `every`, `max` or `rate`; of a log `max`, `full` or `wait`.
    ///
    /// # Errors
    /// Says what is accepted.
    pub fn set(&mut self, rule: &str, value: &str) -> Result<(), String> {
        match rule {
            "keep" | "every" | "rate" if self.is_log() => {
                return Err(format!(
                    "{rule}= is of images, which do not go into a log (memory is for them); write max=SIZE, \
                     full=drop, full=keep or wait=SECONDS"
                ));
            }
            "full" if self.is_log() => {
                let known = [Full::Drop, Full::Keep].into_iter().find(|known| known.text() == value);
                let wrong =
                    || format!("full={value}: drop (the oldest versions go) or keep (a put fails) is needed");
                self.full = Some(known.ok_or_else(wrong)?);
            }
            "wait" if self.is_log() => {
                let wrong = |_| format!("wait={value}: a number of seconds is needed");
                self.wait_s = Some(value.parse().map_err(wrong)?);
            }
            "keep" => self.rules.keep = Some(count(rule, value)?),
            "every" if self.is_store() => {
                return Err("every= is for lower tiers: local has all images".into());
            }
            "every" | "rate" if self.is_memory() => {
                return Err(format!(
                    "{rule}= is for lower tiers: memory takes each image as fast as it goes"
                ));
            }
            "every" => self.rules.every = Some(count(rule, value)?),
            "max" => self.rules.max_bytes = Some(bytes(value)?),
            "rate" if self.is_store() => return Err("rate= is for lower tiers: see `run --rate`".into()),
            "rate" => self.rate = Some(bytes(value.strip_suffix("/s").unwrap_or(value))?),
            _ => {
                return Err(format!(
                    "{rule:?} is no rule of a tier; write keep=N, every=N, max=SIZE or rate=SIZE/s"
                ));
            }
        }
        Ok(())
    }
}

fn count(rule: &str, value: &str) -> Result<u64, String> {
    match value.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{rule}={value}: a number from 1 on is needed; without {rule}= all are kept")),
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; write bytes, for example 64M, 200G or 2T");
    if size::lacks_unit(text) {
        return Err(format!("{text} has no unit, and would be bytes; write {text}M or {text}G"));
    }
    size::parse(text).filter(|&bytes| bytes > 0).ok_or_else(wrong)
}

impl FromStr for TierSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<TierSpec, String> {
        let mut parts = text.split(',');
        let mut spec = TierSpec::new(Place::parse(parts.next().unwrap_or_default())?);
        for part in parts {
            let (rule, value) = part.split_once('=').unwrap_or((part, ""));
            spec.set(rule, value).map_err(|why| format!("{text:?}: {why}"))?;
        }
        Ok(spec)
    }
}

impl fmt::Display for TierSpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(out)?;
        let numbers = [("keep", self.rules.keep), ("every", self.rules.every)];
        for (rule, value) in numbers.into_iter().filter_map(|(rule, value)| Some((rule, value?))) {
            write!(out, ",{rule}={value}")?;
        }
        let sizes = [("max", self.rules.max_bytes), ("rate", self.rate)];
        for (rule, value) in sizes.into_iter().filter_map(|(rule, value)| Some((rule, value?))) {
            write!(out, ",{rule}={}", Size(value))?;
        }
        if let Some(full) = self.full {
            write!(out, ",full={}", full.text())?;
        }
        self.wait_s.map_or(Ok(()), |wait| write!(out, ",wait={wait}"))
    }
}

impl Serialize for TierSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TierSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TierSpec, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<TierSpec, String> {
        text.parse()
    }

    #[test]
    fn a_tier_is_an_address_and_rules() {
        let spec = read("dir=/pfs/me,keep=8,every=4,max=200G,rate=50M/s").unwrap();
        assert_eq!(spec.name(), "dir=/pfs/me");
        let rules = Retention { keep: Some(8), every: Some(4), max_bytes: Some(200 << 30) };
        assert_eq!((spec.rules, spec.rate), (rules, Some(50 << 20)));
        assert_eq!(spec.to_string(), "dir=/pfs/me,keep=8,every=4,max=200G,rate=50M");
        assert_eq!(read(&spec.to_string()).unwrap(), spec);
        assert_eq!(read("s3://bucket/prefix").unwrap().to_string(), "s3://bucket/prefix");
        assert_eq!(read("dir=/x,max=1000K").unwrap().to_string(), "dir=/x,max=1000K");
        assert!(read("local,keep=2,max=1T").unwrap().is_store());
        let memory = read("memory=/mnt/pmem,keep=2,max=1G").unwrap();
        assert_eq!(memory.place, Place::Memory(Some("/mnt/pmem".into())));
        assert!(read("memory").unwrap().is_memory());
        let log = read("log=/dev/shm/x,max=512M,full=keep,wait=5").unwrap();
        assert_eq!((log.rules.max_bytes, log.full, log.wait_s), (Some(512 << 20), Some(Full::Keep), Some(5)));
        assert_eq!(log.to_string(), "log=/dev/shm/x,max=512M,full=keep,wait=5");
        assert_eq!(read("log=/x,full=drop").unwrap().to_string(), "log=/x,full=drop");
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for text in [
            "",
            ",keep=1",
            "dir=/x,keep",
            "dir=/x,keep=0",
            "dir=/x,every=-1",
            "dir=/x,max=lots",
            "dir=/x,max=0",
            "dir=/x,max=1000",
            "dir=/x,max=99999999T",
            "dir=/x,speed=3",
            "local,every=2",
            "local,rate=1M",
            "memory,every=2",
            "memory=/mnt,rate=1M",
            "memory,full=drop",
            "log=/x,keep=2",
            "log=/x,every=2",
            "log=/x,rate=1M",
            "log=/x,full=all",
            "log=/x,wait=-1",
            "s3://me:secret@bucket/prefix",
            "http://host/x?token=secret",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
        assert!(!read("s3://me:secret@bucket/prefix").unwrap_err().contains("secret"));
    }
}
