//! Engine `slots` in a real program: SIGSEGV as the program sees it, and guarded memory, with the test in the part of
//! the agent: it writes the tables through /proc/PID/mem, the program closes the range itself when it is told.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use common::{Agent, Folder, output, plain, with_agent};
use holdfast_abi::{GuardArea, SharedPage};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

fn slots(command: &mut Command) -> &mut Command {
    command.env("HOLDFAST_ENGINE", "slots")
}

#[test]
fn the_program_has_its_own_sigsegv() {
    let folder = Folder::new();
    let program = folder.compile("guard", &["-D_GNU_SOURCE"]);
    let agent = Agent::new(folder.path());
    for (what, expected) in [
        ("handlers", "jumps 3 same 1 flags 1\ninfo 1 on stack 1\nfixed 1 7\nreset 1\n"),
        ("masks", "block 0 1 0 kernel 0\nheld 0\nsent 1\nfull 1 1\n"),
    ] {
        // What it prints without us, but for what the kernel shows below the C library.
        let native = output(plain(&program).arg(what)).replace("kernel 1", "kernel 0");
        assert_eq!(native, expected);
        assert_eq!(output(slots(&mut with_agent(&program, &agent)).arg(what)), expected);
        drop(agent.next());
    }
    for way in ["0", "1", "2", "3"] {
        let status = |command: &mut Command| command.args(["die", way]).status().unwrap().signal();
        assert_eq!(status(&mut plain(&program)), Some(libc::SIGSEGV), "{way}");
        assert_eq!(status(slots(&mut with_agent(&program, &agent))), Some(libc::SIGSEGV), "{way}");
        drop(agent.next());
    }
}

/// A program whose protected region is guarded.
struct Guarded {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    memory: File,
    base: u64,
    region: u64,
    agent: Option<Agent>,
    _folder: Folder,
}

impl Guarded {
    /// `pool` slots, groups of `group` pages; then the program closes the range.
    fn new(pool: u64, group: u64) -> Guarded {
        let folder = Folder::new();
        let program = folder.compile("guard", &["-D_GNU_SOURCE"]);
        let agent = Agent::new(folder.path());
        let mut command = with_agent(&program, &agent);
        slots(&mut command).arg("guarded").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let hello = agent.next();
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let region: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        let memory = File::options().read(true).write(true).open(format!("/proc/{}/mem", hello.pid)).unwrap();
        let mut word = [0; 8];
        let shared = hello.text["area"]["shared"].as_u64().unwrap();
        memory.read_exact_at(&mut word, shared + SharedPage::GUARD_AREA as u64).unwrap();
        let base = u64::from_le_bytes(word);
        assert_ne!(base, 0, "the library is ready");
        let agent = Some(agent);
        let mut guarded = Guarded { child, input, output, memory, base, region, agent, _folder: folder };
        assert_ne!(guarded.word(GuardArea::HANDLER), 0);
        guarded.arm(pool, group);
        guarded
    }

