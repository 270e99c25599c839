//! What the tests of the store share: a source of pages made of a model, and a process record that passes its checks.
#![allow(dead_code, missing_docs)] // each test binary uses a part of it

pub mod conformance;
pub mod memory;

use holdfast_image::bytes::{Blob, Name};
use holdfast_image::host_addresses::HostAddresses;
use holdfast_image::manifest::{EpochFigures, StopBreakdown};
use holdfast_image::pages::{
    ExtentSource, MappableSegment, PageError, PageProvider, PageRun, PageSource, TakeList, coalesce,
};
use holdfast_image::record::{
    AltStack, FileIdentity, FileTable, HostRecord, InjectArea, LayoutRecord, ProcessFlags, ProcessRecord,
    SignalRecord, ThreadRecord,
};
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use holdfast_tiers::codec::{Codec, Compression};
use holdfast_tiers::stack::{Pace, Packing};
use holdfast_tiers::{CommitRecord, Image, PipelineOptions, Record};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

pub const PAGE: usize = PAGE_SIZE as usize;

/// A job's folder on a lower tier.
pub const FOLDER: &str = "job/0123abcd";

/// As fast as it goes.
pub struct Free;

impl Pace for Free {
    fn begin(&self, _total: u64) {}
    fn pass(&self, _bytes: u64) -> bool {
        true
    }
}

/// Packs for a link of 1 MiB/s, without being as slow.
pub struct Narrow(Packing);

impl Default for Narrow {
    fn default() -> Narrow {
        Narrow(Packing::new(Some(1 << 20)))
    }
}

impl Pace for Narrow {
    fn begin(&self, _total: u64) {}
    fn pass(&self, _bytes: u64) -> bool {
        true
    }
    fn packing(&self) -> Option<&Packing> {
        Some(&self.0)
    }
}

/// A folder that is removed at the end of the test.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }
    pub fn store(&self) -> PathBuf {
        self.0.join("store")
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn run(page: u64, pages: u64) -> PageRun {
    PageRun { start: Addr(page * PAGE_SIZE), pages: PageCount(pages) }
}

/// The runs of a set of page numbers.
pub fn runs_of(pages: &BTreeSet<u64>) -> Vec<PageRun> {
    let mut runs = pages.iter().map(|page| run(*page, 1)).collect();
    coalesce(&mut runs);
    runs
}

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Zero,
    Text,
    Noise,
}

pub fn page_of(content: Content, number: u64) -> Vec<u8> {
    match content {
        Content::Zero => vec![0; PAGE],
        Content::Text => format!("page {number} has nothing new to say. ")
            .into_bytes()
            .into_iter()
            .cycle()
            .take(PAGE)
            .collect(),
        Content::Noise => {
            let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            (0..PAGE / 8)
                .flat_map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state.to_le_bytes()
                })
                .collect()
        }
    }
}

/// The naive model: every page by its number.
pub type Model = BTreeMap<u64, Vec<u8>>;

pub struct MemorySource {
    pub runs: Vec<PageRun>,
    pub list: TakeList,
    pub pages: Model,
    pub released: Mutex<Vec<PageRun>>,
    /// Reads that touch one of these pages say that they are not there any more.
    pub gone: BTreeSet<u64>,
    /// Room is short: no compression.
    pub urgent: bool,
    /// The pages are of several processes.
    pub several: bool,
    /// Reads that touch this page fail.
    pub fails_at: Option<u64>,
    /// The reads that begin at these pages wait for each other: they come from two workers.
    pub meet: Option<([u64; 2], Barrier)>,
}

