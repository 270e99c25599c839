//! `/proc/PID/maps` and `smaps`.

use super::{bad, hex, link};
use crate::proctext;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

/// A line of `/proc/PID/maps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
    /// Readable, writable, executable as PROT_* bits.
    pub prot: u32,
    /// MAP_SHARED.
    pub shared: bool,
    /// File offset, bytes.
    pub offset: u64,
    /// Device: major << 32 | minor.
    pub device: u64,
    /// Inode; 0: none.
    pub inode: u64,
    /// Path or `[name]`; empty for plain anonymous memory. See [`maps`] for names with a newline.
    pub name: Vec<u8>,
}

/// The same of a mapping of explicit huge pages, by their size: with the shift of mmap(2).
pub const HUGE_PAGES: [(&str, u32); 2] = [("hp21", 21), ("hp30", 30)];
/// The same of a mapping with a protection key (pkeys(7)); its number follows.
pub const KEY: &str = "key";

/// What a newline in a name is shown as. Nothing else is shown otherwise than it is, a backslash neither
/// (fs/proc/task_mmu.c gives "\n" to seq_path, fs/seq_file.c, mangle_path): these bytes may be four of the name, too.
const NEWLINE: &[u8] = b"\\012";

/// With the first places where a newline may be one, as far as `newlines` has a bit, and what is shown elsewhere.
fn with_newlines(shown: &[u8], newlines: u32) -> Vec<u8> {
    let (mut name, mut rest, mut bits) = (Vec::with_capacity(shown.len()), shown, newlines);
    while let Some((&first, tail)) = rest.split_first() {
        let after = rest.strip_prefix(NEWLINE);
        let is_newline = after.is_some() && bits & 1 != 0;
        if after.is_some() {
            bits >>= 1;
        }
        name.push(if is_newline { b'\n' } else { first });
        rest = after.filter(|_| is_newline).unwrap_or(tail);
    }
    name
}

/// The name of a mapping that is shown with what may be newlines: as the kernel tells those who may look (root), else
/// that of the file which is there, else as if all were newlines.
fn true_name(pid: i32, tid: i32, mapping: &Mapping, shown: &[u8]) -> Vec<u8> {
    /// Places that are tried one way and the other.
    const MOST: usize = 6;
    let range = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    if let Ok(name) = link(&range) {
        return name;
    }
    let places = shown.windows(NEWLINE.len()).filter(|piece| *piece == NEWLINE).count().min(MOST);
    let root = format!("/proc/{pid}/task/{tid}/root");
    let is_it = |name: &Vec<u8>| {
        let path = [root.as_bytes(), name.as_slice()].concat();
        fs::symlink_metadata(std::ffi::OsStr::from_bytes(&path)).is_ok_and(|file| file.ino() == mapping.inode)
    };
    let found = (0..1 << places).map(|newlines| with_newlines(shown, newlines)).find(is_it);
    found.unwrap_or_else(|| with_newlines(shown, u32::MAX))
}

fn parse_mapping(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.splitn(6, |&c| c == b' ');
    let range = fields.next()?;
    let dash = range.iter().position(|&c| c == b'-')?;
    let perms = fields.next()?;
    let offset = hex(fields.next()?)?;
    let device = fields.next()?;
    let colon = device.iter().position(|&c| c == b':')?;
    let inode = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let name = fields.next().unwrap_or(b"").trim_ascii_start();
    let bit = |at: usize, letter: u8, value: u32| if perms.get(at) == Some(&letter) { value } else { 0 };
    Some(Mapping {
        start: hex(&range[..dash])?,
        end: hex(&range[dash + 1..])?,
        prot: bit(0, b'r', 1) | bit(1, b'w', 2) | bit(2, b'x', 4),
        shared: perms.get(3) == Some(&b's'),
        offset,
        device: hex(&device[..colon])? << 32 | hex(&device[colon + 1..])?,
        inode,
        name: name.to_vec(),
    })
}

/// All mappings of a thread's process (read through the thread: works for a zombie leader). A newline in a name is
/// shown as what may be four bytes of one: which it is, the files tell.
///
/// # Errors
/// Process gone, or a line that is not understood.
pub fn maps(pid: i32, tid: i32) -> io::Result<Vec<Mapping>> {
    let text = proctext::list(format!("/proc/{pid}/task/{tid}/maps"))?;
    let mut all = parse_shown(&text)?;
    for mapping in &mut all {
        if mapping.name.windows(NEWLINE.len()).any(|piece| piece == NEWLINE) {
            mapping.name = true_name(pid, tid, mapping, &mapping.name);
        }
    }
    Ok(all)
}

/// Parses the text of a maps file, as if all that may be newlines were.
///
/// # Errors
/// A line that is not understood.
pub fn parse_maps(text: &[u8]) -> io::Result<Vec<Mapping>> {
    let mut all = parse_shown(text)?;
    all.iter_mut().for_each(|mapping| mapping.name = with_newlines(&mapping.name, u32::MAX));
    Ok(all)
}

/// The same with names as they are shown.
fn parse_shown(text: &[u8]) -> io::Result<Vec<Mapping>> {
    text.split(|&c| c == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| parse_mapping(line).ok_or_else(|| bad("maps", line)))
        .collect()
}

