//! Which members of a gang lack their part of an image, and whether it can be rebuilt of what the others have; and the
//! rebuilding, which all members do together before a restart.
//!
//! Called by [`super::super::agree`]. Invariants: what is decided follows from what all have said alone; nothing is
//! rebuilt before it is decided, and no program is restarted before all that was decided is there. Fails by: which
//! members, which protection, what is wrong.

use super::super::image::GangImage;
use super::encode::Desk;
use super::peers::Peers;
use super::rebuild::{self, LostSet};
use holdfast_tiers::Job;
use holdfast_tiers::redundancy::{lacks, sets};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A set that a member has all of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HasSet {
    /// Which.
    pub set: String,
    /// How many of its group may be lost.
    pub losses: usize,
    /// The members of its group, and which sets each of their images needs besides.
    pub members: BTreeMap<u32, Vec<String>>,
}

/// What a job has of sets.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sets {
    /// Those that it has all of, as far as lengths tell.
    pub whole: Vec<HasSet>,
    /// Why others cannot be used, in words.
    pub others: Vec<String>,
}

/// What a job has of sets.
pub fn sets_of(job: &Job) -> Sets {
    let mut found = Sets::default();
    let all = match sets(job) {
        Ok(all) => all,
        Err(error) => {
            found.others.push(error.to_string());
            return found;
        }
    };
    for set in all {
        match (lacks(job, &set), set.file) {
            (Ok(()), Ok(file)) => found.whole.push(HasSet {
                members: file.members.iter().map(|one| (one.member, one.needs.clone())).collect(),
                losses: file.losses,
                set: file.set,
            }),
            (Err(why), _) | (_, Err(why)) => found.others.push(why.to_string()),
        }
    }
    found
}

/// What each member has, in order.
pub type All<'a> = [&'a [HasSet]];

/// The members that have all of a set; and the set.
fn holders<'a>(all: &All<'a>, set: &str, member: u32) -> Option<(&'a HasSet, BTreeSet<u32>)> {
    let of = |has: &&'a [HasSet]| has.iter().find(|one| one.set == set && one.members.contains_key(&member));
    let found = all.iter().find_map(of)?;
    let there = (0_u32..).zip(all).filter(|(_, has)| of(has).is_some()).map(|(number, _)| number);
    Some((found, there.collect()))
}

/// The sets that a member needs for an image.
///
/// # Errors
/// In words: why it cannot be rebuilt.
pub fn needed(image: &GangImage, member: u32, all: &All<'_>) -> Result<Vec<LostSet>, String> {
    let id = image.id();
    let (own, _) = holders(all, &id, member).ok_or("no other host has parity of it")?;
    let others = own.members.get(&member).cloned().unwrap_or_default();
    let mut lost = Vec::new();
    for set in std::iter::once(id).chain(others) {
        let (found, there) = holders(all, &set, member).ok_or("no other host has parity of a part of it")?;
        let gone: Vec<u32> = found.members.keys().filter(|one| !there.contains(one)).copied().collect();
        if gone.len() > found.losses {
            return Err(format!(
                "{} of its group ({}) are lost, and what the others have covers the loss of {}",
                super::super::waiting::members(&gone),
                super::super::waiting::members(&found.members.keys().copied().collect::<Vec<_>>()),
                found.losses
            ));
        }
        lost.push(LostSet { set, there });
    }
    Ok(lost)
}

/// Other sets that a member had, as far as they can be rebuilt: others need them of it.
fn besides(member: u32, own: &[HasSet], lost: &[LostSet], all: &All<'_>) -> Vec<LostSet> {
    let ids: BTreeSet<&String> = all
        .iter()
        .flat_map(|has| has.iter())
        .filter(|one| one.members.contains_key(&member))
        .map(|one| &one.set)
        .filter(|set| !own.iter().any(|has| has.set == **set) && !lost.iter().any(|one| one.set == **set))
        .collect();
    let rest = |set: &String| {
        let (found, there) = holders(all, set, member)?;
        let gone = found.members.len() - there.iter().filter(|one| found.members.contains_key(one)).count();
        (gone <= found.losses).then_some(LostSet { set: set.clone(), there })
    };
    ids.into_iter().filter_map(rest).collect()
}

/// Rebuilds the part of a member in an image. The bytes that were written, and the sets whose parity is to be made
/// anew.
///
/// # Errors
/// In words.
pub fn rebuild(
    desk: &Desk<'_>,
    image: &GangImage,
    member: u32,
    all: &All<'_>,
    peers: &mut Peers,
) -> Result<(u64, Vec<String>), String> {
    let lost = needed(image, member, all)?;
    let (mut bytes, mut rebuilt) = (0, Vec::new());
    for one in &lost {
        bytes += rebuild::stream(desk, member, one, peers)?;
        rebuilt.push(one.set.clone());
    }
    let at = usize::try_from(member).unwrap_or(usize::MAX);
    rebuild::image(desk, image.members.get(at).ok_or("the image does not name it")?)?;
    for one in besides(member, all.get(at).copied().unwrap_or_default(), &lost, all) {
        match rebuild::stream(desk, member, &one, peers) {
            Ok(more) => {
                bytes += more;
                rebuilt.push(one.set);
            }
            Err(why) => tracing::warn!("what other members need of this one is not rebuilt: {why}"),
        }
    }
    Ok((bytes, rebuilt))
}

