//! What lower tiers have of a job: all are asked at once, and each is waited for as long as the caller wants.
//!
//! Used by `fetch` and by [`super::look`]. Invariant: a tier that says nothing within the bound has failed; it is never
//! one that has nothing.

use crate::tiers::{self, Found};
use holdfast_image::Epoch;
use holdfast_tiers::stack::{TierSpec, TiersRecord};
use holdfast_tiers::tier::TierError;
use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// What a tier says.
pub struct Answer {
    /// The tier.
    pub spec: TierSpec,
    /// All that it has of jobs of this name, ascending.
    pub found: Result<Vec<Found>, TierError>,
}

/// A tier that has a version that is wanted.
pub struct Source {
    /// The tier.
    pub spec: TierSpec,
    /// The version.
    pub found: Found,
    /// All that it has of the job.
    pub versions: Vec<u64>,
}

/// Asks all of them; of the job with this id only, if it is given. `record`: what is known of them. What has not
/// answered within `bound` has failed.
pub fn ask(
    specs: &[TierSpec],
    (job, id): (&str, Option<&str>),
    record: &TiersRecord,
    bound: Option<Duration>,
) -> Vec<Answer> {
    let (tell, told) = mpsc::channel();
    let mut answers: Vec<Option<Result<Vec<Found>, TierError>>> = specs.iter().map(|_| None).collect();
    for (index, spec) in specs.iter().enumerate() {
        let (tell, spec, job, id) = (tell.clone(), spec.clone(), job.to_owned(), id.map(str::to_owned));
        let (name, record) = (spec.name(), record.clone());
        let ask = move || {
            let found = tiers::open_of_job(&spec, &record)
                .and_then(|tier| tiers::versions(&tier, &job, id.as_deref()));
            // The caller may have gone on without it.
            let _ = tell.send((index, found));
        };
        if let Err(error) = thread::Builder::new().name("ask".into()).spawn(ask) {
            answers[index] = Some(Err(TierError::Io { object: name, call: "ask", source: error }));
        }
    }
    drop(tell);
    let end = bound.map(|bound| Instant::now() + bound);
    while answers.iter().any(Option::is_none) {
        let next = match end {
            Some(end) => told.recv_timeout(end.saturating_duration_since(Instant::now())).ok(),
            None => told.recv().ok(),
        };
        let Some((index, found)) = next else { break };
        answers[index] = Some(found);
    }
    let answer = |(spec, found): (&TierSpec, Option<Result<Vec<Found>, TierError>>)| Answer {
        found: found.unwrap_or_else(|| Err(no_answer(spec, bound))),
        spec: spec.clone(),
    };
    specs.iter().zip(answers).map(answer).collect()
}

fn no_answer(spec: &TierSpec, bound: Option<Duration>) -> TierError {
    let why = format!("no answer within {} s", bound.unwrap_or_default().as_secs());
    TierError::Unavailable { object: spec.name(), why }
}

/// The tiers that have this version, or the newest that any has, the fastest first. Versions of one number in two
/// folders are of two jobs: those of the first are taken.
pub fn of(answers: &[Answer], epoch: Option<Epoch>) -> Vec<Source> {
    let mut sources = Vec::new();
    for Answer { spec, found } in answers {
        let Ok(found) = found else { continue };
        let is_wanted = |found: &&Found| epoch.is_none_or(|epoch| epoch == found.epoch);
        if let Some(wanted) = found.iter().rev().find(is_wanted).cloned() {
            let same = found.iter().filter(|other| other.id() == wanted.id());
            let versions = same.map(|found| found.epoch.0).collect();
            sources.push(Source { spec: spec.clone(), found: wanted, versions });
        }
    }
    let newest = sources.iter().map(|source| source.found.epoch).max();
    let of_newest = sources.iter().find(|source| Some(source.found.epoch) == newest);
    let id = of_newest.map(|source| source.found.id().to_owned());
    sources.retain(|s| Some(s.found.epoch) == newest && Some(s.found.id()) == id.as_deref());
    sources
}

/// All versions that are newer than this one, the newest first; of one job alone, that of the newest.
pub fn newer(answers: &[Answer], than: Option<Epoch>) -> Vec<Epoch> {
    let Some(newest) = of(answers, None).into_iter().next() else { return Vec::new() };
    let all = answers.iter().filter_map(|answer| answer.found.as_ref().ok()).flatten();
    let same = all.filter(|found| found.id() == newest.found.id()).map(|found| found.epoch);
    let numbers: BTreeSet<Epoch> = same.filter(|epoch| than.is_none_or(|than| *epoch > than)).collect();
    numbers.into_iter().rev().collect()
}
