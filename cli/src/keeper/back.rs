//! Device memory goes back to an image: what differs, what of that the GPU cache has, and how it gets there.
//!
//! Used by [`super::process`]: by a rollback, and by a restart, which compares only. The digests that the image has
//! were filled in before. Invariants: what is said to be in the cache was hashed there and has the digest of the image;
//! nothing of the program's is changed before [`Blocks::bring`] or [`Blocks::clear`]. Fails by: words; of a cache that
//! cannot be read nothing is taken.

use super::bank::{Copies, Placed};
use super::blocks::{Blocks, Found, Pending, words};
use super::cache::Wanted;
use super::messages::{Run, Taken};
use super::runs::runs;
use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_cuda_kernels::digest::{Digest, Keys};
use holdfast_sys::clock::monotonic_ns;
use holdfast_sys::fault;
use std::collections::BTreeSet;

impl Blocks {
    /// Whether all has the digests that were filled in.
    ///
    /// # Errors
    /// It has not; in words.
    pub fn check(&mut self) -> Result<(), String> {
        let Taken { dirty, zero, .. } = self.differing()?;
        let wrong = dirty.iter().chain(&zero).map(|(_, len)| len / CHUNK).sum::<u64>();
        match dirty.iter().chain(&zero).map(|(start, _)| start / CHUNK).min() {
            None => Ok(()),
            Some(slot) => Err(format!(
                "{wrong} chunks of device memory are not what their digests in the image say, the first of them \
                 chunk {slot}: the image is damaged, use an older one"
            )),
        }
    }

    /// What does not have the digests that were filled in.
    fn differing(&self) -> Result<Taken, String> {
        let (mut dirty, mut zero) = (Vec::new(), Vec::new());
        for (number, bank) in self.banks.iter().enumerate() {
            let placed = self.placed(number, None);
            if placed.is_empty() {
                continue;
            }
            let hashed = bank.changed(Keys::new(self.key), &placed).map_err(words)?;
            dirty.extend(hashed.dirty);
            zero.extend(hashed.zero);
        }
        Ok(Taken { dirty: runs(dirty), zero: runs(zero), ..Taken::default() })
    }

    /// What does not have the digests that were filled in, and what of it the cache has.
    ///
    /// # Errors
    /// The device has failed; in words.
    pub fn find(&mut self) -> Result<Taken, String> {
        let mut taken = self.differing()?;
        let mut found = Found::new();
        for (number, mut wanted) in self.wanted(&taken)? {
            for digest in self.leave_wrong(number, &mut wanted)? {
                if let Some((cache, _)) = self.caches.get_mut(&number) {
                    cache.lose(digest);
                }
            }
            found.insert(number, wanted);
        }
        taken.cached = runs(found.values().flatten().map(|one| one.slot).collect());
        self.pending = Pending::default();
        self.pending.found = found;
        Ok(taken)
    }

    /// What differs, and what it is to be: only what a cache has.
    fn wanted(&self, differing: &Taken) -> Result<Found, String> {
        let all = differing.dirty.iter().chain(&differing.zero);
        let mut slots: Vec<u64> = all.flat_map(|(start, len)| start / CHUNK..(start + len) / CHUNK).collect();
        slots.sort_unstable();
        let (mut found, mut digests) = (Found::new(), (0, Vec::new()));
        for slot in slots {
            let Some((name, one)) = self.all.range(..=slot).next_back() else { continue };
            let Some((cache, Some(_))) = self.caches.get(&one.bank) else { continue };
            if digests.0 != *name {
                digests = (*name, vec![0; (one.bytes / CHUNK * Digest::BYTES) as usize]);
                self.banks[one.bank].image_digests(*name, &mut digests.1).map_err(words)?;
            }
            let at = ((slot - name) * Digest::BYTES) as usize;
            let Some(digest) = digests.1.get(at..).and_then(|rest| rest.first_chunk()) else { continue };
            let digest = Digest::from_bytes(*digest);
            if digest != Digest::NONE && cache.find(digest).is_some() {
                let address = one.at + (slot - name) * CHUNK;
                found.entry(one.bank).or_default().push(Wanted { slot, digest, address });
            }
        }
        Ok(found)
    }

    /// Leaves out those whose bytes in the cache do not have the digests of the image, and returns these.
    fn leave_wrong(&self, number: usize, wanted: &mut Vec<Wanted>) -> Result<Vec<Digest>, String> {
        let Some((cache, Some(memory))) = self.caches.get(&number) else { return Ok(Vec::new()) };
        let mut places: Vec<Placed> = Vec::new();
        for one in &*wanted {
            let Some(offset) = cache.find(one.digest) else { continue };
            let place = Placed { at: memory.at + offset, bytes: CHUNK, slot: one.slot };
            let follows = |last: &Placed| {
                last.at + last.bytes == place.at && last.slot + last.bytes / CHUNK == place.slot
            };
            match places.last_mut().filter(|last| follows(last)) {
                Some(last) => last.bytes += CHUNK,
                None => places.push(place),
            }
        }
        let Some(first) = places.first() else { return Ok(Vec::new()) };
        let bank = &self.banks[number];
        if fault::is_asked("other-cached-chunk") {
            bank.device.set(first.at, 0xa5, 16).map_err(words)?;
        }
        let hashed = bank.changed(Keys::new(self.key), &places).map_err(words)?;
        let wrong: BTreeSet<u64> = hashed.dirty.into_iter().chain(hashed.zero).collect();
        let (right, others) = wanted.drain(..).partition(|one| !wrong.contains(&one.slot));
        *wanted = right;
        let others: Vec<Wanted> = others;
        Ok(others.into_iter().map(|one| one.digest).collect())
    }

    /// What [`Blocks::find`] has found goes back. What was there still.
    ///
    /// # Errors
    /// The device has failed; in words.
    pub fn bring(&mut self) -> Result<Taken, String> {
        let mut brought = Vec::new();
        for (number, wanted) in std::mem::take(&mut self.pending.found) {
            let Some((cache, memory)) = self.caches.get_mut(&number) else { continue };
            let bank = &self.banks[number];
            let mut copies = Copies { bank, hashed: None, cache: memory.as_ref() };
            brought.extend(cache.bring(monotonic_ns(), &wanted, &mut copies)?);
            bank.device.finish().map_err(words)?;
        }
        Ok(Taken { cached: runs(brought), ..Taken::default() })
    }

    /// Makes these zero: what is not is filled in then.
    ///
    /// # Errors
    /// There is nothing at these addresses, or the device has failed; in words.
    pub fn clear(&mut self, all: &[Run]) -> Result<(), String> {
        for &(start, len) in all {
            let (mut at, end) = (start, start.saturating_add(len));
            while at < end {
                let found = self.all.range(..=at / CHUNK).next_back();
                let found = found.filter(|(name, one)| at < *name * CHUNK + one.bytes);
                let (name, one) = found.ok_or_else(|| format!("no block has the address {at:#x}"))?;
                let here = (end - at).min(name * CHUNK + one.bytes - at);
                let device = &self.banks[one.bank].device;
                let place = one.at + (at - name * CHUNK);
                device.set(place, 0, here).and_then(|()| device.finish()).map_err(words)?;
                at += here;
            }
        }
        Ok(())
    }
}