/// `VmFlags` of every mapping of a smaps file, in the order of the maps: start and end address, and two-letter flags,
/// with [`KEY`] and [`HUGE_PAGES`] among them.
///
/// # Errors
/// Process gone, or a line that is not understood.
pub fn vm_flags(pid: i32, tid: i32) -> io::Result<Vec<(u64, u64, Vec<String>)>> {
    let text = proctext::list(format!("/proc/{pid}/task/{tid}/smaps"))?;
    let mut all = Vec::new();
    let mut current: Option<(u64, u64)> = None;
    let (mut key, mut huge) = (None, None);
    for line in text.split(|&c| c == b'\n') {
        if let Some(number) = line.strip_prefix(b"ProtectionKey:") {
            let number = String::from_utf8_lossy(number.trim_ascii()).into_owned();
            key = (number != "0").then(|| format!("{KEY}{number}"));
        } else if let Some(size) = line.strip_prefix(b"KernelPageSize:") {
            huge = HUGE_PAGES.iter().find(|(_, shift)| kib(size) == Some(1 << (shift - 10)));
        } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let (start, end) = current.take().ok_or_else(|| bad("smaps", line))?;
            let flags = String::from_utf8_lossy(flags);
            let flags = flags.split_whitespace().chain(huge.take().map(|(flag, _)| *flag)).map(str::to_owned);
            all.push((start, end, flags.chain(key.take()).collect()));
        } else if line.first().is_some_and(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()) {
            let mapping = parse_mapping(line).ok_or_else(|| bad("smaps", line))?;
            current = Some((mapping.start, mapping.end));
        }
    }
    Ok(all)
}

/// The mappings of which something is in swap: first byte, first byte after it. Of shared memory, what the file has
/// there (fs/proc/task_mmu.c, smap_gather_stats).
///
/// # Errors
/// ESRCH or ENOENT: the process is gone.
pub fn swapped(pid: i32, tid: i32) -> io::Result<Vec<(u64, u64)>> {
    let text = proctext::list(format!("/proc/{pid}/task/{tid}/smaps"))?;
    let (mut all, mut current) = (Vec::new(), None);
    for line in text.split(|&c| c == b'\n') {
        if let Some(size) = line.strip_prefix(b"Swap:") {
            let place = current.take().ok_or_else(|| bad("smaps", line))?;
            all.extend((kib(size) != Some(0)).then_some(place));
        } else if line.first().is_some_and(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()) {
            let mapping = parse_mapping(line).ok_or_else(|| bad("smaps", line))?;
            current = Some((mapping.start, mapping.end));
        }
    }
    Ok(all)
}

/// Whether anything of the host is in swap. If that cannot be told: yes.
pub fn has_swap_in_use() -> bool {
    nix::sys::sysinfo::sysinfo().map_or(true, |host| host.swap_free() < host.swap_total())
}

/// The number of a line `   2048 kB`.
fn kib(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text.trim_ascii().strip_suffix(b"kB")?).ok()?.trim().parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_maps_file_is_understood() {
        let text = b"7f00-8000 rw-p 00001000 fe:01 42                  /tmp/a b\\012c (deleted)\n\
                     ffff-10000 ---s 00000000 00:00 0 \n";
        let all = parse_maps(text).unwrap();
        assert_eq!(all[0].name, b"/tmp/a b\nc (deleted)");
        assert_eq!((all[0].start, all[0].end, all[0].prot, all[0].shared), (0x7f00, 0x8000, 3, false));
        assert_eq!((all[0].device, all[0].inode, all[0].offset), (0xfe_0000_0001, 42, 0x1000));
        assert_eq!((all[1].prot, all[1].shared, all[1].name.len()), (0, true, 0));
        assert!(parse_maps(b"nonsense\n").is_err());
    }

    #[test]
    fn a_name_with_what_looks_like_a_newline_is_the_files_own() {
        let shown = b"/a\\012b\\0123\\04";
        assert_eq!(with_newlines(shown, 0), shown);
        assert_eq!(with_newlines(shown, 1), b"/a\nb\\0123\\04");
        assert_eq!(with_newlines(shown, u32::MAX), b"/a\nb\n3\\04");
        let folder = std::env::temp_dir().join(format!("maps-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        for name in ["a\\012b", "a\nb", "\\012\n\\012", "a\\040b", "a\\"] {
            let path = folder.join(name);
            fs::write(&path, "").unwrap();
            let inode = fs::metadata(&path).unwrap().ino();
            let own = std::process::id().cast_signed();
            let shown = path.as_os_str().as_bytes().iter().fold(Vec::new(), |mut shown, &c| {
                shown.extend(if c == b'\n' { NEWLINE.to_vec() } else { vec![c] });
                shown
            });
            // No mapping is there: the file tells.
            let mapping = Mapping {
                start: 1,
                end: 2,
                prot: 0,
                shared: true,
                offset: 0,
                device: 0,
                inode,
                name: Vec::new(),
            };
            assert_eq!(true_name(own, own, &mapping, &shown), path.as_os_str().as_bytes(), "{name:?}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
