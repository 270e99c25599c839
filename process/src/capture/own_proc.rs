//! Paths in /proc about a process itself, and about others.
//!
//! Used for open files (`files`) and working folders (`cwd`). The process's own are named so that it finds its own
//! after a restart, too, with whatever id and mount of /proc; those of others are not there when a restart opens them.

use super::identity::DELETED;

/// What follows the folder of a process with one of these ids, and that id.
fn after(path: &[u8], ids: [i32; 2]) -> Option<(i32, &[u8])> {
    ids.into_iter().find_map(|pid| {
        let rest = path.strip_prefix(format!("/proc/{pid}").as_bytes())?;
        (rest.is_empty() || rest.starts_with(b"/")).then_some((pid, rest))
    })
}

/// A path as the process finds it. `ids`: its id here and as it sees it itself.
pub fn named(path: &[u8], ids: [i32; 2]) -> Vec<u8> {
    let Some((pid, rest)) = after(path, ids) else { return path.to_vec() };
    match rest.strip_prefix(format!("/task/{pid}").as_bytes()) {
        Some(rest) if rest.is_empty() || rest.starts_with(b"/") => [b"/proc/thread-self", rest].concat(),
        _ => [b"/proc/self", rest].concat(),
    }
}

/// What follows the folder of a process in a path.
pub fn of_process(path: &[u8], pid: i32) -> Option<&[u8]> {
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    after(path, [pid, pid]).map(|(_, rest)| rest)
}

/// The files of /proc/PID and /proc/PID/task/TID that are bound to memory when they are opened.
const OF_MEMORY: [&[u8]; 8] =
    [b"mem", b"environ", b"auxv", b"maps", b"smaps", b"smaps_rollup", b"numa_maps", b"pagemap"];

/// Whether a file is one of those. `rest`: what follows the folder of its process.
pub fn shows_memory(rest: &[u8]) -> bool {
    rest.rsplit(|byte| *byte == b'/').next().is_some_and(|name| OF_MEMORY.contains(&name))
}

/// The process or thread that a path is about, if it is not there when a restart opens files: only process 1 and the
/// one that has the path are, with its first thread.
pub fn foreign(path: &[u8], ids: [i32; 2]) -> Option<i32> {
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    let mut parts = path.strip_prefix(b"/proc/")?.split(|byte| *byte == b'/');
    let number = |part: &[u8]| std::str::from_utf8(part).ok()?.parse::<i32>().ok();
    let pid = number(parts.next()?)?;
    if pid != 1 && !ids.contains(&pid) {
        return Some(pid);
    }
    // `/proc/PID/task/TID`
    let tid = (parts.next()? == b"task").then(|| number(parts.next()?))??;
    (tid != pid).then_some(tid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_paths_are_named_for_every_restart_and_others_are_known() {
        let name = |path: &str| String::from_utf8_lossy(&named(path.as_bytes(), [70, 7])).into_owned();
        assert_eq!(name("/proc/70"), "/proc/self");
        assert_eq!(name("/proc/7/fd"), "/proc/self/fd");
        assert_eq!(name("/proc/70/task/70/stat"), "/proc/thread-self/stat");
        assert_eq!(name("/proc/70/task"), "/proc/self/task");
        for other in ["/proc/701", "/proc/1/stat", "/tmp/proc/70"] {
            assert_eq!(name(other), other);
        }
        let other = |path: &str| foreign(path.as_bytes(), [70, 7]);
        assert_eq!((other("/proc/71/stat"), other("/proc/71 (deleted)")), (Some(71), Some(71)));
        assert_eq!((other("/proc/70/task/71"), other("/proc/70/task/70/stat")), (Some(71), None));
        assert_eq!((other("/proc/1/stat"), other("/proc/meminfo"), other("/tmp")), (None, None, None));
    }
}
