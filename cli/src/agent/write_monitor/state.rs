//! What a [`super::WriteMonitor`] and its thread share: what is watched, what was seen of it, and the program while it
//! is stopped. Lock order: `gate`, then `state`.

use crate::agent::write_rate::WriteRate;
use holdfast_image::PageCount;
use holdfast_image::page_set::PageSet;
use holdfast_pager::{Budget, FlushQueue, Recorder};
use holdfast_process::{Members, Parked, Tracer};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What is watched.
pub struct Scene {
    /// The programs.
    pub members: Members,
    /// Stops it.
    pub tracer: Arc<Tracer>,
    /// Pages of the flush.
    pub dirty: PageSet,
    /// Those of them whose first write costs a copy.
    pub frozen: PageSet,
    /// All other pages that the program has.
    pub others: PageSet,
    /// Threads that may write at the same time.
    pub writers: u32,
    /// Most copies; none: no bound.
    pub limit: Option<PageCount>,
    /// Most copies that there is memory for, where that is limited.
    pub room: Option<PageCount>,
    /// When the cut was made.
    pub begun: Instant,
    /// What is known of the program's speed and of ours.
    pub write_rate: WriteRate,
    /// The program, if the cut has left it stopped.
    pub parked: Option<Parked>,
}

/// What the watcher has seen.
pub struct State {
    /// The epoch that runs.
    pub recorder: Recorder,
    /// When the program must be stopped.
    pub budget: Budget,
    /// Pages are still being stored.
    pub flushing: bool,
    /// A cut is about to be made.
    pub paused: bool,
    /// The epoch is over.
    pub ended: bool,
    /// Changes whenever samples under way become invalid.
    pub generation: u64,
    /// How long the program was stopped.
    pub held: Duration,
    /// How often.
    pub holds: u64,
    /// How fast it writes.
    pub write_rate: WriteRate,
}

/// What the monitor and its thread share.
pub struct Shared {
    /// What is watched.
    pub scene: Scene,
    /// What is still to be stored: copied pages are moved up in it when room is short. Comes after the start.
    pub queue: OnceLock<Arc<FlushQueue>>,
    /// What changes.
    pub state: Mutex<State>,
    /// Rung when the state changes.
    pub bell: Condvar,
    /// The program is stopped as long as something is in here.
    pub gate: Mutex<Option<(Parked, Instant)>>,
    /// The flush should do without compression.
    pub urgent: AtomicBool,
}

impl Shared {
    /// Time since the cut.
    pub fn at_us(&self) -> u64 {
        u64::try_from(self.scene.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Stops the program, unless the flush is over.
    pub fn stop(&self) -> bool {
        let mut gate = self.gate.lock();
        if gate.is_some() || !self.state.lock().flushing {
            return gate.is_some();
        }
        let begun = Instant::now();
        match self.scene.tracer.park(self.scene.members.targets()) {
            Ok(parked) => {
                *gate = Some((parked, Instant::now()));
                let mut state = self.state.lock();
                state.holds += 1;
                state.write_rate.parked_in(begun.elapsed());
                true
            }
            Err(error) => {
                tracing::debug!("the program could not be stopped: {error}");
                false
            }
        }
    }

    /// Resumes it.
    pub fn resume(&self) {
        let mut gate = self.gate.lock();
        if let Some((parked, since)) = gate.take() {
            drop(parked);
            self.state.lock().held += since.elapsed();
        }
    }
}
