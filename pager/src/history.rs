//! The access history: the last four finished epochs, and which of them predicts best. Owned by the agent's job,
//! stored in every image, read back by a restart.
//!
//! A program whose iterations do not match its epochs (say, two arrays that take turns) is predicted better by an
//! older epoch. AI-Ckpt (HPDC'13, section 6) always takes the last epoch and leaves this open. Here every finished
//! epoch is compared with the prediction that each of the epochs 1..=4 before it would have made; the *lag* that does
//! clearly best is the program's period.
//!
//! Memory: at most 2 bytes per page and epoch. Decoding is safe for hostile input: it allocates no more than
//! [`MAX_CHUNKS`] chunks, and fails by [`HistoryError`].

use crate::access::{EpochAccess, Packed, PackedChunk, unknown_chunk};
use crate::agreement::agreement_permille;
use crate::chunk::{CHUNK_PAGES, CHUNK_PAGES_U64};
use crate::prediction::Prediction;
use holdfast_image::{Addr, PAGE_SIZE};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Epochs that are kept, and the longest period that can be found.
pub const EPOCHS: usize = 4;
/// Chunks of 2 MiB in an encoded history, all epochs together: 512 GiB. Older epochs that exceed it are left out.
pub const MAX_CHUNKS: usize = 1 << 18;
/// A longer lag must predict by so much better than a shorter one to be used, in permille.
const CLEARLY_PERMILLE: u32 = 80;
/// And this often, at least, must it have been compared.
const MIN_COMPARED: u32 = 2;
const MAGIC: &[u8; 4] = b"HFAH";
const VERSION: u16 = 1;
/// End of all address spaces ([`holdfast_image::address_space`]) in chunks; what was in files is in the last of them.
const END_CHUNK: u64 = Addr::END.0 / (CHUNK_PAGES_U64 * PAGE_SIZE);

/// How well the epoch `lag` before predicts, over the epochs seen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Score {
    /// Exponential mean: each new comparison counts one half.
    permille: u32,
    /// Comparisons made.
    compared: u32,
}

/// Which epoch is used to predict the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Period {
    /// The epoch so many before the next one is used; 1: the last one.
    pub lag: usize,
    /// How well it has predicted lately: 50 is chance, 100 is exact.
    pub agreement_percent: u32,
    /// The same of the last epoch (lag 1), for comparison.
    pub last_epoch_percent: u32,
    /// Comparisons behind `agreement_percent`.
    pub compared: u32,
}

