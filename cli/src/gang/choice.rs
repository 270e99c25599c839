//! Which image of a gang is restarted.
//!
//! Called by each member's `restart` where all hosts have one store ([`choose`]), and by the leader where each has one
//! of its own ([`super::agree`]): the rule is one, [`pick`]. Invariant: what is chosen is whole. Fails by: what is
//! missing, of whom.

use super::folder::GangFolder;
use super::image::GangImage;
use crate::exit::{Exit, Failure};
use crate::settings::{GangPlace, Recipe, member_job};
use holdfast_tiers::{Job, Store};

/// What is known of one image of a gang.
pub(super) enum Verdict<T> {
    /// It can be restarted; whether it is of the last run of all members.
    Good(T, bool),
    /// It cannot; in words.
    Bad(String),
}

/// The image that is to be restarted.
#[derive(Debug)]
pub(super) struct Picked<T> {
    pub(super) number: u64,
    pub(super) of: T,
    /// Why newer ones are not it.
    pub(super) whys: Vec<String>,
}

/// The image that was named, or the newest of the last run that is good. `none`: what is said if there is none.
///
/// # Errors
/// Exit code and words.
pub(super) fn pick<T>(
    (gang, none): (&str, &str),
    numbers: &[u64],
    wanted: Option<u64>,
    judge: impl Fn(u64) -> Verdict<T>,
) -> Result<Picked<T>, (Exit, String)> {
    if numbers.is_empty() {
        return Err((Exit::NotFound, format!("gang {gang} has no image")));
    }
    if let Some(number) = wanted {
        if !numbers.contains(&number) {
            let there = numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            return Err((Exit::NotFound, format!("gang {gang} has no image {number}; it has {there}")));
        }
        return match judge(number) {
            Verdict::Good(of, _) => Ok(Picked { number, of, whys: Vec::new() }),
            Verdict::Bad(why) => Err((Exit::BadImage, why)),
        };
    }
    let (mut whys, mut earlier) = (Vec::new(), None);
    for number in numbers.iter().copied().rev() {
        match judge(number) {
            Verdict::Good(of, true) => return Ok(Picked { number, of, whys }),
            Verdict::Good(_, false) => earlier = earlier.or(Some(number)),
            Verdict::Bad(why) => whys.push(why),
        }
    }
    whys.push(format!("gang {gang} has {none}"));
    whys.extend(earlier.map(|number| {
        format!("image {number} is of an earlier one, and `holdfast restart {gang}@{number}` goes on from it")
    }));
    Err((Exit::NotFound, whys.join("\n")))
}

/// How an image is told that cannot be restarted.
pub(super) fn not_whole(gang: &str, number: u64, why: &str) -> String {
    format!("image {number} of gang {gang} is not whole: {why}")
}

/// The image of a gang that is to be restarted.
///
/// # Errors
/// There is none, or the one that was named is not whole.
pub fn choose(store: &Store, gang: &str, wanted: Option<u64>) -> Result<GangImage, Failure> {
    choose_of(store, gang, wanted, &|_| true)
}

fn choose_of(
    store: &Store,
    gang: &str,
    wanted: Option<u64>,
    among: &dyn Fn(u64) -> bool,
) -> Result<GangImage, Failure> {
    let Some(folder) = GangFolder::open(store, gang)? else {
        return Err(Failure::new(Exit::NotFound, format!("gang {gang} has no image")));
    };
    let mut numbers = folder.images()?;
    numbers.retain(|number| among(*number));
    let judge = |number: u64| {
        let image = match folder.image(number) {
            Err(failure) => return Verdict::Bad(failure.message),
            Ok(image) => image,
        };
        match image.check(store, false) {
            Ok(_) => {
                let is_last = is_of_last_run(&image, store);
                Verdict::Good(image, is_last)
            }
            Err(why) => Verdict::Bad(not_whole(gang, number, &why)),
        }
    };
    let picked = pick((gang, "no whole image of its last run"), &numbers, wanted, judge);
    let Picked { of, whys, .. } = picked.map_err(|(exit, message)| Failure::new(exit, message))?;
    whys.iter().for_each(|why| crate::report::warn(why));
    Ok(of)
}

/// The number of the newest image of those that the gang of this member goes on from. Where each host has a store of
/// its own, the members agree on one when they meet: here it is of the last run of this one.
///
/// # Errors
/// What there is of the gang cannot be read.
pub fn newest(job: &Job, place: &GangPlace, among: &dyn Fn(u64) -> bool) -> Result<Option<u64>, Failure> {
    let store = Store::open(job.dir().parent().unwrap_or(job.dir()))?;
    let Some(folder) = GangFolder::open(&store, &place.name)? else { return Ok(None) };
    if !folder.is_shared() {
        return match choose_of(&store, &place.name, None, among) {
            Ok(image) => Ok(Some(image.image)),
            Err(failure) if failure.exit == Exit::NotFound => Ok(None),
            Err(failure) => Err(failure),
        };
    }
    let run_ns = Recipe::read(job)?.created_ns;
    let is_its = |number: &u64| {
        among(*number) && folder.image(*number).is_ok_and(|image| image.is_of(place.member, run_ns))
    };
    Ok(folder.images()?.into_iter().rev().find(is_its))
}

/// Whether it is of the last runs of its members.
fn is_of_last_run(image: &GangImage, store: &Store) -> bool {
    image.members.iter().all(|member| {
        let job = store.job(&member_job(&image.gang, member.member));
        let recipe = job.map_err(Failure::from).and_then(|job| Recipe::read(&job));
        recipe.is_ok_and(|recipe| recipe.created_ns == member.run_ns)
    })
}
