//! Text files of /proc, parsed: status, stat, task lists here; `mappings`, `descriptor_files` and `times` beside it.
//!
//! Pure parsing over what the kernel prints (fs/proc/task_mmu.c, fs/proc/array.c); a line that does not parse is an
//! error that names the file, never a guess.

mod descriptor_files;
mod mappings;
mod times;

use crate::proctext;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

pub use descriptor_files::{DescriptorFolder, DescriptorInfo, descriptor_info, descriptors};
pub use mappings::{HUGE_PAGES, KEY, Mapping, has_swap_in_use, maps, parse_maps, swapped, vm_flags};
pub use times::{
    FaultCounter, SchedFacts, TimerFacts, own_sched_facts, posix_timers, queued_ns, sched_facts,
};

fn bad(what: &str, line: &[u8]) -> io::Error {
    io::Error::other(format!("{what}: cannot understand {:?}", String::from_utf8_lossy(line)))
}

fn hex(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

/// A value of an auxiliary vector (`/proc/PID/auxv`, getauxval(3)) by its key.
pub fn auxiliary(vector: &[u8], key: u64) -> Option<u64> {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let mut pairs = vector.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
    pairs.find(|(own, _)| *own == key).map(|(_, value)| value)
}

/// What `look` finds through the first thread that has it: a main thread that has ended has no memory to look at while
/// others run.
///
/// # Errors
/// ESRCH: no thread has it; the process has ended.
pub fn by_any_thread<T>(pid: i32, look: impl FnMut(i32) -> Option<T>) -> io::Result<T> {
    tasks(pid)?.into_iter().find_map(look).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

/// The thread through which /proc shows what the threads of a process have in common, as `/proc/ID` does for the id of
/// any thread (fs/proc/base.c, `proc_pid_lookup`): the main thread or, where that has ended, another one.
pub fn shown_by(pid: i32) -> i32 {
    let lives = |tid: &i32| Status::read(pid, *tid).is_ok_and(|status| !status.has_ended());
    if lives(&pid) {
        return pid;
    }
    tasks(pid).ok().and_then(|tids| tids.into_iter().find(lives)).unwrap_or(pid)
}

/// Whether a process executes what the caller does.
pub fn executes_own(pid: i32) -> bool {
    let of = |process: &str| {
        let file = fs::metadata(format!("/proc/{process}/exe")).ok()?;
        Some((file.dev(), file.ino()))
    };
    of("self").is_some_and(|own| of(&pid.to_string()) == Some(own))
}

/// `/proc/PID/task/TID/status` as a list of lines `Key:\tvalue`.
#[derive(Clone, Debug)]
pub struct Status(String);

impl Status {
    /// Reads it.
    ///
    /// # Errors
    /// Process gone.
    pub fn read(pid: i32, tid: i32) -> io::Result<Status> {
        proctext::record(format!("/proc/{pid}/task/{tid}/status"))
            .map(|text| Status(String::from_utf8_lossy(&text).into_owned()))
    }
    /// The value of a key, without white space around it.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
    }
    /// A decimal value.
    pub fn number(&self, key: &str) -> Option<i64> {
        self.get(key)?.split_whitespace().next()?.parse().ok()
    }
    /// Whether the thread is a zombie, or about to be one.
    pub fn has_ended(&self) -> bool {
        self.get("State").is_none_or(|state| state.starts_with(['Z', 'X']))
    }
    /// The thread that traces it, if any.
    pub fn tracer(&self) -> Option<i64> {
        self.number("TracerPid").filter(|&tracer| tracer != 0)
    }
    /// A hexadecimal mask (SigCgt and the like).
    pub fn mask(&self, key: &str) -> u64 {
        self.get(key).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0)
    }
    /// The last number of a list: the id that the process itself sees (NSpid, NStgid …).
    pub fn innermost(&self, key: &str) -> Option<i32> {
        self.get(key)?.split_whitespace().last()?.parse().ok()
    }
    /// A number of such a list: the id that is seen in the pid namespace so deep below ours, which is 1.
    pub fn at_depth(&self, key: &str, depth: usize) -> Option<i32> {
        self.get(key)?.split_whitespace().nth(depth.checked_sub(1)?)?.parse().ok()
    }
    /// How many pid namespaces it is in, from ours on.
    pub fn depth(&self) -> usize {
        self.get("NSpid").map_or(1, |ids| ids.split_whitespace().count())
    }
    /// Whether it is in a pid namespace below ours: it sees other ids than we do.
    pub fn is_nested(&self) -> bool {
        self.depth() > 1
    }
}

