//! Starting a page server (`crate::page_server`) for a restart that is asked to be lazy and to serve memory.
//!
//! Only where much of the memory can be mapped from no segment: it is compressed, or lies in too many places. The front
//! gets the file of the pages and hands it to the new processes. How it fails: in words, and memory is copied instead.

use crate::entries::helper_environment;
use crate::exit::{Failure, FailureKind};
use crate::helper::Helper;
use crate::log;
use crate::prefetcher::READY;
use holdfast_image::PAGE_SIZE;
use holdfast_image::pages::{ExtentSource, PageProvider};
use holdfast_process::rebuild::MIN_MAPPED_LEN;
use holdfast_sys::{clone, poll, scm};
use holdfast_tiers::{Image, Job, Store};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A page server. It ends when nothing has its file any more: to drop this leaves it to the program.
pub struct PageServer {
    /// Has each page at its address.
    pub file: OwnedFd,
    process: Option<OwnedFd>,
}

/// What a dead server's end takes from the moment at which reads of its file fail (exit_task_work) to the one at which
/// its process is over (exit_notify; kernel/exit.c), on a busy machine.
const END: Duration = Duration::from_secs(1);

impl PageServer {
    /// A restart failed. If that is because the server has ended, the failure says so.
    pub fn explain(&self, failure: Failure) -> Failure {
        if failure.kind != FailureKind::Other || !self.has_ended(END) {
            return failure;
        }
        Failure { exit: failure.exit, ..gone(format!("{failure}; ")) }
    }

    /// Before the program runs.
    ///
    /// # Errors
    /// The server has ended: a page that is nowhere but in the image would kill the program.
    pub fn is_there(&self) -> Result<(), Failure> {
        if self.has_ended(Duration::ZERO) { Err(gone(String::new())) } else { Ok(()) }
    }

    fn has_ended(&self, within: Duration) -> bool {
        self.process.as_ref().is_some_and(|it| poll::readable_within(it.as_fd(), within).unwrap_or(false))
    }
}

/// Another try meets another server.
fn gone(what: String) -> Failure {
    let message = what + "the page server has ended before the program ran: restart again, or with --eager";
    Failure { kind: FailureKind::Transient, ..Failure::new(crate::exit::Exit::Internal, message) }
}

/// From so many bytes on that would be copied otherwise.
const WORTH_IT: u64 = 4 << 20;

/// Whether an image has that much.
pub fn is_worth_it(image: &Image) -> bool {
    let copied = image.extents().iter().filter(|extent| match extent.source {
        ExtentSource::Zero => false,
        ExtentSource::Stored => true,
        ExtentSource::Mappable { .. } => extent.run.pages.0 * PAGE_SIZE < MIN_MAPPED_LEN,
    });
    copied.map(|extent| extent.run.pages.0 * PAGE_SIZE).sum::<u64>() >= WORTH_IT
}

/// Starts one. When `interrupt` has a signal to tell of, it is waited for no longer.
///
/// # Errors
/// Why there is none.
pub fn start(
    store: &Store,
    job: &Job,
    image: &Image,
    interrupt: BorrowedFd<'_>,
) -> Result<PageServer, Failure> {
    let system = |what: &'static str| move |error: std::io::Error| Failure::system(what, &error);
    let name = format!("--job={}", job.name());
    let number = image.epoch().0.to_string();
    let mut words: Vec<&OsStr> = vec!["--store".as_ref(), store.root().as_os_str()];
    words.extend(["__pages", &name, "--image", &number, "--front", "3"].map(OsStr::new));
    let server = Helper {
        what: "the page server",
        words,
        environment: helper_environment()?,
        log: log::open(job)?,
        descriptors: Vec::new(),
        at_default: &[],
    };
    let (pid, ours) = server.start()?;
    let process = clone::pidfd_open(pid).ok();
    // It opens the image first, perhaps at a server that is slow.
    loop {
        let ready = poll::readable(&[ours.as_fd(), interrupt], None);
        match ready.map_err(system("waiting for the page server"))?[..] {
            [true, _] => break,
            [_, true] => return Err(Failure::new(crate::exit::Exit::Internal, "interrupted".to_owned())),
            _ => {}
        }
    }
    let mut answer = [0; 1024];
    let (len, file) =
        scm::receive_with(ours.as_fd(), &mut answer, 0).map_err(system("waiting for the page server"))?;
    match file {
        Some(file) if answer[..len] == *READY => Ok(PageServer { file, process }),
        _ => {
            let told = String::from_utf8_lossy(&answer[..len]);
            let why = if told.is_empty() { "it ended; see agent.log".into() } else { told };
            Err(Failure::new(crate::exit::Exit::Internal, format!("no page server: {why}")))
        }
    }
}