impl MemorySource {
    pub fn new(runs: Vec<PageRun>, content: impl Fn(u64) -> Content) -> MemorySource {
        let pages = runs
            .iter()
            .flat_map(|run| (0..run.pages.0).map(|n| run.start.0 / PAGE_SIZE + n))
            .map(|number| (number, page_of(content(number), number)))
            .collect();
        MemorySource {
            list: TakeList::new(runs.clone()),
            runs,
            pages,
            released: Mutex::default(),
            gone: BTreeSet::new(),
            urgent: false,
            several: false,
            fails_at: None,
            meet: None,
        }
    }
    /// Hands out the pages of `wanted`; can read all of `pages`.
    pub fn of_model(pages: &Model, wanted: &BTreeSet<u64>) -> MemorySource {
        let mut source = MemorySource::new(runs_of(wanted), |_| Content::Zero);
        source.pages = pages.clone();
        source
    }
    /// Pages of every kind from page `base` on, in an image of two segments: stored by two workers, each has to wait
    /// until the other has its part.
    pub fn two_segments(base: u64, salt: u64) -> MemorySource {
        let runs = vec![
            run(base, 3),
            run(base + 10, 1),
            run(base + 100, 66),
            run(base + 200, 300),
            run(base + 600, 70),
        ];
        let mut source = MemorySource::new(runs, |number| match (number + salt) % 16 {
            _ if (base + 200..base + 500).contains(&number) => Content::Zero,
            0 if number != base => Content::Zero,
            _ if (base + 100..base + 166).contains(&number) => Content::Text,
            _ => Content::Noise,
        });
        source.meet = Some(([base, base + 600], Barrier::new(2)));
        source
    }
    pub fn assert_all_released(&self) {
        let mut released = self.released.lock().unwrap().clone();
        let pages: u64 = released.iter().map(|run| run.pages.0).sum();
        assert_eq!(pages, self.pages.len() as u64, "each page is released once");
        let mut runs = self.runs.clone();
        coalesce(&mut released);
        coalesce(&mut runs);
        assert_eq!(released, runs);
    }
}

impl PageSource for MemorySource {
    fn pages(&self) -> PageCount {
        self.list.pages()
    }
    fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        self.list.take(most, into);
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<bool, PageError> {
        if let Some((pages, barrier)) = &self.meet
            && pages.contains(&(start.0 / PAGE_SIZE))
        {
            barrier.wait();
        }
        for (number, out) in (start.0 / PAGE_SIZE..).zip(buffer.chunks_mut(PAGE)) {
            if self.gone.contains(&number) {
                return Ok(false);
            }
            if self.fails_at == Some(number) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH).into());
            }
            out.copy_from_slice(&self.pages[&number]);
        }
        Ok(true)
    }
    fn release(&self, run: PageRun) {
        self.released.lock().unwrap().push(run);
    }
    fn is_urgent(&self) -> bool {
        self.urgent
    }
    fn has_several(&self) -> bool {
        self.several
    }
}

/// Its segments, as far as they can be mapped.
pub fn segments_of(image: &Image) -> Vec<MappableSegment<'_>> {
    (0..).map_while(|number| image.segment(number)).collect()
}

/// Everything that the image gives, page by page.
pub fn read_all(image: &Image) -> Result<Model, PageError> {
    let mapped = image.extents().iter().filter(|e| matches!(e.source, ExtentSource::Mappable { .. }));
    image.check_mapped(&mapped.map(|extent| extent.run).collect::<Vec<_>>())?;
    let mut model = Model::new();
    for extent in image.extents() {
        let first = extent.run.start.0 / PAGE_SIZE;
        // In pieces that do not fit the frames.
        for piece in (0..extent.run.pages.0).step_by(100) {
            let pages = 100.min(extent.run.pages.0 - piece);
            let mut buffer = vec![0xee; pages as usize * PAGE];
            image.read(Addr((first + piece) * PAGE_SIZE), &mut buffer)?;
            model.extend((first + piece..).zip(buffer.chunks(PAGE).map(<[u8]>::to_vec)));
        }
    }
    Ok(model)
}

pub fn identity(path: &str) -> FileIdentity {
    let build_id = Some(Blob(vec![1, 2, 0xff]));
    FileIdentity {
        path: Name::from(path),
        size: 1234,
        mtime_ns: -5,
        build_id,
        mode: 0o600,
        inode: None,
        inside: None,
    }
}

