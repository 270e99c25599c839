//! Members whose hosts have stores of their own agree, before a restart, on the image of the gang that they restart;
//! what a host has lost of it is rebuilt of what others have ([`super::guard`]).
//!
//! Called by the process that `holdfast restart` asks (`commands/meet.rs`), which holds the lock of the member's job.
//! The members meet as they do for a run; each says of which images it has its part, and the leader says which one it
//! is. Invariants: an image that is agreed on is whole at every member, as far as manifests and the lengths of segments
//! tell; all members hear the same. Fails by: what is missing, of whom, on which host.

use super::folder::GangFolder;
use super::gather::gather;
use super::guard::encode::Desk;
use super::guard::peers::{Peers, Where};
use super::guard::repair::{self, HasSet};
use super::guard::shelf::Shelf;
use super::image::{Found, GangImage};
use super::key::Key;
use super::seat::{FIRST_ROUND, Seat};
use super::waiting::{Meanwhile, Plan};
use crate::exit::{Exit, Failure};
use crate::settings::{GangPlace, Recipe};
use holdfast_tiers::{Job, JobLock, Store};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Phases of the meeting, beside those of checkpoints and restarts.
const HEARD: u32 = 100;
const AGREED: u32 = 101;
const REBUILT: u32 = 102;
const PROTECTED: u32 = 103;
const LEFT: u32 = 104;
/// How long the slowest member may rebuild its part.
const REBUILDING: Duration = Duration::from_secs(4 * 3600);
/// How long the slowest member may look at its images.
const LOOKING: Duration = Duration::from_secs(600);
/// How long the leader may be gone before it is known that all have heard it.
const LEAVING: Duration = Duration::from_secs(10);

/// What a member says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Own {
    /// The start of its job's last run; none: its host has nothing of the job.
    run_ns: Option<u64>,
    /// Images of the gang: why its part cannot be used, if so.
    images: BTreeMap<u64, Option<String>>,
    /// Where others may read what it has.
    addresses: Vec<String>,
    /// Sets that it has all of.
    sets: Vec<HasSet>,
}

/// What the leader says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Agreed {
    /// The image.
    pub image: u64,
    /// Why newer ones are not it, and other words to the user.
    pub whys: Vec<String>,
    /// Members whose parts are rebuilt.
    #[serde(default)]
    pub lost: Vec<u32>,
}

/// Why there is none: exit code and words.
pub type NotAgreed = (Exit, String);

/// A member that meets the others, and its job with the lock.
pub struct Met<'a> {
    /// Who meets whom.
    pub plan: Plan<'a>,
    /// Its job.
    pub job: &'a Job,
    /// That of the job.
    pub lock: &'a JobLock,
}

/// Meets the others, and agrees with them on the image that was asked for, or on the newest one of the last run. What
/// this member lacks of it is there then.
///
/// # Errors
/// A member did not come, or there is no such image.
pub fn agree(
    met: &Met<'_>,
    wanted: Option<u64>,
    meanwhile: &Meanwhile<'_>,
) -> Result<Result<Agreed, NotAgreed>, Failure> {
    let (store, place) = (met.plan.store, met.plan.place);
    let seat = gather(&met.plan, meanwhile)?;
    let Some(folder) = GangFolder::open(store, &place.name)? else {
        return Err(Failure::new(Exit::NotFound, format!("the folder of gang {} was removed", place.name)));
    };
    let images = images_of(&folder, place)?;
    let key = folder.key()?;
    let shelf = Shelf::new(met.job, &key)?;
    let own = own(store, place, &images, &shelf);
    let said: Vec<Own> = meet(&seat, (HEARD, "told of its images"), &own, LOOKING)?;
    let hosts = seat.hosts();
    let choice = place.is_leader().then(|| choose(&place.name, &images, (&said, &hosts), wanted));
    let heard: Vec<Option<Result<Agreed, NotAgreed>>> = meet(&seat, (AGREED, "agreed"), &choice, LOOKING)?;
    let none = || Failure::new(Exit::Internal, "the leader has not said which image of the gang it is");
    let mut agreed = heard.into_iter().next().flatten().ok_or_else(none)?;
    if let Ok(Agreed { image, whys, lost }) = &mut agreed
        && !lost.is_empty()
    {
        let Some(Ok(image)) = images.get(image) else { return Err(none()) };
        match rebuild(met, (&seat, &key), image, (&said, lost), meanwhile)? {
            Ok(told) => whys.extend(told),
            Err(why) => agreed = Err((Exit::BadImage, why)),
        }
    }
    // Who has heard it may leave; the leader last, for its end would end what is on its way.
    let _ = seat.meet((FIRST_ROUND, LEFT, "leaving"), &[], LEAVING);
    seat.end(FIRST_ROUND);
    if place.is_leader() {
        folder.withdraw();
    }
    Ok(agreed)
}

