//! `holdfast __pages`: the process that serves the pages of an image to a program that was restarted lazily.
//!
//! Started by the front of `holdfast restart --lazy`, which gets a file that has each page at its address
//! ([`holdfast_sys::fuse`]); the new processes map it. It outlives front and agent, and ends when no process has the
//! file any more. Every frame is checked when it is read; what was touched at the last restart of the job, in the order
//! of those touches, and then all other pages are read ahead, behind what is asked for meanwhile.
//!
//! What must hold: no wrong page leaves it, and no reader waits for ever. It waits for nothing of its own file system:
//! opening the file and reading ahead is done by a process without the device (`crate::prefetcher`), which it tells
//! what to read. How it fails: a frame that is damaged on every tier, or on none of those that can be read for
//! [`PATIENCE`], is an error in the log of the job, and who touches it gets a SIGBUS. Before the file was sent: the
//! front is told why. A thread that cannot go on ends all of it: then nothing waits for it.

use crate::args::PagesArgs;
use crate::demand::Demand;
use crate::exit::Failure;
use crate::prefetcher::{LATER, Prefetcher, STEP};
use crate::settings::Recipe;
use crate::{log, names};
use holdfast_image::pages::{Extent, ExtentSource, PageError, PageProvider};
use holdfast_image::{Addr, Epoch, PAGE_SIZE};
use holdfast_pager::{Access, History, Prediction, Tick};
use holdfast_sys::fuse::protocol::Identity;
use holdfast_sys::fuse::serve::Server;
use holdfast_sys::fuse::{self, Content};
use holdfast_sys::poll::{self, Bell};
use holdfast_sys::{attributes, fault, fd, scm, signals, unix_socket};
use holdfast_tiers::Image;
use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Threads that answer: one more than processors would do, for those that wait for a tier.
const THREADS: usize = 4;
/// So long a page that cannot be read is tried again, so often.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);
/// Bytes by which the order of reading ahead goes, and by which touches are noted.
const PIECE: u64 = 1 << 20;
/// Threads that answer what is read ahead, where the image does not lie in the store, and where it does.
const AHEAD_FAR: usize = 4;
const AHEAD_NEAR: usize = 1;
/// Ranges that are read ahead at a time, for each of these threads: a piece. Where pages come fast it is two ranges, so
/// that a thread that touches a page that is being read ahead waits for little more than for that page.
const RANGES_FAR: usize = (PIECE / STEP) as usize;
const RANGES_NEAR: usize = 2;
/// Name of the note of what was touched, of the job's last restart from whatever image.
const TOUCHED: &str = "touched";
/// Longer notes are not read: bytes.
const LONGEST_NOTE: u64 = 64 << 20;
/// The pages, as the kernel asks for them.
struct Served {
    image: Image,
    /// Pieces in the order in which they were asked for first.
    touched: Mutex<(Vec<u64>, BTreeSet<u64>)>,
    requests: AtomicU64,
    bytes: AtomicU64,
    demand: Demand,
    is_gone: AtomicBool,
    /// Rung when no process has the file any more, or when not all can be answered.
    end: Bell,
}

impl Content for Served {
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        if let Ok(mut touched) = self.touched.lock() {
            let (order, all) = &mut *touched;
            if all.insert(offset / PIECE) {
                order.push(offset / PIECE);
            }
        }
        let _request = self.demand.request();
        let begun = Instant::now();
        loop {
            let error = match self.image.read_or_zero(Addr(offset), out) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let is_final = matches!(error, PageError::Damaged { .. } | PageError::Misuse(_));
            if is_final || begun.elapsed() > PATIENCE || self.is_gone() {
                tracing::error!("the program ends by SIGBUS if it touches {:#x}: {error}", offset);
                return Err(io::ErrorKind::Other.into());
            }
            tracing::warn!("page at {offset:#x}, tried again: {error}");
            thread::sleep(PAUSE);
        }
    }
    fn read_ahead(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.is_gone() {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.image.read_or_zero(Addr(offset), out).map_err(|error| {
            tracing::warn!("pages at {offset:#x} are not read ahead: {error}");
            io::ErrorKind::Other.into()
        })
    }
    fn unit(&self, offset: u64) -> u64 {
        offset / PIECE
    }
    fn gone(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
        self.end.ring();
    }
}

impl Served {
    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }
}

/// Serves until no process has the file any more.
///
/// # Errors
/// It cannot be made: the front has been told.
pub fn run(args: &PagesArgs, root: Option<&Path>) -> Result<(), Failure> {
    let front = fd::inherited(args.front)
        .map_err(|error| Failure::system("taking over the front's socket", &error))?;
    let theirs =
        front.try_clone().map_err(|error| Failure::system("duplicating the front's socket", &error))?;
    let result = serve(args, root, theirs);
    if let Err(failure) = &result {
        let _ = scm::send(front.as_fd(), failure.message.as_bytes(), None);
    }
    result
}

