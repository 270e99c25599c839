//! Is what has the name now what the program had, or one's own, or another user's?
//!
//! The rule: the very file of the record is taken; another one of the same owner, or of the process's own user, and
//! with no wider mode is taken with a note; anything else is refused by name. Owners are compared as far as this user
//! namespace shows them. What an image of old does not tell is not compared.

use crate::capture::identity;
use holdfast_image::record::Inode;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;

/// What a file is that may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The one that the program had.
    Same,
    /// Another one of the same owner.
    Replaced,
}

/// Ids of one kind, as this user namespace shows them.
#[derive(Clone, Debug)]
struct Shown {
    /// First of a range, and how many.
    ranges: Vec<(u32, u32)>,
    /// What all others are shown as.
    overflow: u32,
}

impl Shown {
    fn here(kind: &str) -> Shown {
        let map = fs::read_to_string(format!("/proc/self/{kind}_map")).unwrap_or_default();
        let overflow = fs::read_to_string(format!("/proc/sys/kernel/overflow{kind}")).unwrap_or_default();
        Shown { ranges: ranges(&map), overflow: overflow.trim().parse().unwrap_or(65534) }
    }

    /// Whether a file that is shown with the id `now` may have this one.
    fn may_be(&self, was: u32, now: u32) -> bool {
        let is_shown = self.ranges.iter().any(|(first, count)| was.wrapping_sub(*first) < *count);
        was == now || now == self.overflow && !is_shown
    }
}

/// The ids inside of a namespace, in /proc/PID/uid_map or gid_map (user_namespaces(7)).
fn ranges(map: &str) -> Vec<(u32, u32)> {
    let range = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.nth(1)?.ok()?))
    };
    map.lines().filter_map(range).collect()
}

/// Who is who here.
#[derive(Clone, Debug)]
pub struct Owners {
    users: Shown,
    groups: Shown,
    /// The user whom the process is.
    own: u32,
}

impl Owners {
    /// For the files of a process that is this user.
    pub fn here(own: u32) -> Owners {
        Owners { users: Shown::here("uid"), groups: Shown::here("gid"), own }
    }
}

/// Whether it is the very file of the record.
pub fn is_same(was: &Inode, now: &Metadata, owners: &Owners) -> bool {
    let born = identity::born_ns(now);
    let is_born_then = was.born_ns.is_some() && was.born_ns == born;
    let may_be_born_then = is_born_then || was.born_ns.is_none() || born.is_none();
    was.inode == now.ino()
        && (is_born_then || was.device == now.dev() && may_be_born_then)
        && was.is_kind_of(now.mode())
        && was.owner.is_none_or(|owner| owners.users.may_be(owner.user, now.uid()))
}

/// What becomes of a file that has the name now.
///
/// # Errors
/// Why it is not the program's.
pub fn judge(was: &Inode, now: &Metadata, owners: &Owners) -> Result<Verdict, String> {
    let remedy = "put the program's back";
    if !was.is_kind_of(now.mode()) {
        let (then, here) = (kind(was.mode), kind(now.mode()));
        return Err(format!("it was {then} at the checkpoint and is {here} now; {remedy}"));
    }
    if is_same(was, now, owners) {
        return Ok(Verdict::Same);
    }
    let Some(owner) = was.owner else { return Ok(Verdict::Replaced) };
    let accept = format!("{remedy}, or take this one (restart --accept-replaced PATH)");
    let is_user = owners.users.may_be(owner.user, now.uid());
    if !is_user && now.uid() != owners.own {
        return Err(format!(
            "it belonged to user {} at the checkpoint, and is another file, of user {}, now; {accept}",
            owner.user,
            now.uid()
        ));
    }
    // On another host the user may have other ids.
    let is_group = !is_user || owners.groups.may_be(owner.group, now.gid());
    // What the members of the group could do before.
    let of_group = if is_group { was.mode >> 3 } else { was.mode };
    let wider = (now.mode() >> 3 & !of_group | now.mode() & !was.mode) & 0o6;
    if wider != 0 {
        return Err(format!(
            "it is another file than at the checkpoint, and more users may read or write it (mode {:o} of group \
             {}, and it had {:o} of group {}); {accept}",
            now.mode() & 0o7777,
            now.gid(),
            was.mode & 0o7777,
            owner.group
        ));
    }
    Ok(Verdict::Replaced)
}

fn kind(mode: u32) -> &'static str {
    match mode & libc::S_IFMT {
        libc::S_IFREG => "a regular file",
        libc::S_IFDIR => "a folder",
        libc::S_IFIFO => "a named pipe",
        libc::S_IFSOCK => "a socket",
        libc::S_IFLNK => "a symbolic link",
        _ => "a device",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::Folder;
    use holdfast_image::record::Ownership;
    use std::os::unix::fs::PermissionsExt;

    fn owners(map: &str, own: u32) -> Owners {
        let shown = Shown { ranges: ranges(map), overflow: 65534 };
        Owners { users: shown.clone(), groups: shown, own }
    }

    #[test]
    fn a_file_is_taken_noted_or_refused() {
        let folder = Folder::new("judge");
        let path = folder.0.join("file");
        let made = |mode: u32| {
            fs::write(&path, "x").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            fs::metadata(&path).unwrap()
        };
        let all = owners("0 0 4294967295", u32::MAX);
        let now = made(0o640);
        let was = identity::inode_of(&now);
        assert_eq!(judge(&was, &now, &all), Ok(Verdict::Same));
        // Its own mode may change, and a device may have another number.
        assert_eq!(judge(&was, &made(0o666), &all), Ok(Verdict::Same));
        assert_eq!(judge(&Inode { device: 1, ..was }, &now, &all), Ok(Verdict::Same));
        let other = Inode { inode: 1, ..was };
        assert_eq!(judge(&other, &made(0o640), &all), Ok(Verdict::Replaced));
        assert_eq!(judge(&other, &made(0o600), &all), Ok(Verdict::Replaced));
        for wider in [0o644, 0o660, 0o642] {
            assert!(judge(&other, &made(wider), &all).unwrap_err().contains("--accept-replaced"));
        }
        let of = |user: u32, group: u32| Some(Ownership { user, group });
        let (user, group) = (now.uid(), now.gid());
        let another = Inode { owner: of(user + 5, group), ..was };
        assert!(judge(&another, &made(0o640), &all).unwrap_err().contains("belonged to user"));
        assert!(judge(&Inode { mode: was.mode ^ 0o140_000, ..was }, &now, &all).is_err());
        let group_of_others = Inode { owner: of(user, group + 5), ..other };
        assert!(judge(&group_of_others, &made(0o640), &all).is_err());
        assert_eq!(judge(&group_of_others, &made(0o600), &all), Ok(Verdict::Replaced));
        // One's own, on another host.
        let moved = owners("0 0 4294967295", user);
        let elsewhere = Inode { owner: of(user + 5, group + 5), ..other };
        assert_eq!(judge(&elsewhere, &made(0o640), &moved), Ok(Verdict::Replaced));
        // Images of old.
        assert_eq!(judge(&Inode { owner: None, ..other }, &made(0o666), &all), Ok(Verdict::Replaced));
    }

    #[test]
    fn in_a_user_namespace_what_is_not_shown_may_be_anybodys() {
        let inside = owners("1000 1000 1\n", 1000).users;
        assert!(inside.may_be(0, 65534) && inside.may_be(1000, 1000));
        assert!(!inside.may_be(1000, 65534) && !inside.may_be(0, 1000));
        assert!(!owners("0 0 4294967295", 0).users.may_be(0, 65534));
    }
}
