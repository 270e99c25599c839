//! What a member says of its part of the redundancy when its image is committed; and what all make of that.
//!
//! Pure but for the looks at a job. Invariants: all members decide the same, for all have heard the same; a segment
//! counts as protected when a set that is known to be whole at all members has it; a set goes when no member needs it.
//! Fails by: words; then the image is not protected.

use super::super::folder::Protections;
use holdfast_image::Epoch;
use holdfast_tiers::redundancy::{
    GroupFile, GroupMember, Protection, SetFile, SetProblem, covered, lacks, put_head, sets, tables,
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
    /// Sets that are known to be whole at all members and are not at this one, and why.
    pub broken: BTreeMap<String, String>,
}

/// What of a member's images which sets have.
#[derive(Default)]
pub struct Look {
    /// See [`Offer`].
    pub files: Vec<SetFile>,
    /// See [`Offer`].
    pub image_needs: Vec<String>,
    /// See [`Offer`].
    pub needs: BTreeSet<String>,
    /// See [`Offer`].
    pub broken: BTreeMap<String, String>,
}

/// What is known of sets, besides what a job has.
pub struct Known<'a> {
    /// What is written down of protected images.
    pub records: &'a Protections,
    /// Sets of which a member has said that they are not whole.
    pub broken: &'a BTreeSet<String>,
}

impl Known<'_> {
    /// Sets that were whole at all members once.
    fn sets(&self) -> BTreeSet<&String> {
        self.records.values().flatten().map(|one| &one.set).collect()
    }

    /// Whether this may be one: what is written down of it may be damaged.
    fn may_be(&self, file: &GroupFile) -> bool {
        let record = self.records.get(&file.image);
        record.is_some_and(|one| one.as_ref().map_or(true, |one| one.set == file.set))
    }
}

/// Looks what of a member's images is protected. Writes the head of the new image, of which this is the manifest.
///
/// # Errors
/// In words.
pub fn look(
    job: &Job,
    lock: &JobLock,
    (epoch, manifest): (Epoch, &[u8]),
    known: &Known<'_>,
) -> Result<Look, String> {
    let failed = |error: holdfast_tiers::StoreError| error.to_string();
    let all = sets(job).map_err(failed)?;
    if let Some(Err(why)) = all.iter().map(|set| &set.file).find(|file| is_unseen(file)) {
        return Err(why.to_string());
    }
    let ids = known.sets();
    let mut broken: BTreeMap<String, String> =
        ids.iter().map(|set| ((*set).clone(), format!("job {} does not have its set", job.name()))).collect();
    let mut there = Vec::new();
    for set in &all {
        let Ok(file) = &set.file else { continue };
        if !known.may_be(file) {
            continue;
        }
        if ids.contains(&file.set) {
            match lacks(job, set) {
                Err(why @ SetProblem::Unseen(_)) => return Err(why.to_string()),
                Err(why) => drop(broken.insert(file.set.clone(), why.to_string())),
                Ok(()) => drop(broken.remove(&file.set)),
            }
        }
        there.push((set.number, file, covered(file)));
    }
    let tables = tables(job).map_err(failed)?;
    let is_broken = |set: &String| broken.contains_key(set) || known.broken.contains(set);
    let is_whole = |set: &String| ids.contains(set) && !is_broken(set);
    let whole = there.iter().filter(|(_, file, _)| is_whole(&file.set));
    let covered: BTreeSet<(u64, u32)> = whole.flat_map(|(.., keys)| keys).copied().collect();
    let mut needs = BTreeSet::new();
    for (number, table) in &tables {
        let needed = |(of, file, keys): &&(u64, &GroupFile, BTreeSet<(u64, u32)>)| {
            // What is broken is of no use where a whole one has the same.
            let counts =
                |key: &(u64, u32)| keys.contains(key) && !(is_broken(&file.set) && covered.contains(key));
            // One that cannot be read may need anything.
            of == number || table.as_ref().is_none_or(|table| table.iter().any(|(key, _)| counts(key)))
        };
        needs.extend(there.iter().filter(needed).map(|(_, file, _)| file.set.clone()));
    }
    let table = tables.get(&epoch.0).cloned().flatten().ok_or("the manifest of its image cannot be read")?;
    let head = put_head(job, lock, epoch, manifest).map_err(failed)?;
    let (mut files, mut image_needs) = (vec![head], BTreeSet::new());
    for (key, segment) in table {
        match there.iter().find(|(_, file, keys)| is_whole(&file.set) && keys.contains(&key)) {
            Some((_, file, _)) => drop(image_needs.insert(file.set.clone())),
            None => files.push(segment),
        }
    }
    Ok(Look { files, image_needs: image_needs.into_iter().collect(), needs, broken })
}