fn serve(args: &PagesArgs, root: Option<&Path>, front: OwnedFd) -> Result<(), Failure> {
    let system = |what: &'static str| move |error: io::Error| Failure::system(what, &error);
    attributes::leave_no_core();
    // Its end would be the program's: it ends by itself.
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        signals::set_ignored(signal, true);
    }
    let store = names::open_store(root)?;
    // Before there is a device, and in the namespaces of the front.
    let prefetcher = Prefetcher::start(store.root(), &args.job, front)?;
    // A single thread so far.
    let (device, mount) =
        fuse::mount().or_else(|_| fuse::own_mounts().and_then(|()| fuse::mount())).map_err(system(
            "a file system of its own cannot be mounted (this needs /dev/fuse, and root or a user namespace)",
        ))?;
    let job = store.job(&args.job)?;
    let log_path = log::path(&job);
    tracing_subscriber::fmt().with_writer(move || log::Bounded(log_path.clone())).with_ansi(false).init();
    let below = crate::tiers::folders(job.name(), &Recipe::read(&job)?);
    let image = job.open_image_from(Epoch(args.image), &below)?;
    let note = job.dir().join(TOUCHED);
    let served = Served {
        image,
        touched: Mutex::default(),
        requests: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        demand: Demand::default(),
        is_gone: AtomicBool::new(false),
        end: Bell::new().map_err(system("making an eventfd"))?,
    };
    let mut random = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut random))
        .map_err(system("reading /dev/urandom"))?;
    // By the name mappings are known as ours: no program can guess it.
    let name = format!("holdfast-pages-{:032x}", u128::from_le_bytes(random));
    let identity = Identity::new(&name, unix_socket::effective_user(), attributes::effective_group());
    let server = Server::new(&device, &identity, &served, prefetcher.thread());
    let ahead = if served.image.is_on_first_tier() { AHEAD_NEAR } else { AHEAD_FAR };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                if let Err(error) = server.serve() {
                    tracing::error!("pages are served no longer: {error}");
                }
            });
        }
        for _ in 0..ahead {
            scope.spawn(|| {
                let _ = attributes::set_nice(0, LATER);
                server.serve_ahead();
            });
        }
        scope.spawn(|| server.answer_the_killed());
        fault::point("pages-ready");
        let name = CString::new(name).map_err(|error| system("naming the file")(error.into()))?;
        prefetcher.open(mount, &name).map_err(system("having the file of the pages opened"))?;
        prefetch(&served, prefetcher, &note);
        // Threads that wait for a tier have nothing to answer any more.
        while !served.is_gone() {
            let _ = poll::readable(&[served.end.as_fd()], None);
        }
        attributes::exit_now(0)
    })
}

/// Has all pages read ahead, and notes what was touched meanwhile.
fn prefetch(served: &Served, prefetcher: Prefetcher, note: &Path) {
    let begun = Instant::now();
    let stored = served.image.extents().iter().filter(|extent| extent.source != ExtentSource::Zero);
    let all: BTreeSet<u64> =
        stored.flat_map(|extent| extent.run.start.0 / PIECE..=(extent.run.end().0 - 1) / PIECE).collect();
    let history = History::decode(served.image.history()).unwrap_or_default();
    let known = read_note(note);
    let pieces = in_order(&all, &known, &history.predict());
    let bytes = ask_for_all(served, &prefetcher, &pieces);
    let (requests, asked) = (served.requests.load(Ordering::Relaxed), served.bytes.load(Ordering::Relaxed));
    tracing::info!(
        "image {}: {bytes} bytes read ahead in {:?}; meanwhile {requests} requests for {asked} bytes",
        served.image.epoch(),
        begun.elapsed()
    );
    // What was read ahead was not asked for, though it may have been touched: it keeps its place.
    let mut order = served.touched.lock().map(|touched| touched.0.clone()).unwrap_or_default();
    let now: BTreeSet<u64> = order.iter().copied().collect();
    order.extend(known.into_iter().filter(|piece| !now.contains(piece)));
    if let Err(error) = write_note(note, &order) {
        tracing::info!("the next restart does not know what was touched first: {error}");
    }
    if !served.is_gone() {
        prefetcher.end();
    }
}

