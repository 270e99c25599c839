//! What `holdfast prune` removes, on all tiers at once, and what each removal makes free.
//!
//! Pure: over the versions that each tier has now. Invariants, whatever the rules say: a version that can be restarted
//! is left somewhere, unless all were asked for; the rules of a tier leave its newest version that can be restarted,
//! and what a slower tier has yet to get; what is removed of a version that others build on is what they do not need.

use super::{Retention, SegmentId, Version};
use std::collections::{BTreeMap, BTreeSet};

/// A version as a tier has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its number.
    pub number: u64,
    /// All that it needs, with the bytes; what several versions need has one number.
    pub parts: Vec<(SegmentId, u64)>,
    /// All that it needs is there.
    pub whole: bool,
}

/// What is to go from a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing: the tier is here for what it has.
    Nothing,
    /// What the rules do not keep.
    Rules(Retention),
    /// What the rules do not keep, of these.
    Of(BTreeSet<u64>, Retention),
    /// These versions.
    Versions(BTreeSet<u64>),
    /// All.
    All,
}

/// A tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierHolds {
    /// What is to go.
    pub wish: Wish,
    /// What it has.
    pub versions: Vec<Held>,
    /// Versions that slower tiers are to get from it, and have not got.
    pub waiting: BTreeSet<u64>,
    /// Versions that are others than those of their numbers elsewhere: made by another host. They are no copies, and no
    /// rule is about them.
    pub others: BTreeSet<u64>,
    /// Versions that a gang needs: that of its newest image stays whatever is wished.
    pub needed: BTreeMap<u64, Why>,
}

impl TierHolds {
    fn own(&self) -> impl Iterator<Item = &Held> {
        self.versions.iter().filter(|held| !self.others.contains(&held.number))
    }
}

/// One version that goes from one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Index of the tier.
    pub tier: usize,
    /// Number of the version.
    pub version: u64,
    /// Bytes that this makes free, after the removals before it.
    pub frees: u64,
}

/// Why a version stays that a wish names, or the rules do not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A slower tier has yet to get it.
    Waits,
    /// No other version can be restarted.
    Last,
    /// The gang goes on from it.
    Gang,
    /// It is the newest of the gang that other hosts can rebuild.
    Protected,
}

/// What happens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrunePlan {
    /// By tier, and on each the oldest first.
    pub removals: Vec<Removal>,
    /// Tier, version, and why it stays.
    pub stays: Vec<(usize, u64, Why)>,
}

/// Makes the plan. `anyway`: what was named goes though it is the last one, or a slower tier waits for it.
pub fn prune(tiers: &[TierHolds], anyway: bool) -> PrunePlan {
    let mut going: Vec<BTreeSet<u64>> = Vec::new();
    let mut stays = Vec::new();
    let all = tiers.iter().flat_map(TierHolds::own);
    let whole: BTreeSet<u64> = all.filter(|held| held.whole).map(|held| held.number).collect();
    for (index, tier) in tiers.iter().enumerate() {
        let mut goes = wished(tier, &whole);
        let stays_for_gang = |why: Why| why == Why::Gang || (tier.wish != Wish::All && !anyway);
        let gang = tier.needed.iter().filter(|(number, why)| goes.contains(number) && stays_for_gang(**why));
        stays.extend(gang.map(|(number, why)| (index, *number, *why)));
        goes.retain(|number| !tier.needed.get(number).is_some_and(|why| stays_for_gang(*why)));
        if tier.wish != Wish::All && !anyway {
            let waits: Vec<u64> = goes.intersection(&tier.waiting).copied().collect();
            goes.retain(|number| !tier.waiting.contains(number));
            stays.extend(waits.into_iter().map(|number| (index, number, Why::Waits)));
        }
        going.push(goes);
    }
    if !anyway
        && tiers.iter().any(|tier| matches!(tier.wish, Wish::Rules(_) | Wish::Of(..) | Wish::Versions(_)))
    {
        keep_last(tiers, &mut going, &mut stays);
    }
    stays.sort_unstable_by_key(|(tier, version, _)| (*tier, *version));
    let removals = tiers.iter().zip(&going).enumerate();
    let removals = removals.flat_map(|(index, (tier, goes))| removals_of(index, tier, goes)).collect();
    PrunePlan { removals, stays }
}

