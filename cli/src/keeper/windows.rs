//! The ring that keeper and agent share, in the keeper: a part for one question at a time, and windows behind it, in
//! each of which something may be under way between the devices and the host.
//!
//! Used by [`super::process`]. What is begun in a window ([`Windows::begin`], [`Windows::fill`]) the agent awaits
//! later: so the devices always have something to copy. Invariants: before memory of a device is given back, or becomes
//! something else, nothing is under way ([`Windows::settle`]); what has failed in a window is said when it is awaited.
//! Fails by: words.

use super::blocks::{Blocks, words};
use super::messages::{RING, RING_FILE, Run, WINDOW, WINDOWS, window_at};
use holdfast_sys::cuda_window::Window;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// See the head of the file.
pub struct Windows {
    /// All of it.
    pub ring: Window,
    /// What has become of what was begun.
    begun: [Result<(), String>; WINDOWS],
}

const NONE: &str = "there is no such window";

fn part(window: usize) -> Result<Range<usize>, String> {
    let at = window_at(window) as usize;
    if window < WINDOWS { Ok(at..at + WINDOW as usize) } else { Err(NONE.to_owned()) }
}

impl Windows {
    /// That of the agent.
    ///
    /// # Errors
    /// See [`Window::of`].
    pub fn of(ring: BorrowedFd<'_>) -> io::Result<Windows> {
        let ring = Window::of(ring, RING_FILE as usize)?;
        Ok(Windows { ring, begun: [const { Ok(()) }; WINDOWS] })
    }

    /// What one question has of it.
    pub fn question(&mut self) -> &mut [u8] {
        self.ring.part(0..RING as usize).unwrap_or_default()
    }

    /// Begins to put what was taken of these addresses into a window, one behind the other.
    pub fn begin(&mut self, window: usize, runs: &[Run], blocks: &Blocks) {
        let begun = part(window).and_then(|part| {
            self.ring.wait(&part).map_err(words)?;
            blocks.begin(runs, &mut self.ring, part)
        });
        self.note(window, begun);
    }

    /// Begins to bring to the devices what a window has of these addresses, one behind the other.
    pub fn fill(&mut self, window: usize, runs: &[Run], blocks: &Blocks) {
        let begun = part(window).and_then(|part| {
            self.ring.wait(&part).map_err(words)?;
            blocks.fill(runs, &mut self.ring, part)
        });
        self.note(window, begun);
    }

    fn note(&mut self, window: usize, begun: Result<(), String>) {
        if let Some(place) = self.begun.get_mut(window) {
            *place = begun;
        }
    }

    /// Waits until nothing is under way in a window.
    ///
    /// # Errors
    /// What was begun there has failed.
    pub fn wait(&mut self, window: usize) -> Result<(), String> {
        let waited = self.ring.wait(&part(window)?).map_err(words);
        let begun = self.begun.get_mut(window).ok_or(NONE)?;
        if begun.is_ok() {
            *begun = waited;
        }
        begun.clone()
    }

    /// Waits until nothing is under way at all.
    pub fn settle(&mut self) {
        for window in 0..WINDOWS {
            // It is said when it is awaited.
            let _ = self.wait(window);
        }
    }
}
