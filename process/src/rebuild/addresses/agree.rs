//! What all members of a gang make of the addresses of their hosts; a job alone is a gang of one.
//!
//! Called by [`super::decide`]; all members come to the same answer, for they compute it of the same words. Pure. An
//! address that members of several hosts had (a bridge of containers, say) is each host's own affair. Fails by: words
//! that name the address and the remedy.

use super::choose::Choice;
use crate::gang::Lines;
use holdfast_abi::AddressTable;
use holdfast_image::host_addresses::MovedAddress;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// What a member says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Said {
    /// The host, and the network on it, on which it was checkpointed.
    pub network: String,
    /// Addresses that it had, and what they are now.
    pub own: BTreeMap<IpAddr, Option<IpAddr>>,
    /// Of those: at which its program has sockets.
    pub used: BTreeSet<IpAddr>,
    /// What its user says of others.
    pub of_others: BTreeMap<IpAddr, IpAddr>,
    /// What its program knows from restarts before.
    pub moved: Vec<MovedAddress>,
}

/// What comes of it, for one member.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Agreed {
    /// From an address of the image to the one that it is now; those that stay are not in it.
    pub step: BTreeMap<IpAddr, IpAddr>,
    /// From what programs know to what it is now. Of several that are one now, the first counts.
    pub moved: Vec<MovedAddress>,
    /// What the user should know.
    pub notes: Vec<String>,
}

impl Said {
    /// Of a choice.
    pub fn of(network: &str, choice: &Choice, used: &BTreeSet<IpAddr>, moved: &[MovedAddress]) -> Said {
        Said {
            // A word.
            network: network.split_whitespace().collect::<Vec<_>>().join("_"),
            own: choice.own.clone(),
            used: used.clone(),
            of_others: choice.of_others.clone(),
            moved: moved.to_vec(),
        }
    }

    /// As words.
    pub fn lines(&self) -> Lines {
        let line = |words: [&str; 3]| words.map(str::to_owned).to_vec();
        let pair = |kind: &str, from: &IpAddr, to: &IpAddr| line([kind, &from.to_string(), &to.to_string()]);
        let mut lines = vec![line(["network", &self.network, "-"])];
        for (from, to) in &self.own {
            let kind = if self.used.contains(from) { "used" } else { "own" };
            let to = to.map_or_else(|| "-".to_owned(), |to| to.to_string());
            lines.push(line([kind, &from.to_string(), &to]));
        }
        lines.extend(self.of_others.iter().map(|(from, to)| pair("other", from, to)));
        lines.extend(self.moved.iter().map(|moved| pair("known", &moved.known, &moved.present)));
        lines
    }

    /// The other way; `None`: that is none.
    pub fn parse(lines: &Lines) -> Option<Said> {
        let mut said = Said::default();
        for words in lines {
            let [kind, from, to] = words.as_slice() else { return None };
            if kind == "network" {
                said.network.clone_from(from);
                continue;
            }
            let from: IpAddr = from.parse().ok()?;
            let to: Option<IpAddr> = if to == "-" { None } else { Some(to.parse().ok()?) };
            if to.is_some_and(|to| to.is_ipv4() != from.is_ipv4()) {
                return None;
            }
            match (kind.as_str(), to) {
                ("own", to) => _ = said.own.insert(from, to),
                ("used", to) => {
                    said.own.insert(from, to);
                    said.used.insert(from);
                }
                ("other", Some(to)) => _ = said.of_others.insert(from, to),
                ("known", Some(present)) => said.moved.push(MovedAddress { known: from, present }),
                _ => return None,
            }
        }
        Some(said)
    }
}

/// Comes to an agreement; `member`: for whom.
///
/// # Errors
/// See the head.
pub fn agree(all: &[Said], member: usize) -> Result<Agreed, String> {
    let mut common = common(all)?;
    let (apart, notes) = keep_apart(all, &mut common)?;
    let own = all.get(member).cloned().unwrap_or_default();
    let mut step = common.clone();
    for (from, to) in own.own {
        if let Some(to) = to.filter(|_| !common.contains_key(&from) && !apart.contains(&from)) {
            step.insert(from, to);
        }
    }
    let moved = moved(all, member, &step);
    if moved.len() > AddressTable::MAX {
        return Err(format!(
            "{} addresses have changed; programs can be told of {}",
            moved.len(),
            AddressTable::MAX
        ));
    }
    step.retain(|from, to| from != to);
    Ok(Agreed { step, moved, notes })
}

