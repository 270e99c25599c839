//! The one fake image of all tests, whose pages are made when they are read, an empty record, and what descriptions
//! lead to. No part of the interface.

use crate::bytes::{Blob, Name};
use crate::pages::{Extent, MappableSegment, PageError, PageProvider, PageRun, PutPages};
use crate::record::{Object, ProcessRecord, SocketRecord, SocketState, ThreadRecord};
use crate::{Addr, PAGE_SIZE};
use std::fs::{File, Metadata};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A process without memory, threads and files, as the store keeps it: read by the one decoder of records, since a
/// second one, of `serde_json::Value`, would be half of what it takes to compile this crate.
const EMPTY_RECORD: &str = r#"{
    "pid": 5, "ppid": 1, "pgid": 5, "sid": 5,
    "exe": {"path": "/x", "size": 0, "mtime_ns": 0, "build_id": null}, "cwd": "/", "umask": 0, "limits": [],
    "host": {"kernel_release": "", "hostname": "", "vdso_hash": 0, "xcr0": 0, "cpu": "",
             "monotonic_ns": 0, "realtime_ns": 0, "boot_id": ""},
    "layout": {"start_code": 0, "end_code": 0, "start_data": 0, "end_data": 0, "start_brk": 0, "brk": 0,
               "start_stack": 0, "arg_start": 0, "arg_end": 0, "env_start": 0, "env_end": 0, "auxv": ""},
    "regions": [], "threads": [], "signals": {"actions": [], "pending": [], "job_stopped": false},
    "itimers": [{"interval_us": 0, "value_us": 0}, {"interval_us": 0, "value_us": 0},
                {"interval_us": 0, "value_us": 0}],
    "files": {"descriptors": [], "descriptions": [], "mapped": []},
    "inject": {"code": 0, "code_len": 0, "scratch": 0, "scratch_len": 0, "shared": 0},
    "flags": {"no_new_privs": false, "thp_disabled": false, "oom_score_adj": 0}
}"#;

/// A thread likewise.
const EMPTY_THREAD: &str = r#"{
    "tid": 5, "comm": "x", "registers": [], "xstate": "", "signal_mask": 0, "pending": [],
    "alt_stack": {"sp": 0, "flags": 2, "size": 0}, "robust_list": 0, "robust_list_len": 0, "clear_tid": 0, "rseq": null,
    "wait": null, "affinity": [], "nice": 0, "policy": 0, "priority": 0, "timer_slack_ns": 0
}"#;

/// A thread without registers.
#[allow(clippy::expect_used)]
pub fn empty_thread() -> ThreadRecord {
    serde_json::from_str(EMPTY_THREAD).expect("a thread")
}

/// A process without memory, threads and files.
#[allow(clippy::expect_used)]
pub fn empty_record() -> ProcessRecord {
    ProcessRecord::decode_unchecked(EMPTY_RECORD.as_bytes()).expect("a record")
}

/// An open file at its beginning, of `size` bytes at the checkpoint.
pub fn regular(path: &Path, file: &Metadata, size: u64) -> Object {
    Object::Regular {
        path: Name::from(path),
        position: 0,
        size,
        device: file.dev(),
        inode: file.ino(),
        mtime_ns: 0,
        born_ns: None,
        now: None,
        mode: 0o600,
        owner: None,
        deleted_content: None,
    }
}

/// A stream socket (SOCK_STREAM) of this domain and address that neither listens nor is connected.
pub fn socket(domain: u32, local: Vec<u8>) -> SocketRecord {
    SocketRecord {
        domain,
        socket_type: 1,
        protocol: 0,
        local: Blob(local),
        state: SocketState::Idle,
        options: Vec::new(),
        mode: 0,
        owner: None,
        deleted: false,
        renamed: None,
        messages: Vec::new(),
        shut: 0,
        filter: None,
        number: None,
        peer_ids: None,
        made_by: None,
        network: None,
    }
}

/// See the head of the file.
#[derive(Debug)]
pub struct FakeImage {
    /// What it has.
    pub extents: Vec<Extent>,
    /// Fills a page; gets its address.
    pub fill: fn(Addr, &mut [u8]),
    /// See [`PageProvider::shared_pages`]; the file becomes one page, that of address 0.
    pub shared_pages: Option<u32>,
    /// Reading and checking it finds a wrong byte.
    pub is_damaged: bool,
}

impl FakeImage {
    /// An intact image without shared pages.
    pub fn new(extents: Vec<Extent>, fill: fn(Addr, &mut [u8])) -> FakeImage {
        FakeImage { extents, fill, shared_pages: None, is_damaged: false }
    }
}

impl PageProvider for FakeImage {
    fn extents(&self) -> &[Extent] {
        &self.extents
    }
    fn segment(&self, _number: u32) -> Option<MappableSegment<'_>> {
        None
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<(), PageError> {
        if self.is_damaged {
            let what = "a page does not match its checksum".to_owned();
            return Err(PageError::Damaged { path: PathBuf::from("/fake"), offset: 0, what });
        }
        for (at, page) in (start.0..).step_by(PAGE_SIZE as usize).zip(buffer.chunks_mut(PAGE_SIZE as usize)) {
            (self.fill)(Addr(at), page);
        }
        Ok(())
    }
    fn gather(&self, wanted: &[PageRun], put: &PutPages<'_>) -> Result<(), PageError> {
        for run in wanted {
            let mut bytes = vec![0; usize::try_from(run.pages.bytes()).unwrap_or(0)];
            self.read(run.start, &mut bytes)?;
            put(&[(run.start, &bytes)])?;
        }
        Ok(())
    }
    fn check_mapped(&self, wanted: &[PageRun]) -> Result<Vec<PageRun>, PageError> {
        Ok(if self.is_damaged { wanted.to_vec() } else { Vec::new() })
    }
    fn is_served(&self) -> bool {
        false
    }
    fn shared_pages(&self) -> Option<u32> {
        self.shared_pages
    }
    fn fill_shared_pages(&self, mut file: &File) -> Result<(), PageError> {
        let mut page = vec![0; PAGE_SIZE as usize];
        self.read(Addr(0), &mut page)?;
        Ok(file.write_all(&page)?)
    }
}