/// What is lost is rebuilt: all wait for it. What is to be told; or why it was not.
///
/// # Errors
/// A member was lost meanwhile.
fn rebuild(
    met: &Met<'_>,
    (seat, key): (&Seat, &Key),
    image: &GangImage,
    (said, lost): (&[Own], &[u32]),
    meanwhile: &Meanwhile<'_>,
) -> Result<Result<Vec<String>, String>, Failure> {
    let (member, hosts) = (met.plan.place.member, seat.hosts());
    let is_wanted = || (meanwhile.is_over)().is_none();
    let desk = Desk { job: met.job, lock: met.lock, is_wanted: &is_wanted };
    let all: Vec<&[HasSet]> = said.iter().map(|own| own.sets.as_slice()).collect();
    let where_of = |((number, own), host): ((u32, &Own), &String)| {
        (number, Where { host: host.clone(), addresses: own.addresses.clone() })
    };
    let at = (0_u32..).zip(said).zip(&hosts).map(where_of).collect();
    let mut peers =
        Peers::new(key, seat.host().to_owned(), at).map_err(|why| Failure::new(Exit::Internal, why))?;
    let own = lost.contains(&member).then(|| {
        (meanwhile.say)(format!("rebuilding image {} of what other hosts have of it", image.image));
        repair::rebuild(&desk, image, member, &all, &mut peers)
    });
    let result: Result<u64, String> = own.clone().map_or(Ok(0), |done| done.map(|(bytes, _)| bytes));
    let results: Vec<Result<u64, String>> =
        meet(seat, (REBUILT, "done with rebuilding"), &result, REBUILDING)?;
    let named = |at: usize| format!("member {at} on {}", hosts.get(at).map_or("", String::as_str));
    let failed = results.iter().enumerate().find_map(|(at, result)| Some((at, result.as_ref().err()?)));
    if let Some((at, why)) = failed {
        let (number, gang) = (image.image, &image.gang);
        return Ok(Err(format!(
            "image {number} of gang {gang}: what {} lacks is not rebuilt: {why}",
            named(at)
        )));
    }
    let sets = own.and_then(Result::ok).map(|(_, sets)| sets).unwrap_or_default();
    let again = repair::protect_again(&desk, &sets, &mut peers);
    let again: Vec<Option<String>> = meet(seat, (PROTECTED, "protected again"), &again, REBUILDING)?;
    let told = lost.iter().filter_map(|member| {
        let at = usize::try_from(*member).ok()?;
        let bytes = crate::report::size(*results.get(at)?.as_ref().ok()?);
        Some(format!("image {}: {bytes} of {} were rebuilt of what other hosts have", image.image, named(at)))
    });
    let unprotected = again.iter().enumerate().filter_map(|(at, why)| {
        Some(format!("image {} is not protected again: {}: {}", image.image, named(at), why.as_ref()?))
    });
    Ok(Ok(told.chain(unprotected).collect()))
}

