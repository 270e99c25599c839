//! The mounts of this process, from /proc/self/mountinfo (proc_pid_mountinfo(5); fs/proc_namespace.c).
//!
//! Used by `cgroup` and by the search for what an inotify instance watches. Paths are bytes, and space, tab, newline,
//! backslash and `#` stand in them as `\` and three octal digits (`mangle`, fs/proc_namespace.c; fs/seq_file.c). A line
//! that does not parse is an error, never a mount less.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// Device as the kernel has it: major << 20 | minor.
    pub device: u64,
    /// The folder of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The kind of file system: `ext4`, `cgroup2`.
    pub kind: String,
    /// The file system's own options.
    pub options: String,
}

/// All mounts of this process's namespace that lie below its root.
///
/// # Errors
/// /proc cannot be read, or a line of it cannot be understood.
pub fn own() -> io::Result<Vec<Mount>> {
    const PATH: &str = "/proc/self/mountinfo";
    parse(&fs::read(PATH)?).map_err(|line| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{PATH}: a line that cannot be understood: {line}"),
        )
    })
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
    let (major, minor) = std::str::from_utf8(words.nth(2)?).ok()?.split_once(':')?;
    let device = major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?;
    let (root, point) = (unmangled(words.next()?)?, unmangled(words.next()?)?);
    words.find(|&word| word == b"-")?;
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let kind = words.next().filter(|kind| !kind.is_empty()).map(text)?;
    Some(Mount { device, root, point, kind, options: text(words.nth(1).unwrap_or_default()) })
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
        assert_eq!(mounts[0].device, 98 << 20 | 3);
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