/// What goes if nothing else forbids it. `whole`: versions that some tier has whole.
fn wished(tier: &TierHolds, whole: &BTreeSet<u64>) -> BTreeSet<u64> {
    let all = || tier.versions.iter().map(|held| held.number);
    match &tier.wish {
        Wish::Nothing => BTreeSet::new(),
        Wish::All => all().collect(),
        Wish::Versions(named) => all().filter(|number| named.contains(number)).collect(),
        Wish::Of(some, rules) => {
            let by_rules = wished(&TierHolds { wish: Wish::Rules(*rules), ..tier.clone() }, whole);
            by_rules.intersection(some).copied().collect()
        }
        Wish::Rules(rules) => {
            let Some(newest) = tier.own().filter(|held| held.whole).map(|held| held.number).max() else {
                return BTreeSet::new();
            };
            // What cannot be restarted is of no use where something newer or older can; but what is whole elsewhere can
            // be repaired.
            let is_out = |held: &&Held| match held.whole {
                true => held.number != newest && !rules.takes(held.number),
                false => !whole.contains(&held.number),
            };
            let mut goes: BTreeSet<u64> = tier.own().filter(is_out).map(|held| held.number).collect();
            let left = tier.own().filter(|held| held.whole && !goes.contains(&held.number));
            let version = |held: &Held| Version {
                number: held.number,
                segments: held.parts.clone(),
                wanted_below: tier.waiting.contains(&held.number),
            };
            let left: Vec<Version> = left.map(version).collect();
            goes.extend(rules.removes(&left));
            goes
        }
    }
}

/// If nothing that can be restarted is left anywhere, the newest that could be stays where it is fastest.
fn keep_last(tiers: &[TierHolds], going: &mut [BTreeSet<u64>], stays: &mut Vec<(usize, u64, Why)>) {
    let whole = |tier: usize| tiers[tier].own().filter(|held| held.whole).map(|held| held.number);
    let is_left = (0..tiers.len()).any(|tier| whole(tier).any(|number| !going[tier].contains(&number)));
    if is_left {
        return;
    }
    let newest =
        (0..tiers.len()).rev().filter_map(|tier| Some((whole(tier).max()?, tier))).max_by_key(|(n, _)| *n);
    if let Some((number, _)) = newest {
        let fastest = (0..tiers.len()).find(|&tier| whole(tier).any(|other| other == number));
        if let Some(tier) = fastest {
            going[tier].remove(&number);
            stays.push((tier, number, Why::Last));
        }
    }
}