/// Addresses that mean one host, and what they are now; also of those that stay.
fn common(all: &[Said]) -> Result<BTreeMap<IpAddr, IpAddr>, String> {
    let mut common: BTreeMap<IpAddr, IpAddr> = BTreeMap::new();
    let had: BTreeSet<IpAddr> = all.iter().flat_map(|said| said.own.keys().copied()).collect();
    for from in &had {
        let by = || all.iter().filter(|said| said.own.contains_key(from));
        if by().map(|said| &said.network).collect::<BTreeSet<_>>().len() > 1 {
            continue;
        }
        let new: BTreeSet<IpAddr> = by().filter_map(|said| said.own[from]).collect();
        let mut new = new.into_iter();
        match (new.next(), new.next()) {
            (Some(to), None) => _ = common.insert(*from, to),
            (Some(one), Some(two)) if by().any(|said| said.used.contains(from)) => {
                return Err(format!(
                    "{from} would be {one} for one member of the gang and {two} for another, which were on one host: \
                     restart them on one host, too"
                ));
            }
            _ => {}
        }
    }
    for (from, to) in all.iter().flat_map(|said| &said.of_others) {
        let is_own = had.contains(from) && !common.contains_key(from);
        if !is_own && *common.entry(*from).or_insert(*to) != *to {
            let other = common[from];
            return Err(format!("--map-host {from}={to}: {from} is {other} for another member of the gang"));
        }
    }
    Ok(common)
}

/// Of two addresses that would be one, programs could not tell which they mean. Returns those that are not translated
/// for that, as no socket needs them.
fn keep_apart(
    all: &[Said],
    common: &mut BTreeMap<IpAddr, IpAddr>,
) -> Result<(BTreeSet<IpAddr>, Vec<String>), String> {
    let mut by_new: BTreeMap<IpAddr, Vec<IpAddr>> = BTreeMap::new();
    for (from, to) in common.iter() {
        by_new.entry(*to).or_default().push(*from);
    }
    let needs =
        |from: &IpAddr| all.iter().any(|said| said.used.contains(from) || said.of_others.contains_key(from));
    let (mut apart, mut notes) = (BTreeSet::new(), Vec::new());
    for (to, from) in by_new.into_iter().filter(|(_, from)| from.len() > 1) {
        let names = from.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" and ");
        let last = from.iter().rev().find(|from| **from != to).copied().unwrap_or(to);
        if from.iter().any(needs) {
            return Err(format!(
                "{names} would both be {to}, and the program could not tell which of them it means: give this host one \
                 address for each (ip address add, --map-host OLD=NEW), or, if all members of the gang run on one \
                 host, any of 127.0.0.0/8 (--map-host {last}=127.0.0.2)"
            ));
        }
        common.retain(|from, now| *now != to || *from == to);
        apart.extend(from.into_iter().filter(|from| *from != to));
        notes.push(format!(
            "{names} are one address here: programs that know them find nothing at the old ones"
        ));
    }
    Ok((apart, notes))
}

