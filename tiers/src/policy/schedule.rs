//! Which segments go down raw, and which are accumulated and compressed together: the best plan for a profile.
//!
//! Used by the server of objects (`cli/src/serve/ensemble.rs`) and by the simulator. The
//! problem of "accumulated compression" (HiPC 2023): a buffer of a given size, a link, a codec that is slow on little
//! data. Its algorithm keeps one state per number of segments and gives up what does not fit; this one keeps all states
//! of which none is better in both times (when the application is done, when the link is), and waits until there is
//! room: that is optimal, for what can be done from a state can be done no later from one that is not later in either.
//! Invariant: equals the exhaustive search (the tests have 300 instances, both objectives).

use super::profile::Profile;
use super::rates::drained_ns;

/// What is done with the next segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// One goes as it is.
    Raw,
    /// So many are kept, compressed together with the last one, and go.
    Compress(usize),
}

/// What is to be early; of equal plans the one whose other time is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Objective {
    /// All bytes are below.
    FlushEnd,
    /// The application has done its last segment.
    ApplicationEnd,
}

/// The buffer, and how exact a plan has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLimits {
    /// Bytes of buffer.
    pub buffer: u64,
    /// Most segments compressed together.
    pub most_together: usize,
    /// States whose application times differ by less count as one: 1 is exact.
    pub grain_ns: u64,
}

/// A plan, and the times that it will take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The choices, one behind the other; those of `Compress` stand for several segments.
    pub choices: Vec<Choice>,
    /// When the application is done, from the start of the run.
    pub application_ns: u64,
    /// When the link is.
    pub flush_ns: u64,
}

impl Plan {
    /// The times of given choices; `None`: something does not fit in the buffer.
    pub fn of(profile: &Profile, limits: &BufferLimits, choices: Vec<Choice>) -> Option<Plan> {
        let (mut first, mut times) = (0, (0, 0));
        for &choice in &choices {
            times = after(profile, limits, first, choice, times)?;
            first += choice.segments();
        }
        (first == profile.samples.len()).then_some(Plan {
            choices,
            application_ns: times.0,
            flush_ns: times.1,
        })
    }
}

impl Choice {
    /// Of how many segments it is.
    fn segments(self) -> usize {
        if let Choice::Compress(several) = self { several } else { 1 }
    }
}

#[derive(Clone, Copy)]
struct Node {
    application: u64,
    flush: u64,
    choice: Choice,
    /// Index among the nodes before the choice's first segment.
    before: usize,
}

/// The time from which on there is room for so many bytes: when enough of what the link has yet to take has gone.
fn room_at(profile: &Profile, limits: &BufferLimits, (now, flush): (u64, u64), need: u64) -> Option<u64> {
    let pending = drained_ns(limits.buffer.checked_sub(need)?, profile.rate);
    Some(now.max(flush.saturating_sub(pending)))
}

/// The times after the segments from `first` on were done in this way; `None`: they do not fit in the buffer.
fn after(
    profile: &Profile,
    limits: &BufferLimits,
    first: usize,
    choice: Choice,
    (application, flush): (u64, u64),
) -> Option<(u64, u64)> {
    let (mut now, mut bytes, mut stored) = (application, 0u64, 0u64);
    for sample in profile.samples.get(first..first + choice.segments())? {
        bytes = bytes.checked_add(sample.bytes)?;
        stored = stored.checked_add(if choice == Choice::Raw { sample.bytes } else { sample.compressed })?;
        now = room_at(profile, limits, (now.saturating_add(sample.interval_ns), flush), bytes)?;
    }
    if choice != Choice::Raw {
        now = room_at(profile, limits, (now, flush), bytes.checked_add(profile.codec.temporary(bytes))?)?;
        now = now.checked_add(profile.codec.ns(bytes))?;
    }
    Some((now, flush.max(now).saturating_add(profile.link_ns(stored))))
}

/// Keeps of some nodes those of which none is better in both times: by application time, ascending, with flush times
/// that fall.
fn front(mut nodes: Vec<Node>, grain: u64) -> Vec<Node> {
    nodes.sort_by_key(|node| (node.application, node.flush));
    let mut kept: Vec<Node> = Vec::new();
    for node in nodes {
        match kept.last_mut() {
            Some(last) if node.flush >= last.flush => {}
            Some(last) if node.application / grain == last.application / grain => *last = node,
            _ => kept.push(node),
        }
    }
    kept
}

/// The best plan for all segments of a profile. `None`: one of them is larger than the buffer.
pub fn schedule(profile: &Profile, limits: &BufferLimits, objective: Objective) -> Option<Plan> {
    let count = profile.samples.len();
    let start = Node { application: 0, flush: 0, choice: Choice::Raw, before: 0 };
    let mut found: Vec<Vec<Node>> = vec![Vec::new(); count + 1];
    let mut fronts: Vec<Vec<Node>> = vec![vec![start]];
    for first in 0..count {
        let together = limits.most_together.min(count - first);
        let choices = std::iter::once(Choice::Raw).chain((1..=together).map(Choice::Compress));
        for choice in choices {
            let next = first + choice.segments();
            let mut fits = false;
            for (before, node) in fronts[first].iter().enumerate() {
                let times = (node.application, node.flush);
                if let Some((application, flush)) = after(profile, limits, first, choice, times) {
                    fits = true;
                    found[next].push(Node { application, flush, choice, before });
                }
            }
            // What is too much for the buffer is so from every state, and more is too.
            if !fits && choice != Choice::Raw {
                break;
            }
        }
        fronts.push(front(std::mem::take(&mut found[first + 1]), limits.grain_ns.max(1)));
    }
    let best = fronts[count].iter().enumerate().min_by_key(|(_, node)| match objective {
        Objective::FlushEnd => (node.flush, node.application),
        Objective::ApplicationEnd => (node.application, node.flush),
    });
    best.map(|(index, node)| Plan {
        choices: trace(&fronts, index),
        application_ns: node.application,
        flush_ns: node.flush,
    })
}