/// The removals of one tier, with what each makes free.
fn removals_of(index: usize, tier: &TierHolds, goes: &BTreeSet<u64>) -> Vec<Removal> {
    let mut users: BTreeMap<SegmentId, usize> = BTreeMap::new();
    for (part, _) in tier.versions.iter().flat_map(|held| &held.parts) {
        *users.entry(*part).or_default() += 1;
    }
    let mut removals = Vec::new();
    let mut going: Vec<&Held> = tier.versions.iter().filter(|held| goes.contains(&held.number)).collect();
    going.sort_by_key(|held| held.number);
    for held in going {
        let mut frees = 0_u64;
        for (part, bytes) in &held.parts {
            let left = users.entry(*part).or_default();
            *left = left.saturating_sub(1);
            frees = frees.saturating_add(if *left == 0 { *bytes } else { 0 });
        }
        removals.push(Removal { tier: index, version: held.number, frees });
    }
    removals
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn held(number: u64, whole: bool) -> Held {
        Held { number, parts: vec![(SegmentId(1000), 100), (SegmentId(number), 10)], whole }
    }

    fn tier(wish: Wish, numbers: &[u64]) -> TierHolds {
        let versions = numbers.iter().map(|&number| held(number, true)).collect();
        TierHolds {
            wish,
            versions,
            waiting: BTreeSet::new(),
            others: BTreeSet::new(),
            needed: BTreeMap::new(),
        }
    }

    fn numbers(plan: &PrunePlan) -> Vec<(usize, u64, u64)> {
        plan.removals.iter().map(|removal| (removal.tier, removal.version, removal.frees)).collect()
    }

    #[test]
    fn what_others_build_on_is_free_only_when_the_last_goes() {
        let named = |numbers: &[u64]| Wish::Versions(numbers.iter().copied().collect());
        assert_eq!(numbers(&prune(&[tier(named(&[1, 2]), &[1, 2, 3])], false)), [(0, 1, 10), (0, 2, 10)]);
        let all = prune(&[tier(Wish::All, &[1, 2])], false);
        assert_eq!(numbers(&all), [(0, 1, 10), (0, 2, 110)]);
        assert!(all.stays.is_empty(), "all was asked for");
    }

    #[test]
    fn the_last_that_can_be_restarted_stays() {
        let named = Wish::Versions(BTreeSet::from([4, 5]));
        let plan = prune(&[tier(named.clone(), &[4, 5]), tier(named.clone(), &[4])], false);
        assert_eq!(plan.stays, [(0, 5, Why::Last)]);
        assert_eq!(numbers(&plan), [(0, 4, 10), (1, 4, 110)]);
        let elsewhere = prune(&[tier(named.clone(), &[4, 5]), tier(Wish::Nothing, &[4])], false);
        assert_eq!(elsewhere.removals.len(), 2, "another tier has one");
        assert_eq!(prune(&[tier(named, &[4, 5])], true).removals.len(), 2);
    }

    #[test]
    fn what_another_host_has_made_is_no_copy_and_goes_by_no_rule() {
        let theirs = |wish| TierHolds { others: BTreeSet::from([4]), ..tier(wish, &[3, 4]) };
        let named = Wish::Versions(BTreeSet::from([4]));
        let plan = prune(
            &[
                tier(named.clone(), &[4]),
                TierHolds { versions: vec![held(4, true)], ..theirs(Wish::Nothing) },
            ],
            false,
        );
        assert_eq!((plan.stays, plan.removals), (vec![(0, 4, Why::Last)], vec![]));
        let keep = |keep| Wish::Rules(Retention { keep: Some(keep), ..Retention::default() });
        assert!(prune(&[theirs(keep(1))], false).removals.is_empty(), "3 is the newest that counts");
        assert_eq!(numbers(&prune(&[theirs(named)], false)), [(0, 4, 10)], "it was named");
    }

    #[test]
    fn rules_and_what_waits() {
        let rules = |keep, every, max| Wish::Rules(Retention { keep, every, max_bytes: max });
        let gone = |wish: Wish, waiting: &[u64]| {
            let waiting = waiting.iter().copied().collect();
            let plan = prune(&[TierHolds { waiting, ..tier(wish, &[1, 2, 3, 4, 5]) }], false);
            plan.removals.iter().map(|removal| removal.version).collect::<Vec<_>>()
        };
        assert_eq!(gone(rules(Some(2), None, None), &[]), [1, 2, 3]);
        assert_eq!(gone(rules(Some(2), None, None), &[2]), [1, 3]);
        assert_eq!(gone(rules(None, Some(2), None), &[]), [1, 3]);
        assert_eq!(gone(rules(None, Some(2), None), &[3]), [1]);
        assert_eq!(gone(rules(None, None, Some(120)), &[]), [1, 2, 3]);
        assert!(gone(rules(None, None, None), &[]).is_empty());
        let of = |some: &[u64], keep| {
            let rules = Retention { keep: Some(keep), every: None, max_bytes: None };
            Wish::Of(some.iter().copied().collect(), rules)
        };
        assert_eq!(gone(of(&[1, 2, 4, 5], 1), &[]), [1, 2, 4]);
        assert_eq!(gone(of(&[1, 2, 4, 5], 3), &[1]), [2]);
        assert!(gone(of(&[], 1), &[]).is_empty());
        // What a gang's image names stays.
        let needed = BTreeMap::from([(1, Why::Protected), (2, Why::Gang)]);
        let needed = TierHolds { needed, ..tier(of(&[1, 2, 4, 5], 1), &[1, 2, 3, 4, 5]) };
        let removed = |anyway| {
            let plan = prune(std::slice::from_ref(&needed), anyway);
            plan.removals.iter().map(|removal| removal.version).collect::<Vec<_>>()
        };
        assert_eq!((removed(false), removed(true)), (vec![4], vec![1, 4]));
        // What is damaged goes where something else is whole, and only there.
        let broken = |whole: [bool; 5]| {
            let versions = (1..).zip(whole).map(|(number, whole)| held(number, whole)).collect();
            let tier = TierHolds {
                wish: rules(Some(1), None, None),
                versions,
                waiting: BTreeSet::new(),
                others: BTreeSet::new(),
                needed: BTreeMap::new(),
            };
            prune(&[tier], false).removals.iter().map(|removal| removal.version).collect::<Vec<_>>()
        };
        assert_eq!(broken([true, false, true, true, false]), [1, 2, 3, 5]);
        assert!(broken([false; 5]).is_empty());
        let here = TierHolds {
            versions: vec![held(1, true), held(2, false)],
            ..tier(rules(Some(1), None, None), &[])
        };
        assert!(
            prune(&[here.clone(), tier(Wish::Nothing, &[2])], false).removals.is_empty(),
            "it can be repaired"
        );
        assert_eq!(prune(&[here], false).removals.len(), 1);
    }

    fn wishes() -> impl Strategy<Value = Wish> {
        let some = |most: u64| prop::option::of(1..most);
        prop_oneof![
            Just(Wish::Nothing),
            (some(6), some(4), some(200)).prop_map(|(keep, every, max_bytes)| Wish::Rules(Retention {
                keep,
                every,
                max_bytes
            })),
            prop::collection::btree_set(1..9_u64, 0..6).prop_map(Wish::Versions),
            (prop::collection::btree_set(1..9_u64, 0..6), some(6)).prop_map(|(some, keep)| {
                Wish::Of(some, Retention { keep, every: None, max_bytes: None })
            }),
        ]
    }

    fn holds() -> impl Strategy<Value = TierHolds> {
        let parts = prop::collection::btree_map(0..12_u64, 1..50_u64, 0..5);
        let versions = prop::collection::btree_map(1..9_u64, (parts, any::<bool>()), 0..7);
        (wishes(), versions, prop::collection::btree_set(1..9_u64, 0..4)).prop_map(
            |(wish, versions, waiting)| {
                let held = |(number, (parts, whole)): (u64, (BTreeMap<u64, u64>, bool))| {
                    // A part has one size whichever version names it.
                    let parts = parts.into_keys().map(|part| (SegmentId(part), 7 + part)).collect();
                    Held { number, parts, whole }
                };
                TierHolds {
                    wish,
                    versions: versions.into_iter().map(held).collect(),
                    waiting,
                    others: BTreeSet::new(),
                    needed: BTreeMap::new(),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn no_plan_loses_what_must_stay(tiers in prop::collection::vec(holds(), 1..4)) {
            let plan = prune(&tiers, false);
            let left = |index: usize| {
                let gone = |held: &&Held| !plan.removals.iter().any(|r| (r.tier, r.version) == (index, held.number));
                tiers[index].versions.iter().filter(gone).cloned().collect::<Vec<_>>()
            };
            let is_whole = |held: &Held| held.whole;
            let before = tiers.iter().any(|tier| tier.versions.iter().any(is_whole));
            prop_assert_eq!((0..tiers.len()).any(|tier| left(tier).iter().any(is_whole)), before);
            for (index, tier) in tiers.iter().enumerate() {
                let left = left(index);
                let size = |list: &[Held]| {
                    let parts: BTreeMap<SegmentId, u64> = list.iter().flat_map(|held| held.parts.clone()).collect();
                    parts.values().sum::<u64>()
                };
                let frees: u64 = plan.removals.iter().filter(|r| r.tier == index).map(|r| r.frees).sum();
                prop_assert_eq!(size(&tier.versions) - size(&left), frees);
                let stays = |number: u64| left.iter().any(|held| held.number == number);
                prop_assert!(tier.versions.iter().all(|h| !tier.waiting.contains(&h.number) || stays(h.number)));
                if let Wish::Rules(_) | Wish::Of(..) = tier.wish {
                    let newest = tier.versions.iter().filter(|held| held.whole).map(|held| held.number).max();
                    prop_assert!(newest.is_none_or(stays));
                }
            }
        }
    }
}
