//! What becomes of the addresses of one host at a restart on another one.
//!
//! Called by [`super::decide`]. Pure. An address that is here stays. Else it becomes what the user says
//! (`--map-host OLD=NEW`), or, if one address of its family is missing and this host has one that the other had not,
//! that one. Fails by: words that name the address and the remedy.

use holdfast_image::host_addresses::HostAddresses;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// An address that a host had, and what it is to be.
pub type Pair = (IpAddr, IpAddr);

/// The host of the image.
pub struct Old<'a> {
    /// What the image says of it.
    pub host: &'a HostAddresses,
    /// The addresses at which sockets of the program are.
    pub used: &'a BTreeSet<IpAddr>,
}

/// What is chosen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Choice {
    /// Of each address that the host had.
    pub own: BTreeMap<IpAddr, Option<IpAddr>>,
    /// What the user has said of addresses of other hosts.
    pub of_others: BTreeMap<IpAddr, IpAddr>,
    /// What was chosen without the user.
    pub notes: Vec<String>,
}

/// Chooses. `here`: the addresses of this host; `by_itself`: also where no socket needs it.
///
/// # Errors
/// An address of a socket has no new one; what the user says cannot be.
pub fn choose(old: &Old<'_>, here: &[IpAddr], asked: &[Pair], by_itself: bool) -> Result<Choice, String> {
    let mine: BTreeSet<IpAddr> = old.host.own.iter().chain(old.used).copied().collect();
    let asked = asked_for(old, asked)?;
    let mut choice = Choice::default();
    let is_here = |ip: &IpAddr| ip.is_loopback() || here.contains(ip);
    for (from, to) in asked {
        if !mine.contains(&from) {
            choice.of_others.insert(from, to);
        } else if is_here(&to) {
            choice.own.insert(from, Some(to));
        } else {
            return Err(format!(
                "--map-host {from}={to}: this host does not have {to}; it has {}",
                list(here)
            ));
        }
    }
    for from in mine.iter().filter(|from| is_here(from)) {
        choice.own.entry(*from).or_insert(Some(*from));
    }
    let missing: Vec<IpAddr> = mine.iter().filter(|from| !choice.own.contains_key(from)).copied().collect();
    let needed = missing.iter().any(|from| old.used.contains(from));
    for from in &missing {
        let to = single(old, here, &missing, &choice, *from).filter(|_| by_itself || needed);
        if let Some(to) = to {
            choice.notes.push(format!(
                "{from} is {to} now: of the addresses of its family, that one alone is new here (--map-host says \
                 otherwise)"
            ));
        }
        choice.own.insert(*from, to);
    }
    let left: Vec<String> =
        old.used.iter().filter(|from| choice.own.get(from) == Some(&None)).map(IpAddr::to_string).collect();
    if left.is_empty() {
        return Ok(choice);
    }
    Err(format!(
        "{}: this host does not have the address, at which the program has sockets; it has {}. `--map-host {}=NEW` has \
         them at another one, `ip address add` gives this host the old one",
        left.join(", "),
        list(here),
        left[0]
    ))
}

/// What the user has said, by the addresses that hosts had at the checkpoint: one that the program knows from before an
/// earlier restart counts as well.
fn asked_for(old: &Old<'_>, asked: &[Pair]) -> Result<BTreeMap<IpAddr, IpAddr>, String> {
    let moved = &old.host.moved;
    let is_of_checkpoint = |ip: &IpAddr| {
        old.host.own.contains(ip) || old.used.contains(ip) || moved.iter().any(|pair| pair.present == *ip)
    };
    let mut all = BTreeMap::new();
    for (from, to) in asked {
        let earlier = moved.iter().find(|pair| pair.known == *from).filter(|_| !is_of_checkpoint(from));
        let from = earlier.map_or(*from, |pair| pair.present);
        if all.insert(from, *to).is_some_and(|before| before != *to) {
            return Err(format!("--map-host gives {from} two new addresses"));
        }
    }
    Ok(all)
}

/// The one address of a family that this host has and the other one had not, if one of that family is missing.
fn single(
    old: &Old<'_>,
    here: &[IpAddr],
    missing: &[IpAddr],
    choice: &Choice,
    from: IpAddr,
) -> Option<IpAddr> {
    let of_family = |ip: &&IpAddr| ip.is_ipv4() == from.is_ipv4();
    if old.host.is_none() || missing.iter().filter(of_family).count() != 1 {
        return None;
    }
    let taken = |ip: &IpAddr| old.host.own.contains(ip) || choice.own.values().any(|to| *to == Some(*ip));
    let mut new = here.iter().filter(of_family).filter(|ip| !taken(ip));
    new.next().copied().filter(|_| new.next().is_none())
}

