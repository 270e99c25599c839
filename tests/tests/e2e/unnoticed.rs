//! Checkpoints and checks are not noticed: not by a watcher from outside, nor where a file cannot be read unnoticed.
//!
//! What a program itself notices is in the suite (`unnoticed`).

use anyhow::{Context, Result, ensure};
use holdfast_tests::full;
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, each_user_by_root, shell_code, wait};
use std::process::{Child, Command, Stdio};

/// Prints what happens to files of a folder, and who does it: fanotify(7) on its mount, as fatrace(8) has it. By
/// handles: events with descriptors are opened by who reads them, which breaks leases, those of other tests too.
const WATCHER: &str = r#"
import ctypes, os, struct, sys
libc, folder = ctypes.CDLL(None, use_errno=True), sys.argv[1].encode()
wanted, mount = ctypes.create_string_buffer(struct.pack('Ii', 128, 0) + bytes(128)), ctypes.c_int()
if libc.name_to_handle_at(-100, folder, wanted, ctypes.byref(mount), 0) != 0:
    sys.exit(77)
wanted = wanted.raw[:8 + struct.unpack('I', wanted.raw[:4])[0]]
# FAN_REPORT_DFID_NAME.
group = libc.fanotify_init(0xc00, os.O_RDONLY | os.O_CLOEXEC)
# FAN_ACCESS, MODIFY, CLOSE_WRITE, CLOSE_NOWRITE, OPEN, ONDIR; FAN_MARK_ADD on the mount.
events = ctypes.c_uint64(0x1 | 0x2 | 0x8 | 0x10 | 0x20 | 0x40000000)
if group < 0 or libc.fanotify_mark(group, 0x11, events, -100, folder) != 0:
    sys.exit(77)
print('ready', flush=True)
while True:
    left = os.read(group, 65536)
    while left:
        length, _, _, begin, mask, _, pid = struct.unpack('IBBHQii', left[:24])
        event, left = left[begin:length], left[length:]
        while event:
            kind, _, size = struct.unpack('BBH', event[:4])
            # Behind type, length and file system: the folder's handle, and the name.
            if kind == 2 and event[12:size].startswith(wanted):
                name = event[12 + len(wanted):size].split(b'\0')[0].decode()
                print(f'{mask:#x} /{name} by {pid}', flush=True)
            event = event[size:]
"#;

/// The program, once it is in its rounds.
fn start(bed: &Bed, kind: &str) -> Result<Child> {
    let program = bed.kit().program("unnoticed").to_string_lossy().into_owned();
    let mut command = bed.staying_command("u", &[], &[&program, kind, "50"])?;
    let mut front = command.spawn()?;
    bed.wait_live("u", &mut front)?.context("a program")?;
    bed.until("the first round", PATIENCE, || bed.text("out").contains("round 0"))?;
    Ok(front)
}

fn end(bed: &Bed, mut front: Child) -> Result<()> {
    bed.may_end()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(code == 0, "status {code}: {}", bed.text("out"));
    bed.check_clean("u")
}

#[test]
fn a_watcher_from_outside_has_not_one_event() {
    each_user_by_root(|bed| {
        let front = start(bed, "outside")?;
        let folder = bed.work().join("unnoticed").canonicalize()?;
        let mut watcher = Command::new("python3");
        watcher.args(["-c", WATCHER]).arg(&folder).stdout(bed.create("events")?).stderr(Stdio::inherit());
        let mut watcher = watcher.spawn()?;
        bed.until("a watcher", PATIENCE, || {
            bed.text("events").starts_with("ready") || watcher.try_wait().is_ok_and(|ended| ended.is_some())
        })?;
        if watcher.try_wait()?.is_some_and(|ended| ended.code() == Some(77)) {
            println!("not run: no fanotify here");
            return end(bed, front);
        }
        for _ in 0..if full() { 300 } else { 10 } {
            bed.say(&["check", "u"])?.success()?;
            bed.say(&["checkpoint", "u"])?.success()?;
        }
        // It sees what is opened there at all.
        std::fs::read(folder.join("read"))?;
        bed.until("events", PATIENCE, || bed.text("events").contains("/read by"))?;
        watcher.kill()?;
        watcher.wait()?;
        let (events, own) = (bed.text("events"), format!("by {}", std::process::id()));
        let others: Vec<&str> = events.lines().skip(1).filter(|line| !line.ends_with(&own)).collect();
        ensure!(others.is_empty(), "{others:#?}");
        end(bed, front)
    });
}

#[test]
fn what_cannot_be_read_unnoticed_is_named() {
    each_user(|bed| {
        let front = start(bed, "blind")?;
        for _ in 0..3 {
            let taken = bed.say(&["checkpoint", "u"])?.success()?;
            let named = taken.stderr.lines().any(|line| {
                ["unnoticed/blind", "writing only", "inotify"].iter().all(|word| line.contains(word))
            });
            ensure!(named, "{}", taken.stderr);
        }
        ensure!(processes::runs(bed.pid("u")?.context("a pid")?), "{}", bed.text("out"));
        end(bed, front)
    });
}
