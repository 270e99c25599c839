//! Text files of /proc, parsed: maps, status, stat, task lists, fdinfo, sched.
//!
//! Pure parsing over what the kernel prints (fs/proc/task_mmu.c, fs/proc/array.c); a line that does not parse is an
//! error that names the file, never a guess.

use crate::proctext::{self, ProcFolder};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};

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

fn bad(what: &str, line: &[u8]) -> io::Error {
    io::Error::other(format!("{what}: cannot understand {:?}", String::from_utf8_lossy(line)))
}

fn hex(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

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

/// A flag like those of `VmFlags`, of a mapping with a protection key (pkeys(7)).
pub const HAS_KEY: &str = "key";

/// The same of a mapping of explicit huge pages, by their size: with the shift of mmap(2).
pub const HUGE_PAGES: [(&str, u32); 2] = [("hp21", 21), ("hp30", 30)];

/// `VmFlags` of every mapping of a smaps file, in the order of the maps: start and end address, and two-letter flags,
/// with [`HAS_KEY`] and [`HUGE_PAGES`] among them.
///
/// # Errors
/// Process gone, or a line that is not understood.
pub fn vm_flags(pid: i32, tid: i32) -> io::Result<Vec<(u64, u64, Vec<String>)>> {
    let text = proctext::list(format!("/proc/{pid}/task/{tid}/smaps"))?;
    let mut all = Vec::new();
    let mut current: Option<(u64, u64)> = None;
    let (mut has_key, mut huge) = (false, None);
    for line in text.split(|&c| c == b'\n') {
        if let Some(key) = line.strip_prefix(b"ProtectionKey:") {
            has_key = key.trim_ascii() != b"0";
        } else if let Some(size) = line.strip_prefix(b"KernelPageSize:") {
            huge = HUGE_PAGES.iter().find(|(_, shift)| kib(size) == Some(1 << (shift - 10)));
        } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let (start, end) = current.take().ok_or_else(|| bad("smaps", line))?;
            let flags = String::from_utf8_lossy(flags);
            let flags = flags.split_whitespace().chain(std::mem::take(&mut has_key).then_some(HAS_KEY));
            let flags = flags.chain(huge.take().map(|(flag, _)| *flag));
            all.push((start, end, flags.map(str::to_owned).collect()));
        } else if line.first().is_some_and(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()) {
            let mapping = parse_mapping(line).ok_or_else(|| bad("smaps", line))?;
            current = Some((mapping.start, mapping.end));
        }
    }
    Ok(all)
}

/// The number of a line `   2048 kB`.
fn kib(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text.trim_ascii().strip_suffix(b"kB")?).ok()?.trim().parse().ok()
}

/// What `look` finds through the first thread that has it: a main thread that has ended has no memory to look at while
/// others run.
///
/// # Errors
/// ESRCH: no thread has it; the process has ended.
pub fn by_any_thread<T>(pid: i32, look: impl FnMut(i32) -> Option<T>) -> io::Result<T> {
    tasks(pid)?.into_iter().find_map(look).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
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
    /// A hexadecimal mask (SigCgt and the like).
    pub fn mask(&self, key: &str) -> u64 {
        self.get(key).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0)
    }
    /// The last number of a list: the id that the process itself sees (NSpid, NStgid …).
    pub fn innermost(&self, key: &str) -> Option<i32> {
        self.get(key)?.split_whitespace().last()?.parse().ok()
    }
    /// Whether it is in a pid namespace below ours: it sees other ids than we do.
    pub fn is_nested(&self) -> bool {
        self.get("NSpid").is_some_and(|ids| ids.split_whitespace().count() > 1)
    }
}

/// Counts the minor page faults of a process, all its threads together, those that have ended too.
///
/// Field 10 of /proc/PID/stat; the kernel adds to it as each fault is done (mm/memory.c, mm_account_fault), so it is
/// never behind. Reading costs about 1 us, 3 us with 64 threads.
pub struct FaultCounter(fs::File);