    fn arm(&mut self, pool: u64, group: u64) {
        let row = GuardArea::RANGE_TABLE;
        for (offset, value) in [(row, self.region), (row + 8, self.region + 64 * PAGE as u64), (row + 16, 0)]
        {
            self.set(offset, value);
        }
        for slot in 0..pool {
            self.write(GuardArea::RING + slot as usize * 4, &(slot as u32).to_le_bytes());
        }
        for (offset, value) in [
            (GuardArea::GROUP, group),
            (GuardArea::POOL, pool),
            (GuardArea::FREE_TAIL, pool),
            (GuardArea::LAST, 1),
            (GuardArea::RANGES, 1),
            (GuardArea::ARMED, 1),
        ] {
            self.set(offset, value);
        }
        assert_eq!(self.ask("close"), "done");
    }
    fn write(&self, offset: usize, bytes: &[u8]) {
        self.memory.write_all_at(bytes, self.base + offset as u64).unwrap();
    }
    fn set(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }
    fn word(&self, offset: usize) -> u64 {
        let mut word = [0; 8];
        self.memory.read_exact_at(&mut word, self.base + offset as u64).unwrap();
        u64::from_le_bytes(word)
    }
    fn half(&self, offset: usize, index: usize) -> u32 {
        let mut word = [0; 4];
        self.memory.read_exact_at(&mut word, self.base + (offset + index * 4) as u64).unwrap();
        u32::from_le_bytes(word)
    }
    fn state(&self, page: usize) -> u32 {
        self.half(GuardArea::STATE, page)
    }
    fn done(&self, page: usize) {
        self.write(GuardArea::FLAGS + page, &[GuardArea::DONE]);
    }
    /// First byte of a slot, as saved.
    fn saved(&self, page: usize) -> u8 {
        let slot = (self.state(page) & GuardArea::OPENED) - 1;
        let mut byte = [0];
        self.memory
            .read_exact_at(&mut byte, self.base + (GuardArea::SLOTS + slot as usize * PAGE) as u64)
            .unwrap();
        byte[0]
    }
    fn logged(&self) -> Vec<(usize, u32)> {
        (0..self.word(GuardArea::LOG_HEAD) as usize)
            .map(|index| self.half(GuardArea::LOG, index))
            .map(|entry| ((entry & GuardArea::LOG_PAGE) as usize, entry >> GuardArea::CLASS_SHIFT))
            .collect()
    }
    fn tell(&mut self, text: &str) {
        writeln!(self.input.as_mut().unwrap(), "{text}").unwrap();
    }
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
    fn ask(&mut self, text: &str) -> String {
        self.tell(text);
        self.answer()
    }
    fn until(&self, what: &str, mut holds: impl FnMut(&Guarded) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    fn finish(mut self) {
        drop(self.input.take());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

#[test]
fn a_page_is_saved_before_its_first_write_and_stored_ones_are_just_opened() {
    let mut program = Guarded::new(4, 1);
    assert_eq!(program.ask("write 3"), "done");
    assert_eq!((program.state(3), program.saved(3)), (1, b'd'));
    assert_eq!(program.ask("get 3"), "w done");
    program.done(7);
    assert_eq!(program.ask("write 7"), "done");
    assert_eq!(program.state(7), GuardArea::OPENED);
    assert_eq!(program.ask("write 3"), "done");
    assert_eq!(program.logged(), [(3, GuardArea::COW), (7, GuardArea::AVOIDED)]);
    assert_eq!((program.word(GuardArea::FREE_HEAD), program.word(GuardArea::INSIDE)), (1, 0));
    program.finish();
}

#[test]
fn without_a_slot_the_writer_waits_for_its_page() {
    let mut program = Guarded::new(1, 1);
    assert_eq!(program.ask("write 0"), "done");
    program.tell("write 1");
    program.until("page 1 is waited for", |program| program.word(GuardArea::WAITERS) == 2);
    assert_eq!(program.state(1), 0);
    program.done(1);
    assert_eq!(program.answer(), "done");
    // A slot that becomes free serves as well; entry first, then the tail.
    program.tell("write 2");
    program.until("page 2 is waited for", |program| program.word(GuardArea::WAITERS) == 3);
    program.write(GuardArea::RING, &0_u32.to_le_bytes());
    program.set(GuardArea::FREE_TAIL, 2);
    assert_eq!(program.answer(), "done");
    assert_eq!((program.saved(2), program.word(GuardArea::WAITERS)), (b'c', 0));
    assert_eq!(program.logged(), [(0, GuardArea::COW), (1, GuardArea::WAIT), (2, GuardArea::WAIT)]);
    program.finish();
}

#[test]
fn system_calls_find_their_buffers_open() {
    let mut program = Guarded::new(16, 1);
    assert_eq!(program.ask("read 5"), "3 done");
    assert_eq!(program.ask("readv 8 11"), "3 done");
    assert_eq!(program.ask("drop 20"), "0 done");
    assert_eq!(program.ask("unmap 30"), "0 done");
    for page in [5, 8, 11, 20, 30] {
        assert_eq!(program.saved(page), b'a' + page as u8 % 20, "{page}");
    }
    assert_eq!(program.state(30) & GuardArea::GONE, GuardArea::GONE);
    assert_eq!(program.word(GuardArea::INSIDE), 0);
    program.finish();
}

/// The agent must neither lose the content nor open what is mapped there afterwards.
#[test]
fn freed_protected_memory_is_saved_and_left_alone() {
    let mut program = Guarded::new(64, 1);
    assert_eq!(program.ask("free"), "0 done");
    for page in 0..64 {
        assert_eq!(program.saved(page), b'a' + page as u8 % 20, "{page}");
        assert_eq!(program.state(page) & GuardArea::GONE, GuardArea::GONE);
    }
    program.finish();
}

#[test]
fn neighbours_are_resolved_together() {
    let mut program = Guarded::new(64, 16);
    // Groups begin where their addresses say, not where the region begins.
    let first = (16 - (program.region as usize / PAGE) % 16) % 16;
    assert_eq!(program.ask(&format!("write {first}")), "done");
    assert_eq!(program.ask(&format!("write {}", first + 1)), "done");
    // The second in ascending order: its group comes along, and no more.
    assert!((first..first + 16).all(|page| program.state(page) != 0), "{:?}", program.logged());
    assert_eq!(program.state(first + 16), 0);
    assert!(
        program
            .logged()
            .iter()
            .skip(2)
            .all(|entry| entry.1 == GuardArea::COW | GuardArea::PREDICTED >> GuardArea::CLASS_SHIFT)
    );
    program.finish();
}

#[test]
fn a_forked_child_is_not_guarded_and_does_not_disturb() {
    let mut program = Guarded::new(0, 1);
    // Without a slot the child would wait for ever.
    assert_eq!(program.ask("fork 4"), "5 e done");
    assert_eq!((program.state(4), program.word(GuardArea::LOG_HEAD)), (0, 0));
    program.finish();
}

#[test]
fn a_protection_of_the_programs_own_stays_a_fault() {
    let mut program = Guarded::new(8, 1);
    assert_eq!(program.ask("write 9"), "done");
    assert_eq!(program.ask("raw 9"), "1 done", "its handler is called");
    assert_eq!(program.ask("write 10"), "done", "the guard still works");
    assert_eq!(program.saved(10), b'k');
    program.finish();
}

#[test]
fn a_dead_agent_holds_no_thread() {
    let mut program = Guarded::new(1, 1);
    assert_eq!(program.ask("thread 0"), "done");
    program.until("the slot is taken", |program| program.word(GuardArea::FREE_HEAD) == 1);
    program.tell("write 1");
    program.until("page 1 is waited for", |program| program.word(GuardArea::WAITERS) == 2);
    // It is silent but there: its socket accepts.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(program.word(GuardArea::ABANDONED), 0);
    program.agent = None;
    assert_eq!(program.answer(), "done");
    assert_eq!(program.word(GuardArea::ABANDONED), 1);
    for page in 2..64 {
        assert_eq!(program.ask(&format!("write {page}")), "done");
    }
    program.finish();
}