/// What is wrong with a stored history. The image is still good: the job goes on without history.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// Something else is stored there.
    #[error("the access history does not begin with its mark: something else is stored in its place")]
    Mark,
    /// Written by another version.
    #[error("the access history has format {0}; this version reads format {VERSION}")]
    Version(u16),
    /// Ends early.
    #[error("the access history ends in the middle, at byte {0}")]
    Truncated(usize),
    /// A value that no history has.
    #[error("the access history is damaged at byte {at}: {what}")]
    Damaged {
        /// Byte offset behind the value.
        at: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct History {
    /// Oldest first.
    epochs: VecDeque<Arc<EpochAccess>>,
    /// Of lag 1, 2, ...
    scores: [Score; EPOCHS],
}

impl History {
    /// The empty history.
    pub fn new() -> History {
        History::default()
    }
    /// Number of epochs that are kept.
    pub fn len(&self) -> usize {
        self.epochs.len()
    }
    /// Whether no epoch has been finished.
    pub fn is_empty(&self) -> bool {
        self.epochs.is_empty()
    }
    /// The epoch `lag` (from 1) before the one that runs now.
    pub fn epoch(&self, lag: usize) -> Option<&EpochAccess> {
        let index = self.epochs.len().checked_sub(lag)?;
        self.epochs.get(index).map(Arc::as_ref)
    }
    /// Adds the epoch that has just ended, after comparing it with what would have been predicted.
    pub fn push(&mut self, finished: EpochAccess) {
        for lag in 1..=EPOCHS {
            let compared = self.epoch(lag).and_then(|earlier| agreement_permille(earlier, &finished));
            let (Some(new), Some(score)) = (compared, self.scores.get_mut(lag - 1)) else { continue };
            score.permille = if score.compared == 0 { new } else { (score.permille + new) / 2 };
            score.compared = score.compared.saturating_add(1);
        }
        if self.epochs.len() == EPOCHS {
            self.epochs.pop_front();
        }
        self.epochs.push_back(Arc::new(finished));
    }
    /// Which epoch predicts the next one best; `None` as long as nothing could be compared.
    pub fn period(&self) -> Option<Period> {
        let [last, ..] = self.scores;
        if last.compared == 0 {
            return None;
        }
        let mut best = (1, last);
        for (lag, score) in (1..=EPOCHS).zip(self.scores).skip(1) {
            let clearly = score.permille >= best.1.permille + CLEARLY_PERMILLE;
            if clearly && score.compared >= MIN_COMPARED && lag <= self.epochs.len() {
                best = (lag, score);
            }
        }
        Some(Period {
            lag: best.0,
            agreement_percent: best.1.permille / 10,
            last_epoch_percent: last.permille / 10,
            compared: best.1.compared,
        })
    }
    /// What is to be expected of the epoch that begins: by the epoch that predicts best; of pages which that one does
    /// not know, by the latest that does. Knows nothing if the history is empty.
    pub fn predict(&self) -> Prediction {
        let lag = self.period().map_or(1, |period| period.lag);
        let merged = Prediction::merge(
            self.epoch(lag).into_iter().chain((1..=EPOCHS).filter_map(|lag| self.epoch(lag))),
        );
        // The speed of the store is a matter of the latest flush, not of the period.
        let speed = (1..=EPOCHS)
            .filter_map(|lag| self.epoch(lag))
            .find_map(|epoch| Some((epoch.flushed(), epoch.flush_us()?)));
        merged.with_speed(speed)
    }
    /// What the epoch before says, and nothing else: AI-Ckpt's way, see the head of the file.
    pub fn last(&self) -> Prediction {
        Prediction::merge(self.epoch(1))
    }

    /// The history as bytes, little-endian: mark, version (u16), scores (4 times u16 permille, u32 comparisons), number
    /// of epochs (u8); then each epoch, oldest first: duration of its flush (u64, us; 0:
    /// unknown), number of chunks (u32), and each chunk: its number (u64, ascending),
    /// number of runs of equal values (u16), each run: length (u16), value (u16). Runs 0: 512 values follow instead.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        for score in self.scores {
            out.extend((score.permille.min(1000) as u16).to_le_bytes());
            out.extend(score.compared.to_le_bytes());
        }
        let mut chunks = 0;
        let kept = self.epochs.iter().rev().take_while(|epoch| {
            chunks += epoch.chunks().len();
            chunks <= MAX_CHUNKS
        });
        let kept = kept.count();
        out.push(kept as u8);
        for epoch in self.epochs.iter().skip(self.epochs.len() - kept) {
            out.extend(epoch.flush_us().unwrap_or_default().to_le_bytes());
            out.extend((epoch.chunks().len() as u32).to_le_bytes());
            for (number, chunk) in epoch.chunks() {
                out.extend(number.to_le_bytes());
                encode_chunk(chunk, &mut out);
            }
        }
        out
    }

    /// Reads what [`History::encode`] wrote.
    ///
    /// # Errors
    /// The bytes are something else, of another version, cut short or damaged.
    pub fn decode(bytes: &[u8]) -> Result<History, HistoryError> {
        let mut reader = Reader { bytes, at: 0 };
        if reader.array().ok().as_ref() != Some(MAGIC) {
            return Err(HistoryError::Mark);
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(HistoryError::Version(version));
        }
        let mut history = History::new();
        for score in &mut history.scores {
            *score =
                Score { permille: u32::from(reader.u16()?), compared: u32::from_le_bytes(reader.array()?) };
            if score.permille > 1000 {
                return Err(reader.damaged("an agreement of more than 1000 permille"));
            }
        }
        let [epochs] = reader.array()?;
        if usize::from(epochs) > EPOCHS {
            return Err(reader.damaged("too many epochs"));
        }
        let mut room = MAX_CHUNKS;
        for _ in 0..epochs {
            let epoch = decode_epoch(&mut reader, &mut room)?;
            history.epochs.push_back(Arc::new(epoch));
        }
        if reader.at != bytes.len() {
            return Err(reader.damaged("more bytes than it says"));
        }
        Ok(history)
    }
}