impl FaultCounter {
    /// Opens it.
    ///
    /// # Errors
    /// Process gone, no descriptor left.
    pub fn open(pid: i32) -> io::Result<FaultCounter> {
        fs::File::open(format!("/proc/{pid}/stat")).map(FaultCounter)
    }
    /// Faults since the process began.
    ///
    /// # Errors
    /// Process gone.
    pub fn read(&self) -> io::Result<u64> {
        let mut text = [0; 1024];
        let len = self.0.read_at(&mut text, 0)?;
        minor_faults(&text[..len]).ok_or_else(|| bad("stat", &text[..len]))
    }
}

fn minor_faults(text: &[u8]) -> Option<u64> {
    after_name(text)?.nth(7)?.parse().ok()
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

/// How long the main thread has waited for a processor since its start, ns; 0: this kernel does not count it
/// (Documentation/scheduler/sched-stats.rst, /proc/PID/schedstat). What it waits just now counts when it is over.
///
/// # Errors
/// Process gone, or not understood.
pub fn queued_ns(pid: i32) -> io::Result<u64> {
    let text = proctext::record_text(format!("/proc/{pid}/schedstat"))?;
    let number = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    number.ok_or_else(|| bad("schedstat", text.as_bytes()))
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

/// Numbers of all open descriptors.
///
/// # Errors
/// Process gone, or not ours.
pub fn descriptors(pid: i32, tid: i32) -> io::Result<Vec<i32>> {
    let mut all = numbers(&format!("/proc/{pid}/task/{tid}/fd"))?;
    all.sort_unstable();
    Ok(all)
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

/// One timer of `/proc/PID/timers`; the id of a thread is as the reader sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimerFacts {
    /// Id.
    pub id: i32,
    /// Signal.
    pub signal: i32,
    /// sigev_value.
    pub value: u64,
    /// SIGEV_*.
    pub notify: i32,
    /// Thread or process that is told.
    pub target: i32,
    /// Clock.
    pub clock: i32,
}

/// POSIX timers of a process (fs/proc/base.c, show_timer). None where the kernel does not list them.
///
/// # Errors
/// A text that is not understood.
pub fn posix_timers(pid: i32) -> io::Result<Vec<TimerFacts>> {
    let text = proctext::list_text(format!("/proc/{pid}/timers")).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines
        .chunks(4)
        .map(|four| parse_timer(four).ok_or_else(|| bad("timers", four.join("; ").as_bytes())))
        .collect()
}

fn parse_timer(lines: &[&str]) -> Option<TimerFacts> {
    let [id, signal, notify, clock] = lines else { return None };
    let (number, value) = signal.strip_prefix("signal: ")?.split_once('/')?;
    let (kind, target) = notify.strip_prefix("notify: ")?.split_once('/')?;
    let (whom, target) = target.split_once('.')?;
    let kind = match (kind, whom) {
        ("signal", "tid") => libc::SIGEV_THREAD_ID,
        ("signal", _) => libc::SIGEV_SIGNAL,
        ("none", _) => libc::SIGEV_NONE,
        _ => return None,
    };
    Some(TimerFacts {
        id: id.strip_prefix("ID: ")?.parse().ok()?,
        signal: number.parse().ok()?,
        value: u64::from_str_radix(value.trim_start_matches("0x"), 16).ok()?,
        notify: kind,
        target: target.parse().ok()?,
        clock: clock.strip_prefix("ClockID: ")?.parse().ok()?,
    })
}

/// What the scheduler says of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedFacts {
    /// When it was last put on or taken off its processor, on that processor's scheduler clock, nanoseconds.
    pub exec_start_ns: u64,
    /// Times it gave the processor away by itself.
    pub voluntary_switches: u64,
}

/// `/proc/PID/task/TID/sched` (kernel/sched/debug.c). `None` where the kernel does not print it.
pub fn sched_facts(pid: i32, tid: i32) -> Option<SchedFacts> {
    parse_sched(&proctext::record_text(format!("/proc/{pid}/task/{tid}/sched")).ok()?)
}

/// The same of the calling thread.
pub fn own_sched_facts() -> Option<SchedFacts> {
    parse_sched(&proctext::record_text("/proc/thread-self/sched").ok()?)
}

fn parse_sched(text: &str) -> Option<SchedFacts> {
    let value = |key: &str| text.lines().find(|line| line.starts_with(key))?.rsplit([' ', ':']).next();
    let (milliseconds, fraction) = value("se.exec_start")?.split_once('.')?;
    let nanoseconds = format!("{fraction:0<6}");
    Some(SchedFacts {
        exec_start_ns: milliseconds.parse::<u64>().ok()? * 1_000_000
            + nanoseconds.get(..6)?.parse::<u64>().ok()?,
        voluntary_switches: value("nr_voluntary_switches")?.parse().ok()?,
    })
}

/// `/proc/PID/fdinfo/FD`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescriptorInfo {
    /// O_* flags with O_CLOEXEC.
    pub flags: u32,
    /// Offset.
    pub position: u64,
    /// All lines.
    pub text: String,
}

