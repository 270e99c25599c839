//! Members whose hosts have stores of their own agree, before a restart, on the image of the gang that they restart;
//! what a host has lost of it is rebuilt of what others have ([`super::guard`]).
//!
//! Called by the process that `holdfast restart` asks (`commands/meet.rs`), which holds the lock of the member's job.
//! The members meet as they do for a run; each says of which images it has its part, and the leader says which one it
//! is. Invariants: an image that is agreed on is whole at every member, as far as manifests and the lengths of segments
//! tell; all members hear the same. Fails by: what is missing, of whom, on which host.

use super::choice::{Picked, Verdict, not_whole, pick};
use super::folder::{GangFolder, Protected, Protections};
use super::gather::gather;
use super::guard::encode::Desk;
use super::guard::peers::{Peers, Where};
use super::guard::repair::{self, HasSet, Sets};
use super::guard::shelf::Shelf;
use super::image::{Found, GangImage};
use super::key::Key;
use super::message::FailedKind;
use super::seat::{FIRST_ROUND, Seat};
use super::waiting::{Meanwhile, Plan};
use crate::exit::{Exit, Failure};
use crate::settings::{GangPlace, Recipe};
use holdfast_sys::poll::{self, Bell};
use holdfast_tiers::{ImageInfo, Job, JobLock, Store};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

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
/// How long what is under way may take to end when it is not wanted any more.
const GIVING_UP: Duration = Duration::from_secs(10);

/// What a member says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Own {
    /// The start of its job's last run; none: its host has nothing of the job.
    run_ns: Option<u64>,
    /// Images of the gang: why its part cannot be used, if so.
    images: BTreeMap<u64, Option<Lack>>,
    /// Where others may read what it has.
    addresses: Vec<String>,
    /// What it has of sets.
    sets: Sets,
}

/// Why a member's part of an image cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Lack {
    why: String,
    /// It is gone or damaged, and may be rebuilt. Else something is there that is not touched.
    is_lost: bool,
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
    /// Sets that are made anew, by the members that lack something of them.
    #[serde(default)]
    pub mend: BTreeMap<u32, Vec<String>>,
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
    /// Readable when the command that asked has ended: then it is given up, whatever is under way.
    pub over: BorrowedFd<'a>,
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
    let seat = gather(&met.plan, meanwhile)?;
    let done = Bell::new().map_err(|error| Failure::system("eventfd", &error))?;
    std::thread::scope(|scope| {
        scope.spawn(|| give_up(&seat, met.over, &done));
        let agreed = agree_on(met, &seat, wanted, meanwhile);
        done.ring();
        agreed
    })
}

/// Waits until it is done, or not wanted any more: then it is over for all.
fn give_up(seat: &Seat, over: BorrowedFd<'_>, done: &Bell) {
    let is_over = || poll::readable(&[over], Some(Duration::ZERO)).is_ok_and(|ready| ready == [true]);
    let waited = poll::readable(&[over, done.as_fd()], None);
    if waited.is_err() || !is_over() {
        return;
    }
    let why = "the command was ended while the members agreed on an image".to_owned();
    seat.fail(FIRST_ROUND, seat.own_failure(why, FailedKind::Other), None);
    // What another member or a disk has yet to answer is not waited for: the lock of the job is ours until the end.
    if !poll::readable(&[done.as_fd()], Some(GIVING_UP)).is_ok_and(|ready| ready == [true]) {
        std::process::exit(Exit::Internal as i32);
    }
}

