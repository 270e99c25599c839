//! Watches what the program writes, from a cut to the next one.
//!
//! During the flush its thread ([`sampler`]) feeds the recorder, says when the flush must hurry, and stops the
//! program while there is no room for more copies. After the flush it goes on slowly, so that it is known which pages
//! are written late and which never.
//!
//! Invariants: the program is never stopped once [`WriteMonitor::flush_done`] or [`WriteMonitor::finish`] has
//! returned, or the monitor is dropped; a scan that was begun before [`WriteMonitor::pause`] is not recorded after
//! it. Lock order: `gate`, then `state`.

mod sampler;
mod state;

use super::write_rate::WriteRate;
use holdfast_image::PageCount;
use holdfast_image::manifest::AccessCounts;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_pager::{Budget, EpochAccess, FlushQueue, Recorder};
use holdfast_process::{Class, Members, Seen};
use parking_lot::{Condvar, Mutex};
use sampler::Sampler;
pub use state::Scene;
use state::{Shared, State};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What a flush cost the program.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Costs {
    /// First writes while it went on.
    pub writes: AccessCounts,
    /// Most copies at a time.
    pub copies_peak: PageCount,
    /// How long the program was stopped, and how often.
    pub held: Duration,
    /// See `held`.
    pub holds: u64,
}

/// See the head of the file.
pub struct WriteMonitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl WriteMonitor {
    /// Starts at a cut.
    ///
    /// # Errors
    /// EAGAIN: no thread can be made.
    pub fn start(mut scene: Scene) -> io::Result<WriteMonitor> {
        let gate = scene.parked.take().map(|parked| (parked, scene.begun));
        let state = State {
            recorder: Recorder::new(&scene.dirty, &scene.frozen),
            budget: Budget::new(scene.limit).within(scene.room),
            flushing: true,
            paused: false,
            ended: false,
            generation: 0,
            held: Duration::ZERO,
            holds: u64::from(gate.is_some()),
            write_rate: scene.write_rate,
        };
        let shared = Arc::new(Shared {
            scene,
            queue: OnceLock::new(),
            state: Mutex::new(state),
            bell: Condvar::new(),
            gate: Mutex::new(gate),
            urgent: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new().name("monitor".into()).spawn(move || {
            if let Some(sampler) = Sampler::new(&own) {
                sampler.run();
            }
        })?;
        Ok(WriteMonitor { shared, thread: Some(thread) })
    }

    /// What is being flushed, and in which order.
    pub fn set_queue(&self, queue: Arc<FlushQueue>) {
        let _ = self.shared.queue.set(queue);
    }
    /// These pages are stored.
    pub fn stored(&self, run: PageRun) {
        self.shared.state.lock().recorder.stored(run);
    }
    /// Whether the flush should do without compression.
    pub fn is_urgent(&self) -> bool {
        self.shared.urgent.load(Ordering::Relaxed)
    }
    /// Whether it is these address spaces that are watched.
    pub fn is_of(&self, members: &Members) -> bool {
        self.shared.scene.members.are(members)
    }
    /// These pages were written, as was found out elsewhere.
    pub fn written(&self, pages: &PageSet) {
        let at_us = self.shared.at_us();
        let mut state = self.shared.state.lock();
        pages.runs().iter().for_each(|run| state.recorder.written(*run, at_us));
    }
    /// How the first write to a page went, as engine `slots` saw it.
    pub fn fault(&self, seen: &Seen) {
        let at_us = self.shared.at_us();
        let mut state = self.shared.state.lock();
        match seen.class {
            Class::Wait => state.recorder.waited(seen.page, at_us),
            Class::Cow => state.recorder.slot(seen.page, at_us),
            // A page opened along with its neighbour: whether it is written the samples will tell.
            Class::Avoided if seen.predicted => {}
            Class::Avoided => {
                state.recorder.written(PageRun { start: seen.page, pages: PageCount(1) }, at_us);
            }
        }
    }
    /// Nothing is recorded until [`WriteMonitor::go_on`]: a cut is about to be made.
    pub fn pause(&self) {
        let mut state = self.shared.state.lock();
        state.paused = true;
        state.generation += 1;
    }
    /// The cut failed: the epoch goes on.
    pub fn go_on(&self) {
        self.shared.state.lock().paused = false;
        self.shared.bell.notify_all();
    }
    /// All pages are stored, or there will be no image: the program is stopped no more. Returns what it cost.
    pub fn flush_done(&self) -> Costs {
        let at_us = self.shared.at_us();
        {
            let mut state = self.shared.state.lock();
            state.flushing = false;
            state.recorder.flush_done(at_us);
            if self.shared.scene.limit.is_some_and(|limit| state.recorder.copies_peak() > limit) {
                state.write_rate.overran();
            }
        }
        self.shared.resume();
        self.shared.bell.notify_all();
        let state = self.shared.state.lock();
        Costs {
            writes: state.recorder.flush_counts(),
            copies_peak: state.recorder.copies_peak(),
            held: state.held,
            holds: state.holds,
        }
    }
    /// What is known of the program's speed.
    pub fn write_rate(&self) -> WriteRate {
        self.shared.state.lock().write_rate
    }
    /// The epoch is over; `dirty`: what the cut has found written.
    pub fn finish(mut self, dirty: &PageSet) -> EpochAccess {
        self.flush_done();
        self.written(dirty);
        self.end();
        let mut state = self.shared.state.lock();
        std::mem::take(&mut state.recorder).finish()
    }
    fn end(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.ended = true;
            state.flushing = false;
        }
        self.shared.resume();
        self.shared.bell.notify_all();
        if let Some(thread) = self.thread.take() {
            // It ends after the sample under way, and cannot panic: there is nothing to be learned from the result.
            let _ = thread.join();
        }
    }
}

impl Drop for WriteMonitor {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::record::InjectArea;
    use holdfast_image::{Addr, PAGE_SIZE};
    use holdfast_pager::Order;
    use holdfast_process::{Target, Tracer, Tracking};
    use std::time::Instant;

