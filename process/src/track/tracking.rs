//! Which pages were written since the last image: userfaultfd in WP_ASYNC mode and PAGEMAP_SCAN.
//!
//! The kernel is the only memory of what was written: a page that was never write-protected, was moved, or lies in a
//! mapping that is new counts as written, because it has no protection. So nothing has to be known of mmap, mremap,
//! brk, madvise or fork. Each scan re-arms what it reports; what it has reported is kept here ([`State::carried`])
//! until an image that holds it is committed.
//!
//! Invariant: a page that is present, is not reported as written and is not carried over has the content that it has
//! in the last committed image. A page may be called written when it is not, never the other way round.
//! Without userfaultfd everything present counts as written; the store then tells by content what is new.
//!
//! Used by: the agent (passes and samples while the program runs), the tracer thread ([`Tracking::collect`], inside the
//! stop), and a restart ([`Tracking::arm`]).

use crate::capture::files::unlinked;
use crate::capture::maps::{self, Kind, Mapped};
use crate::error::TraceError;
use crate::mapped_files::MappedFiles;
use crate::track::hugetlb;
use crate::track::pieces::{Piece, Swept};
use crate::track::scan::{self, ANY};
use crate::track::scan_cache::Known;
use holdfast_image::kinds::Tracker;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{PageRun, StoreMapping};
use holdfast_image::record::NamelessFile;
use holdfast_image::{Addr, PageCount};
use holdfast_sys::pagemap::{self, IS_WRITTEN, ScanRegion};
use holdfast_sys::procfs::{self, Mapping};
use holdfast_sys::userfault::{self, Userfault};
use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

/// Ranges to be sampled that are nearer than this are scanned as one, bytes.
const NEAR: u64 = 2 << 20;

/// The tracker of one address space.
#[derive(Debug, Default)]
pub struct Tracking {
    userfault: Option<Userfault>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Pages that some scan has reported as written, and that no committed image holds since.
    carried: PageSet,
    /// Pages taken out of `carried` because a pre-copy has stored them in the image that is being made.
    precopied: PageSet,
    /// A scan failed half-way: everything counts as written.
    lost: bool,
    /// After the last scan, if it did not fail.
    known: Known,
}

impl State {
    /// Takes over what a scan has reported as written, or notes that it failed.
    fn add(&mut self, swept: &mut io::Result<Swept>) {
        match swept {
            Ok(swept) => self.carried.append(std::mem::take(&mut swept.written)),
            Err(_) => self.lost = true,
        }
    }

    /// What is known of memory with these mappings; nothing, until the scan that is to come has succeeded.
    fn take_known<'a>(&mut self, mappings: impl Iterator<Item = &'a Mapping>, fresh: &PageSet) -> Known {
        std::mem::take(&mut self.known).still(mappings, fresh)
    }
}

/// What a scan inside the stop yields.
#[derive(Debug, Default)]
pub struct Collected {
    /// Pages to be stored.
    pub dirty: PageSet,
    /// All pages that the image must hold, but for `mapped`.
    pub present: PageSet,
    /// Those of them that may be pages of a file: they need not exist.
    pub of_files: PageSet,
    /// Pages that are still what they were mapped from.
    pub mapped: Vec<StoreMapping>,
    /// Guard regions, which no image holds pages of.
    pub guards: PageSet,
}

impl Collected {
    /// All pages of these mappings of files are to be stored, too. `whole`: which of `all`; `nameless`: files that may
    /// end before their mappings.
    pub fn add_whole(&mut self, all: &[Mapped], whole: &[bool], nameless: &[NamelessFile]) {
        let files: PageSet = all
            .iter()
            .zip(whole)
            .filter(|(_, whole)| **whole)
            .map(|(mapped, _)| {
                let end = unlinked::end_in(nameless, &mapped.mapping);
                let end = end.unwrap_or_else(|| maps::file_end_by_fd(mapped));
                PageRun::between(Addr(mapped.mapping.start), Addr(end))
            })
            .filter(|run| run.pages.0 > 0)
            .collect();
        if !files.is_empty() {
            self.dirty = self.dirty.union(&files);
            self.present = self.present.union(&files);
            self.of_files = self.of_files.union(&files);
        }
    }
}

impl Tracking {
    /// With a descriptor that the program made, in its address space. `None`, or one that cannot be used: hashes.
    /// The environment variable HOLDFAST_TRACKER=hashes does without it too.
    pub fn new(fd: Option<OwnedFd>) -> Tracking {
        let wanted = std::env::var_os("HOLDFAST_TRACKER").is_none_or(|value| value != "hashes");
        let userfault = fd.filter(|_| wanted && userfault::is_exact()).and_then(|fd| {
            Userfault::take_over(fd).map_err(|error| tracing::info!("no userfaultfd tracking: {error}")).ok()
        });
        Tracking { userfault, state: Mutex::default() }
    }

    /// How changes are found.
    pub fn kind(&self) -> Tracker {
        if self.userfault.is_some() { Tracker::Userfaultfd } else { Tracker::Hashes }
    }