fn encode_chunk(chunk: &PackedChunk, out: &mut Vec<u8>) {
    let runs: Vec<&[Packed]> = chunk.chunk_by(|a, b| a == b).collect();
    // A run takes four bytes, a single value two.
    if runs.len() * 2 > CHUNK_PAGES {
        out.extend(0_u16.to_le_bytes());
        out.extend(chunk.iter().flat_map(|packed| packed.0.to_le_bytes()));
        return;
    }
    out.extend((runs.len() as u16).to_le_bytes());
    for run in runs {
        out.extend((run.len() as u16).to_le_bytes());
        out.extend(run.first().copied().unwrap_or_default().0.to_le_bytes());
    }
}

fn decode_epoch(reader: &mut Reader<'_>, room: &mut usize) -> Result<EpochAccess, HistoryError> {
    let flush_us = u64::from_le_bytes(reader.array()?);
    let chunks = u32::from_le_bytes(reader.array()?) as usize;
    *room = room.checked_sub(chunks).ok_or_else(|| reader.damaged("too many chunks"))?;
    let mut decoded = BTreeMap::new();
    let mut least = 0;
    for _ in 0..chunks {
        let number = u64::from_le_bytes(reader.array()?);
        if number < least || number >= END_CHUNK {
            return Err(reader.damaged("chunks that are out of order or beyond all address spaces"));
        }
        least = number + 1;
        decoded.insert(number, decode_chunk(reader)?);
    }
    Ok(EpochAccess::new(decoded, flush_us))
}

fn decode_chunk(reader: &mut Reader<'_>) -> Result<PackedChunk, HistoryError> {
    let mut chunk = unknown_chunk();
    let runs = reader.u16()?;
    if runs == 0 {
        for packed in chunk.iter_mut() {
            *packed = Packed(reader.u16()?);
        }
        return Ok(chunk);
    }
    let mut filled = 0;
    for _ in 0..runs {
        let end = filled + usize::from(reader.u16()?);
        let value = Packed(reader.u16()?);
        let part =
            chunk.get_mut(filled..end).ok_or_else(|| reader.damaged("a chunk of more than 512 pages"))?;
        part.fill(value);
        filled = end;
    }
    if filled != CHUNK_PAGES {
        return Err(reader.damaged("a chunk of less than 512 pages"));
    }
    Ok(chunk)
}