    fn set(start: u64, pages: u64) -> PageSet {
        PageSet::from(vec![PageRun { start: Addr(start * PAGE_SIZE), pages: PageCount(pages) }])
    }

    #[test]
    fn an_epoch_is_recorded_from_cut_to_cut() {
        let members = || {
            let pid = std::process::id().cast_signed();
            let tracking = Arc::new(Tracking::default());
            Members::new(Target { pid, space: 0, area: InjectArea::default(), tracking }, Vec::new())
        };
        let own = members();
        let dirty = set(100, 10);
        let monitor = WriteMonitor::start(Scene {
            members: own.clone(),
            tracer: Arc::new(Tracer::spawn().unwrap()),
            frozen: dirty.clone(),
            dirty,
            others: set(200, 10),
            writers: 1,
            limit: Some(PageCount(5)),
            room: None,
            begun: Instant::now(),
            write_rate: WriteRate::default(),
            parked: None,
        })
        .unwrap();
        monitor.set_queue(Arc::new(FlushQueue::new(&set(100, 10), Order::History, None, &[])));
        assert!(monitor.is_of(&own));
        assert!(!monitor.is_of(&members()));
        monitor.written(&set(100, 2));
        monitor.stored(set(100, 5).runs()[0]);
        monitor.written(&set(100, 3));
        let costs = monitor.flush_done();
        let writes = AccessCounts { cow: 2, avoided: 1, untouched: 7, ..AccessCounts::default() };
        assert_eq!((costs.writes, costs.copies_peak, costs.holds), (writes, PageCount(2), 0));
        monitor.pause();
        monitor.go_on();
        let ended = monitor.finish(&set(104, 100));
        assert_eq!(ended.counts(), AccessCounts { after: 6, untouched: 1, ..writes });
        assert!(ended.get(Addr(203 * PAGE_SIZE)).is_some_and(|page| !page.flushed));
    }
}