/// The members are there.
fn agree_on(
    met: &Met<'_>,
    seat: &Seat,
    wanted: Option<u64>,
    meanwhile: &Meanwhile<'_>,
) -> Result<Result<Agreed, NotAgreed>, Failure> {
    let (store, place) = (met.plan.store, met.plan.place);
    let Some(folder) = GangFolder::open(store, &place.name)? else {
        return Err(Failure::new(Exit::NotFound, format!("the folder of gang {} was removed", place.name)));
    };
    let images = images_of(&folder, place)?;
    let key = folder.key()?;
    let shelf = Shelf::new(met.job, &key, || ())?;
    let own = own(store, place, &images, shelf.addresses().to_vec());
    let said: Vec<Own> = meet(seat, (HEARD, "told of its images"), &own, LOOKING)?;
    let hosts = seat.hosts();
    let choice = place.is_leader().then(|| {
        let mut agreed = choose(&place.name, &images, (&said, &hosts), wanted)?;
        match folder.protections() {
            Ok(known) => {
                agreed.mend = to_mend(&known, &images, &said);
                agreed.mend.retain(|member, _| !agreed.lost.contains(member));
            }
            Err(failure) => agreed.whys.push(failure.message),
        }
        Ok::<_, NotAgreed>(agreed)
    });
    let heard: Vec<Option<Result<Agreed, NotAgreed>>> = meet(seat, (AGREED, "agreed"), &choice, LOOKING)?;
    let none = || Failure::new(Exit::Internal, "the leader has not said which image of the gang it is");
    let mut agreed = heard.into_iter().next().flatten().ok_or_else(none)?;
    if let Ok(found) = &mut agreed
        && !(found.lost.is_empty() && found.mend.is_empty())
    {
        let Some(Ok(image)) = images.get(&found.image) else { return Err(none()) };
        match rebuild(met, (seat, &key), image, (&said, found), meanwhile)? {
            Ok(told) => found.whys.extend(told),
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
    (said, agreed): (&[Own], &Agreed),
    meanwhile: &Meanwhile<'_>,
) -> Result<Result<Vec<String>, String>, Failure> {
    let lost = &agreed.lost;
    let (member, hosts) = (met.plan.place.member, seat.hosts());
    let is_wanted = || (meanwhile.is_over)().is_none();
    let desk = Desk { job: met.job, lock: met.lock, is_wanted: &is_wanted };
    let all: Vec<&[HasSet]> = said.iter().map(|own| own.sets.whole.as_slice()).collect();
    let where_of = |((number, own), host): ((u32, &Own), &String)| {
        (number, Where { host: host.clone(), addresses: own.addresses.clone() })
    };
    let at = (0_u32..).zip(said).zip(&hosts).map(where_of).collect();
    let mut peers =
        Peers::new(key, seat.host().to_owned(), at).map_err(|why| Failure::new(Exit::Internal, why))?;
    let begun = Instant::now();
    let own = lost.contains(&member).then(|| {
        (meanwhile.say)(format!("rebuilding image {} of what other hosts have of it", image.image));
        repair::rebuild(&desk, image, member, &all, &mut peers)
    });
    let taken_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let result: Rebuilt = own.clone().map_or(Ok((0, 0)), |done| done.map(|(bytes, _)| (bytes, taken_ms)));
    let results: Vec<Rebuilt> = meet(seat, (REBUILT, "done with rebuilding"), &result, REBUILDING)?;
    let failed = results.iter().enumerate().find_map(|(at, result)| Some((at, result.as_ref().err()?)));
    if let Some((at, why)) = failed {
        let (number, gang) = (image.image, &image.gang);
        let lacks = format!("what {} lacks is not rebuilt: {why}", named(&hosts, at));
        return Ok(Err(format!("image {number} of gang {gang}: {lacks}")));
    }
    let mut sets = own.and_then(Result::ok).map(|(_, sets)| sets).unwrap_or_default();
    let broken = agreed.mend.get(&member).map_or(&[][..], Vec::as_slice);
    let mended = repair::mend(&desk, member, broken, &all, &mut peers);
    let failed = mended.map(|(_, mended)| sets.extend(mended)).err();
    let again = failed.or_else(|| repair::protect_again(&desk, &sets, &mut peers));
    let again: Vec<Option<String>> = meet(seat, (PROTECTED, "protected again"), &again, REBUILDING)?;
    Ok(Ok(told(image.image, agreed, &hosts, (&results, &again))))
}

/// Bytes that a member had to rebuild, and how many milliseconds that took.
type Rebuilt = Result<(u64, u64), String>;

fn named(hosts: &[String], at: usize) -> String {
    format!("member {at} on {}", hosts.get(at).map_or("", String::as_str))
}

/// What users are told of a rebuild. `again`: of each member, why its parity is not made anew.
fn told(
    number: u64,
    agreed: &Agreed,
    hosts: &[String],
    (results, again): (&[Rebuilt], &[Option<String>]),
) -> Vec<String> {
    let at = |member: &u32| usize::try_from(*member).unwrap_or(usize::MAX);
    let rebuilt = agreed.lost.iter().filter_map(|member| {
        let (bytes, ms) = results.get(at(member))?.as_ref().ok()?;
        let (size, who) = (crate::report::size(*bytes), named(hosts, at(member)));
        let s = *ms as f64 / 1000.0;
        Some(format!("image {number}: {size} of {who} were rebuilt of what other hosts have, in {s} s"))
    });
    let mended = agreed.mend.keys().filter(|member| again.get(at(member)).is_some_and(Option::is_none));
    let mended = mended.map(|member| {
        let who = named(hosts, at(member));
        format!("what {who} keeps of other members' images was damaged, and is made anew")
    });
    let unprotected = again.iter().enumerate().filter_map(|(at, why)| {
        Some(format!("image {number} is not protected again: {}: {}", named(hosts, at), why.as_ref()?))
    });
    rebuilt.chain(mended).chain(unprotected).collect()
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

/// Sets that members lack something of, though they are known to be whole at all.
fn to_mend(known: &Protections, images: &Images, said: &[Own]) -> BTreeMap<u32, Vec<String>> {
    let is_of = |one: &&Protected| {
        images.get(&one.image).is_some_and(|image| image.as_ref().is_ok_and(|image| image.id() == one.set))
    };
    let known: BTreeSet<&String> = known.values().flatten().filter(is_of).map(|one| &one.set).collect();
    let all: Vec<&[HasSet]> = said.iter().map(|own| own.sets.whole.as_slice()).collect();
    let of = |member: u32| (member, repair::to_mend(member, &known, &all));
    (0_u32..).zip(said).map(|(member, _)| of(member)).filter(|(_, sets)| !sets.is_empty()).collect()
}

/// What this member says.
fn own(store: &Store, place: &GangPlace, images: &Images, addresses: Vec<String>) -> Own {
    let blocked = |why: String| {
        let lack = Lack { why, is_lost: false };
        let images = images.keys().map(|number| (*number, Some(lack.clone()))).collect();
        Own { run_ns: None, images, addresses: addresses.clone(), sets: Sets::default() }
    };
    let seen = store.job(&place.job_of(place.member)).and_then(|job| {
        let (run, images) = (job.has_recipe()?, job.images()?);
        Ok((job, run, images))
    });
    let (job, has_recipe, here) = match seen {
        Ok(seen) => seen,
        Err(error) => return blocked(error.to_string()),
    };
    // What is there and cannot be read tells of no run: it is said, and nothing is taken for lost.
    let recipe = match has_recipe.then(|| Recipe::read(&job)).transpose() {
        Ok(recipe) => recipe,
        Err(failure) => return blocked(failure.message),
    };
    let lack = |image: &Result<GangImage, String>| match image {
        Ok(image) => lack(store, place, image, &here),
        Err(why) => Some(Lack { why: why.clone(), is_lost: false }),
    };
    let images = images.iter().map(|(number, image)| (*number, lack(image))).collect();
    Own { run_ns: recipe.map(|recipe| recipe.created_ns), images, addresses, sets: repair::sets_of(&job) }
}

/// Why this member's part of an image cannot be used, if so.
fn lack(store: &Store, place: &GangPlace, image: &GangImage, here: &[ImageInfo]) -> Option<Lack> {
    let own = image.members.iter().find(|one| one.member == place.member)?;
    let (why, is_lost) = match own.find(store, &image.gang) {
        Ok(Found::AsItWas) => {
            let found = here.iter().find(|info| info.epoch == own.epoch)?;
            (found.broken.as_ref()?.to_string(), true)
        }
        Ok(Found::Nothing(why) | Found::Damaged(why)) => (why, true),
        Ok(Found::Another) => {
            let (job, epoch) = (own.job(&image.gang), own.epoch);
            let why = format!(
                "its image {epoch} is not the one that was made for the gang; it is not replaced: `holdfast prune \
                 {job}@{epoch}` deletes it"
            );
            (why, false)
        }
        Err(why) => (why, false),
    };
    Some(Lack { why, is_lost })
}

/// The newest image of the last run that is whole at all members, or the one that was asked for.
fn choose(
    gang: &str,
    images: &Images,
    (said, hosts): (&[Own], &[String]),
    wanted: Option<u64>,
) -> Result<Agreed, NotAgreed> {
    let judge = |number: u64| match images.get(&number) {
        Some(Ok(image)) => match lost(image, said, hosts) {
            Ok(lost) => Verdict::Good(lost, is_of_last_run(image, said)),
            Err(why) => Verdict::Bad(why),
        },
        Some(Err(why)) => Verdict::Bad(why.clone()),
        None => Verdict::Bad(format!("gang {gang} has no image {number}")),
    };
    let numbers: Vec<u64> = images.keys().copied().collect();
    let none = "no image of its last run that is whole on all hosts";
    let Picked { number, of, whys } = pick((gang, none), &numbers, wanted, judge)?;
    Ok(Agreed { image: number, whys, lost: of, mend: BTreeMap::new() })
}

/// The members whose parts have to be rebuilt, and can be.
///
/// # Errors
/// Why an image is not whole at all members.
fn lost(image: &GangImage, said: &[Own], hosts: &[String]) -> Result<Vec<u32>, String> {
    let all: Vec<&[HasSet]> = said.iter().map(|own| own.sets.whole.as_slice()).collect();
    let mut lost = Vec::new();
    for ((member, own), at) in (0_u32..).zip(said).zip(0..) {
        let lack = match own.images.get(&image.image) {
            Some(None) => continue,
            Some(Some(lack)) => lack.clone(),
            None => Lack { why: "its host does not see the image of the gang".into(), is_lost: false },
        };
        let not = |more: &str| {
            not_whole(&image.gang, image.image, &format!("{}: {}{more}", named(hosts, at), lack.why))
        };
        if !lack.is_lost {
            return Err(not(""));
        }
        if let Err(covered) = repair::needed(image, member, &all) {
            let others = said.iter().enumerate().flat_map(|(at, own)| {
                let named = named(hosts, at);
                own.sets.others.iter().map(move |why| format!("; {named}: {why}"))
            });
            return Err(not(&format!("; {covered}{}", others.collect::<String>())));
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
        let lack =
            |number: u64| lacks.contains(&number).then(|| Lack { why: "no manifest".into(), is_lost: true });
        let images = (1..=3).map(|number| (number, lack(number))).collect();
        Own { run_ns, images, addresses: Vec::new(), sets: Sets::default() }
    }

    #[test]
    fn the_newest_image_is_chosen_that_all_members_have() {
        let images: Images = [image(1, 5), image(2, 7), image(3, 7)].into();
        let hosts = ["a".to_owned(), "b".to_owned()];
        let of = |said: &[Own], wanted| choose("sim", &images, (said, &hosts), wanted);
        let all = [says(Some(7), &[]), says(Some(7), &[])];
        assert_eq!(
            of(&all, None).unwrap(),
            Agreed { image: 3, whys: Vec::new(), lost: Vec::new(), mend: BTreeMap::new() }
        );
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

    fn has(set: &str) -> HasSet {
        HasSet { set: set.into(), losses: 1, members: (0..2).map(|member| (member, Vec::new())).collect() }
    }

    #[test]
    fn what_is_there_or_cannot_be_looked_at_is_not_taken_for_lost() {
        let images: Images = [image(1, 7)].into();
        let hosts = ["a".to_owned(), "b".to_owned()];
        let id = images[&1].as_ref().unwrap().id();
        let mut said = [says(Some(7), &[]), says(None, &[1])];
        said[0].sets.whole = vec![has(&id)];
        assert_eq!(choose("sim", &images, (&said, &hosts), None).unwrap().lost, [1]);
        said[1].images.insert(1, Some(Lack { why: "EIO".into(), is_lost: false }));
        let (exit, why) = choose("sim", &images, (&said, &hosts), Some(1)).unwrap_err();
        assert_eq!(
            (exit, why.as_str()),
            (Exit::BadImage, "image 1 of gang sim is not whole: member 1 on b: EIO")
        );
        // Why too few have it is said.
        said[1].images.insert(1, Some(Lack { why: "gone".into(), is_lost: true }));
        said[0].sets = Sets { whole: Vec::new(), others: vec!["group-000001: EACCES".into()] };
        let (_, why) = choose("sim", &images, (&said, &hosts), Some(1)).unwrap_err();
        assert!(
            why.ends_with("no other host has parity of it; member 0 on a: group-000001: EACCES"),
            "{why}"
        );
        // A job whose settings cannot be read is none that is not there.
        let store = std::env::temp_dir().join(format!("holdfast-agree-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&store);
        let store = Store::open(&store).unwrap();
        let job = store.create_job("sim.0").unwrap();
        std::fs::write(job.dir().join("job.json"), b"x").unwrap();
        let place = serde_json::from_str(r#"{"name":"sim","member":0,"members":2,"wait_s":1}"#).unwrap();
        let own = own(&store, &place, &images, Vec::new());
        assert!(own.images[&1].as_ref().is_some_and(|lack| !lack.is_lost && lack.why.contains("job.json")));
        std::fs::remove_dir_all(store.root()).unwrap();
    }

    #[test]
    fn sets_that_were_whole_are_made_anew_where_something_is_gone() {
        let images: Images = [image(1, 7), image(2, 7)].into();
        let record = |number: u64, set: &str| {
            let record = Protected::new("sim", number, set, "xor=2".parse().unwrap(), Vec::new());
            (number, Ok(record))
        };
        let id = |number: u64| images[&number].as_ref().unwrap().id();
        let known = [record(1, &id(1)), record(2, "another")].into();
        let mut said = [says(Some(7), &[]), says(Some(7), &[])];
        said[0].sets.whole = vec![has(&id(1)), has(&id(2)), has("another")];
        assert_eq!(to_mend(&known, &images, &said), [(1, vec![id(1)])].into());
        said[1].sets.whole = vec![has(&id(1))];
        assert!(to_mend(&known, &images, &said).is_empty());
    }
}
