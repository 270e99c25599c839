//! The mounts of a process, from /proc/PID/mountinfo (proc_pid_mountinfo(5); fs/proc_namespace.c).
//!
//! Used by `cgroup`, by the search for what an inotify instance watches, and for mount namespaces of programs. Paths
//! are bytes, and space, tab, newline, backslash and `#` stand in them as `\` and three octal digits (`mangle`,
//! fs/proc_namespace.c; fs/seq_file.c). A line that does not parse is an error, never a mount less.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// include/uapi/linux/mount.h.
const NOSYMFOLLOW: u64 = 256;

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// Its id, the same in all processes, and no other mount's as long as it is there.
    pub id: u64,
    /// That of the mount that it lies on.
    pub parent: u64,
    /// Device as the kernel has it: major << 20 | minor.
    pub device: u64,
    /// The folder of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// MS_* of mount(2) that belong to the mount.
    pub flags: u64,
    /// It tells others of its peer group of mounts that are made on it.
    pub shared: bool,
    /// It hears of those of others.
    pub slave: bool,
    /// The kind of file system: `ext4`, `cgroup2`.
    pub kind: String,
    /// What the file system is on, as who mounted it has named it.
    pub source: PathBuf,
    /// The file system's own options.
    pub options: String,
}

/// All mounts of this process's namespace that lie below its root.
///
/// # Errors
/// /proc cannot be read, or a line of it cannot be understood.
pub fn own() -> io::Result<Vec<Mount>> {
    read("/proc/self/mountinfo")
}

/// The same of another process.
///
/// # Errors
/// It has ended, or is closed to this one; a line cannot be understood.
pub fn of(pid: i32) -> io::Result<Vec<Mount>> {
    read(&format!("/proc/{pid}/mountinfo"))
}

fn read(path: &str) -> io::Result<Vec<Mount>> {
    parse(&fs::read(path)?).map_err(|line| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{path}: a line that cannot be understood: {line}"),
        )
    })
}

/// The mount that an open file lies on (`mnt_id` of /proc/PID/fdinfo).
///
/// # Errors
/// /proc is not there.
pub fn id_of(file: BorrowedFd<'_>) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Of the text of a mountinfo.
///
/// # Errors
/// The line that cannot be understood.
pub fn parse(text: &[u8]) -> Result<Vec<Mount>, String> {
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| mount(line).ok_or_else(|| String::from_utf8_lossy(line).into_owned())).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|&byte| byte == b' ');
    let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let (major, minor) = std::str::from_utf8(words.next()?).ok()?.split_once(':')?;
    let device = major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?;
    let (root, point) = (unmangled(words.next()?)?, unmangled(words.next()?)?);
    let flags = flags(words.next()?);
    let (mut shared, mut slave) = (false, false);
    loop {
        match words.next()? {
            b"-" => break,
            word => {
                shared |= word.starts_with(b"shared:");
                slave |= word.starts_with(b"master:");
            }
        }
    }
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let kind = words.next().filter(|kind| !kind.is_empty()).map(text)?;
    let source = unmangled(words.next()?)?;
    let options = text(words.next().unwrap_or_default());
    Some(Mount { id, parent, device, root, point, flags, shared, slave, kind, source, options })
}

/// As `show_mnt_opts` writes them (fs/proc_namespace.c). Without `noatime` and `relatime` every reading is noted.
fn flags(options: &[u8]) -> u64 {
    const NAMES: [(&[u8], u64); 8] = [
        (b"ro", libc::MS_RDONLY),
        (b"nosuid", libc::MS_NOSUID),
        (b"nodev", libc::MS_NODEV),
        (b"noexec", libc::MS_NOEXEC),
        (b"noatime", libc::MS_NOATIME),
        (b"nodiratime", libc::MS_NODIRATIME),
        (b"relatime", libc::MS_RELATIME),
        (b"nosymfollow", NOSYMFOLLOW),
    ];
    let all = options.split(|byte| *byte == b',');
    let set =
        all.fold(0, |all, one| all | NAMES.iter().find(|(name, _)| *name == one).map_or(0, |(_, bit)| *bit));
    let atime = libc::MS_NOATIME | libc::MS_RELATIME;
    if set & atime == 0 { set | libc::MS_STRICTATIME } else { set }
}

fn unmangled(word: &[u8]) -> Option<PathBuf> {
    let (mut bytes, mut rest) = (Vec::with_capacity(word.len()), word);
    while let Some((&first, more)) = rest.split_first() {
        rest = more;
        if first != b'\\' {
            bytes.push(first);
            continue;
        }
        let (digits, more) = rest.split_at_checked(3)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()?);
        rest = more;
    }
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_line_is_understood_with_and_without_optional_fields() {
        let text =
            b"36 35 98:3 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n\
                     30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let mounts = parse(text).unwrap();
        assert_eq!((mounts[0].id, mounts[0].parent, mounts[0].device), (36, 35, 98 << 20 | 3));
        let flags = [libc::MS_NOATIME, libc::MS_STRICTATIME];
        assert_eq!(mounts.iter().map(|one| one.flags).collect::<Vec<_>>(), flags);
        assert_eq!((mounts[0].shared, mounts[0].slave, mounts[1].slave), (true, true, false));
        assert_eq!(mounts[0].source.to_str(), Some("/dev/root"));
        assert_eq!((mounts[0].root.to_str(), mounts[0].point.to_str()), (Some("/mnt1"), Some("/mnt2")));
        assert_eq!((mounts[0].kind.as_str(), mounts[0].options.as_str()), ("ext3", "rw,errors=continue"));
        assert_eq!((mounts[1].kind.as_str(), mounts[1].options.as_str()), ("cgroup2", "rw,nsdelegate"));
    }

    #[test]
    fn names_with_spaces_and_bytes_that_are_no_text_are_paths() {
        let mounts = parse(b"1 2 0:5 / /a\\040b\\134\\012\xff rw - tmpfs none rw\n").unwrap();
        assert_eq!(mounts[0].point.as_os_str().as_bytes(), b"/a b\\\n\xff");
    }

    #[test]
    fn a_line_that_is_cut_is_an_error() {
        for text in [
            "1 2 0:5 / /a rw - ",
            "1 2 0:5 / /a\\04",
            "1 2 x / /a rw - tmpfs none rw",
            "1 2 0:5 / /a rw tmpfs",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(!own().unwrap().is_empty());
    }
}
