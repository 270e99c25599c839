//! Which image of a gang is restarted.
//!
//! Called by each member's `restart` where all hosts have one store. Invariant: what is chosen is whole. Fails by: what
//! is missing, of whom.

use super::folder::GangFolder;
use super::image::GangImage;
use crate::exit::{Exit, Failure};
use crate::settings::{Recipe, member_job};
use holdfast_tiers::Store;

/// The image of a gang that is to be restarted: the one that was named, or the newest of the last run that is whole.
///
/// # Errors
/// There is none, or the one that was named is not whole.
pub fn choose(store: &Store, gang: &str, wanted: Option<u64>) -> Result<GangImage, Failure> {
    let folder = GangFolder::open(store, gang)?;
    let numbers = folder.as_ref().map_or(Ok(Vec::new()), GangFolder::images)?;
    let Some(folder) = folder.filter(|_| !numbers.is_empty()) else {
        return Err(Failure::new(Exit::NotFound, format!("gang {gang} has no image")));
    };
    if let Some(number) = wanted {
        if !numbers.contains(&number) {
            let there = numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            let what = format!("gang {gang} has no image {number}; it has {there}");
            return Err(Failure::new(Exit::NotFound, what));
        }
        let image = folder.image(number)?;
        return match image.check(store, false) {
            Ok(_) => Ok(image),
            Err(why) => Err(Failure::new(Exit::BadImage, not_whole(gang, number, &why))),
        };
    }
    let (mut whys, mut earlier) = (Vec::new(), None);
    for number in numbers.into_iter().rev() {
        let image = match folder.image(number) {
            Ok(image) => image,
            Err(failure) => {
                whys.push(failure.message);
                continue;
            }
        };
        match image.check(store, false) {
            Ok(_) if is_of_last_run(&image, store) => {
                whys.iter().for_each(|why| crate::report::warn(why));
                return Ok(image);
            }
            Ok(_) => earlier = earlier.or(Some(number)),
            Err(why) => whys.push(not_whole(gang, number, &why)),
        }
    }
    let none = format!("gang {gang} has no whole image of its last run");
    let hint = earlier.map(|number| {
        format!("image {number} is of an earlier one, and `holdfast restart {gang}@{number}` goes on from it")
    });
    let lines: Vec<String> = whys.into_iter().chain([none]).chain(hint).collect();
    Err(Failure::new(Exit::NotFound, lines.join("\n")))
}

fn not_whole(gang: &str, number: u64, why: &str) -> String {
    format!("image {number} of gang {gang} is not whole: {why}")
}

/// Whether it is of the last runs of its members.
fn is_of_last_run(image: &GangImage, store: &Store) -> bool {
    image.members.iter().all(|member| {
        let job = store.job(&member_job(&image.gang, member.member));
        let recipe = job.map_err(Failure::from).and_then(|job| Recipe::read(&job));
        recipe.is_ok_and(|recipe| recipe.created_ns == member.run_ns)
    })
}
