//! What a keeper has taken for an image is read.
//!
//! Used by [`super::process`], when the agent asks. Invariants: all that is asked for is there, or nothing is said to
//! be; what lies on a device is under way at once, and not waited for chunk by chunk. Fails by: words.

use super::blocks::{Blocks, Cached, words};
use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_cuda_kernels::digest::Digest;
use holdfast_image::address_space::DIGESTS;
use std::ops::Range;

impl Blocks {
    /// What was taken of these addresses; all of them have to be.
    ///
    /// # Errors
    /// In words.
    pub fn read(&self, start: u64, into: &mut [u8]) -> Result<(), String> {
        if start >= DIGESTS {
            into.fill(0);
            self.read_digests(start - DIGESTS, into);
            return Ok(());
        }
        // What lies on one device one chunk behind the other, and goes from `from` on.
        let (mut bank, mut places, mut from): (usize, Vec<Range<u64>>, usize) = (0, Vec::new(), 0);
        let mut done = 0;
        while done < into.len() {
            let at = start + done as u64;
            let (slot, skip) = (at / CHUNK, (at % CHUNK) as usize);
            let here = (into.len() - done).min(CHUNK as usize - skip);
            let cached = |(bank, (cache, memory)): (&usize, &Cached)| {
                Some((*bank, memory.as_ref()?.at + cache.offset(slot)? + skip as u64))
            };
            let cached = self.caches.iter().find_map(cached);
            if cached.is_none_or(|(other, _)| other != bank) {
                self.copy(bank, &places, &mut into[from..done])?;
                places.clear();
                from = done;
            }
            match cached {
                Some((other, place)) => {
                    bank = other;
                    match places.last_mut().filter(|last| last.end == place) {
                        Some(last) => last.end += here as u64,
                        None => places.push(place..place + here as u64),
                    }
                }
                None => {
                    self.read_spilled(slot, skip, &mut into[done..done + here])?;
                    from = done + here;
                }
            }
            done += here;
        }
        self.copy(bank, &places, &mut into[from..])
    }

    /// All of it is under way at once: `into` is better pinned.
    fn copy(&self, bank: usize, places: &[Range<u64>], into: &mut [u8]) -> Result<(), String> {
        match self.banks.get(bank).filter(|_| !places.is_empty()) {
            Some(bank) => bank.device.to_host_all(places, into).map_err(words),
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
