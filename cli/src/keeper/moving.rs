//! What goes between an agent and the devices of its keeper, through the ring.
//!
//! Used by flush workers ([`Keeper::read`]), a restart and a rollback ([`Keeper::fill`]). Several windows are under way
//! at once, so that a device has always something to copy; threads copy to and from windows at the same time. Fails by:
//! words.

use super::ahead::{Ahead, Filling};
use super::client::{Keeper, Link};
use super::messages::{MOST, Question, RING, window_at};
use std::os::unix::fs::FileExt;

impl Keeper {
    /// Reads what was taken.
    ///
    /// # Errors
    /// The keeper does not have it.
    pub fn read(&self, start: u64, buffer: &mut [u8]) -> Result<(), String> {
        let (mut at, mut rest) = (start, buffer);
        while !rest.is_empty() {
            let mut link = self.link.lock();
            link.begin(at)?;
            let here = match link.find(at)? {
                Some((window, offset, bytes)) => {
                    let here = rest.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
                    link.ahead.reads(window);
                    drop(link);
                    let read = self.read_ring(&mut rest[..here], window_at(window) + offset);
                    self.link.lock().ahead.has_read(window, here as u64);
                    read?;
                    here
                }
                None => {
                    // This part of the ring is the question's until it is read.
                    let here = rest.len().min(RING as usize);
                    link.ask(&Question::Read { run: (at, here as u64) })?;
                    self.read_ring(&mut rest[..here], 0)?;
                    here
                }
            };
            at += here as u64;
            rest = &mut rest[here..];
        }
        Ok(())
    }

    pub(super) fn read_ring(&self, into: &mut [u8], at: u64) -> Result<(), String> {
        self.ring.read_exact_at(into, at).map_err(|error| format!("reading the ring: {error}"))
    }

    /// Brings pages of the image there: once [`Keeper::filled`] has returned.
    ///
    /// # Errors
    /// They, or some before, belong to nothing that was made.
    pub fn fill(&self, pieces: &[(u64, &[u8])]) -> Result<(), String> {
        let mut link = self.link.lock();
        link.ahead = Ahead::default();
        for (start, bytes) in pieces {
            let (mut at, mut rest) = (*start, *bytes);
            while !rest.is_empty() {
                if let Some(window) = link.filling.awaited() {
                    link.ask(&Question::Await { window })?;
                }
                let (window, place) = link.filling.add(at, rest.len() as u64);
                let (now, later) = rest.split_at((place.end - place.start) as usize);
                self.ring
                    .write_all_at(now, window_at(window) + place.start)
                    .map_err(|error| format!("writing the ring: {error}"))?;
                if link.filling.is_full(MOST) {
                    link.send_filled()?;
                }
                at += now.len() as u64;
                rest = later;
            }
        }
        Ok(())
    }

    /// What was filled is there.
    ///
    /// # Errors
    /// Some of it belongs to nothing that was made; the device has failed.
    pub fn filled(&self) -> Result<(), String> {
        let mut link = self.link.lock();
        let sent = link.send_filled();
        let mut awaited = sent;
        for window in link.filling.rest() {
            awaited = awaited.and(link.ask(&Question::Await { window }).map(drop));
        }
        link.filling = Filling::default();
        awaited
    }
}

impl Link {
    /// What there is room for is under way, if this is going to be read.
    fn begin(&mut self, at: u64) -> Result<(), String> {
        while let Some((window, runs)) = self.ahead.begin(at) {
            self.tell(&Question::Begin { window, runs })?;
        }
        Ok(())
    }

    /// Window, place in it, and how much is there; `None`: in no window.
    fn find(&mut self, at: u64) -> Result<Option<(usize, u64, u64)>, String> {
        let Some(found) = self.ahead.find(at) else { return Ok(None) };
        if found.is_under_way {
            let done = self.ask(&Question::Await { window: found.window });
            if self.is_lost() {
                return done.map(|_| None);
            }
            // What is wrong is said when it is read by itself.
            self.ahead.done(found.window, done.is_ok());
            if done.is_err() {
                return Ok(None);
            }
        }
        Ok(Some((found.window, found.offset, found.bytes)))
    }

    fn send_filled(&mut self) -> Result<(), String> {
        match self.filling.send() {
            Some((window, runs)) => self.tell(&Question::Fill { window, runs }),
            None => Ok(()),
        }
    }
}
