//! `holdfast __pages`: the process that serves the pages of an image to a program that was restarted lazily.
//!
//! Started by the front of `holdfast restart --lazy`, to which it sends a file that has each
//! page at its address ([`holdfast_sys::fuse`]); the new processes map it. It outlives front and agent, and ends when
//! no process has the file any more. Every frame is checked when it is read; what was touched at the last restart of
//! the job, in the order of those touches, and then all other pages go into the kernel's cache of the file before they
//! are asked for, behind what is asked for meanwhile.
//!
//! What must hold: no wrong page leaves it, and no reader waits for ever. How it fails: a frame that is damaged
//! on every tier, or on none of those that can be read for [`PATIENCE`], is an error in the log of the job, and who
//! touches it gets a SIGBUS. Before the file was sent: it tells the front why.

use crate::args::PagesArgs;
use crate::demand::Demand;
use crate::exit::Failure;
use crate::settings::Recipe;
use crate::{log, names};
use holdfast_image::pages::{ExtentSource, PageError, PageProvider};
use holdfast_image::{Addr, Epoch, PAGE_SIZE};
use holdfast_pager::{Access, History, Prediction, Tick};
use holdfast_sys::fuse::protocol::Identity;
use holdfast_sys::fuse::{self, Content};
use holdfast_sys::{attributes, fault, fd, scm, signals, unix_socket};
use holdfast_tiers::Image;
use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Threads that answer: one more than processors would do, for those that wait for a tier.
const THREADS: usize = 4;
/// So long a page that cannot be read is tried again, so often.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);
/// Bytes that are put into the cache at once, and by which touches are noted.
const PIECE: u64 = 1 << 20;
/// Threads that read ahead what does not lie in the store.
const AHEAD: usize = 4;
/// How much less the reading ahead gets of a processor (nice(2)).
const LATER: i32 = 10;
/// Name of the note of what was touched, of the job's last restart from whatever image.
const TOUCHED: &str = "touched";
/// Longer notes are not read: bytes.
const LONGEST_NOTE: u64 = 64 << 20;
/// What the first message to the front says if all is well.
pub const READY: &[u8] = b"ready";

/// The pages, as the kernel asks for them.
struct Served {
    image: Image,
    /// Pieces in the order in which they were asked for first.
    touched: Mutex<(Vec<u64>, BTreeSet<u64>)>,
    requests: AtomicU64,
    bytes: AtomicU64,
    demand: Demand,
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
            if matches!(error, PageError::Damaged { .. } | PageError::Misuse(_)) || begun.elapsed() > PATIENCE
            {
                tracing::error!("the program ends by SIGBUS if it touches {:#x}: {error}", offset);
                return Err(io::ErrorKind::Other.into());
            }
            tracing::warn!("page at {offset:#x}, tried again: {error}");
            thread::sleep(PAUSE);
        }
    }
}

/// Serves until nobody has the file any more.
///
/// # Errors
/// It cannot be made: the front has been told.
pub fn run(args: &PagesArgs, root: Option<&Path>) -> Result<(), Failure> {
    let front = fd::inherited(args.front)
        .map_err(|error| Failure::system("taking over the front's socket", &error))?;
    let result = serve(args, root, front.as_fd());
    if let Err(failure) = &result {
        let _ = scm::send(front.as_fd(), failure.message.as_bytes(), None);
    }
    result
}

fn serve(args: &PagesArgs, root: Option<&Path>, front: BorrowedFd<'_>) -> Result<(), Failure> {
    let system = |what: &'static str| move |error: io::Error| Failure::system(what, &error);
    attributes::leave_no_core();
    // Its end would be the program's: it goes by itself.
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        signals::set_ignored(signal, true);
    }
    // A single thread so far.
    let (device, mount) =
        fuse::mount().or_else(|_| fuse::own_mounts().and_then(|()| fuse::mount())).map_err(system(
            "a file system of its own cannot be mounted (it takes /dev/fuse, and root or a user namespace)",
        ))?;
    let store = names::open_store(root)?;
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
    };
    let mut random = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut random))
        .map_err(system("reading /dev/urandom"))?;
    // By the name mappings are known as ours: no program can guess it.
    let name = format!("holdfast-pages-{:032x}", u128::from_le_bytes(random));
    let identity = Identity::new(&name, unix_socket::effective_user(), attributes::effective_group());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                if let Err(error) = device.serve(&identity, &served) {
                    tracing::error!("pages are served no longer by one of {THREADS} threads: {error}");
                }
            });
        }
        fault::point("pages-ready");
        let open = || mount.open(&CString::new(name.clone())?);
        let file = open().map_err(system("opening the file of the pages"))?;
        scm::send(front, READY, Some(file.as_fd())).map_err(system("sending the file of the pages"))?;
        drop((file, mount));
        prefetch(&device, &served, &note);
        Ok(())
    })
}

/// Puts all pages into the cache, and notes what was touched meanwhile.
fn prefetch(device: &fuse::Device, served: &Served, note: &Path) {
    let begun = Instant::now();
    let stored = served.image.extents().iter().filter(|extent| extent.source != ExtentSource::Zero);
    let all: BTreeSet<u64> =
        stored.flat_map(|extent| extent.run.start.0 / PIECE..=(extent.run.end().0 - 1) / PIECE).collect();
    let history = History::decode(served.image.history()).unwrap_or_default();
    let known = read_note(note);
    let pieces = in_order(&all, &known, &history.predict());
    let bytes = store_all(device, served, &pieces);
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

/// Reads pieces ahead; bytes. Several are under way at a time where the image lies on another tier.
fn store_all(device: &fuse::Device, served: &Served, pieces: &[u64]) -> u64 {
    let image = &served.image;
    let is_far = !image.is_on_first_tier();
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let work = || {
        let _ = attributes::set_nice(0, LATER);
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            if is_far {
                served.demand.give_way();
            }
            match store_piece(device, image, *piece) {
                Ok(stored) => bytes.fetch_add(stored, Ordering::Relaxed),
                Err(error) => {
                    tracing::info!("nothing more is read ahead: {error}");
                    next.fetch_max(pieces.len(), Ordering::Relaxed);
                    break;
                }
            };
        }
    };
    thread::scope(|scope| {
        for _ in 1..if is_far { AHEAD } else { 1 } {
            scope.spawn(work);
        }
        work();
    });
    bytes.into_inner()
}

/// Puts the pages of one piece into the cache; how many bytes. What cannot be read is left to who touches it.
fn store_piece(device: &fuse::Device, image: &Image, piece: u64) -> io::Result<u64> {
    let (start, end) = (piece * PIECE, (piece + 1) * PIECE);
    let extents = image.extents();
    let first = extents.partition_point(|extent| extent.run.end().0 <= start);
    let here = extents[first..].iter().take_while(|extent| extent.run.start.0 < end);
    let (mut buffer, mut bytes) = (Vec::new(), 0);
    for extent in here.filter(|extent| extent.source != ExtentSource::Zero) {
        let (from, to) = (extent.run.start.0.max(start), extent.run.end().0.min(end));
        buffer.resize(usize::try_from(to - from).unwrap_or(0), 0);
        if let Err(error) = image.read_or_zero(Addr(from), &mut buffer) {
            tracing::warn!("pages at {from:#x} are not read ahead: {error}");
            continue;
        }
        device.store(from, &buffer)?;
        bytes += to - from;
    }
    Ok(bytes)
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