    /// How many pages the last scan has found, of all that an image holds. None before the first.
    pub fn pages(&self) -> PageCount {
        self.state().known.pages()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Registers all private mappings; says what is to be scanned how, and what was not registered before.
    fn pieces<'a>(
        &self,
        pagemap: &File,
        maps: impl Iterator<Item = (&'a Mapping, bool)>,
    ) -> (Vec<Piece>, PageSet) {
        let mut fresh = Vec::new();
        let pieces = scan::pieces(maps, |start, end| self.ready(pagemap, start, end, &mut fresh));
        (pieces, PageSet::from(fresh))
    }

    /// Whether all of a range is tracked now.
    ///
    /// Only what is not registered is registered. mremap(2) can take the registration from a mapping and leave its
    /// pages marked as protected (a moved mapping that is joined with its new neighbour: mm/vma.c, copy_vma, and
    /// mm/userfaultfd.c, mremap_userfaultfd_prep): they are not protected any more, and would look unchanged for ever.
    /// So where a mapping that is registered anew has such pages, the marks are taken away.
    fn ready(&self, pagemap: &File, start: u64, end: u64, all_fresh: &mut Vec<PageRun>) -> bool {
        let mut fresh = Vec::new();
        let seen =
            pagemap::scan_unregistered(pagemap, start, end, |found| fresh.push((found.start, found.end)));
        all_fresh.extend(fresh.iter().map(|&(start, end)| PageRun::between(Addr(start), Addr(end))));
        seen.is_ok()
            && fresh.into_iter().all(|(start, end)| {
                let mut marked = false;
                let each = |found: ScanRegion| marked |= found.categories & IS_WRITTEN == 0;
                self.register(start, end)
                    && pagemap::scan(pagemap, start, end, ANY, ANY | IS_WRITTEN, each).is_ok()
                    && (!marked || self.unregister(start, end) && self.register(start, end))
            })
    }

    fn unregister(&self, start: u64, end: u64) -> bool {
        self.userfault.as_ref().is_some_and(|userfault| userfault.unregister(start, end).is_ok())
    }

    fn register(&self, start: u64, end: u64) -> bool {
        self.userfault.as_ref().is_some_and(|userfault| match userfault.register(start, end) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!("{start:#x}-{end:#x} cannot be tracked: {error}");
                false
            }
        })
    }

    /// Takes note of all that was written up to now, while the program runs, and returns all that no image holds yet.
    /// Whatever is written from here on is reported by the next scan.
    ///
    /// # Errors
    /// The program is gone.
    pub fn pass(&self, pid: i32) -> io::Result<PageSet> {
        let (maps, pagemap) = procfs::by_any_thread(pid, |tid| {
            let maps = procfs::maps(pid, tid).ok().filter(|maps| !maps.is_empty())?;
            Some((maps, File::open(format!("/proc/{pid}/task/{tid}/pagemap")).ok()?))
        })?;
        let (pieces, fresh) =
            self.pieces(&pagemap, maps.iter().map(|mapping| (mapping, scan::is_private(mapping))));
        let mut known = self.state().take_known(maps.iter(), &fresh);
        let mut swept = scan::run(&pagemap, &pieces, &known);
        let mut state = self.state();
        state.add(&mut swept);
        known.learn(&pieces, &swept?);
        state.known = known;
        Ok(state.carried.clone())
    }

    /// These pages were stored by a pre-copy, as they were at some time after the last pass.
    pub fn precopied(&self, stored: &PageSet) {
        let mut state = self.state();
        state.carried = state.carried.difference(stored);
        state.precopied = state.precopied.union(stored);
    }

    /// The image of the last cut is committed.
    pub fn committed(&self) {
        let mut state = self.state();
        *state = State { lost: state.lost, known: std::mem::take(&mut state.known), ..State::default() };
    }

    /// An image could not be made because a page is nowhere: nothing is taken for unchanged any more.
    pub fn doubt(&self) {
        self.state().lost = true;
    }

    /// Memory was changed by the agent itself: the next scan asks for everything again.
    pub fn forget_known(&self) {
        self.state().known = Known::default();
    }

    /// There is no image: what it would have held is still to be stored.
    pub fn failed(&self) {
        let mut state = self.state();
        let precopied = std::mem::take(&mut state.precopied);
        state.carried = state.carried.union(&precopied);
    }

    /// The pages among `within` that were written since the last scan that re-armed. Does not re-arm.
    ///
    /// # Errors
    /// The program is gone. Without userfaultfd nothing is known: the answer is empty.
    pub fn written(&self, pid: i32, within: &PageSet) -> io::Result<PageSet> {
        if self.userfault.is_none() {
            return Ok(PageSet::new());
        }
        look(pid, within, |pagemap, start, end, each| pagemap::scan_written(pagemap, start, end, ANY, each))
    }

    /// The pages among `within` that were written since the last scan that re-armed, or are no pages any more: memory
    /// that was given back (MADV_DONTNEED, munmap) is written when it is used again. Does not re-arm.
    ///
    /// # Errors
    /// As [`Tracking::written`].
    pub fn changed(&self, pid: i32, within: &PageSet) -> io::Result<PageSet> {
        if self.userfault.is_none() {
            return Ok(PageSet::new());
        }
        let clean = look(pid, within, |pagemap, start, end, each| {
            pagemap::scan_clean(pagemap, start, end, ANY, each)
        })?;
        Ok(within.difference(&clean))
    }

    /// The scan inside the stop. `live`: any thread of the program. `files`: what a restart has mapped.
    ///
    /// # Errors
    /// The pages cannot be looked at, or hold what cannot be restored. Nothing that was seen is lost.
    pub fn collect(
        &self,
        pagemap: &File,
        live: i32,
        all: &[Mapped],
        files: &MappedFiles,
    ) -> Result<Collected, TraceError> {
        let (pieces, fresh) =
            self.pieces(pagemap, all.iter().map(|mapped| (&mapped.mapping, mapped.is_private())));
        let known = self.state().take_known(all.iter().map(|mapped| &mapped.mapping), &fresh);
        let mut swept = scan::run(pagemap, &pieces, &known).map(|swept| with_huge(swept, live, all));
        let mut state = self.state();
        state.add(&mut swept);
        let swept = swept?;
        state.known = Known::after(of_store(all).map(|mapped| &mapped.mapping), &pieces, &swept);
        let present = swept.present;
        if state.lost {
            state.carried = state.carried.union(&present);
            state.lost = false;
        }
        let dirty = state.carried.intersection(&present);
        let guards = swept.guards;
        let mapped = inherited(all, files, &present, &guards);
        Ok(Collected { dirty, present, of_files: swept.doubtful, mapped, guards })
    }

    /// Write-protects pages that have just been brought in from an image, before anybody can have written to them.
    ///
    /// # Errors
    /// The pages cannot be looked at; they count as written then.
    pub fn arm(&self, pid: i32, pages: &PageSet) -> io::Result<()> {
        self.state().known = Known::default();
        let maps = procfs::maps(pid, pid)?;
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        let (pieces, _) =
            self.pieces(&pagemap, maps.iter().map(|mapping| (mapping, scan::is_private(mapping))));
        let tracked: PageSet = pieces.iter().filter(|piece| piece.tracked).map(Piece::run).collect();
        // A huge page cannot be protected in part.
        let huge: PageSet = pieces.iter().filter(|piece| piece.huge).map(Piece::run).collect();
        for run in tracked.intersection(&pages.union(&huge)).runs() {
            pagemap::scan_and_protect(&pagemap, run.start.0, run.end().0, ANY, ANY | IS_WRITTEN, |_| {})?;
        }
        Ok(())
    }
}

