//! The processes of a job as the agent sees them: one tracker, one counter of faults, one source of pages of them all.
//!
//! Used by the agent's checkpoint thread and its watcher, which work with global addresses
//! ([`holdfast_image::address_space`]). What must hold: a process that has ended meanwhile is no failure; what it
//! wrote is the next cut's business.

use crate::job::target::Target;
use crate::track::precopy_source;
use crate::track::tracking::Tracking;
use holdfast_image::PageCount;
use holdfast_image::address_space;
use holdfast_image::kinds::Tracker;
use holdfast_image::page_set::PageSet;
use holdfast_sys::procfs::FaultCounter;
use std::io;
use std::sync::Arc;

/// See the head of the file. The first is the program.
#[derive(Clone, Debug)]
pub struct Members(Vec<Target>);

impl Members {
    /// At least one.
    pub fn new(program: Target, others: Vec<Target>) -> Members {
        Members(std::iter::once(program).chain(others).collect())
    }
    /// All of them.
    pub fn targets(&self) -> &[Target] {
        &self.0
    }
    /// The program.
    pub fn program(&self) -> &Target {
        &self.0[0]
    }
    /// How changes are found: by hashes if those of one of them are found so.
    pub fn kind(&self) -> Tracker {
        let kinds = self.0.iter().map(|target| target.tracking.kind());
        kinds.reduce(|one, two| if one == two { one } else { Tracker::Hashes }).unwrap_or(Tracker::Hashes)
    }
    /// Whether they are the same address spaces.
    pub fn are(&self, others: &Members) -> bool {
        let same = |(one, two): (&Target, &Target)| Arc::ptr_eq(&one.tracking, &two.tracking);
        self.0.len() == others.0.len() && self.0.iter().zip(&others.0).all(same)
    }
    /// [`Tracking::pass`] of all.
    ///
    /// # Errors
    /// None of them is there any more.
    pub fn pass(&self) -> io::Result<PageSet> {
        self.gather(|target| target.tracking.pass(target.pid))
    }
    /// [`Tracking::written`] of all.
    ///
    /// # Errors
    /// None of them is there any more.
    pub fn written(&self, within: &PageSet) -> io::Result<PageSet> {
        self.among(within, |target, own| target.tracking.written(target.pid, own))
    }
    /// [`Tracking::changed`] of all.
    ///
    /// # Errors
    /// As [`Members::written`].
    pub fn changed(&self, within: &PageSet) -> io::Result<PageSet> {
        self.among(within, |target, own| target.tracking.changed(target.pid, own))
    }
    fn among(
        &self,
        within: &PageSet,
        look: impl Fn(&Target, &PageSet) -> io::Result<PageSet>,
    ) -> io::Result<PageSet> {
        if let [program] = self.0.as_slice()
            && program.space == 0
        {
            return look(program, within);
        }
        self.gather(|target| match address_space::own_set(target.space, within) {
            own if own.is_empty() => Ok(own),
            own => look(target, &own),
        })
    }
    /// [`Tracking::pages`] of all.
    pub fn pages(&self) -> PageCount {
        PageCount(self.0.iter().map(|target| target.tracking.pages().0).sum())
    }
    fn gather(&self, look: impl Fn(&Target) -> io::Result<PageSet>) -> io::Result<PageSet> {
        let (mut all, mut failure) = (None::<PageSet>, None);
        for target in &self.0 {
            match look(target) {
                Ok(own) => {
                    let own = address_space::global_set(target.space, own);
                    all = Some(all.map_or(own.clone(), |all| all.union(&own)));
                }
                Err(error) => failure = Some(error),
            }
        }
        all.ok_or_else(|| failure.unwrap_or_else(|| io::Error::from_raw_os_error(libc::ESRCH)))
    }
    /// [`Tracking::precopied`] of all.
    pub fn precopied(&self, stored: &PageSet) {
        for target in &self.0 {
            target.tracking.precopied(&address_space::own_set(target.space, stored));
        }
    }
    /// Tells each tracker something.
    pub fn tell(&self, what: impl Fn(&Tracking)) {
        self.0.iter().for_each(|target| what(&target.tracking));
    }
    /// Whether a device may be writing to the memory of one of them by itself. If that cannot be found out: yes.
    pub fn may_have_transfers(&self) -> bool {
        self.0.iter().any(|target| precopy_source::may_have_transfers(target.pid).unwrap_or(true))
    }
}

/// Counts the page faults of all.
pub struct FaultCounters(Vec<FaultCounter>);

impl FaultCounters {
    /// Opens them.
    ///
    /// # Errors
    /// None of the processes is there any more; no descriptor left.
    pub fn open(members: &Members) -> io::Result<FaultCounters> {
        let opened: Vec<_> = members.0.iter().map(|target| FaultCounter::open(target.pid)).collect();
        if opened.iter().any(Result::is_ok) {
            return Ok(FaultCounters(opened.into_iter().filter_map(Result::ok).collect()));
        }
        opened.into_iter().collect::<io::Result<_>>().map(FaultCounters)
    }
    /// Faults since the processes began; one that has ended makes no more.
    ///
    /// # Errors
    /// None of them is there any more.
    pub fn read(&self) -> io::Result<u64> {
        let counts: Vec<io::Result<u64>> = self.0.iter().map(FaultCounter::read).collect();
        if counts.iter().any(Result::is_ok) {
            return Ok(counts.into_iter().filter_map(Result::ok).sum());
        }
        counts.into_iter().sum()
    }
}