fn thread(tid: i32) -> ThreadRecord {
    ThreadRecord {
        tid,
        job_tid: None,
        comm: Name(b"caf\xe9".to_vec()),
        registers: (0..27).collect(),
        xstate: Blob(vec![7; 576]),
        signal_mask: 0x8000_0000_0000_0000,
        pending: vec![Blob(vec![3; 128])],
        alt_stack: AltStack::default(),
        robust_list: Addr(0x7000),
        robust_list_len: 24,
        clear_tid: Addr(0x8000),
        rseq: None,
        wait: None,
        affinity: vec![3],
        nice: 0,
        policy: 0,
        priority: 0,
        timer_slack_ns: 50_000,
        attributes: Default::default(),
        confinement: Default::default(),
        ended: None,
        folder: None,
    }
}

pub fn record(pid: i32) -> ProcessRecord {
    ProcessRecord {
        pid,
        inner: None,
        children_in: None,
        ppid: 1,
        pgid: pid,
        sid: pid,
        exe: identity("/usr/bin/true"),
        cwd: Name::from("/tmp"),
        cwd_deleted: None,
        cwd_inode: None,
        cwd_within: None,
        shares_folder: false,
        umask: 0o22,
        limits: Vec::new(),
        host: HostRecord {
            vdso: Blob::default(),
            kernel_release: "6.18.0".into(),
            hostname: "host".into(),
            vdso_hash: u64::MAX,
            xcr0: 0x7,
            xstate: Vec::new(),
            baseline: None,
            key: Blob::default(),
            addresses: HostAddresses::default(),
            cpu: "cpu".into(),
            instructions: Vec::new(),
            monotonic_ns: 1,
            realtime_ns: 2,
            boot_id: "b".into(),
        },
        layout: LayoutRecord::default(),
        regions: Vec::new(),
        guards: Vec::new(),
        threads: vec![thread(pid), thread(pid + 1)],
        signals: SignalRecord::default(),
        itimers: Default::default(),
        posix_timers: Vec::new(),
        files: FileTable::default(),
        inject: InjectArea {
            code: Addr(0x10_0000),
            code_len: InjectArea::MIN_CODE_LEN,
            scratch: Addr(0x20_0000),
            scratch_len: InjectArea::MIN_SCRATCH_LEN,
            shared: Addr(0),
        },
        flags: ProcessFlags::default(),
        attributes: Default::default(),
        rights: None,
        cuda: None,
        space: 0,
        filters: Vec::new(),
        domain: Vec::new(),
        aio: Vec::new(),
        ldt: Blob::default(),
        zombies: Vec::new(),
        others: Vec::new(),
        last_id: None,
        root: None,
        namespaces: Vec::new(),
        made_namespaces: Vec::new(),
    }
}

/// What images keep besides the pages: the tiers do not look into it.
pub fn kept_record() -> Record {
    Record { kind: ProcessRecord::KIND, bytes: record(4242).encode().unwrap() }
}

/// What an image has kept.
pub fn record_of(image: &Image) -> ProcessRecord {
    ProcessRecord::decode(image.record().kind, &image.record().bytes).unwrap()
}

pub fn commit_record() -> CommitRecord {
    CommitRecord {
        record: kept_record(),
        stop: StopBreakdown { total_ns: 7_000_000, threads: 2, ..StopBreakdown::default() },
        resumed_at: Instant::now(),
        engine: "fork".into(),
        command: vec![Name::from("./sim"), Name(b"\xff\xfe".to_vec())],
        run_ns: 11,
        protected_only: false,
        epoch: EpochFigures { order: "history".into(), pages_tracked: 7, ..EpochFigures::default() },
        unsaved: Vec::new(),
        history: b"what the pager remembers; ".repeat(400),
    }
}

/// The usual options, with this many workers.
pub const fn options(workers: usize) -> PipelineOptions {
    PipelineOptions { workers, compression: Compression::By(Codec::Lz4), rate: None, part_pages: None }
}