fn is_unseen(file: &Result<GroupFile, SetProblem>) -> bool {
    matches!(file, Err(SetProblem::Unseen(_)))
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

/// What a member has said: its offer, or why it has none; its host, and the number of its image. None: it was started
/// without `--protect`.
pub type Said = (Option<Result<Offer, String>>, String, u64);

/// What all make of what each has said, in order.
///
/// # Errors
/// Why the image is not protected.
pub fn plan((gang, image, set): (&str, u64, &str), own: u32, said: &[Said]) -> Result<Plan, String> {
    let mut offers = Vec::new();
    for (member, (offer, host, _)) in said.iter().enumerate() {
        let offer = match offer {
            Some(offer) => offer.as_ref().map_err(|why| format!("member {member} on {host}: {why}"))?,
            None => return Err(format!("member {member} on {host} was started without --protect")),
        };
        if offer.busy {
            return Err(format!("the parity of an image before is not done yet (member {member} on {host})"));
        }
        offers.push(offer);
    }
    let protection = offers.first().map(|offer| offer.protection).ok_or("there are no members")?;
    if let Some(other) = offers.iter().position(|offer| offer.protection != protection) {
        return Err(format!("member 0 was started with --protect {protection}, member {other} otherwise"));
    }
    are_whole(said, &offers)?;
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

/// Whether the sets that images need besides the new one are whole at all members.
///
/// # Errors
/// One is not.
fn are_whole(said: &[Said], offers: &[&Offer]) -> Result<(), String> {
    let needed: BTreeSet<&String> = offers.iter().flat_map(|offer| &offer.image_needs).collect();
    for (member, (offer, (_, host, _))) in offers.iter().zip(said).enumerate() {
        if let Some((_, why)) = offer.broken.iter().find(|(set, _)| needed.contains(set)) {
            return Err(format!(
                "of the protection of an image before a part is not whole: member {member} on {host}: {why}; the next \
                 image is protected with all that it needs"
            ));
        }
    }
    Ok(())
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
            broken: BTreeMap::new(),
        }
    }

    fn said(offers: &[Option<Offer>]) -> Vec<Said> {
        offers.iter().enumerate().map(|(at, offer)| (offer.clone().map(Ok), format!("h{at}"), 2)).collect()
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
        let mut failed = said(&vec![Some(offer("xor=2")); 2]);
        failed[1].0 = Some(Err("EIO".into()));
        assert_eq!(plan(("sim", 3, "s"), 0, &failed).unwrap_err(), "member 1 on h1: EIO");
        // What one member's image needs another one lacks.
        let needs = Offer { image_needs: vec!["old".into()], ..offer("xor=2") };
        let lacks = |set: &str| Offer { broken: [(set.into(), "gone".into())].into(), ..offer("xor=2") };
        let broken = why(&[Some(needs.clone()), Some(lacks("old"))]);
        assert!(broken.contains("not whole: member 1 on h1: gone; the next image"), "{broken}");
        assert!(plan(("sim", 3, "s"), 0, &said(&[Some(needs), Some(lacks("other"))])).is_ok());
        let wrong = Offer { files: Vec::new(), ..offer("xor=2") };
        assert!(why(&[Some(offer("xor=2")), Some(wrong)]).contains("no stream"));
    }
}
