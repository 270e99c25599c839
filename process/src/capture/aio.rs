//! Contexts of Linux AIO: a restart makes new ones at their places, so no request may be under way in them. The kernel
//! does not tell whether some are. But the ring of a context tells how many have ended, and libholdfast has noted how
//! many it has taken (`preload/src/aio.rs`), so the rest is known, modulo the size of the ring, which is more than can
//! be under way (fs/aio.c, get_reqs_available).
//!
//! Called by `capture_process`, inside the stop, before memory is frozen: what a request reads into memory is there
//! when its event is. And by `check`, where only the table is looked at. Fails by: [`CutError::Refused`], a context
//! that is not noted; [`CutError::Unsettled`], requests that do not end in time.

use crate::capture::maps::{self, Kind, Mapped};
use crate::error::CutError;
use crate::refuse;
use holdfast_abi::{AioContext as Noted, SharedPage};
use holdfast_image::Addr;
use holdfast_image::aio::AioContext;
use holdfast_image::record::InjectArea;
use holdfast_image::refusal::Refusal;
use holdfast_sys::procfs::Mapping;
use holdfast_sys::procmem;
use std::thread;
use std::time::{Duration, Instant};

/// How long requests may take to end while all are stopped, and how often it is looked.
const PATIENCE: Duration = Duration::from_millis(20);
const MOMENT: Duration = Duration::from_micros(200);
/// What is read of a ring: up to its magic number.
const HEAD: usize = 20;

fn rings(all: &[Mapped]) -> impl Iterator<Item = &Mapping> {
    all.iter().filter(|mapped| mapped.kind == Kind::Aio).map(|mapped| &mapped.mapping)
}

/// Contexts of a process that are not noted, so that nothing is known of their requests. `live`: a thread of it.
pub fn not_noted(live: i32, area: &InjectArea, all: &[Mapped]) -> Vec<Refusal> {
    let mut rings = rings(all).peekable();
    if rings.peek().is_none() {
        return Vec::new();
    }
    let table = table(live, area);
    let is_unknown = |ring: &&Mapping| !table.iter().any(|(context, _)| *context == ring.start);
    rings.filter(is_unknown).map(|ring| maps::refuse(ring, refuse::AIO.into())).collect()
}

/// All contexts, with nothing under way in them. Inside the stop.
///
/// # Errors
/// See the head of the file.
pub fn contexts(live: i32, area: &InjectArea, all: &[Mapped]) -> Result<Vec<AioContext>, CutError> {
    let mut found = Vec::new();
    let begun = Instant::now();
    for ring in rings(all) {
        loop {
            if calls_under_way(live, area) {
                return Err(busy(ring, "a call that gives work to a context of Linux AIO is under way"));
            }
            refuse::unless_empty(not_noted(live, area, all))?;
            let submitted = table(live, area).into_iter().find(|(context, _)| *context == ring.start);
            let mut head = [0; HEAD];
            procmem::read(live, ring.start, &mut head)?;
            let context = AioContext::of_ring(Addr(ring.start), ring.end - ring.start, &head);
            let (Some((_, submitted)), Some(context)) = (submitted, context) else {
                return Err(CutError::Refused(vec![maps::refuse(ring, refuse::AIO.into())]));
            };
            match context.under_way(submitted) {
                0 => {
                    found.push(context);
                    break;
                }
                count if begun.elapsed() > PATIENCE => {
                    let what = format!("{count} requests of Linux AIO are under way; try again");
                    return Err(busy(ring, &what));
                }
                _ => thread::sleep(MOMENT),
            }
        }
    }
    Ok(found)
}

fn busy(ring: &Mapping, why: &str) -> CutError {
    CutError::Unsettled(vec![maps::refuse(ring, why.into())])
}

fn page(area: &InjectArea) -> Option<u64> {
    Some(area.shared.0).filter(|page| *page != 0)
}

fn calls_under_way(live: i32, area: &InjectArea) -> bool {
    let calls = |page| procmem::read_u64(live, page + SharedPage::AIO_CALLS as u64);
    page(area).is_some_and(|page| calls(page).map_or(true, |calls| calls != 0))
}

/// Contexts that libholdfast has noted, with how many requests each has taken.
fn table(live: i32, area: &InjectArea) -> Vec<(u64, u64)> {
    let mut bytes = [0; SharedPage::AIO_MAX * SharedPage::AIO_ENTRY];
    let read = page(area).map(|page| procmem::read(live, page + SharedPage::AIO_TABLE as u64, &mut bytes));
    if !matches!(read, Some(Ok(()))) {
        return Vec::new();
    }
    let word = |entry: &[u8], at: usize| {
        let bytes = entry.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    let entries = bytes.chunks(SharedPage::AIO_ENTRY);
    entries.map(|entry| (word(entry, Noted::CONTEXT), word(entry, Noted::SUBMITTED))).collect()
}
