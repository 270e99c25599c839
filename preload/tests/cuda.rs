//! How a program reaches the CUDA driver with the library preloaded, and what it sees where there is none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::{Agent, Folder, alone, library, output, plain, with_agent};
use holdfast_abi::{CudaArea, CudaKind, SharedPage};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The driver, in a folder of its own.
fn driver(folder: &Folder) -> PathBuf {
    let built = folder.compile("cuda_driver", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    let place = folder.path().join("lib");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::rename(built, place.join("libcuda.so.1")).unwrap();
    place
}

fn with_driver<'a>(command: &'a mut Command, place: &Path) -> &'a mut Command {
    command.env("LD_LIBRARY_PATH", place)
}

#[test]
fn without_a_driver_library_none_of_its_functions_is_found() {
    let folder = Folder::new();
    let program = folder.compile("cuda", &["-rdynamic"]);
    let expected = output(plain(&program).arg("without"));
    assert!(expected.contains("default cuInit: nowhere\ndlerror 1\nnext cuInit: nowhere\n"), "{expected}");
    // What libholdfast exports for itself is not in question here.
    assert_eq!(output(alone(&program).arg("without")), expected);
    let agent = Agent::new(folder.path());
    assert_eq!(output(with_agent(&program, &agent).arg("without")), expected);
}

#[test]
fn a_program_that_loads_the_driver_gets_wrappers_and_the_same_answers() {
    let folder = Folder::new();
    let program = folder.compile("cuda", &[]);
    let place = driver(&folder);
    let expected = output(with_driver(plain(&program).arg("with"), &place));
    assert!(expected.contains("handle cuInit: libcuda\n"), "{expected}");
    let found = output(with_driver(alone(&program).arg("with"), &place));
    // What has a wrapper comes from libholdfast; what has none, and what the driver lacks, is as without.
    assert!(found.contains("handle cuInit: holdfast\n"), "{found}");
    assert!(found.contains("handle cuDeviceGetCount: libcuda\n"), "{found}");
    assert!(found.contains("handle cuMemAllocAsync: nowhere\ndlerror 1\n"), "{found}");
    assert!(found.contains("get 0 0 holdfast\n"), "{found}");
    assert_eq!(found.replace("holdfast", "libcuda"), expected);
}

#[test]
fn a_linked_program_calls_through_wrappers() {
    let folder = Folder::new();
    let place = driver(&folder);
    let library = place.join("libcuda.so.1");
    let program = folder.compile("cuda_linked", &[library.to_str().unwrap()]);
    let expected = output(with_driver(&mut plain(&program), &place));
    assert!(expected.contains("driver: cuLaunchKernel 11 22\nlaunch 33\n"), "{expected}");
    let found = output(with_driver(&mut alone(&program), &place));
    // A weak name that the driver lacks is there, and says that it is not supported (801).
    assert_eq!(found, format!("{expected}managed 801\n"));
}

#[test]
fn a_library_that_intercepts_keeps_its_place() {
    let folder = Folder::new();
    let place = driver(&folder);
    let linked = place.join("libcuda.so.1");
    let program = folder.compile("cuda_linked", &[linked.to_str().unwrap()]);
    let other = folder.compile("cuda", &[]);
    let shim = folder.compile("cuda_shim", &["-shared", "-fPIC"]);
    let both = |first: &Path, second: &Path| format!("{}:{}", first.display(), second.display());
    for preload in [both(library(), &shim), both(&shim, library())] {
        let mut command = plain(&program);
        command.env("LD_PRELOAD", &preload).env("HOLDFAST_NO_AGENT", "1");
        let found = output(with_driver(&mut command, &place));
        assert!(found.starts_with("shim: cuInit, next 1\ndriver: cuInit 0\ninit 0\n"), "{preload}: {found}");
        // And where there is no driver, it finds nothing behind itself.
        let mut command = plain(&other);
        command.env("LD_PRELOAD", &preload).env("HOLDFAST_NO_AGENT", "1");
        let found = output(command.arg("without"));
        assert!(found.contains("default cuInit: cuda_shim\n"), "{preload}: {found}");
    }
}

/// A program that waits for what it is told.
struct Waiting {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Waiting {
    fn start(command: &mut Command) -> Waiting {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Waiting { child, input, output }
    }
    fn tell(&mut self, what: &str) {
        self.input.as_mut().unwrap().write_all(what.as_bytes()).unwrap();
    }
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
    fn finish(mut self) {
        self.input = None;
        assert!(self.child.wait().unwrap().success());
    }
}

/// The area of a process, as the agent reads and writes it.
struct Area {
    memory: std::fs::File,
    start: u64,
}

impl Area {
    fn of(pid: i32, shared: u64) -> Area {
        let memory =
            std::fs::OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
        let mut area = Area { memory, start: shared };
        area.start = area.word(SharedPage::CUDA_AREA);
        area
    }
    fn word(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, self.start + offset as u64).unwrap();
        u64::from_le_bytes(bytes)
    }
    fn close(&self, value: u32) {
        self.memory.write_all_at(&value.to_le_bytes(), self.start + CudaArea::CLOSED as u64).unwrap();
    }
    fn count(&self, kind: u8) -> (u64, u64) {
        let at = usize::from(kind) * 8;
        (self.word(CudaArea::COUNTS + at), self.word(CudaArea::BYTES + at))
    }
    fn wait_for(&self, what: &str, offset: usize, value: u64) {
        let start = Instant::now();
        while self.word(offset) != value {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn the_agent_reads_what_is_in_use_and_closes_the_gate() {
    let folder = Folder::new();
    let program = folder.compile("cuda", &[]);
    let place = driver(&folder);
    let agent = Agent::new(folder.path());
    let mut waiting = Waiting::start(with_driver(with_agent(&program, &agent).arg("wait"), &place));
    let said = agent.next();
    let shared = said.text["area"]["shared"].as_u64().unwrap();
    while waiting.line() != "ready" {}
    let area = Area::of(said.pid, shared);
    assert_ne!(area.start, 0);
    assert_eq!(area.word(CudaArea::INITIALISED), 1);
    assert_eq!(area.count(CudaKind::DEVICE), (1, 4096));
    assert_eq!(area.word(CudaArea::THREAD_COUNT), 1);

    // Closed: the call waits.
    area.close(CudaArea::BY_AGENT);
    waiting.tell("f");
    area.wait_for("the call waits", CudaArea::WAITING, 1);
    assert_eq!(area.count(CudaKind::DEVICE).0, 1);
    area.close(0);
    assert_eq!(waiting.line(), "driver: cuMemFree_v2 7f0000000000");
    assert_eq!(waiting.line(), "free 0");
    assert_eq!(area.count(CudaKind::DEVICE), (0, 0));

    // A child has nothing of it.
    area.close(CudaArea::BY_AGENT);
    waiting.tell("c");
    assert_eq!(waiting.line(), "driver: cuMemFree_v2 7f0000000000");
    assert_eq!(waiting.line(), "child 0");

    // The agent dies.
    drop(agent);
    waiting.tell("f");
    assert_eq!(waiting.line(), "driver: cuMemFree_v2 7f0000000000");
    assert_eq!(waiting.line(), "free 0");
    assert_eq!(area.word(CudaArea::ABANDONED), 1);
    waiting.finish();
}
