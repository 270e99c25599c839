//! Real mappings of a file stand for segments: what they are after each call, and what is in them.
//!
//! Each test runs in a process of its own: it makes holes in its memory, where stacks of other tests' threads would
//! be put.

use super::mremap::{remap, unmap};
use super::ranges::note;
use super::*;
use core::sync::atomic::Ordering::Relaxed;
use holdfast_abi::PAGE;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

const LEN: usize = 64 * PAGE;

/// Runs the calling test in a process of its own, and says so; `false` there.
fn elsewhere() -> bool {
    const ALONE: &str = "HOLDFAST_TEST_ALONE";
    // With one thread for all tests that may be the main one, and nothing runs beside.
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main" && std::env::var_os(ALONE).is_none());
    let Some(test) = test else { return false };
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(done.status.success() && text.contains("1 passed"), "{}: {text}", done.status);
    true
}

/// A file full of `s`, in the tables as a segment.
struct Segment {
    file: File,
    path: std::path::PathBuf,
}

impl Segment {
    fn new() -> Segment {
        let path = std::env::temp_dir().join(format!("holdfast-advice-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![b's'; 4 * LEN]).unwrap();
        let file = File::open(&path).unwrap();
        let segment = Segment { file, path };
        for index in 0..SharedPage::LAZY_MAX * 2 {
            shared::word(SharedPage::LAZY_TABLE + index * 8).store(0, Relaxed);
        }
        let at = segment.map(0, LEN);
        let found = Walk::begin().unwrap().next(at, true).unwrap().unwrap();
        assert_eq!(found.inode, segment.file.metadata().unwrap().ino());
        shared::word(SharedPage::LAZY_FILES).store(found.device, Relaxed);
        shared::word(SharedPage::LAZY_FILES + 8).store(found.inode, Relaxed);
        shared::word(SharedPage::LAZY_FILE_COUNT).store(1, Relaxed);
        unmapped(at, LEN);
        segment
    }

    /// Maps it, at a place that the kernel chooses if `at` is 0, and puts the place into the table.
    fn map(&self, at: usize, len: usize) -> usize {
        let flags = libc::MAP_PRIVATE | if at == 0 { 0 } else { libc::MAP_FIXED };
        // SAFETY: over memory of this test only.
        let mapped = unsafe { libc::mmap(at as *mut c_void, len, 3, flags, self.file.as_raw_fd(), 0) };
        assert_ne!(mapped, libc::MAP_FAILED);
        note(mapped as usize, mapped as usize + len);
        mapped as usize
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        shared::word(SharedPage::LAZY_COUNT).store(0, Relaxed);
        shared::word(SharedPage::LAZY_FILE_COUNT).store(0, Relaxed);
        assert_eq!(shared::word(SharedPage::WALKERS).load(Relaxed), 0);
        let _ = std::fs::remove_file(&self.path);
    }
}

fn fresh(len: usize) -> usize {
    // SAFETY: nothing is replaced.
    let at = unsafe { map(0, len, 3, 0) };
    assert!(!is_error(at));
    at as usize
}

fn unmapped(at: usize, len: usize) {
    // SAFETY: memory of this test.
    assert_eq!(unsafe { unmap(at, len) }, 0);
}

fn bytes(at: usize, len: usize) -> &'static mut [u8] {
    // SAFETY: mapped by this test, which has one thread.
    unsafe { core::slice::from_raw_parts_mut(at as *mut u8, len) }
}

fn all(at: usize, len: usize, byte: u8) -> bool {
    bytes(at, len).iter().all(|b| *b == byte)
}

fn advised(at: usize, len: usize, advice: c_int) -> isize {
    // SAFETY: memory of this test.
    unsafe { advise([at, len, advice as usize, 0, 0, 0]) }
}

fn moved(at: usize, len: usize, new_len: usize, flags: c_int, target: usize) -> isize {
    // SAFETY: memory of this test.
    unsafe { remap([at, len, new_len, flags as usize, target, 0]) }
}

#[test]
fn exactly_what_is_advised_away_becomes_zero() {
    if elsewhere() {
        return;
    }
    let segment = Segment::new();
    for advice in [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_DONTNEED_LOCKED] {
        // Fresh memory, a segment, fresh memory.
        let at = fresh(3 * LEN);
        bytes(at, 3 * LEN).fill(b'a');
        segment.map(at + LEN, LEN);
        bytes(at + LEN, PAGE).fill(b'w');
        assert_eq!(advised(at + LEN - PAGE, 3 * PAGE - 1, advice), 0);
        assert!(all(at, LEN - PAGE, b'a'));
        // MADV_FREE may leave memory without a file as it is, for a while.
        assert!(advice == libc::MADV_FREE || all(at + LEN - PAGE, PAGE, 0));
        assert!(all(at + LEN, 2 * PAGE, 0));
        assert!(all(at + LEN + 2 * PAGE, LEN - 2 * PAGE, b's') && all(at + 2 * LEN, LEN, b'a'));
        bytes(at + LEN, PAGE).fill(b'n');
        assert_eq!(advised(at, 3 * LEN, advice), 0);
        assert!(all(at + LEN + 2 * PAGE, LEN - 2 * PAGE, 0));
        unmapped(at, 3 * LEN);
    }
}

#[test]
fn protection_stays_and_refusals_are_those_of_the_kernel() {
    if elsewhere() {
        return;
    }
    let segment = Segment::new();
    let at = segment.map(0, LEN);
    // SAFETY: memory of this test.
    assert_eq!(unsafe { libc::mprotect(at as *mut c_void, LEN, libc::PROT_READ) }, 0);
    assert_eq!(advised(at, LEN, libc::MADV_DONTNEED), 0);
    let found = Walk::begin().unwrap().next(at, false).unwrap().unwrap();
    assert_eq!((found.prot, found.inode), (libc::PROT_READ, 0));
    segment.map(at, LEN);
    assert_eq!(advised(at + 1, PAGE, libc::MADV_DONTNEED), failed(libc::EINVAL));
    assert_eq!(advised(at, 0, libc::MADV_DONTNEED), 0);
    assert_eq!(advised(at, usize::MAX, libc::MADV_DONTNEED), failed(libc::EINVAL));
    unmapped(at + PAGE, PAGE);
    assert_eq!(advised(at, 3 * PAGE, libc::MADV_DONTNEED), failed(libc::ENOMEM), "a hole");
    assert!(all(at, PAGE, 0) && all(at + 2 * PAGE, PAGE, 0) && all(at + 3 * PAGE, PAGE, b's'));
    // SAFETY: memory of this test.
    if unsafe { libc::mlock((at + 4 * PAGE) as *const c_void, PAGE) } == 0 {
        assert_eq!(advised(at + 4 * PAGE, PAGE, libc::MADV_DONTNEED), failed(libc::EINVAL));
        assert!(all(at + 4 * PAGE, PAGE, b's'));
    }
    unmapped(at, LEN);
}

#[test]
fn a_file_of_the_program_stays_a_file() {
    if elsewhere() {
        return;
    }
    let segment = Segment::new();
    let at = segment.map(0, LEN);
    shared::word(SharedPage::LAZY_FILES + 8).fetch_add(1, Relaxed);
    bytes(at, PAGE).fill(b'w');
    assert_eq!(advised(at, LEN, libc::MADV_DONTNEED), 0);
    assert!(all(at, LEN, b's'));
    unmapped(at, LEN);
}

#[test]
fn what_grows_gets_zeros_and_not_the_rest_of_the_segment() {
    if elsewhere() {
        return;
    }
    let segment = Segment::new();
    let at = fresh(4 * LEN);
    segment.map(at, LEN);
    // Another mapping right after it: no room.
    assert_eq!(moved(at, LEN, 2 * LEN, 0, 0), failed(libc::ENOMEM));
    unmapped(at + LEN, 3 * LEN);
    assert_eq!(moved(at, LEN, 2 * LEN, 0, 0), at as isize);
    assert!(all(at, LEN, b's') && all(at + LEN, LEN, 0));
    bytes(at + LEN, LEN).fill(b'n');
    // Two mappings now; with a wall behind them they must move.
    // SAFETY: free since above.
    assert_eq!(unsafe { map(at + 2 * LEN, LEN, 3, libc::MAP_FIXED_NOREPLACE) }, (at + 2 * LEN) as isize);
    let to = moved(at, 2 * LEN, 3 * LEN, libc::MREMAP_MAYMOVE, 0);
    assert!(!is_error(to) && to != at as isize, "{to}");
    let to = to as usize;
    assert!(all(to, LEN, b's') && all(to + LEN, LEN, b'n') && all(to + 2 * LEN, LEN, 0));
    assert_eq!(advised(to, LEN, libc::MADV_DONTNEED), 0);
    assert!(all(to, LEN, 0), "the new place is in the table");
    let nothing_there = advised(at, LEN, libc::MADV_NORMAL);
    assert_eq!(nothing_there, failed(libc::ENOMEM), "the old place is free");
    unmapped(at + 2 * LEN, LEN);
    unmapped(to, 3 * LEN);
}

#[test]
fn what_was_replaced_piece_by_piece_still_grows() {
    if elsewhere() {
        return;
    }
    let segment = Segment::new();
    let at = fresh(3 * LEN);
    segment.map(at, 3 * LEN);
    for piece in [0, 2, 1] {
        assert_eq!(advised(at + piece * LEN, LEN, libc::MADV_DONTNEED), 0);
        bytes(at + piece * LEN, LEN).fill(b'0' + piece as u8);
    }
    let to = moved(at, 3 * LEN, 4 * LEN, libc::MREMAP_MAYMOVE, 0) as usize;
    assert!(all(to, LEN, b'0') && all(to + LEN, LEN, b'1') && all(to + 2 * LEN, LEN, b'2'));
    assert!(all(to + 3 * LEN, LEN, 0));
    unmapped(to, 4 * LEN);
}

#[test]
fn moves_to_a_given_place_and_shrinks() {
    if elsewhere() {
        return;
    }
    let segment = Segment::new();
    let (at, to) = (fresh(3 * LEN), fresh(3 * LEN));
    bytes(at, 3 * LEN).fill(b'a');
    bytes(to, 3 * LEN).fill(b't');
    segment.map(at + LEN, LEN);
    let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    assert_eq!(moved(at, 3 * LEN, LEN + PAGE, fixed, at + PAGE), failed(libc::EINVAL), "overlap");
    assert_eq!(moved(at, 3 * LEN, 3 * LEN, fixed | libc::MREMAP_DONTUNMAP, to), failed(libc::EINVAL));
    assert_eq!(moved(at, 3 * LEN, LEN + PAGE, fixed, to), to as isize);
    assert!(all(to, LEN, b'a') && all(to + LEN, PAGE, b's') && all(to + LEN + PAGE, 2 * LEN - PAGE, b't'));
    assert_eq!(moved(to, LEN + PAGE, PAGE, 0, 0), to as isize);
    assert!(all(to, PAGE, b'a'));
    unmapped(to, 3 * LEN);
    unmapped(at, 3 * LEN);
}

#[test]
fn parts_that_never_were_one_mapping_are_refused() {
    if elsewhere() {
        return;
    }
    let segment = Segment::new();
    let at = fresh(3 * LEN);
    segment.map(at, LEN);
    // SAFETY: memory of this test.
    assert_eq!(unsafe { libc::mprotect((at + LEN) as *mut c_void, LEN, libc::PROT_READ) }, 0);
    assert_eq!(moved(at, 2 * LEN, 4 * LEN, libc::MREMAP_MAYMOVE, 0), failed(libc::EFAULT));
    unmapped(at + PAGE, PAGE);
    assert_eq!(moved(at, 3 * PAGE, LEN, libc::MREMAP_MAYMOVE, 0), failed(libc::EFAULT));
    assert!(all(at, PAGE, b's'));
    unmapped(at, 3 * LEN);
}

#[test]
fn a_full_table_covers_everything() {
    if elsewhere() {
        return;
    }
    let _segment = Segment::new();
    // One range is that of `Segment::new`.
    for index in 1..SharedPage::LAZY_MAX {
        note((index + 1) * PAGE, (index + 1) * PAGE + 1);
    }
    assert_eq!(shared::word(SharedPage::LAZY_COUNT).load(Relaxed), SharedPage::LAZY_MAX as u64);
    assert!(touches(2 * PAGE, 3 * PAGE) && !touches(1 << 40, (1 << 40) + PAGE));
    note(1 << 41, (1 << 41) + PAGE);
    assert!(touches(1 << 40, (1 << 40) + PAGE));
}

/// Memory that no restart has mapped, in several mappings.
#[test]
fn several_mappings_move_as_one_and_gaps_stay() {
    if elsewhere() {
        return;
    }
    let (at, to) = (fresh(4 * LEN), fresh(4 * LEN));
    for piece in 0..4 {
        bytes(at + piece * LEN, LEN).fill(b'0' + piece as u8);
    }
    bytes(to, 4 * LEN).fill(b't');
    // SAFETY: memory of this test.
    assert_eq!(unsafe { libc::mprotect(at as *mut c_void, LEN, libc::PROT_READ) }, 0);
    unmapped(at + 2 * LEN, LEN);
    let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    assert_eq!(moved(at, 4 * LEN, 4 * LEN, fixed, at + LEN), failed(libc::EINVAL), "overlap");
    assert_eq!(moved(at, 4 * LEN, 4 * LEN, fixed, to), to as isize);
    assert!(all(to, LEN, b'0') && all(to + LEN, LEN, b'1') && all(to + 3 * LEN, LEN, b'3'));
    assert!(all(to + 2 * LEN, LEN, b't'), "nothing came here");
    let found = Walk::begin().unwrap().next(to, false).unwrap().unwrap();
    assert_eq!((found.start, found.end, found.prot), (to, to + LEN, libc::PROT_READ));
    // No memory at the start.
    unmapped(to, PAGE);
    assert_eq!(moved(to, 2 * LEN, 2 * LEN, fixed, at), failed(libc::EFAULT));
    assert!(all(to + PAGE, LEN - PAGE, b'0'));
    // Protected differently: never grows.
    let flags = libc::MREMAP_MAYMOVE;
    assert_eq!(moved(to + PAGE, 2 * LEN - PAGE, 4 * LEN, flags, 0), failed(libc::EFAULT));
    assert!(all(to + PAGE, LEN - PAGE, b'0') && all(to + LEN, LEN, b'1'));
    unmapped(to, 4 * LEN);
}

#[test]
fn a_guard_leaves_zeros_and_is_not_put_into_files_of_the_program() {
    if elsewhere() {
        return;
    }
    const MADV_GUARD_REMOVE: c_int = 103;
    let segment = Segment::new();
    let at = segment.map(0, LEN);
    let installed = advised(at + PAGE, 2 * PAGE, MADV_GUARD_INSTALL);
    if installed == failed(libc::EINVAL) {
        return; // Linux before 6.13
    }
    assert_eq!(installed, 0);
    assert_eq!(advised(at, LEN, MADV_GUARD_REMOVE), 0);
    assert!(all(at, PAGE, b's') && all(at + PAGE, 2 * PAGE, 0) && all(at + 3 * PAGE, PAGE, b's'));
    shared::word(SharedPage::LAZY_FILE_COUNT).store(0, Relaxed); // now the file is the program's own
    assert_eq!(advised(at, LEN, MADV_GUARD_INSTALL), failed(libc::EINVAL));
    assert!(all(at, PAGE, b's'));
    unmapped(at, LEN);
}
