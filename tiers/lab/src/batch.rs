//! Accumulate or compress, while the application runs: obeys a plan, or a rule of its own where there is none.
//!
//! Called by what fills the buffer in front of a link; driven by [`Batcher::step`]. Without a profile, and once a
//! run differs from it ([`Profile::drifted`]), the rule is greedy: raw as long as the link keeps up; else what arrives
//! while the link is busy is kept, and when the link is idle or the buffer nearly full it goes, compressed if that is
//! sooner there.
//! Invariants: the buffer is never over-full; what is kept goes before anything waits for its room for ever; what is
//! larger than the buffer passes it by.

use holdfast_tiers::policy::{BufferLimits, Choice, Objective, Profile, Sample, SegmentId, part, schedule};
use std::collections::VecDeque;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchEvent {
    /// The application has a segment of so many bytes, and waits for [`BatchAction::Admit`].
    Wants(SegmentId, u64),
    /// The segment that was admitted is in the buffer.
    Filled,
    /// The codec is done: so many bytes came of it.
    Compressed(u64),
    /// The link has taken so many more bytes.
    Sent(u64),
    /// No more segments will come.
    End,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchAction {
    /// There is room for the segment.
    Admit(SegmentId),
    /// The segment will never fit: it goes past the buffer.
    PassBy(SegmentId),
    /// Compress these together, and tell of the end with the size.
    Compress(Vec<SegmentId>),
    /// So many bytes, of the segments compressed last, go over the link.
    SendCompressed(u64),
    /// This segment goes over the link as it is.
    SendRaw(SegmentId),
    /// The run is not what the profile says: from here on by the greedy rule; the profile should be measured anew.
    Drifted,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    segment: SegmentId,
    bytes: u64,
}

/// The state of a buffer, its link and its codec.
#[derive(Clone, Debug)]
pub struct Batcher {
    profile: Profile,
    limits: BufferLimits,
    /// What is left of the plan; empty: the greedy rule.
    plan: VecDeque<Choice>,
    seen: Vec<Sample>,
    /// Kept, and not yet decided on.
    held: Vec<Held>,
    wanting: Option<Held>,
    admitted: Option<Held>,
    /// Under the codec: bytes of input; bytes of its temporary buffer.
    compressing: Option<(u64, u64)>,
    /// A compression of the held that waits for its temporary buffer.
    due: bool,
    /// Bytes that the link has yet to take.
    pending: u64,
    /// When the application went on.
    since: u64,
    interval_ns: u64,
    ended: bool,
}

impl Batcher {
    /// An empty buffer. A profile without samples has the codec and the link only.
    pub fn new(profile: Profile, limits: BufferLimits, objective: Objective) -> Batcher {
        let plan = schedule(&profile, &limits, objective).map(|plan| plan.choices.into()).unwrap_or_default();
        Batcher {
            profile,
            limits,
            plan,
            seen: Vec::new(),
            held: Vec::new(),
            wanting: None,
            admitted: None,
            compressing: None,
            due: false,
            pending: 0,
            since: 0,
            interval_ns: 0,
            ended: false,
        }
    }

    /// Nothing is in the buffer.
    pub fn is_empty(&self) -> bool {
        self.used() == 0
    }

    /// What was seen of the run: the profile of the next one.
    pub fn seen(&self) -> &[Sample] {
        &self.seen
    }

    /// Takes note of an event, and says what is to be done.
    pub fn step(&mut self, now_ns: u64, event: BatchEvent) -> Vec<BatchAction> {
        let mut actions = Vec::new();
        match event {
            BatchEvent::Wants(segment, bytes) => {
                self.interval_ns = now_ns.saturating_sub(self.since);
                self.wanting = Some(Held { segment, bytes });
            }
            BatchEvent::Filled => self.filled(now_ns, &mut actions),
            BatchEvent::Compressed(bytes) => {
                self.since = now_ns;
                if let Some((input, _)) = self.compressing.take() {
                    self.note_ratio(input, bytes);
                    self.pending += bytes;
                    actions.push(BatchAction::SendCompressed(bytes));
                }
            }
            BatchEvent::Sent(bytes) => self.pending = self.pending.saturating_sub(bytes),
            BatchEvent::End => self.ended = true,
        }
        self.go_on(&mut actions);
        actions
    }

    fn filled(&mut self, now_ns: u64, actions: &mut Vec<BatchAction>) {
        let Some(held) = self.admitted.take() else { return };
        self.since = now_ns;
        let compressed =
            self.profile.samples.get(self.seen.len()).map_or(held.bytes, |sample| sample.compressed);
        self.seen.push(Sample { interval_ns: self.interval_ns, bytes: held.bytes, compressed });
        self.held.push(held);
        if !self.plan.is_empty() && self.profile.drifted(&self.seen) {
            self.plan.clear();
            actions.push(BatchAction::Drifted);
        }
        match self.plan.front() {
            Some(Choice::Raw) => {
                self.plan.pop_front();
                self.send_raw(actions);
            }
            Some(&Choice::Compress(count)) if self.held.len() >= count => {
                self.plan.pop_front();
                self.due = true;
            }
            _ => {}
        }
    }

    /// What was seen of the last segments when they were compressed together.
    fn note_ratio(&mut self, input: u64, output: u64) {
        let mut left = input;
        for sample in self.seen.iter_mut().rev() {
            if left < sample.bytes {
                break;
            }
            // Their sum is the output, whatever is rounded.
            let before = part(left - sample.bytes, output, input);
            sample.compressed = part(left, output, input) - before;
            left -= sample.bytes;
        }
    }

    fn held_bytes(&self) -> u64 {
        self.held.iter().map(|held| held.bytes).sum()
    }

    fn used(&self) -> u64 {
        let admitted = self.admitted.map_or(0, |held| held.bytes);
        let compressing = self.compressing.map_or(0, |(input, temporary)| input + temporary);
        self.pending + self.held_bytes() + admitted + compressing
    }

    fn go_on(&mut self, actions: &mut Vec<BatchAction>) {
        if self.compressing.is_none() && self.admitted.is_none() {
            self.decide(actions);
        }
        if self.compressing.is_none() && !self.due && self.admitted.is_none() {
            self.admit(actions);
        }
    }

    fn admit(&mut self, actions: &mut Vec<BatchAction>) {
        let Some(wanting) = self.wanting.take() else { return };
        if wanting.bytes > self.limits.buffer {
            actions.push(BatchAction::PassBy(wanting.segment));
        } else if self.used() + wanting.bytes <= self.limits.buffer {
            self.admitted = Some(wanting);
            actions.push(BatchAction::Admit(wanting.segment));
        } else if self.pending == 0 {
            // Nothing will leave by itself: what is held must go, whatever the plan was.
            self.wanting = Some(wanting);
            self.plan.clear();
            self.release(actions);
            if self.compressing.is_none() && self.pending > 0 {
                self.admit(actions);
            }
        } else {
            self.wanting = Some(wanting);
        }
    }

    fn decide(&mut self, actions: &mut Vec<BatchAction>) {
        if self.due {
            return self.release(actions);
        }
        let Some(last) = self.held.last().copied() else { return };
        if !self.plan.is_empty() && !self.ended {
            return;
        }
        let bytes = self.held_bytes();
        let more = bytes + last.bytes;
        let full = self.pending + more + self.profile.codec.temporary(more) > self.limits.buffer;
        if self.pending == 0 && self.held.len() == 1 && self.profile.link_ns(bytes) <= self.interval_ns {
            self.send_raw(actions);
        } else if self.pending == 0 || full || self.ended {
            if self.pays(bytes) {
                self.due = true;
                self.release(actions);
            } else {
                self.send_raw(actions);
            }
        }
    }

    /// Whether so many bytes are below sooner if they are compressed first, as well as those before were.
    fn pays(&self, bytes: u64) -> bool {
        let (raw, stored) =
            self.seen.iter().fold((0, 0), |sum, sample| (sum.0 + sample.bytes, sum.1 + sample.compressed));
        // Nothing was compressed yet: half is a guess that the first time corrects.
        let expected = if stored >= raw { bytes / 2 } else { part(bytes, stored, raw) };
        self.profile.codec.ns(bytes).saturating_add(self.profile.link_ns(expected))
            < self.profile.link_ns(bytes)
    }

    /// The held ones go, compressed if the temporary buffer ever fits.
    fn release(&mut self, actions: &mut Vec<BatchAction>) {
        let bytes = self.held_bytes();
        let temporary = self.profile.codec.temporary(bytes);
        if self.used() + temporary <= self.limits.buffer && !self.profile.codec.curve.is_empty() {
            self.due = false;
            self.compressing = Some((bytes, temporary));
            actions.push(BatchAction::Compress(self.held.drain(..).map(|held| held.segment).collect()));
        } else if bytes + temporary > self.limits.buffer || self.pending == 0 {
            self.due = false;
            self.send_raw(actions);
        }
    }

    fn send_raw(&mut self, actions: &mut Vec<BatchAction>) {
        self.pending += self.held_bytes();
        actions.extend(self.held.drain(..).map(|held| BatchAction::SendRaw(held.segment)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_tiers::policy::CodecCurve;
    use proptest::prelude::*;

    /// A run in virtual time; the link takes a byte per nanosecond.
    struct Run<'a> {
        real: &'a [Sample],
        batcher: Batcher,
        now: u64,
        /// Bytes that the link has yet to take.
        link: u64,
        /// When the application has its next segment; `None`: it waits.
        next: Option<u64>,
        index: usize,
        /// What is under the codec, and until when.
        codec: Option<(Vec<SegmentId>, u64)>,
        drifted: bool,
    }

    impl Run<'_> {
        fn step(&mut self, event: BatchEvent) {
            for action in self.batcher.step(self.now, event) {
                assert!(self.batcher.used() <= self.batcher.limits.buffer, "over-full");
                match action {
                    BatchAction::Admit(_) | BatchAction::PassBy(_) => {
                        self.index += 1;
                        let interval = self.real.get(self.index).map_or(0, |sample| sample.interval_ns);
                        self.next = Some(self.now + interval);
                        self.step(BatchEvent::Filled);
                    }
                    BatchAction::Compress(ids) => {
                        let bytes = ids.iter().map(|id| self.real[id.0 as usize].bytes).sum();
                        let ns = self.batcher.profile.codec.ns(bytes);
                        // The application waits meanwhile.
                        self.next = self.next.map(|at| at + ns);
                        self.codec = Some((ids, self.now + ns));
                    }
                    BatchAction::SendCompressed(bytes) => self.link += bytes,
                    BatchAction::SendRaw(id) => self.link += self.real[id.0 as usize].bytes,
                    BatchAction::Drifted => self.drifted = true,
                }
            }
        }

        /// What is due now, if anything.
        fn due(&mut self) -> Option<BatchEvent> {
            if let Some((ids, _)) = self.codec.take_if(|(_, at)| *at == self.now) {
                return Some(BatchEvent::Compressed(
                    ids.iter().map(|id| self.real[id.0 as usize].compressed).sum(),
                ));
            }
            let due = self.codec.is_none() && self.next.is_some_and(|at| at <= self.now);
            self.next.take_if(|_| due)?;
            let segment = SegmentId(self.index as u64);
            Some(
                self.real
                    .get(self.index)
                    .map_or(BatchEvent::End, |sample| BatchEvent::Wants(segment, sample.bytes)),
            )
        }
    }

    /// When the link was done, and whether the plan was given up.
    fn run(profile: &Profile, real: &[Sample], limits: BufferLimits) -> (u64, bool) {
        let batcher = Batcher::new(profile.clone(), limits, Objective::FlushEnd);
        let next = Some(real[0].interval_ns);
        let mut run = Run { real, batcher, now: 0, link: 0, next, index: 0, codec: None, drifted: false };
        while !(run.batcher.ended && run.batcher.is_empty()) {
            assert!(run.now < 1_000_000, "does not end: {:?}", run.batcher);
            if let Some(event) = run.due() {
                run.step(event);
                continue;
            }
            run.now += 1;
            // The application of the plan waits until the codec has its room.
            run.next = run.next.map(|at| at + u64::from(run.batcher.due));
            if run.link > 0 {
                run.link -= 1;
                run.step(BatchEvent::Sent(1));
            }
        }
        (run.now, run.drifted)
    }

    fn samples(from: std::ops::Range<u64>) -> impl Strategy<Value = Vec<Sample>> {
        let sample = (from, 1u64..30, 1u64..100).prop_map(|(interval_ns, bytes, percent)| Sample {
            interval_ns,
            bytes,
            compressed: (bytes * percent / 100).max(1),
        });
        prop::collection::vec(sample, 1..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 300 }, ..ProptestConfig::default() })]
        #[test]
        fn a_plan_is_obeyed_to_the_nanosecond(samples in samples(1..40), buffer in 60u64..120) {
            let codec = CodecCurve { curve: vec![(1, 10), (200, 30)], temporary_per_mille: 500 };
            let profile = Profile { samples: samples.clone(), codec, rate: 1_000_000_000 };
            let limits = BufferLimits { buffer, most_together: 8, grain_ns: 1 };
            let plan = schedule(&profile, &limits, Objective::FlushEnd).unwrap_or(holdfast_tiers::policy::Plan {
                choices: Vec::new(), application_ns: 0, flush_ns: 0,
            });
            let (flushed, drifted) = run(&profile, &samples, limits);
            prop_assert_eq!((flushed, drifted), (plan.flush_ns, false));
        }

        #[test]
        fn without_a_profile_everything_arrives(samples in samples(0..40), buffer in 10u64..120) {
            let codec = CodecCurve { curve: vec![(1, 10), (200, 30)], temporary_per_mille: 500 };
            let profile = Profile { samples: Vec::new(), codec, rate: 1_000_000_000 };
            run(&profile, &samples, BufferLimits { buffer, most_together: 8, grain_ns: 1 });
        }
    }

    #[test]
    fn a_run_that_is_different_is_no_longer_planned() {
        let codec = CodecCurve { curve: vec![(1, 10), (200, 30)], temporary_per_mille: 0 };
        let sample = Sample { interval_ns: 10, bytes: 20, compressed: 5 };
        let profile = Profile { samples: vec![sample; 20], codec, rate: 1_000_000_000 };
        let limits = BufferLimits { buffer: 100, most_together: 8, grain_ns: 1 };
        assert!(!run(&profile, &profile.samples, limits).1);
        let slower = vec![Sample { interval_ns: 15, ..sample }; 20];
        assert!(run(&profile, &slower, limits).1);
    }
}