impl DescriptorInfo {
    /// The value of a line `key:value`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
    }
}

/// Reads it; `None` when the descriptor is not open (any more).
pub fn descriptor_info(pid: i32, fd: u64) -> Option<DescriptorInfo> {
    understood(proctext::record_text(format!("/proc/{pid}/fdinfo/{fd}")).ok()?)
}

/// The descriptors of a process, to be looked at one by one.
#[derive(Debug)]
pub struct DescriptorFolder {
    links: ProcFolder,
    infos: ProcFolder,
}

impl DescriptorFolder {
    /// By a thread of it: a main thread that has ended has no descriptors any more.
    ///
    /// # Errors
    /// Process gone, or not ours.
    pub fn open(pid: i32, tid: i32) -> io::Result<DescriptorFolder> {
        Ok(DescriptorFolder {
            links: ProcFolder::open(format!("/proc/{pid}/task/{tid}/fd"))?,
            infos: ProcFolder::open(format!("/proc/{pid}/task/{tid}/fdinfo"))?,
        })
    }
    /// As [`descriptor_info`].
    pub fn info(&self, fd: i32) -> Option<DescriptorInfo> {
        understood(self.infos.record_text(&fd.to_string()).ok()?)
    }
    /// What it is called.
    ///
    /// # Errors
    /// It is not open (any more).
    pub fn target(&self, fd: i32) -> io::Result<Vec<u8>> {
        self.links.link(&fd.to_string())
    }
    /// Device and inode of what it leads to.
    ///
    /// # Errors
    /// It is not open (any more).
    pub fn identity(&self, fd: i32) -> io::Result<(u64, u64)> {
        self.links.identity(&fd.to_string())
    }
}

fn understood(text: String) -> Option<DescriptorInfo> {
    let mut info = DescriptorInfo { flags: 0, position: 0, text };
    info.flags = u32::from_str_radix(info.get("flags")?, 8).ok()?;
    info.position = info.get("pos")?.parse().ok()?;
    Some(info)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

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

    #[test]
    fn a_timer_is_understood() {
        let lines = ["ID: 3", "signal: 27/00007f0000000010", "notify: signal/tid.77", "ClockID: 1"];
        let facts = parse_timer(&lines).unwrap();
        assert_eq!((facts.id, facts.signal, facts.value, facts.target), (3, 27, 0x7f00_0000_0010, 77));
        assert_eq!((facts.notify, facts.clock), (libc::SIGEV_THREAD_ID, 1));
        assert!(parse_timer(&["ID: x", "", "", ""]).is_none() && parse_timer(&["ID: 1"]).is_none());
    }

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

    #[test]
    fn faults_are_counted_as_they_happen() {
        assert_eq!(minor_faults(b"7 (a) b (c)) R 1 2 3 4 5 6 77 8"), Some(77));
        assert_eq!(minor_faults(b"7 (a) R 1 2 3"), None);
        assert_eq!(minor_faults(b""), None);
        let counter = FaultCounter::open(std::process::id().cast_signed()).unwrap();
        let before = counter.read().unwrap();
        let pages = 64;
        // Fresh memory, beyond what the allocator keeps.
        let memory = vec![1_u8; pages << 16];
        std::hint::black_box(&memory);
        assert!(counter.read().unwrap() >= before + 2, "{before}");
    }
}
