//! A producer that is killed in its puts, at random moments and around the end of the ring, beside a reader that stays
//! ten versions behind: each version that was committed is there, in order, with its contents; none is half.
//!
//! The producer says itself when it is killed: the kernel's clock ends it so many microseconds after the beginning of a
//! put, wherever it is then. A program of its own: a child that is started has the locks of all logs for a moment.
//!
//! # Safety
//! One system call, with a struct of its own.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, unsafe_code)]

#[path = "../all/folder.rs"]
#[allow(dead_code)]
mod folder;

use folder::Folder;
use holdfast_streams::layout::{FILE_HEAD, FileHead, HEAD_AT, Kind, PAGE, RECORD_HEAD, RING_AT, RecordHead};
use holdfast_streams::place::Place;
use holdfast_streams::reader::Reader;
use holdfast_streams::writer::{Changed, Options, Source, Writer};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// For the producer: the folder of the log; which of its puts it does not live through, and a number for the moment.
const LOGS: &str = "HOLDFAST_TEST_KILLED_LOGS";
const LAST: &str = "HOLDFAST_TEST_KILLED_IN";
const MOMENT: &str = "HOLDFAST_TEST_KILLED_AT";
/// It dies near the end of the ring.
const AT_THE_END: &str = "end";
const FIELD: usize = 64 * PAGE as usize;
/// Some sixty versions.
const CAPACITY: u64 = 64 * (FIELD as u64 + 4 * PAGE);
const BEHIND: u64 = 10;

/// The pages of `few` are put one by one.
fn few(version: u64) -> Vec<u8> {
    let byte = |page: u64| (version.saturating_sub(page) / 8 * 8 + page) as u8;
    (0..8).flat_map(|page| vec![byte(page); PAGE as usize]).collect()
}

fn field(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(FIELD / 8)
}