/// Sets that are known to be whole at all members and are not at one: they can be made anew there, as far as others
/// have them.
pub fn to_mend(member: u32, known: &BTreeSet<&String>, all: &All<'_>) -> Vec<String> {
    let own = all.get(usize::try_from(member).unwrap_or(usize::MAX)).copied().unwrap_or_default();
    let lacks = besides(member, own, &[], all).into_iter().map(|one| one.set);
    lacks.filter(|set| known.contains(set)).collect()
}

/// Makes them anew: the bytes that were written, and the sets whose parity is to be made.
///
/// # Errors
/// In words.
pub fn mend(
    desk: &Desk<'_>,
    member: u32,
    sets: &[String],
    all: &All<'_>,
    peers: &mut Peers,
) -> Result<(u64, Vec<String>), String> {
    let (mut bytes, mut mended) = (0, Vec::new());
    for set in sets {
        let Some((_, there)) = holders(all, set, member) else { continue };
        bytes += rebuild::stream(desk, member, &LostSet { set: set.clone(), there }, peers)?;
        mended.push(set.clone());
    }
    Ok((bytes, mended))
}

/// The parity of what was rebuilt: why there is none, if so.
pub fn protect_again(desk: &Desk<'_>, rebuilt: &[String], peers: &mut Peers) -> Option<String> {
    rebuilt.iter().find_map(|set| rebuild::parity(desk, set, peers).err())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::super::image::MemberImage;
    use super::*;
    use holdfast_image::Epoch;

    fn image() -> GangImage {
        let part = |member| MemberImage {
            member,
            host: "a".into(),
            epoch: Epoch(2),
            run_ns: 1,
            digest: "0".into(),
            ssh: None,
        };
        GangImage::new("sim", 2, 1, (0..4).map(part).collect())
    }

    fn has(set: &str, losses: usize, needs: &[&str]) -> HasSet {
        let needs: Vec<String> = needs.iter().map(|set| (*set).to_owned()).collect();
        HasSet { set: set.into(), losses, members: (0..4).map(|member| (member, needs.clone())).collect() }
    }

    #[test]
    fn what_is_lost_is_covered_or_who_is_lost_is_named() {
        let (image, nothing) = (image(), Vec::new());
        let id = image.id();
        let one = vec![has(&id, 1, &["old"]), has("old", 1, &[])];
        let all: [&[HasSet]; 4] = [&one, &nothing, &one, &one];
        let lost = needed(&image, 1, &all).unwrap();
        assert_eq!(lost.iter().map(|one| one.set.as_str()).collect::<Vec<_>>(), [id.as_str(), "old"]);
        assert_eq!(lost[0].there, BTreeSet::from([0, 2, 3]));
        let all: [&[HasSet]; 4] = [&one, &nothing, &one, &nothing];
        let why = needed(&image, 1, &all).unwrap_err();
        assert!(why.contains("members 1, 3 of its group (members 0, 1, 2, 3) are lost"), "{why}");
        assert!(why.contains("covers the loss of 1"), "{why}");
        let two = vec![has(&id, 2, &["old"]), has("old", 2, &[])];
        let all: [&[HasSet]; 4] = [&two, &nothing, &two, &nothing];
        assert_eq!(needed(&image, 3, &all).unwrap().len(), 2);
        // A part of it no set has any more.
        let newest = vec![has(&id, 1, &["old"])];
        let all: [&[HasSet]; 4] = [&newest, &nothing, &newest, &newest];
        assert!(needed(&image, 1, &all).unwrap_err().contains("of a part of it"));
        let all: [&[HasSet]; 4] = [&nothing; 4];
        assert!(needed(&image, 1, &all).unwrap_err().contains("no other host has parity"));
    }

    #[test]
    fn what_others_need_of_a_member_is_rebuilt_besides() {
        let (one, nothing) = (vec![has("new", 1, &[]), has("other", 1, &[])], Vec::new());
        let all: [&[HasSet]; 4] = [&one, &nothing, &one, &one];
        let lost = [LostSet { set: "new".into(), there: BTreeSet::from([0, 2, 3]) }];
        let more = besides(1, &nothing, &lost, &all);
        assert_eq!(more.iter().map(|one| one.set.as_str()).collect::<Vec<_>>(), ["other"]);
        assert!(besides(1, &one, &[], &all).is_empty());
        let all: [&[HasSet]; 4] = [&one, &nothing, &nothing, &one];
        assert!(besides(1, &nothing, &lost, &all).is_empty(), "too few have it");
    }
}
