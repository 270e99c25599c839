//! Waiting for the other members of a gang: for whom, how long, and what is looked at meanwhile.
//!
//! Used by who leads and by who joins. Fails by: why to give up.

use super::seat::Seat;
use crate::exit::Failure;
use crate::settings::GangPlace;
use holdfast_image::control::Secret;
use holdfast_sys::poll;
use holdfast_tiers::Store;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Who is to find whom.
pub struct Plan<'a> {
    /// The store that all hosts reach.
    pub store: &'a Store,
    /// Which member this is.
    pub place: &'a GangPlace,
    /// The image of the gang that it restarts; `None`: it starts afresh.
    pub image: Option<u64>,
    /// They meet before a restart, to agree on its image.
    pub meets: bool,
    /// Of the leader of an open gang: what its servers prove.
    pub key: Option<Secret>,
}

/// What is looked at while others are waited for.
pub struct Meanwhile<'a> {
    /// It is looked again when one of these is readable.
    pub fds: Vec<BorrowedFd<'a>>,
    /// Why to give up.
    pub is_over: &'a dyn Fn() -> Option<Failure>,
    /// Says something to the user.
    pub say: &'a dyn Fn(String),
}

impl Meanwhile<'_> {
    /// Waits until something has happened, no longer than that.
    ///
    /// # Errors
    /// Why to give up.
    pub(super) fn wait(&self, seat: Option<&Seat>, most: Duration) -> Result<(), Failure> {
        let bell = seat.map(|seat| seat.bell().as_fd());
        let fds: Vec<BorrowedFd<'_>> = self.fds.iter().copied().chain(bell).collect();
        poll::readable(&fds, Some(most))
            .map_err(|error| Failure::system("waiting for the other members of the gang", &error))?;
        seat.iter().for_each(|seat| seat.bell().hush());
        (self.is_over)().map_or(Ok(()), Err)
    }
}

/// Waiting with an end, of which the user is told once.
pub(super) struct Patience {
    begun: Instant,
    limit: Duration,
    is_told: bool,
}

impl Patience {
    /// For who waits silently no longer than that.
    const SILENT: Duration = Duration::from_secs(2);

    pub(super) fn new(place: &GangPlace) -> Patience {
        Patience { begun: Instant::now(), limit: Duration::from_secs(place.wait_s), is_told: false }
    }

    pub(super) fn is_over(&self) -> bool {
        self.begun.elapsed() >= self.limit
    }

    /// How long to wait before it is looked again.
    pub(super) fn left(&self) -> Duration {
        let next = if self.is_told { self.limit } else { self.limit.min(Patience::SILENT) };
        next.saturating_sub(self.begun.elapsed())
    }

    /// For whom it is waited, after a while.
    pub(super) fn say(&mut self, meanwhile: &Meanwhile<'_>, whom: impl FnOnce() -> String) {
        if !self.is_told && self.begun.elapsed() >= Patience::SILENT {
            self.is_told = true;
            let limit = self.limit.as_secs();
            (meanwhile.say)(format!("waiting for {}, at most {limit} s (--gang-wait)", whom()));
        }
    }
}

/// Name of this host.
pub(super) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Some members in words.
pub fn members(numbers: &[u32]) -> String {
    let all: Vec<String> = numbers.iter().take(8).map(u32::to_string).collect();
    let more = if numbers.len() > all.len() { " …" } else { "" };
    let word = if numbers.len() == 1 { "member" } else { "members" };
    format!("{word} {}{more}", all.join(", "))
}