/// Says something to all members, and hears what each has said.
fn meet<T: Serialize, H: DeserializeOwned>(
    seat: &Seat,
    (phase, name): (u32, &str),
    own: &T,
    within: Duration,
) -> Result<Vec<H>, Failure> {
    let text = serde_json::to_vec(own).map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let met = seat.meet((FIRST_ROUND, phase, name), &text, within);
    let met = met.map_err(|failed| Failure::new(Exit::Refused, failed.to_string()))?;
    let read = met.iter().map(|one| serde_json::from_slice(one));
    read.collect::<Result<_, _>>()
        .map_err(|error| Failure::new(Exit::Internal, format!("what a member says of itself: {error}")))
}

/// The images of the gang that can be read, and why the others cannot.
type Images = BTreeMap<u64, Result<GangImage, String>>;

fn images_of(folder: &GangFolder, place: &GangPlace) -> Result<Images, Failure> {
    let read = |number| {
        let image = folder.image(number).map_err(|failure| failure.message)?;
        let members = image.members.len();
        if members == place.members as usize {
            return Ok(image);
        }
        Err(format!("image {number} of gang {} has {members} members, not {}", place.name, place.members))
    };
    Ok(folder.images()?.into_iter().map(|number| (number, read(number))).collect())
}

fn own(store: &Store, place: &GangPlace, images: &Images, shelf: &Shelf) -> Own {
    let job = store.job(&place.job_of(place.member)).ok();
    let recipe = job.as_ref().and_then(|job| Recipe::read(job).ok());
    let sets = job.as_ref().map(repair::whole_sets).unwrap_or_default();
    let here = job.map(|job| job.images()).transpose().map_err(|error| error.to_string());
    let why_not = |image: &GangImage| -> Option<String> {
        let own = image.members.iter().find(|one| one.member == place.member)?;
        match own.find(store, &image.gang) {
            Err(why) | Ok(Found::Nothing(why) | Found::Damaged(why)) => return Some(why),
            Ok(Found::Another) => {
                return Some(format!("its image {} is not the one that was made for the gang", own.epoch));
            }
            Ok(Found::AsItWas) => {}
        }
        match &here {
            Err(why) => Some(why.clone()),
            Ok(all) => {
                let found = all.iter().flatten().find(|info| info.epoch == own.epoch)?;
                found.broken.as_ref().map(ToString::to_string)
            }
        }
    };
    let images = images.iter().filter_map(|(number, image)| Some((*number, why_not(image.as_ref().ok()?))));
    let (images, addresses) = (images.collect(), shelf.addresses().to_vec());
    Own { run_ns: recipe.map(|recipe| recipe.created_ns), images, addresses, sets }
}

/// The newest image of the last run that is whole at all members, or the one that was asked for.
fn choose(
    gang: &str,
    images: &Images,
    (said, hosts): (&[Own], &[String]),
    wanted: Option<u64>,
) -> Result<Agreed, NotAgreed> {
    if images.is_empty() {
        return Err((Exit::NotFound, format!("gang {gang} has no image")));
    }
    if let Some(number) = wanted {
        let image = images.get(&number).ok_or_else(|| {
            let there = images.keys().map(u64::to_string).collect::<Vec<_>>().join(", ");
            (Exit::NotFound, format!("gang {gang} has no image {number}; it has {there}"))
        })?;
        return match image.as_ref().map_err(Clone::clone).and_then(|image| why_not(image, said, hosts)) {
            Ok(lost) => Ok(Agreed { image: number, whys: Vec::new(), lost }),
            Err(why) => Err((Exit::BadImage, why)),
        };
    }
    let (mut whys, mut earlier) = (Vec::new(), None);
    for (number, image) in images.iter().rev() {
        let lost = |image| why_not(image, said, hosts).map(|lost| (image, lost));
        match image.as_ref().map_err(Clone::clone).and_then(lost) {
            Err(why) => whys.push(why),
            Ok((image, lost)) if is_of_last_run(image, said) => {
                return Ok(Agreed { image: *number, whys, lost });
            }
            Ok(_) => earlier = earlier.or(Some(number)),
        }
    }
    whys.push(format!("gang {gang} has no image of its last run that is whole on all hosts"));
    whys.extend(earlier.map(|number| {
        format!("image {number} is of an earlier one, and `holdfast restart {gang}@{number}` goes on from it")
    }));
    Err((Exit::NotFound, whys.join("\n")))
}

