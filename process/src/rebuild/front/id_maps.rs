//! The ids of a user in the namespace that an ordinary user's program is restarted in: each is mapped to itself
//! (user_namespaces(7)).
//!
//! Called by `namespace`, for its helper. The kernel lets an ordinary user map his own user and group alone, and only
//! where setgroups(2) is forbidden for good (kernel/user_namespace.c, `new_idmap_permitted`). Of his other groups,
//! newgidmap(1) maps those that /etc/subgid has for him. A process keeps the groups that are not mapped: their files
//! stay open to it, but it cannot name them any more.

use holdfast_sys::{attributes, fs_ids, unix_socket};
use std::fs;
use std::io;
use std::process::{Command, Stdio};

/// Maps the ids of the caller in the user namespace of a process in which nothing is mapped yet. Groups of the caller
/// that are left out.
///
/// # Errors
/// The kernel forbids it.
pub fn map(process: i32) -> io::Result<Vec<u32>> {
    let (user, group) = (unix_socket::effective_user(), attributes::effective_group());
    fs::write(format!("/proc/{process}/uid_map"), format!("{user} {user} 1"))?;
    let mut more = fs_ids::groups()?;
    more.sort_unstable();
    more.dedup();
    more.retain(|other| *other != group);
    // Without the file nothing is given.
    let table =
        if more.is_empty() { String::new() } else { fs::read_to_string("/etc/subgid").unwrap_or_default() };
    let name = if table.is_empty() { String::new() } else { unix_socket::user_name(user) };
    let (given, left): (Vec<u32>, Vec<u32>) =
        more.into_iter().partition(|other| has(&table, &name, user, *other));
    if !given.is_empty() && map_groups(process, group, &given) {
        return Ok(left);
    }
    fs::write(format!("/proc/{process}/setgroups"), "deny")?;
    fs::write(format!("/proc/{process}/gid_map"), format!("{group} {group} 1"))?;
    Ok([given, left].concat())
}

/// What the user should know of groups that are left out.
pub fn note(left: &[u32]) -> Option<String> {
    let all: Vec<String> = left.iter().map(u32::to_string).collect();
    (!all.is_empty()).then(|| {
        format!(
            "the program keeps the groups {}, but cannot give files to them (chgrp: Invalid argument): in a user \
             namespace a group needs a line in /etc/subgid, and newgidmap",
            all.join(", ")
        )
    })
}

/// Whether /etc/subgid (subgid(5)) gives a group to the user, who may stand there by name or by number.
fn has(table: &str, name: &str, user: u32, group: u32) -> bool {
    table.lines().any(|line| {
        let mut words = line.trim().split(':');
        let whose = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|word| word.parse::<u32>().ok());
        let (first, count) = (number(), number());
        (whose == name && !name.is_empty() || whose == user.to_string())
            && first
                .zip(count)
                .is_some_and(|(first, count)| group.checked_sub(first).is_some_and(|behind| behind < count))
    })
}

/// By newgidmap(1), which has the right to.
fn map_groups(process: i32, own: u32, more: &[u32]) -> bool {
    let mut command = Command::new("newgidmap");
    command.arg(process.to_string());
    for group in std::iter::once(&own).chain(more) {
        command.args([group.to_string(), group.to_string(), "1".to_owned()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_given_by_name_or_number() {
        let table = "root:100000:65536\nann:2000:2\n\n1000:3000:1\nann:nonsense\nann:4294967295:1\n";
        let of = |group| has(table, "ann", 1000, group);
        assert!(of(2000) && of(2001) && of(3000) && of(u32::MAX));
        assert!(!of(1999) && !of(2002) && !of(3001) && !of(100_000));
        assert!(!has(table, "", 7, 2000) && !has("", "ann", 1000, 2000));
    }

    #[test]
    fn what_is_left_out_is_said() {
        assert_eq!(note(&[]), None);
        assert!(note(&[7, 9]).is_some_and(|text| text.contains("groups 7, 9, but")));
    }
}
