//! The tiers of one job: memory, if it has that, the store, and those below, the fastest first.
//!
//! Made where a command line, a configuration or `job.json` is read; every command and the agent ask it which tiers a
//! job has. Pure. Invariants: memory comes first, and once; no place is there twice; the store is always there.

use super::place::Place;
use super::plan::LocalRules;
use super::spec::TierSpec;
use crate::policy::Retention;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobTiers {
    memory: Option<TierSpec>,
    store: TierSpec,
    lower: Vec<TierSpec>,
}

impl Default for JobTiers {
    fn default() -> JobTiers {
        JobTiers { memory: None, store: TierSpec::new(Place::Store), lower: Vec::new() }
    }
}

impl JobTiers {
    /// Those that are named, in this order.
    ///
    /// # Errors
    /// A tier is named twice, memory not first, or one that has no images: a log.
    pub fn of(specs: &[TierSpec]) -> Result<JobTiers, String> {
        let mut tiers = JobTiers::default();
        for (at, spec) in specs.iter().enumerate() {
            let name = spec.name();
            if specs[..at].iter().any(|other| other.place == spec.place) {
                return Err(format!("tier {name} is given twice"));
            }
            match spec.place {
                Place::Memory(_) if at > 0 => {
                    return Err(format!("tier {name} has to be named first, and once: it is the fastest"));
                }
                Place::Memory(_) => tiers.memory = Some(spec.clone()),
                Place::Store => tiers.store = spec.clone(),
                Place::At(_) => tiers.lower.push(spec.clone()),
                Place::Log(_) => return Err(format!("tier {name}: {}", Place::NO_IMAGES)),
            }
        }
        Ok(tiers)
    }

    /// Whether there is nothing but a store without rules.
    pub fn is_empty(&self) -> bool {
        *self == JobTiers::default()
    }

    /// Memory above the store.
    pub fn memory(&self) -> Option<&TierSpec> {
        self.memory.as_ref()
    }

    /// The store itself, with its rules.
    pub fn store(&self) -> &TierSpec {
        &self.store
    }

    /// The tiers below the store.
    pub fn lower(&self) -> &[TierSpec] {
        &self.lower
    }

    /// Whether images move by themselves after a commit.
    pub fn move_down(&self) -> bool {
        self.memory.is_some() || !self.lower.is_empty()
    }

    /// All, the fastest first.
    pub fn all(&self) -> impl Iterator<Item = &TierSpec> {
        self.memory.iter().chain([&self.store]).chain(&self.lower)
    }

    /// The tier at this place, with its rules.
    pub fn at(&self, place: &Place) -> Option<&TierSpec> {
        self.all().find(|spec| spec.place == *place)
    }

    /// These, and the lower ones that only `others` have; without any of their own the others.
    #[must_use]
    pub fn or(self, others: &JobTiers) -> JobTiers {
        if self.is_empty() {
            return others.clone();
        }
        let missing: Vec<TierSpec> =
            others.lower.iter().filter(|spec| self.at(&spec.place).is_none()).cloned().collect();
        JobTiers { lower: self.lower.iter().cloned().chain(missing).collect(), ..self }
    }

    /// The rules of the store; `keep`: of a job that names none for it.
    pub fn store_rules(&self, keep: Option<u64>) -> LocalRules {
        let Retention { keep: own, max_bytes, .. } = self.store.rules;
        LocalRules { keep: own.or(keep), max_bytes }
    }
}

impl Serialize for JobTiers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_said = |spec: &&TierSpec| !spec.is_store() || spec.rules != Retention::default();
        serializer.collect_seq(self.all().filter(is_said))
    }
}

impl<'de> Deserialize<'de> for JobTiers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JobTiers, D::Error> {
        let specs = Vec::<TierSpec>::deserialize(deserializer)?;
        JobTiers::of(&specs).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn tiers(words: &[&str]) -> Result<JobTiers, String> {
        let specs: Vec<TierSpec> = words.iter().map(|word| word.parse().unwrap()).collect();
        JobTiers::of(&specs)
    }

    #[test]
    fn each_tier_has_its_place() {
        let all = tiers(&["memory,keep=2", "dir=/nvme", "local,max=1G", "s3://b/p,every=4"]).unwrap();
        assert_eq!(
            all.all().map(TierSpec::to_string).collect::<Vec<_>>(),
            ["memory,keep=2", "local,max=1G", "dir=/nvme", "s3://b/p,every=4"]
        );
        assert!(all.move_down() && !all.is_empty());
        let rules = LocalRules { keep: Some(3), max_bytes: Some(1 << 30) };
        assert_eq!(all.store_rules(Some(3)), rules);
        assert_eq!(tiers(&["local,keep=1"]).unwrap().store_rules(Some(3)).keep, Some(1));
        assert_eq!(all.at(&Place::parse("/nvme").unwrap()).unwrap().name(), "dir=/nvme");
        let json = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<JobTiers>(&json).unwrap(), all);
        assert_eq!(serde_json::to_string(&JobTiers::default()).unwrap(), "[]");
        assert!(!tiers(&["local,keep=1"]).unwrap().move_down());
    }

    #[test]
    fn what_only_others_have_is_added() {
        let own = tiers(&["local,keep=1", "dir=/a,keep=2"]).unwrap();
        let others = tiers(&["memory", "dir=/b", "dir=/a,keep=9"]).unwrap();
        assert_eq!(own.or(&others), tiers(&["local,keep=1", "dir=/a,keep=2", "dir=/b"]).unwrap());
        assert_eq!(JobTiers::default().or(&others), others);
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for words in
            [&["dir=/x", "/x,keep=1"][..], &["dir=/x", "memory"], &["memory", "memory=/y"], &["log=/x"]]
        {
            assert!(tiers(words).is_err(), "{words:?}");
        }
    }
}