/// The choices that lead to a node of the last front.
fn trace(fronts: &[Vec<Node>], mut index: usize) -> Vec<Choice> {
    let (mut segments, mut choices) = (fronts.len() - 1, Vec::new());
    while segments > 0 {
        let node = fronts[segments][index];
        choices.push(node.choice);
        segments -= node.choice.segments();
        index = node.before;
    }
    choices.reverse();
    choices
}

#[cfg(test)]
mod tests {
    use super::super::profile::{CodecCurve, Sample};
    use super::*;
    use proptest::prelude::*;

    /// The link as a queue of transfers, the buffer as what is in it: nothing of the formulas above.
    #[derive(Clone)]
    struct Run<'a> {
        profile: &'a Profile,
        buffer: u64,
        now: u64,
        /// Start and bytes of what has yet to go over the link, and its end.
        queue: Vec<(u64, u64)>,
        end: u64,
        held: u64,
    }

    impl Run<'_> {
        /// Bytes in the queue that are not below at a time; a link of one byte per nanosecond.
        fn pending(&self, at: u64) -> u64 {
            self.queue.iter().map(|&(start, bytes)| bytes - at.saturating_sub(start).min(bytes)).sum()
        }

        fn wait_for(&mut self, bytes: u64) -> bool {
            while self.pending(self.now) + self.held + bytes > self.buffer {
                if self.pending(self.now) == 0 {
                    return false;
                }
                self.now += 1;
            }
            true
        }

        fn send(&mut self, bytes: u64) {
            let start = self.end.max(self.now);
            self.queue.push((start, bytes));
            self.end = start + bytes;
            self.held = 0;
        }
    }

    /// The best time of an objective over all ways to go on, with pauses that nothing asks for, too.
    fn search(run: &Run<'_>, first: usize, pauses: &[u64], best: &mut (u64, u64)) {
        let samples = &run.profile.samples[first..];
        if samples.is_empty() {
            *best = (best.0.min(run.end), best.1.min(run.now));
            return;
        }
        for &pause in pauses {
            let mut raw = run.clone();
            raw.now += pause + samples[0].interval_ns;
            if raw.wait_for(samples[0].bytes) {
                raw.send(samples[0].bytes);
                search(&raw, first + 1, pauses, best);
            }
            let mut kept = run.clone();
            kept.now += pause;
            for (index, sample) in samples.iter().enumerate() {
                kept.now += sample.interval_ns;
                if !kept.wait_for(sample.bytes) {
                    break;
                }
                kept.held += sample.bytes;
                let mut run = kept.clone();
                if run.wait_for(run.profile.codec.temporary(run.held)) {
                    run.now += run.profile.codec.ns(run.held);
                    run.send(samples[..=index].iter().map(|sample| sample.compressed).sum());
                    search(&run, first + index + 1, pauses, best);
                }
            }
        }
    }

    fn instance() -> impl Strategy<Value = (Profile, u64)> {
        let sample = (0u64..40, 1u64..30, 1u64..100).prop_map(|(interval_ns, bytes, percent)| Sample {
            interval_ns,
            bytes,
            compressed: (bytes * percent / 100).max(1),
        });
        let codec = (1u64..30, 0u64..30, prop::sample::select(vec![0u64, 500, 1000]));
        (prop::collection::vec(sample, 1..8), codec, 20u64..120).prop_map(
            |(samples, (fixed, more, temporary), buffer)| {
                let curve = vec![(1, fixed), (200, fixed + more)];
                let codec = CodecCurve { curve, temporary_per_mille: temporary };
                (Profile { samples, codec, rate: 1_000_000_000 }, buffer)
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 300 }, ..ProptestConfig::default() })]
        #[test]
        fn equals_the_exhaustive_search((profile, buffer) in instance()) {
            let limits = BufferLimits { buffer, most_together: usize::MAX, grain_ns: 1 };
            // Waiting for no reason is tried where it does not take too long.
            let pauses: &[u64] = if profile.samples.len() <= 4 { &[0, 3, 17] } else { &[0] };
            let start = Run { profile: &profile, buffer, now: 0, queue: Vec::new(), end: 0, held: 0 };
            let mut best = (u64::MAX, u64::MAX);
            search(&start, 0, pauses, &mut best);
            let flush = schedule(&profile, &limits, Objective::FlushEnd).map_or(u64::MAX, |plan| plan.flush_ns);
            let done = schedule(&profile, &limits, Objective::ApplicationEnd);
            prop_assert_eq!((flush, done.map_or(u64::MAX, |plan| plan.application_ns)), best);
        }

        #[test]
        fn a_plan_takes_the_times_that_it_says((profile, buffer) in instance(), grain_ns in 1u64..20) {
            let limits = BufferLimits { buffer, most_together: 3, grain_ns };
            if let Some(plan) = schedule(&profile, &limits, Objective::FlushEnd) {
                prop_assert_eq!(Plan::of(&profile, &limits, plan.choices.clone()), Some(plan));
            }
        }
    }
}