/// The pages among `within` that exist in a process.
///
/// # Errors
/// It is gone.
pub fn existing(pid: i32, within: &PageSet) -> io::Result<PageSet> {
    look(pid, within, |pagemap, start, end, each| pagemap::scan(pagemap, start, end, ANY, ANY, each))
}

/// The pages among `within` that `scan` reports; it gets a range of bytes, and what is to be told of each region.
fn look(
    pid: i32,
    within: &PageSet,
    scan: impl Fn(&File, u64, u64, &mut dyn FnMut(ScanRegion)) -> io::Result<()>,
) -> io::Result<PageSet> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut found = Vec::new();
    for (start, end) in scan::near(within, NEAR) {
        let mut each = |region: ScanRegion| {
            found.push(PageRun::between(Addr(region.start), Addr(region.end)));
        };
        scan(&pagemap, start, end, &mut each)?;
    }
    Ok(PageSet::from(found).intersection(within))
}

/// What a scan has found, with what it cannot tell of explicit huge pages.
fn with_huge(mut swept: Swept, live: i32, all: &[Mapped]) -> Swept {
    let huge: PageSet = all.iter().filter(|mapped| mapped.kind == Kind::Huge).map(Mapped::run).collect();
    let clean = swept.present.intersection(&huge).difference(&swept.written);
    if !clean.is_empty() {
        swept.written = swept.written.union(&hugetlb::perhaps_given_back(live, &clean));
    }
    swept
}

/// Memory that a restart has mapped from the store.
fn of_store(all: &[Mapped]) -> impl Iterator<Item = &Mapped> {
    all.iter().filter(|mapped| mapped.kind == Kind::Anonymous { whole: true })
}

/// What is mapped from the store and has no page of its own (`present`), nor a guard.
fn inherited(all: &[Mapped], files: &MappedFiles, present: &PageSet, guards: &PageSet) -> Vec<StoreMapping> {
    let mut mappings = Vec::new();
    for mapped in of_store(all) {
        let whole = PageSet::from(vec![mapped.run()]);
        let runs = whole.difference(present).difference(guards).into_runs();
        mappings.extend(runs.into_iter().flat_map(|run| files.name(&mapped.mapping, run)));
    }
    mappings
}