/// Fields of a stat file from field 3 on. The name before them, in parentheses, may itself have some.
fn after_name(text: &[u8]) -> Option<std::str::SplitAsciiWhitespace<'_>> {
    let close = text.iter().rposition(|&c| c == b')')?;
    Some(std::str::from_utf8(&text[close + 1..]).ok()?.split_ascii_whitespace())
}

/// Fields of `/proc/PID/stat` after the name, from field 3 (state) on: `fields[0]` is field 3 of proc_pid_stat(5).
///
/// # Errors
/// Process gone, or not understood.
pub fn stat_fields(pid: i32, tid: i32) -> io::Result<Vec<String>> {
    let text = proctext::record(format!("/proc/{pid}/task/{tid}/stat"))?;
    Ok(after_name(&text).ok_or_else(|| bad("stat", &text))?.map(str::to_owned).collect())
}

/// How far a process is on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existence {
    /// It runs, or could.
    Living,
    /// It was killed, or ends, and has not given back all that it had: memory, files, sockets, its id.
    Dying,
    /// It has given back all but its id (a zombie), or is gone.
    Ended,
}

/// How far a process is on its way out. A thread that was killed has SIGKILL pending from the moment of the call on
/// (kernel/signal.c, `complete_signal`), is marked when it begins to end (include/linux/sched.h, PF_EXITING, and
/// PF_DUMPCORE while it writes a core file), and becomes a zombie when it has given back what it had
/// (kernel/exit.c, `do_exit`).
pub fn existence(pid: i32) -> Existence {
    let mut found = Existence::Ended;
    for tid in tasks(pid).unwrap_or_default() {
        match stat_fields(pid, tid).ok().and_then(|fields| thread_existence(&fields)) {
            Some(Existence::Living) => return Existence::Living,
            Some(Existence::Dying) => found = Existence::Dying,
            Some(Existence::Ended) | None => {}
        }
    }
    found
}

/// Whether a thread was killed, by whatever signal, or ends; not where that cannot be looked at.
pub fn is_dying(tid: i32) -> bool {
    let fields = stat_fields(tid, tid).ok();
    fields.and_then(|fields| thread_existence(&fields)) == Some(Existence::Dying)
}

/// Of one thread. `fields`: see [`stat_fields`].
fn thread_existence(fields: &[String]) -> Option<Existence> {
    const PF_EXITING: u64 = 4;
    const PF_DUMPCORE: u64 = 0x200;
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let (state, flags, pending) = (fields.first()?, number(9)?, number(31)?);
    Some(match state.as_str() {
        "Z" | "X" => Existence::Ended,
        _ if flags & (PF_EXITING | PF_DUMPCORE) != 0 || pending & KILLED != 0 => Existence::Dying,
        _ => Existence::Living,
    })
}

/// When a process was made, in ticks since boot (field 22 of proc_pid_stat(5)); `None`: it is gone.
pub fn start_time(pid: i32) -> Option<u64> {
    stat_fields(pid, pid).ok()?.get(22 - 3)?.parse().ok()
}

/// The name of a process, for messages.
pub fn name(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).map_or_else(|_| "?".into(), |name| name.trim().to_owned())
}

/// All processes that there are, in ascending order. One that is there before the call and after it is among them
/// (fs/proc/base.c, `proc_pid_readdir`: it goes on from id to id, whatever ends meanwhile).
///
/// # Errors
/// /proc cannot be read.
pub fn processes() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Ids of all threads.
///
/// # Errors
/// Process gone.
pub fn tasks(pid: i32) -> io::Result<Vec<i32>> {
    numbers(&format!("/proc/{pid}/task"))
}

/// How many threads there are: a fraction of what listing them takes. The folder counts as many links, besides the two
/// of any folder (fs/proc/base.c, `proc_task_getattr`).
///
/// # Errors
/// Process gone.
pub fn task_count(pid: i32) -> io::Result<usize> {
    let links = fs::metadata(format!("/proc/{pid}/task"))?.nlink();
    Ok(usize::try_from(links).unwrap_or(usize::MAX).saturating_sub(2))
}

fn numbers(folder: &str) -> io::Result<Vec<i32>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        if let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            all.push(number);
        }
    }
    Ok(all)
}

/// Target of a symbolic link under /proc.
///
/// # Errors
/// Process gone, or not ours.
pub fn link(path: &str) -> io::Result<Vec<u8>> {
    fs::read_link(path).map(|target| target.as_os_str().as_bytes().to_vec())
}

