//! Whether what a job has of the protection of an image is still there, as far as lengths tell; `verify` reads it.
//!
//! Called by `list`, `show` and `verify`. Nothing is changed. Fails by: words.

use holdfast_tiers::Job;
use holdfast_tiers::redundancy::{SetState, lacks};

/// Why a set that was whole at all members, and what its image needs besides, is not whole in this job, if so. `epoch`:
/// the number of the job's image; `all`: the job's sets, which are read once for all images.
pub fn why_not_whole((job, all): (&Job, &[SetState]), epoch: u64, set: &str) -> Option<String> {
    let own = find(all, set).ok_or_else(|| gone(job, all, Some(epoch)));
    let own = match own.and_then(|own| lacks(job, own).map(|()| own).map_err(|why| why.to_string())) {
        Ok(own) => own,
        Err(why) => return Some(why),
    };
    let needs = own.file.iter().flat_map(|file| file.own()).flat_map(|own| &own.needs);
    needs.map(|need| find(all, need).ok_or_else(|| gone(job, all, None))).find_map(|found| match found {
        Ok(found) => lacks(job, found).err().map(|why| why.to_string()),
        Err(why) => Some(why),
    })
}

fn find<'a>(all: &'a [SetState], set: &str) -> Option<&'a SetState> {
    all.iter().find(|one| one.file.as_ref().is_ok_and(|file| file.set == set))
}

/// A set is not there: one whose group file is damaged may be it.
fn gone(job: &Job, all: &[SetState], epoch: Option<u64>) -> String {
    let may_be = |one: &&SetState| epoch.is_none_or(|epoch| epoch == one.number);
    let damaged = all.iter().filter(may_be).find_map(|one| one.file.as_ref().err());
    damaged.map_or_else(|| format!("job {} has nothing of its set", job.name()), ToString::to_string)
}
