//! Of the GPU cache, on a device that is a model.
#![allow(clippy::unwrap_used)]

use super::*;

/// A device whose chunk n of the list is full of `chunk(n + salt)`.
struct Model {
    cache: Vec<u8>,
    fetched: u64,
    salt: usize,
    /// What went back: by address, the first byte.
    program: BTreeMap<u64, u8>,
}

const SIZE: usize = CHUNK as usize;

fn chunk(nth: usize) -> u8 {
    u8::try_from(nth % 251).unwrap() + 1
}

impl Model {
    fn new(capacity: usize) -> Model {
        Model { cache: vec![0; capacity], fetched: 0, salt: 0, program: BTreeMap::new() }
    }
}

impl Moves for Model {
    fn gather(&mut self, first: usize, count: usize, offset: u64) -> Result<(), String> {
        for nth in 0..count {
            let at = offset as usize + nth * SIZE;
            self.cache[at..at + SIZE].fill(chunk(first + nth + self.salt));
        }
        Ok(())
    }
    fn take(&mut self, first: usize, into: &mut [u8]) -> Result<(), String> {
        let salt = self.salt;
        into.chunks_mut(SIZE).enumerate().for_each(|(nth, into)| into.fill(chunk(first + nth + salt)));
        Ok(())
    }
    fn fetch(&mut self, offset: u64, into: &mut [u8]) -> Result<(), String> {
        self.fetched += into.len() as u64;
        into.copy_from_slice(&self.cache[offset as usize..offset as usize + into.len()]);
        Ok(())
    }
    fn bring(&mut self, offset: u64, address: u64, bytes: u64) -> Result<(), String> {
        assert_eq!(bytes, CHUNK);
        self.program.insert(address, self.cache[offset as usize]);
        Ok(())
    }
}

fn all_is_there(cache: &Cache, slots: &[u64], model: &mut Model) {
    let mut bytes = vec![0; 4096];
    for (nth, slot) in slots.iter().enumerate() {
        assert!(cache.read(*slot, 8192, &mut bytes, model).unwrap());
        assert!(bytes.iter().all(|byte| *byte == chunk(nth)), "chunk {nth}");
    }
}

#[test]
fn every_chunk_is_there_whatever_the_cache_has_room_for() {
    let slots: Vec<u64> = (0..300).map(|n| 1000 + 3 * n).collect();
    let whole = slots.len().next_multiple_of(SEGMENT) * SIZE;
    for (capacity, spills) in
        [(whole, false), (whole / 2, true), (SEGMENT * SIZE, true), (SIZE, true), (0, true)]
    {
        let mut model = Model::new(capacity);
        let mut cache = Cache::new(capacity as u64);
        cache.take(0, &slots, &mut model).unwrap();
        assert_eq!(cache.spilled > 0, spills, "capacity {capacity}");
        assert!(spills || model.fetched == 0, "nothing moves as long as there is room");
        all_is_there(&cache, &slots, &mut model);
        assert!(!cache.read(1001, 0, &mut [0; 16], &mut model).unwrap());
    }
}

#[test]
fn gaps_are_where_no_chunk_is_any_more() {
    let slots: Vec<u64> = (0..192).collect();
    let whole = 192 * CHUNK;
    let mut model = Model::new(whole as usize);
    let mut cache = Cache::new(whole);
    cache.take(0, &slots, &mut model).unwrap();
    assert_eq!((cache.gap(1, whole), cache.gap(CHUNK, whole + CHUNK)), (None, Some(whole)));
    assert_eq!((cache.offset(70), cache.offset(192)), (Some(70 * CHUNK), None));
    (64..128).for_each(|slot| cache.stored(1, slot, CHUNK, &mut model).unwrap());
    // A gap beside it is taken first; then the room of what the image has.
    assert_eq!(cache.gap(CHUNK, whole + CHUNK), Some(whole));
    assert_eq!((cache.gap(ROOM + 1, whole), cache.offset(70)), (None, Some(70 * CHUNK)));
    assert_eq!((cache.gap(ROOM, whole), cache.offset(70)), (Some(ROOM), None));
    (0..64).for_each(|slot| cache.stored(2, slot, CHUNK, &mut model).unwrap());
    assert_eq!((cache.gap(2 * ROOM, whole), cache.offset(7)), (Some(0), None));
    assert_eq!(cache.offset(130), Some(130 * CHUNK));
}

#[test]
fn a_cache_gives_way_and_what_is_not_stored_goes_to_the_host() {
    let slots: Vec<u64> = (32..232).collect();
    let whole = slots.len().next_multiple_of(SEGMENT) * SIZE;
    let mut model = Model::new(whole);
    let mut cache = Cache::new(whole as u64);
    cache.take(0, &slots, &mut model).unwrap();
    // The second segment before the first.
    for slot in (96..160).chain(32..96) {
        cache.stored(1, slot, CHUNK / 2, &mut model).unwrap();
        cache.stored(1, slot, CHUNK / 2, &mut model).unwrap();
    }
    assert_eq!(model.fetched, 0);
    cache.give_way(&mut model).unwrap();
    assert!(cache.read(40, 0, &mut [0; 16], &mut model).is_err());
    assert_eq!(model.fetched, 72 * CHUNK);
    model.cache.fill(0);
    let mut bytes = [0; 16];
    for slot in 160..232 {
        assert!(cache.read(slot, 0, &mut bytes, &mut model).unwrap());
        assert_eq!(bytes, [chunk(slot as usize - 32); 16]);
    }
    let image = Committed { digest: &|slot| Some(of(1, slot)), zero: &[] };
    cache.over(2, Some(image), &mut model).unwrap();
    assert!(slots.iter().all(|slot| cache.find(of(1, *slot)).is_none()));
}