/// The system call that a sleeping thread is in: number, six arguments, stack pointer, instruction pointer. `None`
/// while it runs (fs/proc/base.c, `proc_pid_syscall`).
///
/// # Errors
/// Thread gone, or not ours.
pub fn current_call(pid: i32, tid: i32) -> io::Result<Option<[u64; 9]>> {
    let text = proctext::record_text(format!("/proc/{pid}/task/{tid}/syscall"))?;
    let mut words = text.split_whitespace();
    let Some(Ok(number)) = words.next().map(str::parse::<i64>) else { return Ok(None) };
    let mut call = [0_u64; 9];
    call[0] = number.cast_unsigned();
    for slot in &mut call[1..] {
        let Some(word) = words.next() else { return Ok(None) };
        *slot =
            hex(word.trim_start_matches("0x").as_bytes()).ok_or_else(|| bad("syscall", text.as_bytes()))?;
    }
    Ok(Some(call))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn our_own_files_are_understood() {
        let pid = std::process::id().cast_signed();
        assert!(!maps(pid, pid).unwrap().is_empty());
        // Threads of other tests come and go with their stacks.
        let agree = (0..1000).any(|_| vm_flags(pid, pid).unwrap().len() == maps(pid, pid).unwrap().len());
        assert!(agree);
        assert!(tasks(pid).unwrap().contains(&pid));
        assert!(task_count(pid).unwrap() > 0 && task_count(i32::MAX).is_err());
        assert!(descriptors(pid, pid).unwrap().contains(&1));
        let (file, folder) =
            (fs::File::open("/proc/self/maps").unwrap(), DescriptorFolder::open(pid, pid).unwrap());
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        assert_eq!(folder.info(fd), descriptor_info(pid, u64::from(fd.cast_unsigned())));
        assert_eq!(folder.target(fd).unwrap(), link(&format!("/proc/self/fd/{fd}")).unwrap());
        let metadata = file.metadata().unwrap();
        assert_eq!(folder.identity(fd).unwrap(), (metadata.dev(), metadata.ino()));
        assert!(folder.info(i32::MAX).is_none() && folder.target(i32::MAX).is_err());
        assert_eq!(Status::read(pid, pid).unwrap().innermost("NSpid"), Some(pid));
        let nested = Status("NSpid:\t70\t7\t1\n".into());
        assert_eq!((nested.depth(), nested.at_depth("NSpid", 2)), (3, Some(7)));
        assert_eq!((nested.at_depth("NSpid", 0), nested.at_depth("NSpid", 4)), (None, None));
        assert!(stat_fields(pid, pid).unwrap().len() > 40);
    }

    #[test]
    fn threads_are_counted_as_they_are_listed() {
        let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert_eq!((task_count(pid).unwrap(), tasks(pid).unwrap().len()), (1, 1));
        child.kill().unwrap();
        child.wait().unwrap();
        let own = std::process::id().cast_signed();
        // Other tests come and go.
        let agree = (0..1000).any(|_| {
            let before = task_count(own).unwrap();
            thread::scope(|scope| {
                let (_end, ended) = mpsc::channel::<()>();
                scope.spawn(move || ended.recv());
                task_count(own).unwrap() == before + 1 && tasks(own).unwrap().len() == before + 1
            })
        });
        assert!(agree);
    }

    #[test]
    fn a_process_that_ends_is_dying_and_then_ended() {
        let of = |text: &str| {
            let fields: Vec<String> = after_name(text.as_bytes()).unwrap().map(str::to_owned).collect();
            thread_existence(&fields)
        };
        let line = |state: &str, flags: u32, pending: u32| {
            format!("7 (a) b) {state} 1 2 3 4 5 {flags} {} {pending} 0 0", ["0"; 21].join(" "))
        };
        assert_eq!(of(&line("R", 0x400000, 0)), Some(Existence::Living));
        assert_eq!(of(&line("R", 0x400000, 1 << 8)), Some(Existence::Dying));
        assert_eq!(of(&line("R", 0x40004c, 0)), Some(Existence::Dying));
        assert_eq!(of(&line("D", 0x400200, 0)), Some(Existence::Dying));
        assert_eq!(of(&line("Z", 0x40004c, 1 << 8)), Some(Existence::Ended));
        assert_eq!(of("7 (a) R 1"), None);
        let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert_eq!((existence(pid), name(pid).is_empty()), (Existence::Living, false));
        child.kill().unwrap();
        while existence(pid) != Existence::Ended {}
        child.wait().unwrap();
        assert_eq!(existence(pid), Existence::Ended);
    }
}