/// Takes values off the front; never beyond the end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], HistoryError> {
        let value = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk);
        let value = *value.ok_or(HistoryError::Truncated(self.at))?;
        self.at += N;
        Ok(value)
    }
    fn u16(&mut self) -> Result<u16, HistoryError> {
        self.array().map(u16::from_le_bytes)
    }
    fn damaged(&self, what: &'static str) -> HistoryError {
        HistoryError::Damaged { at: self.at, what }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::recorder::Recorder;
    use holdfast_image::page_set::PageSet;
    use holdfast_image::pages::PageRun;
    use holdfast_image::{PageCount, address_space};
    use proptest::prelude::*;

    const PAGES: u64 = 2048;

    fn run(from: u64, pages: u64) -> PageRun {
        PageRun { start: Addr((4000 + from) * PAGE_SIZE), pages: PageCount(pages) }
    }
    /// An epoch in which `pages` are written one millisecond after the other, in this order; the flush ends after
    /// `flush` of them.
    fn epoch(pages: &[u64], flush: usize) -> EpochAccess {
        let all: PageSet = [run(0, PAGES)].into_iter().collect();
        let mut recorder = Recorder::new(&all, &all);
        for (index, page) in pages.iter().enumerate() {
            if index == flush {
                recorder.flush_done(index as u64 * 1000);
            }
            recorder.written(run(*page, 1), index as u64 * 1000);
        }
        recorder.flush_done(pages.len() as u64 * 1000);
        recorder.finish()
    }
    /// Pages 0..n in an order that has nothing to do with any other seed's.
    fn shuffled(seed: u64) -> Vec<u64> {
        let mut pages: Vec<u64> = (0..PAGES).collect();
        let mut random = seed;
        for index in (1..pages.len()).rev() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
            pages.swap(index, (random >> 33) as usize % (index + 1));
        }
        pages
    }
    fn pushed(epochs: impl IntoIterator<Item = EpochAccess>) -> History {
        let mut history = History::new();
        epochs.into_iter().for_each(|epoch| history.push(epoch));
        history
    }

    #[test]
    fn the_last_epoch_predicts_a_steady_program() {
        let pages = shuffled(1);
        let history = pushed((0..8).map(|_| epoch(&pages, 1500)));
        let period = history.period().unwrap();
        assert_eq!((period.lag, period.agreement_percent, history.len()), (1, 100, EPOCHS));
        let noise: Vec<Vec<u64>> = (1..9).map(shuffled).collect();
        let history = pushed(noise.iter().map(|pages| epoch(pages, PAGES as usize)));
        assert_eq!(history.period().unwrap().lag, 1, "chance must not make a period");
    }

    #[test]
    fn programs_that_take_turns_have_a_period() {
        for turns in 2..=EPOCHS {
            let orders: Vec<Vec<u64>> = (1..=turns as u64).map(shuffled).collect();
            let history = pushed((0..12).map(|index| epoch(&orders[index % turns], 1500)));
            let period = history.period().unwrap();
            assert_eq!(period.lag, turns);
            assert_eq!(period.agreement_percent, 100);
            assert!(period.last_epoch_percent < 90);
            // The next epoch is the thirteenth: it begins with the first page of its own order.
            let prediction = history.predict();
            let next = &orders[12 % turns];
            let ranks: Vec<_> = next.iter().map(|page| prediction.rank(run(*page, 1).start)).collect();
            assert!(ranks.is_sorted());
            // The epoch before had another order.
            let last = history.last();
            let ranks = |order: &[u64]| -> Vec<_> {
                order.iter().map(|page| last.rank(run(*page, 1).start)).collect()
            };
            assert!(ranks(&orders[11 % turns]).is_sorted() && !ranks(next).is_sorted());
        }
    }

    #[test]
    fn halves_of_memory_that_take_turns_have_a_period() {
        let halves: [Vec<u64>; 2] = [(0..PAGES / 2).collect(), (PAGES / 2..PAGES).collect()];
        let history = pushed((0..6).map(|index| epoch(&halves[index % 2], 2000)));
        assert_eq!(history.period().unwrap().lag, 2);
        let prediction = history.predict();
        assert!(prediction.is_hot(run(3, 1).start) && !prediction.is_hot(run(PAGES - 3, 1).start));
    }

    #[test]
    fn a_page_that_the_best_epoch_does_not_know_is_predicted_by_the_latest_that_does() {
        let small: PageSet = [run(0, 1)].into_iter().collect();
        let mut later = Recorder::new(&small, &small);
        later.written(run(0, 1), 5);
        let history = pushed([epoch(&[7, 8], 10), later.finish()]);
        let prediction = history.predict();
        assert!(prediction.is_hot(run(0, 1).start) && prediction.is_hot(run(7, 1).start));
        assert!(!prediction.is_hot(run(9, 1).start));
        assert!(History::new().predict().is_empty());
        assert_eq!(History::new().period(), None);
    }

    #[test]
    fn neighbours_that_come_together() {
        // Descending, blocks of eight in an order that has nothing to do with their addresses, single pages.
        let mut pages: Vec<u64> = (100..200).rev().collect();
        pages.extend((0..50).flat_map(|block| (0..8).map(move |page| 300 + block * 37 % 50 * 8 + page)));
        pages.extend((0..200).map(|page| 1000 + page * 77 % 200 * 2));
        let together = pushed([epoch(&pages, 5000)]).predict().together();
        let expected: PageSet = [run(100, 100), run(300, 400)].into_iter().collect();
        assert_eq!(together, expected);
        // After the flush it does not matter any more.
        assert!(pushed([epoch(&pages, 0)]).predict().together().is_empty());
        assert!(History::new().predict().together().is_empty());
    }

    #[test]
    fn a_history_is_compact() {
        let ascending: Vec<u64> = (0..PAGES).collect();
        let noise = pushed((1..=4).map(|seed| epoch(&shuffled(seed), 5000))).encode();
        assert!(noise.len() as u64 <= 8 * PAGES + 5 * (4 * 10 + 1024 * 4), "{} bytes", noise.len());
        let idle = pushed((0..4).map(|_| epoch(&[], 0))).encode();
        assert!(idle.len() < 500, "{} bytes", idle.len());
        let steady = pushed((0..4).map(|_| epoch(&ascending, 5000)));
        assert_eq!(History::decode(&steady.encode()), Ok(steady));
    }

    /// What was in files has pages, too.
    #[test]
    fn a_history_may_reach_to_the_last_address_space() {
        let page = address_space::global_run(address_space::FILES, run(0, 1));
        let all: PageSet = [run(0, PAGES), page].into_iter().collect();
        let mut recorder = Recorder::new(&all, &all);
        recorder.written(page, 1);
        recorder.flush_done(2);
        let history = pushed([recorder.finish()]);
        assert_eq!(History::decode(&history.encode()), Ok(history));
    }

    #[test]
    fn what_is_no_history_is_refused() {
        let good = pushed([epoch(&[5, 6, 7], 2)]).encode();
        assert_eq!(History::decode(b""), Err(HistoryError::Mark));
        assert_eq!(History::decode(b"JSON{}"), Err(HistoryError::Mark));
        let mut other = good.clone();
        other[4] = 9;
        assert_eq!(History::decode(&other), Err(HistoryError::Version(9)));
        for length in MAGIC.len()..good.len() {
            assert!(matches!(History::decode(&good[..length]), Err(HistoryError::Truncated(_))), "{length}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert!(matches!(History::decode(&longer), Err(HistoryError::Damaged { .. })));
        // Four thousand million chunks: refused before anything is allocated for them.
        let chunks = MAGIC.len() + 2 + EPOCHS * 6 + 1 + 8;
        let mut many = good;
        many[chunks..chunks + 4].fill(0xff);
        assert!(matches!(History::decode(&many), Err(HistoryError::Damaged { .. })));
    }

    proptest! {
        #[test]
        fn histories_survive_the_bytes(
            writes in prop::collection::vec((prop::collection::vec(0..PAGES, 0..300), 0..300_usize), 0..7),
        ) {
            let history = pushed(writes.iter().map(|(pages, flush)| epoch(pages, *flush)));
            prop_assert_eq!(History::decode(&history.encode()), Ok(history));
        }
        #[test]
        fn hostile_bytes_do_no_harm(
            noise in prop::collection::vec((0..6000_usize, any::<u8>()), 0..8),
            cut in 0..10_000_usize,
        ) {
            let mut bytes = pushed([epoch(&shuffled(3), 700), epoch(&[1, 2, 3], 1)]).encode();
            bytes.truncate(cut.max(100));
            let length = bytes.len();
            for (at, value) in noise {
                bytes[at % length] = value;
            }
            if let Ok(history) = History::decode(&bytes) {
                // Whatever is accepted can be used and written again.
                history.predict();
                prop_assert_eq!(History::decode(&history.encode()), Ok(history));
            }
        }
    }
}