/// The digest of a slot in an image.
fn of(image: u8, slot: u64) -> Digest {
    let mut bytes = [image; 16];
    bytes[..8].copy_from_slice(&slot.to_le_bytes());
    Digest::from_bytes(bytes)
}

/// One image: these slots are taken, stored and committed.
fn image(cache: &mut Cache, model: &mut Model, number: u8, slots: &[u64], zero: &[u64]) {
    let now = u64::from(number) * 1_000_000_000;
    model.salt = usize::from(number) * 7;
    cache.take(now, slots, model).unwrap();
    assert_eq!(cache.spilled, 0, "image {number} waits for the host");
    slots.iter().for_each(|slot| cache.stored(now + 1, *slot, CHUNK, model).unwrap());
    let image = Committed { digest: &|slot| Some(of(number, slot)), zero };
    cache.over(now + 2, Some(image), model).unwrap();
}

/// Whether all chunks of an image are there.
fn has(cache: &Cache, number: u8, mut slots: std::ops::Range<u64>) -> bool {
    let there = slots.clone().filter(|slot| cache.find(of(number, *slot)).is_some()).count();
    assert!(there == 0 || there == slots.clone().count(), "segments are whole");
    slots.all(|slot| cache.find(of(number, slot)).is_some())
}

fn slots(range: std::ops::Range<u64>) -> Vec<u64> {
    range.collect()
}

/// The first of two segments is still that of the newest image when room is needed, the second is not: what evicts
/// what was written first, or used least recently, loses the wrong one.
#[test]
fn what_a_newer_image_has_replaced_goes_before_what_is_older() {
    let mut model = Model::new(3 * ROOM as usize);
    let mut cache = Cache::new(3 * ROOM);
    image(&mut cache, &mut model, 1, &slots(0..128), &[]);
    image(&mut cache, &mut model, 2, &slots(64..128), &[]);
    assert!(has(&cache, 1, 0..64) && has(&cache, 1, 64..128) && has(&cache, 2, 64..128));
    image(&mut cache, &mut model, 3, &slots(256..320), &[]);
    assert!(!has(&cache, 1, 64..128), "what image 2 has replaced is there still");
    assert!(has(&cache, 1, 0..64) && has(&cache, 2, 64..128) && has(&cache, 3, 256..320));
    // What has become zero is replaced, too; of the rest the oldest goes.
    image(&mut cache, &mut model, 4, &slots(512..576), &slots(256..320));
    assert!(has(&cache, 3, 256..320) && !has(&cache, 1, 0..64));
    image(&mut cache, &mut model, 5, &slots(640..704), &[]);
    assert!(!has(&cache, 3, 256..320) && has(&cache, 2, 64..128) && has(&cache, 4, 512..576));
}

#[test]
fn a_rollback_finds_what_images_have_and_keeps_it_longest() {
    let mut model = Model::new(3 * ROOM as usize);
    let mut cache = Cache::new(3 * ROOM);
    image(&mut cache, &mut model, 1, &slots(0..64), &[]);
    image(&mut cache, &mut model, 2, &slots(0..64), &[]);
    let wanted = |image, slot| Wanted { slot, digest: of(image, slot), address: 0x100_0000 + slot * CHUNK };
    let back = [wanted(1, 3), wanted(1, 7), wanted(9, 8)];
    assert_eq!(cache.bring(3_000_000_000, &back, &mut model).unwrap(), [3, 7]);
    let brought: Vec<u8> = model.program.values().copied().collect();
    assert_eq!(brought, [chunk(3 + 7), chunk(7 + 7)]);
    // It was read, so it stays when the others go.
    image(&mut cache, &mut model, 3, &slots(64..128), &[]);
    image(&mut cache, &mut model, 4, &slots(128..192), &[]);
    assert!(has(&cache, 1, 0..64) && !has(&cache, 2, 0..64), "what a rollback has read went first");
}

#[test]
fn an_image_that_fails_leaves_nothing_and_takes_nothing_away_but_room() {
    let mut model = Model::new(2 * ROOM as usize);
    let mut cache = Cache::new(2 * ROOM);
    image(&mut cache, &mut model, 1, &slots(0..64), &[]);
    for failed in 2..5 {
        cache.take(failed, &slots(0..64), &mut model).unwrap();
        cache.stored(failed, 5, CHUNK, &mut model).unwrap();
        cache.over(failed, None, &mut model).unwrap();
        assert!(cache.read(5, 0, &mut [0; 16], &mut model).is_ok_and(|found| !found));
        assert!(has(&cache, 1, 0..64), "a failure has replaced nothing");
    }
    image(&mut cache, &mut model, 5, &slots(0..128), &[]);
    assert!(has(&cache, 5, 0..128) && !has(&cache, 1, 0..64));
}

/// Whatever the history: what was taken last can be read, and the cache never has more than fits.
#[test]
fn many_images_need_no_more_room_than_there_is() {
    let mut model = Model::new(8 * ROOM as usize);
    let mut cache = Cache::new(8 * ROOM);
    for number in 0..200_u64 {
        let first = number * 37 % 300;
        let taken: Vec<u64> = (first..first + 1 + number * 13 % 400).collect();
        model.salt = 0;
        cache.take(number, &taken, &mut model).unwrap();
        assert_eq!(cache.spilled, 0, "image {number}: {} chunks", taken.len());
        all_is_there(&cache, &taken, &mut model);
        let digest = |slot| Some(of(u8::try_from(number % 250).unwrap(), slot));
        let image = (number % 5 != 0).then_some(Committed { digest: &digest, zero: &[] });
        cache.over(number, image, &mut model).unwrap();
    }
    assert!(cache.segments.len() <= 8, "{} segments are known", cache.segments.len());
}