fn list(here: &[IpAddr]) -> String {
    if here.is_empty() {
        return "none but that of its loopback device".into();
    }
    here.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::host_addresses::MovedAddress;

    fn ips(all: &[&str]) -> Vec<IpAddr> {
        all.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<Pair> {
        all.iter().map(|(old, new)| (old.parse().unwrap(), new.parse().unwrap())).collect()
    }

    fn choice(own: &[&str], used: &[&str], here: &[&str], asked: &[(&str, &str)]) -> Result<Choice, String> {
        let host = HostAddresses { network: "n".into(), own: ips(own), moved: Vec::new() };
        let used = ips(used).into_iter().collect();
        choose(&Old { host: &host, used: &used }, &ips(here), &pairs(asked), false)
    }

    fn own(choice: &Choice) -> Vec<(String, String)> {
        let text = |ip: &Option<IpAddr>| ip.map_or_else(String::new, |ip| ip.to_string());
        choice.own.iter().map(|(from, to)| (from.to_string(), text(to))).collect()
    }

    fn expect(choice: Result<Choice, String>, expected: &[(&str, &str)]) {
        let expected: Vec<_> = expected.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        assert_eq!(own(&choice.unwrap()), expected);
    }

    #[test]
    fn an_address_stays_or_is_the_only_new_one_or_what_the_user_says() {
        expect(
            choice(&["10.0.0.1"], &["10.0.0.1", "127.0.0.1"], &["10.0.0.1", "10.0.0.2"], &[]),
            &[("10.0.0.1", "10.0.0.1"), ("127.0.0.1", "127.0.0.1")],
        );
        let docker = "172.17.0.1";
        let found =
            choice(&["10.0.0.1", docker, "fd00::1"], &["10.0.0.1"], &["10.0.0.2", docker, "fd00::2"], &[]);
        assert_eq!(found.as_ref().unwrap().notes.len(), 2);
        expect(found, &[("10.0.0.1", "10.0.0.2"), (docker, docker), ("fd00::1", "fd00::2")]);
        // Without need nothing is chosen.
        expect(choice(&["10.0.0.1"], &[], &["10.0.0.2"], &[]), &[("10.0.0.1", "")]);
        expect(
            choice(
                &["10.0.0.1", "10.0.0.5"],
                &["10.0.0.1"],
                &["10.0.0.2", "10.0.0.6"],
                &[("10.0.0.1", "10.0.0.6")],
            ),
            &[("10.0.0.1", "10.0.0.6"), ("10.0.0.5", "")],
        );
        let others =
            choice(&["10.0.0.1"], &[], &["10.0.0.1"], &[("10.9.9.9", "10.8.8.8")]).unwrap().of_others;
        assert_eq!(others.into_iter().collect::<Vec<_>>(), pairs(&[("10.9.9.9", "10.8.8.8")]));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        for (own, here, asked, said) in [
            (
                &["10.0.0.1"][..],
                &["10.0.0.2", "10.0.0.3"][..],
                &[][..],
                "10.0.0.1: this host does not have the address",
            ),
            (&["10.0.0.1", "10.0.0.5"], &["10.0.0.2"], &[], "--map-host 10.0.0.1=NEW"),
            (&["10.0.0.1"], &["10.0.0.2"], &[("10.0.0.1", "10.0.0.7")], "this host does not have 10.0.0.7"),
            (&["10.0.0.1"], &["10.0.0.2"], &[("10.0.0.1", "10.0.0.2"), ("10.0.0.1", "127.0.0.2")], "two new"),
            (&[], &["10.0.0.2"], &[], "10.0.0.1: this host"),
        ] {
            let host = HostAddresses { own: ips(own), ..HostAddresses::default() };
            let used = ips(&["10.0.0.1"]).into_iter().collect();
            let why = choose(&Old { host: &host, used: &used }, &ips(here), &pairs(asked), true).unwrap_err();
            assert!(why.contains(said), "{why}");
        }
    }

    #[test]
    fn an_address_of_before_an_earlier_restart_may_be_named() {
        let [known, present] = ips(&["10.0.0.1", "10.0.0.2"])[..] else { unreachable!() };
        let moved = vec![MovedAddress { known, present }];
        let host = HostAddresses { network: "n".into(), own: vec![present], moved };
        let (used, here) = (BTreeSet::from([present]), ips(&["10.0.0.3", "10.0.0.4"]));
        for name in ["10.0.0.1", "10.0.0.2"] {
            let asked = pairs(&[(name, "10.0.0.4")]);
            expect(
                choose(&Old { host: &host, used: &used }, &here, &asked, true),
                &[("10.0.0.2", "10.0.0.4")],
            );
        }
    }
}