/// What programs know, in the order in which it counts: the oldest first.
fn moved(all: &[Said], member: usize, step: &BTreeMap<IpAddr, IpAddr>) -> Vec<MovedAddress> {
    let mut known: BTreeMap<IpAddr, IpAddr> = BTreeMap::new();
    let own_first = all.get(member).into_iter().chain(all);
    for pair in own_first.flat_map(|said| &said.moved) {
        known.entry(pair.known).or_insert_with(|| step.get(&pair.present).copied().unwrap_or(pair.present));
    }
    let later = step.iter().filter(|(from, _)| !known.contains_key(from));
    let later: Vec<(IpAddr, IpAddr)> = later.map(|(from, to)| (*from, *to)).collect();
    let pairs = known.into_iter().chain(later);
    let moved: Vec<MovedAddress> = pairs.map(|(known, present)| MovedAddress { known, present }).collect();
    if moved.iter().all(|pair| pair.known == pair.present) { Vec::new() } else { moved }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A member of a host, with addresses: `*` in front of one that is used.
    fn said(network: &str, own: &[(&str, &str)]) -> Said {
        let mut said = Said { network: network.into(), ..Said::default() };
        for (from, to) in own {
            let (name, is_used) = (from.trim_start_matches('*'), from.starts_with('*'));
            said.own.insert(ip(name), (!to.is_empty()).then(|| ip(to)));
            said.used.extend(is_used.then(|| ip(name)));
        }
        said
    }

    fn known(all: &[(&str, &str)]) -> Vec<MovedAddress> {
        all.iter().map(|(one, two)| MovedAddress { known: ip(one), present: ip(two) }).collect()
    }

    fn step(agreed: &Agreed) -> Vec<(String, String)> {
        agreed.step.iter().map(|(from, to)| (from.to_string(), to.to_string())).collect()
    }

    fn text(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(one, two)| ((*one).to_owned(), (*two).to_owned())).collect()
    }

    #[test]
    fn what_is_said_is_read_again() {
        let mut one = said("h 1", &[("*10.0.0.1", "10.0.0.2"), ("10.0.0.3", ""), ("*fd00::1", "fd00::1")]);
        one.network = Said::of("h 1", &Choice::default(), &BTreeSet::new(), &[]).network;
        one.of_others.insert(ip("10.0.0.8"), ip("10.0.0.9"));
        one.moved = known(&[("10.0.0.7", "10.0.0.1")]);
        assert_eq!(Said::parse(&one.lines()), Some(one));
        for wrong in
            ["own 10.0.0.1", "own x -", "own 10.0.0.1 fd00::1", "known 10.0.0.1 -", "what 10.0.0.1 10.0.0.2"]
        {
            let words = wrong.split(' ').map(str::to_owned).collect();
            assert_eq!(Said::parse(&vec![words]), None, "{wrong}");
        }
    }

    #[test]
    fn members_exchange_their_hosts_and_come_back() {
        let all = [said("a", &[("*10.0.0.1", "10.0.0.2")]), said("b", &[("*10.0.0.2", "10.0.0.1")])];
        let agreed = [0, 1].map(|member| agree(&all, member).unwrap());
        assert_eq!(agreed[0], agreed[1]);
        assert_eq!(step(&agreed[0]), text(&[("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")]));
        // Then on others, and back: they know the first ones.
        let mut next = [said("b", &[("*10.0.0.2", "10.0.0.3")]), said("a", &[("*10.0.0.1", "10.0.0.4")])];
        next.iter_mut().for_each(|said| said.moved.clone_from(&agreed[0].moved));
        let third = agree(&next, 0).unwrap();
        assert_eq!(third.moved, known(&[("10.0.0.1", "10.0.0.3"), ("10.0.0.2", "10.0.0.4")]));
        let mut last = [said("b", &[("*10.0.0.3", "10.0.0.1")]), said("a", &[("*10.0.0.4", "10.0.0.2")])];
        last.iter_mut().for_each(|said| said.moved.clone_from(&third.moved));
        let back = agree(&last, 1).unwrap().moved;
        let of_old = |one: &str| back.iter().find(|pair| pair.present == ip(one)).map(|pair| pair.known);
        assert_eq!([of_old("10.0.0.1"), of_old("10.0.0.2")], [Some(ip("10.0.0.1")), Some(ip("10.0.0.2"))]);
    }

    #[test]
    fn what_hosts_have_for_themselves_is_theirs() {
        let one = said("a", &[("*10.0.0.1", "10.0.0.3"), ("*172.17.0.1", "172.18.0.1")]);
        let two = said("b", &[("*10.0.0.2", "10.0.0.4"), ("*172.17.0.1", "172.17.0.1")]);
        let all = [one, two];
        assert_eq!(agree(&all, 0).unwrap().step.get(&ip("172.17.0.1")), Some(&ip("172.18.0.1")));
        assert_eq!(agree(&all, 1).unwrap().step.get(&ip("172.17.0.1")), None);
        assert_eq!(agree(&all, 1).unwrap().step.len(), 2);
    }

    #[test]
    fn two_addresses_never_become_one() {
        let all = [said("a", &[("*10.0.0.1", "10.0.0.2")]), said("b", &[("*10.0.0.2", "10.0.0.2")])];
        let why = agree(&all, 0).unwrap_err();
        assert!(
            why.contains("10.0.0.1 and 10.0.0.2 would both be 10.0.0.2")
                && why.contains("10.0.0.1=127.0.0.2"),
            "{why}"
        );
        let all = [said("a", &[("10.0.0.1", "10.0.0.2")]), said("b", &[("10.0.0.2", "10.0.0.2")])];
        let agreed = agree(&all, 0).unwrap();
        assert_eq!((step(&agreed), agreed.notes.len()), (text(&[]), 1));
        // One host becomes two.
        let all = [said("a", &[("*10.0.0.1", "10.0.0.3")]), said("a", &[("*10.0.0.1", "10.0.0.4")])];
        assert!(agree(&all, 1).unwrap_err().contains("restart them on one host"));
    }

    #[test]
    fn a_host_outside_may_have_moved() {
        let mut one = said("a", &[("10.0.0.1", "10.0.0.1")]);
        one.of_others.insert(ip("10.0.0.9"), ip("10.0.0.8"));
        assert_eq!(step(&agree(&[one.clone()], 0).unwrap()), text(&[("10.0.0.9", "10.0.0.8")]));
        let mut two = said("b", &[("10.0.0.2", "10.0.0.2")]);
        two.of_others.insert(ip("10.0.0.9"), ip("10.0.0.7"));
        assert!(agree(&[one, two], 0).unwrap_err().contains("for another member"));
    }

    /// A program that has asked anew where it is knows two that are one.
    #[test]
    fn the_oldest_address_counts() {
        let mut one = said("b", &[("*10.0.0.2", "10.0.0.3")]);
        one.moved = known(&[("10.0.0.9", "10.0.0.2")]);
        let agreed = agree(&[one], 0).unwrap();
        assert_eq!(agreed.moved, known(&[("10.0.0.9", "10.0.0.3"), ("10.0.0.2", "10.0.0.3")]));
        let same = agree(&[said("a", &[("10.0.0.1", "10.0.0.1")])], 0).unwrap();
        assert_eq!(same, Agreed::default());
    }
}
