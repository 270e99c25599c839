//! `--protect`: how much redundancy, and which members of a gang are a group.
//!
//! Invariant: no two members of a group are on one host, so that the loss of a host is the loss of one of a group.
//! Fails by: words that say what is accepted, or which hosts have too many members.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Most members of a group.
const MOST: u32 = 128;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Protection {
    /// Groups of two: each has what the other one has.
    Partner,
    /// Groups of so many: one of them may be lost.
    Xor(u32),
    /// Groups of so many together: `parity` of them may be lost (Reed-Solomon).
    Rs {
        /// Parts of a stripe that are data.
        data: u32,
        /// Parts that are parity.
        parity: u32,
    },
}

impl Protection {
    /// Members of a group, at most.
    pub fn group_size(self) -> u32 {
        match self {
            Protection::Partner => 2,
            Protection::Xor(members) => members,
            Protection::Rs { data, parity } => data + parity,
        }
    }

    /// How many members of a group may be lost.
    pub fn losses(self) -> u32 {
        match self {
            Protection::Partner | Protection::Xor(_) => 1,
            Protection::Rs { parity, .. } => parity,
        }
    }

    /// The members as groups, ascending, by their hosts.
    ///
    /// # Errors
    /// There are too few hosts.
    pub fn groups(self, hosts: &[String]) -> Result<Vec<Vec<u32>>, String> {
        let mut on: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (member, host) in (0_u32..).zip(hosts) {
            on.entry(host).or_default().push(member);
        }
        let most = on.iter().max_by_key(|(_, members)| members.len());
        let Some((host, most)) = most.map(|(host, members)| (*host, members.len())) else {
            return Ok(Vec::new());
        };
        let size = usize::try_from(self.group_size()).unwrap_or(usize::MAX);
        let least = usize::try_from(self.losses()).unwrap_or(usize::MAX).saturating_add(1);
        // Smaller groups where the number does not divide; larger ones where they would be too small.
        let count = hosts.len().div_ceil(size).min(hosts.len() / least).max(most);
        if hosts.len() / count < least {
            return Err(format!(
                "{self} needs groups of at least {least} members, each on another host; the {} members are on {} \
                 hosts, {most} of them on {host}",
                hosts.len(),
                on.len()
            ));
        }
        // Members of one host are neighbours, and there are no more of them than groups.
        let mut groups = vec![Vec::new(); count];
        for (at, member) in on.into_values().flatten().enumerate() {
            groups[at % count].push(member);
        }
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups.sort_unstable();
        Ok(groups)
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protection::Partner => f.write_str("partner"),
            Protection::Xor(members) => write!(f, "xor={members}"),
            Protection::Rs { data, parity } => write!(f, "rs={data}+{parity}"),
        }
    }
}

impl FromStr for Protection {
    type Err = String;

    fn from_str(text: &str) -> Result<Protection, String> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| (1..=MOST).contains(number));
        let parsed = match text.split_once('=') {
            None if text == "partner" => Some(Protection::Partner),
            Some(("xor", members)) => number(members).filter(|members| *members > 1).map(Protection::Xor),
            Some(("rs", parts)) => parts.split_once('+').and_then(|(data, parity)| {
                let (data, parity) = (number(data)?, number(parity)?);
                (data + parity <= MOST).then_some(Protection::Rs { data, parity })
            }),
            _ => None,
        };
        parsed.ok_or_else(|| {
            format!(
                "write partner, xor=N (groups of 2 to {MOST}) or rs=K+M (groups of K+M, of which M may be lost; \
                 {MOST} at most)"
            )
        })
    }
}

impl TryFrom<String> for Protection {
    type Error = String;

    fn try_from(text: String) -> Result<Protection, String> {
        text.parse()
    }
}

impl From<Protection> for String {
    fn from(protection: Protection) -> String {
        protection.to_string()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_is_written_is_what_is_read() {
        for text in ["partner", "xor=2", "xor=8", "rs=8+2", "rs=1+1"] {
            assert_eq!(text.parse::<Protection>().unwrap().to_string(), text);
        }
        for wrong in
            ["", "xor", "xor=1", "xor=0", "xor=129", "rs=8", "rs=0+1", "rs=1+0", "rs=127+2", "xor=-1", "x"]
        {
            assert!(wrong.parse::<Protection>().is_err(), "{wrong}");
        }
    }

    fn names(hosts: &[u8]) -> Vec<String> {
        hosts.iter().map(|host| format!("h{host}")).collect()
    }

    #[test]
    fn too_few_hosts_are_refused_by_name() {
        let refused =
            |text: &str, hosts: &[u8]| text.parse::<Protection>().unwrap().groups(&names(hosts)).unwrap_err();
        let why = refused("xor=4", &[0, 0, 0, 0]);
        assert!(
            why.contains("xor=4 needs groups of at least 2 members") && why.contains("4 of them on h0"),
            "{why}"
        );
        assert!(refused("rs=2+2", &[0, 1]).contains("at least 3 members"));
        assert!(refused("partner", &[0, 0, 0, 1]).contains("3 of them on h0"));
        assert_eq!(Protection::Partner.groups(&names(&[0, 1, 2])).unwrap(), [vec![0, 1, 2]]);
        let of = Protection::Xor(4).groups(&names(&[0, 0, 1, 1, 2, 2, 3, 3])).unwrap();
        assert_eq!(of, [vec![0, 2, 4, 6], vec![1, 3, 5, 7]]);
    }

    proptest! {
        #[test]
        fn no_group_has_two_members_of_one_host(
            hosts in prop::collection::vec(0_u8..12, 1..60),
            size in 2_u32..9,
            parity in 1_u32..3,
        ) {
            let names = names(&hosts);
            for protection in [Protection::Xor(size), Protection::Rs { data: size, parity }, Protection::Partner] {
                let Ok(groups) = protection.groups(&names) else { continue };
                let mut all: Vec<u32> = groups.iter().flatten().copied().collect();
                all.sort_unstable();
                prop_assert_eq!(all, (0..hosts.len() as u32).collect::<Vec<_>>());
                for group in &groups {
                    let on: BTreeSet<&String> = group.iter().map(|member| &names[*member as usize]).collect();
                    prop_assert_eq!(on.len(), group.len());
                    prop_assert!(group.len() as u32 > protection.losses());
                    let larger = 2 * protection.losses() + 1;
                    prop_assert!(group.len() as u32 <= protection.group_size().max(larger));
                }
            }
        }
    }
}
