//! Locks on files, from the `lock:` lines of fdinfo (fs/locks.c, lock_get_status): each is listed with the
//! description that it was taken through.
//!
//! Called by [`super::FileReader`], inside the stop.

use super::Obstacle;
use holdfast_image::record::{FileLock, LockKind};
use holdfast_sys::procfs::DescriptorInfo;

/// The locks of a description.
///
/// # Errors
/// One that cannot be taken again.
pub(super) fn of(info: &DescriptorInfo) -> Result<Vec<FileLock>, Obstacle> {
    let lines = info.text.lines().filter_map(|line| line.strip_prefix("lock:"));
    lines.map(|line| parse(line).ok_or_else(|| obstacle(line))).collect()
}

/// A lease that is being broken is given back in a moment, or taken away (fs.lease-break-time).
fn obstacle(line: &str) -> Obstacle {
    match line.split_whitespace().skip(1).take(2).eq(["LEASE", "BREAKING"]) {
        true => Obstacle::Passing("another program waits until its lease is given back; try again".into()),
        false => Obstacle::from(format!("its lock cannot be understood:{line}")),
    }
}

/// `1: POSIX  ADVISORY  WRITE 77 08:01:1234 0 EOF`.
fn parse(line: &str) -> Option<FileLock> {
    let mut words = line.split_whitespace().skip(1);
    let kind = match words.next()? {
        "FLOCK" => LockKind::Flock,
        "POSIX" => LockKind::Posix,
        "OFDLCK" => LockKind::Description,
        "LEASE" => LockKind::Lease,
        _ => return None,
    };
    // A lease that is being broken is as good as given back.
    let state = words.next()?;
    let exclusive = match words.next()? {
        "WRITE" => true,
        "READ" if state != "BREAKING" => false,
        _ => return None,
    };
    let start = words.nth(2)?.parse().ok()?;
    let len = match words.next()? {
        "EOF" => 0,
        last => last.parse::<u64>().ok()?.checked_sub(start)?.checked_add(1)?,
    };
    Some(FileLock { kind, exclusive, start, len, process: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_kinds() {
        let lock = |kind, exclusive, start, len| Some(FileLock { kind, exclusive, start, len, process: 0 });
        assert_eq!(parse("\t1: FLOCK  ADVISORY  WRITE 77 08:01:12 0 EOF"), lock(LockKind::Flock, true, 0, 0));
        assert_eq!(
            parse("1: POSIX  ADVISORY  READ 77 08:01:12 100 199"),
            lock(LockKind::Posix, false, 100, 100)
        );
        assert_eq!(
            parse("2: OFDLCK ADVISORY  WRITE -1 08:01:12 5 5"),
            lock(LockKind::Description, true, 5, 1)
        );
        assert_eq!(parse("1: LEASE  ACTIVE    READ 77 08:01:12 0 EOF"), lock(LockKind::Lease, false, 0, 0));
        let broken = "\t1: LEASE  BREAKING  READ 77 08:01:12 0 EOF";
        assert_eq!(parse(broken), None);
        assert!(matches!(obstacle(broken), Obstacle::Passing(_)));
        assert_eq!(parse("1: DELEG  ACTIVE    READ 77 08:01:12 0 EOF"), None);
        assert_eq!(parse("1: POSIX  ADVISORY  WRITE 77 08:01:12 9 3"), None);
        assert_eq!(parse(""), None);
    }
}