/// Pieces in the order in which they will be wanted: as they were touched the last time; then as the access history
/// says that they are written; then by address.
fn in_order(all: &BTreeSet<u64>, touched: &[u64], prediction: &Prediction) -> Vec<u64> {
    let places: HashMap<u64, usize> =
        touched.iter().enumerate().map(|(place, piece)| (*piece, place)).collect();
    let written = |piece: u64| {
        let pages = (piece * PIECE..(piece + 1) * PIECE).step_by(PAGE_SIZE as usize);
        let first = pages.filter_map(|page| prediction.get(Addr(page)));
        first.filter(|page| page.access != Access::Untouched).map(|page| page.at).min()
    };
    let later = usize::MAX;
    let mut pieces: Vec<(usize, Option<Tick>, u64)> = all
        .iter()
        .map(|piece| match places.get(piece) {
            Some(place) => (*place, None, *piece),
            None if prediction.is_empty() => (later, None, *piece),
            None => (later, written(*piece), *piece),
        })
        .collect();
    pieces.sort_by_key(|(place, tick, piece)| (*place, tick.is_none(), *tick, *piece));
    pieces.into_iter().map(|(_, _, piece)| piece).collect()
}

/// Has pieces read ahead, several ranges at a time; bytes. Ends early where the file is gone.
fn ask_for_all(served: &Served, prefetcher: &Prefetcher, pieces: &[u64]) -> u64 {
    let is_far = !served.image.is_on_first_tier();
    let most = if is_far { AHEAD_FAR * RANGES_FAR } else { AHEAD_NEAR * RANGES_NEAR };
    let (mut under_way, mut bytes) = (0, 0);
    let mut ask = |range: Option<(u64, u64)>| -> io::Result<()> {
        while under_way == most || range.is_none() && under_way > 0 {
            bytes += prefetcher.answer()?.ok_or(io::ErrorKind::BrokenPipe)?;
            under_way -= 1;
        }
        if let Some((offset, len)) = range {
            prefetcher.ask(offset, len)?;
            under_way += 1;
        }
        Ok(())
    };
    let mut all = || {
        for piece in pieces {
            if is_far {
                served.demand.give_way();
            }
            for range in ranges(served.image.extents(), *piece) {
                if served.is_gone() {
                    return Ok(());
                }
                ask(Some(range))?;
            }
        }
        ask(None)
    };
    if let Err(error) = all() {
        tracing::info!("nothing more is read ahead: {error}");
    }
    bytes
}

/// What of a piece is not zero: offsets and lengths, [`STEP`] at most.
fn ranges(extents: &[Extent], piece: u64) -> Vec<(u64, u64)> {
    let (start, end) = (piece * PIECE, (piece + 1) * PIECE);
    let first = extents.partition_point(|extent| extent.run.end().0 <= start);
    let here = extents[first..].iter().take_while(|extent| extent.run.start.0 < end);
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for extent in here.filter(|extent| extent.source != ExtentSource::Zero) {
        let (mut from, to) = (extent.run.start.0.max(start), extent.run.end().0.min(end));
        while from < to {
            let step = (from / STEP + 1) * STEP;
            let len = step.min(to) - from;
            match ranges.last_mut() {
                // Neighbours, be they of two extents, are read together.
                Some((last, before)) if *last + *before == from && *last / STEP == from / STEP => {
                    *before += len
                }
                _ => ranges.push((from, len)),
            }
            from += len;
        }
    }
    ranges
}

/// The pieces of a note, if it is one that this user alone can have written.
fn read_note(path: &Path) -> Vec<u64> {
    let read = || {
        let file = crate::file_system::open_own(path)?;
        let mut bytes = Vec::new();
        file.take(LONGEST_NOTE).read_to_end(&mut bytes).ok()?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        Some(bytes.chunks_exact(8).map(number).collect())
    };
    read().unwrap_or_default()
}

fn write_note(path: &Path, pieces: &[u64]) -> io::Result<()> {
    let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_le_bytes()).collect();
    crate::file_system::write_own(path, &bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_was_touched_goes_first_then_what_is_written_then_by_address() {
        let all: BTreeSet<u64> = (10..20).collect();
        let none = Prediction::default();
        assert_eq!(in_order(&all, &[17, 3, 12], &none)[..4], [17, 12, 10, 11]);
        assert_eq!(in_order(&all, &[], &none), all.iter().copied().collect::<Vec<u64>>());
    }

    #[test]
    fn touches_are_noted_and_a_torn_note_is_none() {
        let path = std::env::temp_dir().join(format!("touched-{}", attributes::own_pid()));
        assert!(read_note(&path).is_empty());
        write_note(&path, &[5, 1, 7]).unwrap();
        write_note(&path, &[7, 3]).unwrap();
        assert_eq!(read_note(&path), [7, 3]);
        std::fs::write(&path, [1, 0, 0, 0, 0, 0, 0, 0, 9]).unwrap();
        assert_eq!(read_note(&path), [1]);
        std::fs::remove_file(&path).unwrap();
    }
}
