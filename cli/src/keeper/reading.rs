//! What a keeper has taken for an image is read.
//!
//! Used by [`super::windows`], when the agent asks. Invariants: all that is asked for is there, or nothing is said to
//! be; what lies on a device is under way at once, and not waited for chunk by chunk. Fails by: words.

use super::blocks::{Blocks, Cached, words};
use super::messages::Run;
use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_cuda_kernels::digest::Digest;
use holdfast_image::address_space::DIGESTS;
use holdfast_sys::cuda_window::Window;
use std::ops::Range;

/// There is no such part of the ring.
const SHORT: &str = "more was asked for than the ring has room for";

/// What lies on one device one chunk behind the other, and goes to the ring from `from` on.
#[derive(Default)]
struct Stretch {
    bank: usize,
    places: Vec<Range<u64>>,
    from: usize,
}

impl Stretch {
    fn add(&mut self, place: Range<u64>) {
        match self.places.last_mut().filter(|last| last.end == place.start) {
            Some(last) => last.end = place.end,
            None => self.places.push(place),
        }
    }
}

impl Blocks {
    /// Begins to put what was taken of these addresses into a part of the ring, one run behind the other; all of them
    /// have to be. What lies on devices is there when the part was waited for.
    ///
    /// # Errors
    /// In words.
    pub fn begin(&self, runs: &[Run], ring: &mut Window, part: Range<usize>) -> Result<(), String> {
        let (mut stretch, mut done) = (Stretch { from: part.start, ..Stretch::default() }, part.start);
        for &(start, len) in runs {
            let begin = done;
            let end = usize::try_from(len).ok().and_then(|len| begin.checked_add(len));
            let end = end.filter(|end| *end <= part.end).ok_or(SHORT)?;
            while done < end {
                let at = start + (done - begin) as u64;
                let (slot, skip) = (at / CHUNK, (at % CHUNK) as usize);
                let here = (end - done).min(CHUNK as usize - skip);
                let cached = |(bank, (cache, memory)): (&usize, &Cached)| {
                    Some((*bank, memory.as_ref()?.at + cache.offset(slot)? + skip as u64))
                };
                match self.caches.iter().find_map(cached) {
                    Some((bank, place)) => {
                        if bank != stretch.bank {
                            self.copy(&mut stretch, ring, done)?;
                            stretch.bank = bank;
                        }
                        stretch.add(place..place + here as u64);
                    }
                    None => {
                        self.copy(&mut stretch, ring, done)?;
                        let into = ring.part(done..done + here).ok_or(SHORT)?;
                        if at < DIGESTS {
                            self.read_spilled(slot, skip, into)?;
                        } else {
                            into.fill(0);
                            self.read_digests(at - DIGESTS, into);
                        }
                        stretch.from = done + here;
                    }
                }
                done += here;
            }
        }
        self.copy(&mut stretch, ring, done)
    }

    /// What was found of a stretch is under way, and another one begins.
    fn copy(&self, stretch: &mut Stretch, ring: &mut Window, end: usize) -> Result<(), String> {
        let places = std::mem::take(&mut stretch.places);
        let part = std::mem::replace(&mut stretch.from, end)..end;
        match self.banks.get(stretch.bank).filter(|_| !places.is_empty()) {
            Some(bank) => ring.begin_to_host(&bank.device, &places, part).map_err(words),
            None => Ok(()),
        }
    }

    /// What found no room in a cache.
    fn read_spilled(&self, slot: u64, skip: usize, into: &mut [u8]) -> Result<(), String> {
        for (bank, (cache, memory)) in &self.caches {
            if cache.read(slot, skip, into, &mut self.copies(*bank, None, memory.as_ref()))? {
                return Ok(());
            }
        }
        Err(format!("chunk {slot} of device memory was not taken for the image"))
    }

    fn read_digests(&self, start: u64, into: &mut [u8]) {
        let end = start + into.len() as u64;
        for (name, digests) in &self.pending.digests {
            let from = name * Digest::BYTES;
            let (first, last) = (from.max(start), (from + digests.len() as u64).min(end));
            if first < last {
                let range = |base: u64| (first - base) as usize..(last - base) as usize;
                into[range(start)].copy_from_slice(&digests[range(from)]);
            }
        }
    }
}
