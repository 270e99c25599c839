//! What a member says of its part of the redundancy when its image is committed; and what all make of that.
//!
//! Pure but for the looks at a job. Invariants: all members decide the same, for all have heard the same; a segment
//! counts as protected when a set that is known to be whole at all members has it; a set goes when no member needs it.
//! Fails by: words; then the image is not protected.

use super::super::folder::Protected;
use holdfast_image::Epoch;
use holdfast_tiers::redundancy::{
    GroupFile, GroupMember, Protection, SetFile, covered, put_head, segments_of, sets,
};
use holdfast_tiers::{Job, JobLock};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What a member says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// What it was started with.
    pub protection: Protection,
    /// Where the others read its sets.
    pub addresses: Vec<String>,
    /// The set before is not whole yet.
    pub busy: bool,
    /// Its stream of the new set.
    pub files: Vec<SetFile>,
    /// Sets that have the rest of its image.
    pub image_needs: Vec<String>,
    /// Sets that any of its images needs.
    pub needs: BTreeSet<String>,
}

/// What of a member's images which sets have.
pub struct Look {
    /// See [`Offer`].
    pub files: Vec<SetFile>,
    /// See [`Offer`].
    pub image_needs: Vec<String>,
    /// See [`Offer`].
    pub needs: BTreeSet<String>,
}

/// Looks what of a member's images is protected: `known` are the sets that are whole at all members. Writes the head of
/// the new image.
///
/// # Errors
/// In words.
pub fn look(
    job: &Job,
    lock: &JobLock,
    epoch: Epoch,
    known: &BTreeMap<u64, Protected>,
) -> Result<Look, String> {
    let failed = |error: holdfast_tiers::StoreError| error.to_string();
    let is_known = |file: &GroupFile| known.values().any(|one| one.set == file.set);
    let all = sets(job).map_err(failed)?;
    let whole = all.into_iter().filter(|set| set.parity.is_some());
    let whole: Vec<(u64, GroupFile)> = whole
        .filter_map(|set| Some((set.number, set.file.ok()?)))
        .filter(|(_, file)| is_known(file))
        .collect();
    let has: Vec<(&GroupFile, BTreeSet<(u64, u32)>)> =
        whole.iter().map(|(_, file)| (file, covered(file))).collect();
    let mut needs = BTreeSet::new();
    for image in job.images().map_err(failed)? {
        if whole.iter().any(|(number, _)| *number == image.epoch.0) {
            needs.extend(
                whole.iter().filter(|(number, _)| *number == image.epoch.0).map(|(_, file)| file.set.clone()),
            );
        }
        // One that cannot be read may need anything.
        let named = match segments_of(job, image.epoch) {
            Ok(segments) => segments.into_iter().map(|(key, _)| key).collect::<Vec<_>>(),
            Err(_) => has.iter().flat_map(|(_, keys)| keys.iter().copied()).collect(),
        };
        for (file, keys) in &has {
            if named.iter().any(|key| keys.contains(key)) {
                needs.insert(file.set.clone());
            }
        }
    }
    let (mut files, mut image_needs) = (vec![put_head(job, lock, epoch).map_err(failed)?], BTreeSet::new());
    for (key, file) in segments_of(job, epoch).map_err(failed)? {
        match has.iter().find(|(_, keys)| keys.contains(&key)) {
            Some((set, _)) => drop(image_needs.insert(set.set.clone())),
            None => files.push(file),
        }
    }
    Ok(Look { files, image_needs: image_needs.into_iter().collect(), needs })
}

/// What is to be done with the new image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// What this member's group file says.
    pub file: GroupFile,
    /// All groups, for the record.
    pub groups: Vec<Vec<u32>>,
    /// What all were started with.
    pub protection: Protection,
    /// Sets that any member needs.
    pub needed: BTreeSet<String>,
}

/// What all make of what each has said: offers, hosts and numbers of the members' images, in order.
///
/// # Errors
/// Why the image is not protected.
pub fn plan(
    (gang, image, set): (&str, u64, &str),
    own: u32,
    said: &[(Option<Offer>, String, u64)],
) -> Result<Plan, String> {
    let mut offers = Vec::new();
    for (member, (offer, host, _)) in said.iter().enumerate() {
        let offer = offer.as_ref().ok_or_else(|| {
            format!("member {member} on {host} was started without --protect, or could not make its part")
        })?;
        if offer.busy {
            return Err(format!("the parity of an image before is not done yet (member {member} on {host})"));
        }
        offers.push(offer);
    }
    let protection = offers.first().map(|offer| offer.protection).ok_or("there are no members")?;
    if let Some(other) = offers.iter().position(|offer| offer.protection != protection) {
        return Err(format!("member 0 was started with --protect {protection}, member {other} otherwise"));
    }
    let hosts: Vec<String> = said.iter().map(|(_, host, _)| host.clone()).collect();
    let groups = protection.groups(&hosts)?;
    let group = groups.iter().find(|group| group.contains(&own)).ok_or("it is in no group")?;
    let member = |number: &u32| {
        let at = usize::try_from(*number).ok()?;
        let ((_, host, epoch), offer) = (said.get(at)?, offers.get(at)?);
        let (files, needs) = (offer.files.clone(), offer.image_needs.clone());
        Some(GroupMember { member: *number, host: host.clone(), epoch: *epoch, files, needs })
    };
    let members: Vec<GroupMember> = group.iter().filter_map(member).collect();
    let at = group.iter().position(|number| *number == own).unwrap_or(0);
    let losses = usize::try_from(protection.losses()).unwrap_or(usize::MAX);
    let file = GroupFile::new((gang, image, set), losses, at, members);
    file.check()?;
    let needed = offers.iter().flat_map(|offer| offer.needs.iter().cloned()).collect();
    Ok(Plan { file, groups, protection, needed })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn offer(protection: &str) -> Offer {
        Offer {
            protection: protection.parse().unwrap(),
            addresses: Vec::new(),
            busy: false,
            files: vec![SetFile { name: "head-000002".into(), len: 100 }],
            image_needs: Vec::new(),
            needs: BTreeSet::from(["old".to_owned()]),
        }
    }

    fn said(offers: &[Option<Offer>]) -> Vec<(Option<Offer>, String, u64)> {
        offers.iter().enumerate().map(|(at, offer)| (offer.clone(), format!("h{at}"), 2)).collect()
    }

    #[test]
    fn all_make_the_same_of_what_all_have_said() {
        let all = said(&vec![Some(offer("partner")); 4]);
        for own in 0..4 {
            let plan = plan(("sim", 3, "s"), own, &all).unwrap();
            assert_eq!(plan.groups, [vec![0, 2], vec![1, 3]]);
            assert_eq!(plan.file.own().unwrap().member, own);
            assert_eq!((plan.needed.len(), plan.file.losses), (1, 1));
        }
        let why = |offers: &[Option<Offer>]| plan(("sim", 3, "s"), 0, &said(offers)).unwrap_err();
        assert!(why(&[Some(offer("xor=2")), None]).contains("member 1 on h1 was started without --protect"));
        assert!(why(&[Some(offer("xor=2")), Some(offer("xor=3"))]).contains("member 1 otherwise"));
        let busy = Offer { busy: true, ..offer("xor=2") };
        assert!(why(&[Some(offer("xor=2")), Some(busy)]).contains("not done yet"));
        assert!(why(&[Some(offer("rs=2+2")), Some(offer("rs=2+2"))]).contains("at least 3 members"));
        let wrong = Offer { files: Vec::new(), ..offer("xor=2") };
        assert!(why(&[Some(offer("xor=2")), Some(wrong)]).contains("no stream"));
    }
}