/// The members whose parts have to be rebuilt, and can be.
///
/// # Errors
/// Why an image is not whole at all members.
fn why_not(image: &GangImage, said: &[Own], hosts: &[String]) -> Result<Vec<u32>, String> {
    let all: Vec<&[HasSet]> = said.iter().map(|own| own.sets.as_slice()).collect();
    let mut lost = Vec::new();
    for (member, own) in (0_u32..).zip(said) {
        let why = match own.images.get(&image.image) {
            Some(None) => continue,
            Some(Some(why)) => why.as_str(),
            None => "its host does not see the image of the gang",
        };
        if let Err(covered) = repair::needed(image, member, &all) {
            let (number, gang) = (image.image, &image.gang);
            let host = usize::try_from(member).ok().and_then(|at| hosts.get(at)).map_or("", String::as_str);
            return Err(format!(
                "image {number} of gang {gang} is not whole: member {member} on {host}: {why}; {covered}"
            ));
        }
        lost.push(member);
    }
    Ok(lost)
}

/// Whether it is of the last runs of all members whose hosts know of one.
fn is_of_last_run(image: &GangImage, said: &[Own]) -> bool {
    image.members.iter().zip(said).all(|(part, own)| own.run_ns.is_none_or(|run| run == part.run_ns))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::image::MemberImage;
    use super::*;
    use holdfast_image::Epoch;

    fn image(number: u64, run_ns: u64) -> (u64, Result<GangImage, String>) {
        let part = |member| MemberImage {
            member,
            host: "a".into(),
            epoch: Epoch(number),
            run_ns,
            digest: "0".into(),
            ssh: None,
        };
        (number, Ok(GangImage::new("sim", number, 1, (0..2).map(part).collect())))
    }

    fn says(run_ns: Option<u64>, lacks: &[u64]) -> Own {
        let why = |number: u64| lacks.contains(&number).then(|| "no manifest".to_owned());
        let images = (1..=3).map(|number| (number, why(number))).collect();
        Own { run_ns, images, addresses: Vec::new(), sets: Vec::new() }
    }

    #[test]
    fn the_newest_image_is_chosen_that_all_members_have() {
        let images: Images = [image(1, 5), image(2, 7), image(3, 7)].into();
        let hosts = ["a".to_owned(), "b".to_owned()];
        let of = |said: &[Own], wanted| choose("sim", &images, (said, &hosts), wanted);
        let all = [says(Some(7), &[]), says(Some(7), &[])];
        assert_eq!(of(&all, None).unwrap(), Agreed { image: 3, whys: Vec::new(), lost: Vec::new() });
        let one = [says(Some(7), &[]), says(Some(7), &[3])];
        let agreed = of(&one, None).unwrap();
        assert_eq!(agreed.image, 2);
        assert!(agreed.whys[0].contains("image 3 of gang sim is not whole: member 1 on b: no manifest"));
        let (exit, why) = of(&one, Some(3)).unwrap_err();
        assert!(exit == Exit::BadImage && why.contains("member 1 on b"), "{why}");
        assert_eq!(of(&one, Some(1)).unwrap().image, 1);
        let (exit, why) = of(&one, Some(9)).unwrap_err();
        assert!(exit == Exit::NotFound && why.contains("it has 1, 2, 3"), "{why}");
        // What is left is of an earlier run: not without being asked for.
        let (exit, why) = of(&[says(Some(7), &[3]), says(Some(7), &[2])], None).unwrap_err();
        assert!(exit == Exit::NotFound && why.contains("`holdfast restart sim@1`"), "{why}");
        let lost = [says(None, &[1, 2, 3]), says(Some(7), &[])];
        let (_, why) = of(&lost, None).unwrap_err();
        assert!(why.contains("member 0 on a") && why.contains("no image of its last run"), "{why}");
        assert_eq!(choose("sim", &Images::new(), (&all, &hosts), None).unwrap_err().0, Exit::NotFound);
    }
}