/// SIGALRM, which ends the process, after so long; zero: not any more.
fn end_after(time: Duration) {
    let time = nix::libc::timeval { tv_sec: 0, tv_usec: i64::from(time.subsec_micros()) };
    let never = nix::libc::timeval { tv_sec: 0, tv_usec: 0 };
    let timer = nix::libc::itimerval { it_interval: never, it_value: time };
    // SAFETY: a struct of this frame, and no place for the old one.
    let set = unsafe { nix::libc::setitimer(nix::libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    assert_eq!(set, 0);
}

/// Not a test of its own: what the other one starts, until it dies.
#[test]
fn producer() {
    let said = |name| std::env::var(name).ok();
    let (Some(logs), Some(last), Some(moment)) = (said(LOGS), said(LAST), said(MOMENT)) else { return };
    let place = Place::parse("sim/0", Path::new(&logs)).unwrap();
    let wait = Duration::from_secs(60);
    let mut writer = Writer::open(&place, Options { capacity: CAPACITY, wait, keep: false }).unwrap();
    let mut log = Log::open(&place.path());
    let (mut took, mut random) = (Duration::from_micros(200), Random(moment.parse().unwrap()));
    for put in 0..1000_u64 {
        let version = writer.version() + 1;
        let (field, few, step) = (field(version), few(version), version.to_le_bytes());
        let source = |key, bytes, changed| Source { key, bytes, changed };
        let field = source("a field", &field, Changed::All);
        let others = [source("few", &few, Changed::Unknown), source("step", &step, Changed::All)];
        let objects = [&[field][..], &others].concat();
        log.look();
        let is_last = match last.parse::<u64>() {
            Ok(last) => put >= last,
            Err(_) => last == AT_THE_END && put > 0 && log.is_near_the_end(),
        };
        if is_last {
            end_after(took / 1000 * u32::try_from(random.below(1000)).unwrap() + Duration::from_micros(1));
        }
        let begun = Instant::now();
        writer.put(Kind::Put, &objects).unwrap();
        end_after(Duration::ZERO);
        took = begun.elapsed().min(Duration::from_millis(1));
    }
}

/// What was committed, as the bytes of the log say.
struct Log {
    file: File,
    head: FileHead,
    /// Of the next record.
    tail: u64,
    version: u64,
    /// Bytes of the longest record.
    longest: u64,
}

impl Log {
    fn open(path: &Path) -> Log {
        let file = File::open(path).unwrap();
        let mut head = [0; FILE_HEAD];
        file.read_exact_at(&mut head, 0).unwrap();
        let head = FileHead::parse(&head).unwrap();
        let mut log = Log { file, head, tail: 0, version: 0, longest: 0 };
        log.tail = log.long(HEAD_AT);
        log
    }

    fn long(&self, at: u64) -> u64 {
        let mut long = [0; 8];
        self.file.read_exact_at(&mut long, at).unwrap();
        u64::from_le_bytes(long)
    }

    /// Goes on as far as records are.
    fn look(&mut self) -> u64 {
        loop {
            let at = self.head.place(self.tail);
            let (word, mut head) = (self.long(at), [0; RECORD_HEAD]);
            self.file.read_exact_at(&mut head, at).unwrap();
            let Some(head) = RecordHead::parse(&head, self.tail, &self.head) else { break };
            let mut table = vec![0; head.table_len as usize];
            self.file.read_exact_at(&mut table, at + RECORD_HEAD as u64).unwrap();
            if head.commit(&self.head, &table) != word {
                break;
            }
            self.tail += head.len;
            if head.kind != Kind::Pad {
                self.version = head.version;
                self.longest = self.longest.max(head.len);
            }
        }
        self.version
    }

    /// The next record, or the one after it, is at the end of the ring.
    fn is_near_the_end(&self) -> bool {
        self.longest > 0 && self.head.to_end(self.tail) < 2 * self.longest
    }

    /// Whether some of a version is there that was not committed.
    fn has_begun_version(&self) -> bool {
        // Before the end of the ring, or at its beginning.
        [self.head.place(self.tail), RING_AT].into_iter().any(|at| self.long(at + 1024) == self.version + 1)
    }
}

/// Numbers without a pattern, the same ones in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Steps to so many versions before the newest one, and looks at each: at all of it where that is cheap.
fn follow(reader: &mut Reader, newest: u64, behind: u64) {
    while reader.version() + behind < newest {
        let before = reader.version();
        let version = reader.step().unwrap().unwrap().number;
        assert!(version == before + 1, "{version} after {before}");
        assert!(!version.is_multiple_of(8) || reader.read("a field").unwrap() == field(version), "{version}");
        assert!(reader.read("few").unwrap() == few(version), "{version}");
        assert!(reader.read("step").unwrap() == version.to_le_bytes());
    }
}

#[test]
fn a_producer_that_is_killed_in_its_puts_leaves_whole_versions_for_a_slow_reader() {
    const KILLS: u64 = 200;
    let folder = Folder::new();
    let mut random = Random(7);
    let mut beside: Option<(Reader, Log)> = None;
    let (mut half, mut half_at_the_end) = (0, 0);
    for kill in 0..KILLS {
        let is_at_the_end = kill % 4 == 0;
        let last = if is_at_the_end { AT_THE_END.to_owned() } else { random.below(20).to_string() };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["producer", "--exact", "--nocapture"]).env(LOGS, folder.path());
        command.env(LAST, last).env(MOMENT, (kill * 977).to_string());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let ended = loop {
            if let Some((reader, log)) = &mut beside {
                follow(reader, log.look(), BEHIND);
            } else if std::fs::metadata(folder.place().path()).is_ok_and(|found| found.len() > RING_AT) {
                let reader = Reader::open(&folder.place(), "ten behind").unwrap();
                beside = Some((reader, Log::open(&folder.place().path())));
            }
            if let Some(ended) = child.try_wait().unwrap() {
                break ended;
            }
        };
        assert_eq!(ended.signal(), Some(nix::libc::SIGALRM), "{ended}");
        let (reader, log) = beside.as_mut().unwrap();
        let newest = log.look();
        let is_half = log.has_begun_version();
        half += usize::from(is_half);
        half_at_the_end += usize::from(is_half && is_at_the_end);
        follow(reader, newest, BEHIND);
        let mut other = Reader::open(&folder.place(), "newest").unwrap();
        assert_eq!(other.seek(0).unwrap(), newest);
        assert!(other.read("a field").unwrap() == field(newest) && other.read("few").unwrap() == few(newest));
        assert!(
            other.versions().unwrap()[0].number <= reader.version().max(1),
            "the reader keeps its versions"
        );
    }
    let (reader, log) = beside.as_mut().unwrap();
    follow(reader, log.look(), 0);
    println!(
        "{KILLS} killed in a put, {half} with half a version, {half_at_the_end} of them at the end of the ring"
    );
    assert!(half > 0, "nothing was half");
}
